"""Byte-level BPE through the `tokenizers` library: trained here or read from a `tokenizer.json`.

What is special is an id, never a text: a document that quotes "<|endoftext|>" does not end there.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from chomp.errors import DataError, message

EOS_TOKEN = "<|endoftext|>"
MIN_BPE_VOCAB_SIZE = 257  # every byte, and the end of a document


class BpeTokenizer:
    """A byte-level BPE vocabulary. Every text has ids: unknown characters fall back to bytes."""

    def __init__(self, tokenizer: HuggingFaceTokenizer, *, eos_id: int) -> None:
        self._tokenizer = tokenizer
        self._added = tokenizer.get_added_tokens_decoder()
        self.vocab_size: int = tokenizer.get_vocab_size(with_added_tokens=True)
        self.eos_id = eos_id
        if eos_id not in self._added or not self._added[eos_id].special:
            special = [
                f"{i} ({token.content})" for i, token in self._added.items() if token.special
            ]
            raise DataError(
                message(
                    given=f"end-of-document id {eos_id}, which is not a special token",
                    allowed=f"an id that no text is given: {', '.join(special) or 'there is none'}",
                    fix="pass the id of the tokenizer's own end-of-text token",
                )
            )
        # Special tokens are read out of texts unless told otherwise, and documents quote them.
        tokenizer.encode_special_tokens = True

    @staticmethod
    def from_json(text: str, *, eos_token: str = EOS_TOKEN, source: str = "text") -> "BpeTokenizer":
        """The tokenizer in the text of a `tokenizer.json`; `source` is named in errors."""
        tokenizer = parsed_rules(text, source=source)
        eos_id = tokenizer.token_to_id(eos_token)
        if eos_id is None:
            raise DataError(
                message(
                    given=f"tokenizer {source} without a token {eos_token!r}",
                    allowed="a vocabulary that has an end-of-document token",
                    fix="name the one it has",
                )
            )
        return BpeTokenizer(tokenizer, eos_id=eos_id)

    def to_json(self) -> str:
        """The text of a `tokenizer.json`."""
        return str(self._tokenizer.to_str())

    @property
    def content_hash(self) -> str:
        """SHA-256 of the vocabulary, merges and rules, and of the end-of-document id."""
        rules = json.dumps(json.loads(self.to_json()), sort_keys=True)
        return hashlib.sha256(f"{rules} eos={self.eos_id}".encode()).hexdigest()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, on all cores."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """The text, without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def token_bytes(self) -> list[bytes | None]:
        """Raw bytes of each id, by the inverse of the byte-level alphabet; None for specials."""
        byte_of = _byte_of_character()
        table: list[bytes | None] = [None] * self.vocab_size
        for token, token_id in self._tokenizer.get_vocab(with_added_tokens=True).items():
            added = self._added.get(token_id)
            if added is not None:
                # Added tokens are written as plain text, outside the alphabet.
                table[token_id] = None if added.special else token.encode()
            elif byte_of.keys() >= set(token):  # else no text is ever given this id
                table[token_id] = bytes(byte_of[character] for character in token)
        return table


def parsed_rules(text: str, *, source: str) -> HuggingFaceTokenizer:
    """The tokenizer in the text of a `tokenizer.json`, which must be a byte-level one."""
    try:
        tokenizer = HuggingFaceTokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception
        raise DataError(
            message(
                given=f"tokenizer {source}: {error}",
                allowed="the JSON that the tokenizers library writes",
                fix="restore the file or build the tokenizer again",
            )
        ) from error
    missing = _byte_of_character().keys() - tokenizer.get_vocab(with_added_tokens=False).keys()
    if missing:
        raise DataError(
            message(
                given=f"tokenizer {source} without ids for {len(missing)} of the 256 bytes",
                allowed="a byte-level vocabulary, in which every text has ids",
                fix="use a byte-level BPE (as GPT-2 and Llama 3 have), or train one",
            )
        )
    # A limit meant for a model's input would cut documents short without a word.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def train_bpe(texts: Iterable[str], *, vocab_size: int) -> BpeTokenizer:
    """A byte-level BPE of `vocab_size` ids trained on `texts`, the same for the same texts."""
    if vocab_size < MIN_BPE_VOCAB_SIZE:
        raise DataError(
            message(
                given=f"a BPE vocabulary of {vocab_size}",
                allowed=f"{MIN_BPE_VOCAB_SIZE} ids or more (every byte, the end of a document)",
                fix="raise vocab_size, or use the byte tokenizer",
            )
        )
    tokenizer = HuggingFaceTokenizer(models.BPE())
    # No prefix space: a document's first word is not another word than its second.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return BpeTokenizer.from_json(tokenizer.to_str(), source="as trained")


def _byte_of_character() -> dict[str, int]:
    """The byte-level alphabet read backwards.

    Printable Latin-1 characters stand for their own byte; the other bytes, in order, for the
    characters from U+0100 on.
    """
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in set(own)]
    return {
        **{chr(byte): byte for byte in own},
        **{chr(256 + i): byte for i, byte in enumerate(others)},
    }
