"""What chomp asks of a tokenizer.

Identity is a hash of the content, never a name: two tokenizers with one hash give the same ids.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int


@runtime_checkable
class Tokenizer(Protocol):
    """Text to token ids and back. The end of a document is an id, never a piece of text."""

    @property
    def vocab_size(self) -> int:
        """Number of ids; every id is below it."""
        ...

    @property
    def eos_id(self) -> int:
        """The id that ends a document."""
        ...

    @property
    def content_hash(self) -> str:
        """SHA-256 of everything that decides which ids a text gets."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without an end-of-document id."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids; bytes that are not UTF-8 become the replacement character."""
        ...

    def token_bytes(self) -> list[bytes | None]:
        """The raw bytes behind each id; None for ids that stand for no text (end of document)."""
        ...


def bytes_per_token(tokenizer: Tokenizer) -> Int[np.ndarray, " V"]:
    """Bytes of text behind each id; 0 for specials, which bits per byte leaves out."""
    return np.asarray([len(raw or b"") for raw in tokenizer.token_bytes()], np.int32)
