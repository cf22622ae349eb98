"""What chomp asks of a tokenizer.

Identity is a hash of the content, never a name: two tokenizers with one hash give the same ids.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int

# Axes: V vocabulary.


@runtime_checkable
class Tokenizer(Protocol):
    """Text to token ids and back. Where a document ends or begins is an id, never a text."""

    @property
    def vocab_size(self) -> int:
        """Number of ids; every id is below it."""
        ...

    @property
    def eos_id(self) -> int:
        """The id that ends a document."""
        ...

    @property
    def bos_id(self) -> int | None:
        """The id put in front of a document; None: nothing is."""
        ...

    @property
    def content_hash(self) -> str:
        """SHA-256 of everything that decides which ids a text gets."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        """Ids of each text, without the ids that begin and end a document.

        A text that has no ids of its own (an unknown character) is a `DataError`.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids; bytes that are not UTF-8 become the replacement character."""
        ...

    def token_bytes(self) -> list[bytes | None]:
        """The raw bytes behind each id; None for ids that stand for no text (end of document)."""
        ...


_tables: dict[str, np.ndarray] = {}  # by content hash, which decides the bytes too


def bytes_per_token(tokenizer: Tokenizer) -> Int[np.ndarray, " V"]:
    """Bytes of text behind each id; 0 for specials, which bits per byte leaves out.

    Made once for each content hash and shared by all callers, so it cannot be written to.
    """
    key = tokenizer.content_hash
    if key not in _tables:
        table = np.asarray([len(raw or b"") for raw in tokenizer.token_bytes()], np.int32)
        table.flags.writeable = False
        _tables[key] = table
    return _tables[key]
