"""The byte tokenizer: one id per byte, one more for the end of a document. Nothing to train."""

import hashlib
from collections.abc import Sequence

from chomp.tokenize.unencodable import lone_surrogate

EOS_ID = 256


class ByteTokenizer:
    """Ids 0-255 are the bytes of the UTF-8 text; 256 ends a document. None begins one."""

    vocab_size = 257
    eos_id = EOS_ID
    bos_id: int | None = None
    can_encode_any_text = True

    @property
    def content_hash(self) -> str:
        """A constant: there is only one byte tokenizer."""
        return hashlib.sha256(b"chomp byte tokenizer: id = byte, eos = 256").hexdigest()

    def encode_batch(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        """The UTF-8 bytes of each text."""
        try:
            return [list(text.encode()) for text in texts]
        except UnicodeEncodeError as error:
            refusals = (lone_surrogate(i, text) for i, text in enumerate(texts))
            raise next(filter(None, refusals)) from error

    def decode(self, ids: Sequence[int]) -> str:
        """The bytes as text; ids that stand for no byte are left out."""
        # A model may have more ids than its tokenizer, and an untrained one samples them.
        return bytes(i for i in ids if i < EOS_ID).decode(errors="replace")

    def token_bytes(self) -> list[bytes | None]:
        """Each byte for itself, nothing for the end of a document."""
        return [*(bytes([i]) for i in range(256)), None]
