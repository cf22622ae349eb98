"""Any vocabulary that the `tokenizers` library reads: the `tokenizer.json` of a model, or our own.

What is special is an id, never a text: a document that quotes "<|endoftext|>" does not end there.
And nothing is lost in silence: a character that has no id is an error, not an unknown token.
"""

import hashlib
import json
import re
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer as HuggingFaceTokenizer

from chomp.errors import DataError
from chomp.storage import StrPath
from chomp.tokenize.piece_rules import BYTE_PIECES, PieceRules
from chomp.tokenize.quoting import quotable, split_quotes
from chomp.tokenize.special_ids import begin_id, end_id
from chomp.tokenize.trial import read_rules
from chomp.tokenize.unencodable import lone_surrogate, unencodable

# The library takes 160 bytes for each byte of a text. Longer texts are encoded in pieces.
MAX_TEXT = 1 << 20
# Tables of all ids are made. The largest vocabularies in use have a quarter of a million ids.
MAX_IDS = 1 << 24
_CUT_WINDOW = 1 << 16  # where to look for the start of a word
_WORD_START = re.compile(r"(?<=\S) (?=\S)")


class JsonTokenizer:
    """The tokenizer in the text of a `tokenizer.json`; `source` names it in errors.

    `eos` and `bos` are ids or texts of special tokens; None is the usual end, and no beginning.
    Length limits, padding, dropout and templates that add special tokens are left out.
    """

    def __init__(
        self,
        text: str,
        *,
        eos: int | str | None = None,
        bos: int | str | None = None,
        source: str = "text",
    ) -> None:
        self._tokenizer = _parsed(text, source=source)
        self._text = str(self._tokenizer.to_str())
        self._added = self._tokenizer.get_added_tokens_decoder()
        specials = {i: token.content for i, token in self._added.items() if token.special}
        self.eos_id = end_id(eos, specials, source=source)
        self.bos_id = begin_id(bos, specials, source=source)
        vocab = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size: int = max(vocab.values()) + 1
        if self.vocab_size > MAX_IDS:
            raise DataError(
                f"tokenizer {source} has the id {self.vocab_size - 1}",
                allowed=f"ids below {MAX_IDS}",
                fix="number its pieces from 0, without gaps",
            )
        # Special tokens are read out of texts unless told otherwise, and documents quote them.
        self._tokenizer.encode_special_tokens = True
        rules = json.loads(self._text)
        self._pieces = PieceRules.of(rules)
        self.can_encode_any_text = self._pieces.every_text_has_ids(vocab)
        self._never_given = self._guard(rules["model"], set(specials.values()))

    def to_json(self) -> str:
        """The text of a `tokenizer.json`."""
        return self._text

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of the vocabulary, merges and rules, and of the ids that end and begin."""
        rules = json.dumps(json.loads(self._text), sort_keys=True)
        bos = "" if self.bos_id is None else f" bos={self.bos_id}"
        return hashlib.sha256(f"{rules} eos={self.eos_id}{bos}".encode()).hexdigest()

    def encode_batch(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        """Ids of each text, on all cores."""
        if all(len(text) <= MAX_TEXT for text in texts):
            return self._encode(texts)
        return [self._encode_in_pieces(index, text) for index, text in enumerate(texts)]

    def _encode_in_pieces(self, index: int, text: str) -> "array[int]":
        """Ids of a long text, cut in front of words; only a text without words gets other ids."""
        ids = array("I")
        for start, end in pieces_of(text):
            if start > 0 and text[start] == " ":
                # It belongs to the word behind it, unless the rules put one in front of any text.
                around = text[start - 1 : start + 2]
                parts = self._encode([around, around[0], around[1:], around[2:]], index, start - 1)
                start += parts[0] == parts[1] + parts[3] != parts[1] + parts[2]
            ids.extend(self._encode([text[start:end]], index, start)[0])
        return ids

    def _encode(self, texts: Sequence[str], index: int = 0, offset: int = 0) -> list[list[int]]:
        """Ids of each text. `index` and `offset` say where the first one stands, for errors."""
        try:
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except BaseException as error:
            if not _is_of_library(error):
                raise
            raise self._refusal(texts, error, index, offset) from error
        batch = [encoding.ids for encoding in encodings]
        if self._never_given:
            self._refuse_unknown(texts, batch, index, offset)
        return batch

    def decode(self, ids: Sequence[int]) -> str:
        """The text, without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def token_bytes(self) -> list[bytes | None]:
        """Raw bytes of each id; None for special tokens and for the unknown one.

        Together the ids of a text are the bytes of that text as the rules normalise it. For a
        byte-level vocabulary that is the text itself. A blank that rules put in front of a document
        (SentencePiece does, and behind added tokens too) counts as one byte more, and a "▁" written
        in a document as the blank it becomes. What rules throw away (the white space between the
        words of a WordPiece, case, accents) is not counted.
        """
        table: list[bytes | None] = [None] * self.vocab_size
        model_vocab = self._tokenizer.get_vocab(with_added_tokens=False)
        for piece, token_id in model_vocab.items():
            if piece != self._pieces.unknown:
                table[token_id] = self._pieces.raw_bytes(piece)
        for token_id, token in self._added.items():
            # Added tokens are written as plain text, outside the alphabet. One that is a piece too
            # ("▁▁" in Gemma) is met as that piece.
            if token.special:
                table[token_id] = None
            elif self._pieces.is_byte_level or token.content not in model_vocab:
                table[token_id] = token.content.encode()
        return table

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as its JSON: the library's own pickle forgets how special tokens are read."""
        return _from_parts, (self._text, self.eos_id, self.bos_id)

    def _guard(self, model: dict[str, Any], specials: set[str]) -> frozenset[int]:
        """Cut quoted tokens apart; the ids that have to be looked for in what comes out."""
        pieces, names = self._pieces, set(specials)
        if pieces.unknown is not None:
            names.add(pieces.unknown)
        if pieces.has_byte_fallback:
            names.update(BYTE_PIECES)
        quoted = quotable(names, model)
        split_quotes(self._tokenizer, quoted)
        looked_for = {name for name in quoted if len(name) == 1}  # these cannot be cut
        if not self.can_encode_any_text and pieces.unknown is not None:
            looked_for.add(pieces.unknown)
        elif not self.can_encode_any_text and pieces.model == "BPE":
            # Without an unknown token a BPE drops what it does not know. With one that is not in
            # its vocabulary it fails, as the other models do.
            self._tokenizer.model.unk_token = _name_without_id(self._tokenizer)
        ids = map(self._tokenizer.token_to_id, looked_for)
        return frozenset(i for i in ids if i is not None)

    def _refuse_unknown(
        self, texts: Sequence[str], batch: Sequence[Sequence[int]], index: int, offset: int
    ) -> None:
        for text, ids in zip(texts, batch, strict=True):
            if self._never_given.isdisjoint(ids):
                index += 1
                continue
            # Encoded once more, the slow way, which tells where in the text each id is from.
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
            at = next(i for i, token in enumerate(encoding.ids) if token in self._never_given)
            start, end = encoding.offsets[at]
            name = self._tokenizer.id_to_token(encoding.ids[at])
            why = f"has no id of its own and would become {name!r}"
            raise unencodable(index, text, start=start, end=end, why=why, offset=offset)

    def _refusal(
        self, texts: Sequence[str], error: BaseException, first: int, offset: int
    ) -> BaseException:
        """What to raise when the library refused a batch: the first text and character at fault."""
        for index, text in enumerate(texts, first):
            if not self._is_refused(text):
                continue
            # A word may be refused whose characters are not: then all of the text is named.
            culprit = next(filter(self._is_refused, dict.fromkeys(text)), text)
            start = text.index(culprit)
            why, end = f"has no id ({error})", start + len(culprit)
            return lone_surrogate(index, text, offset) or unencodable(
                index, text, start=start, end=end, why=why, offset=offset
            )
        return error

    def _is_refused(self, text: str) -> bool:
        try:
            self._tokenizer.encode(text, add_special_tokens=False)
        except BaseException as error:
            if not _is_of_library(error):
                raise
            return True
        return False


def tokenizer_from_json_file(
    path: StrPath, *, eos: int | str | None = None, bos: int | str | None = None
) -> JsonTokenizer:
    """The tokenizer in a `tokenizer.json`, local or behind fsspec."""
    return JsonTokenizer(read_rules(path), eos=eos, bos=bos, source=str(path))


def pieces_of(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of pieces of at most `MAX_TEXT` characters, cut in front of a word if it can.

    A cut stands in front of a single space, where every rule for words ends one.
    """
    start = 0
    while len(text) - start > MAX_TEXT:
        end = start + MAX_TEXT
        cuts = deque(_WORD_START.finditer(text, end - _CUT_WINDOW, end), maxlen=1)
        end = cuts[0].start() if cuts else end
        yield start, end
        start = end
    yield start, len(text)


def _from_parts(text: str, eos_id: int, bos_id: int | None) -> JsonTokenizer:
    return JsonTokenizer(text, eos=eos_id, bos=bos_id, source="from a pickle")


def _is_of_library(error: BaseException) -> bool:
    # It raises bare Exception, and a class of its own below BaseException where its code panics.
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _parsed(text: str, *, source: str) -> HuggingFaceTokenizer:
    """The library's tokenizer, with everything off that cuts, pads or varies what texts get."""
    try:
        tokenizer = HuggingFaceTokenizer.from_str(text)
    except BaseException as error:
        if not _is_of_library(error):
            raise
        raise DataError(
            f"tokenizer {source}: {error}",
            allowed="the JSON that the tokenizers library writes",
            fix="restore the file or build the tokenizer again",
        ) from error
    _refuse_moved_ids(tokenizer, json.loads(text).get("added_tokens") or [], source=source)
    # A limit meant for a model's input would cut documents short without a word.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None  # random merges: other ids for the same text
    return tokenizer


def _refuse_moved_ids(
    tokenizer: HuggingFaceTokenizer, written: Sequence[dict[str, Any]], *, source: str
) -> None:
    """The library numbers added tokens itself, wrongly where the vocabulary leaves ids out."""
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    moved = {token["content"]: token["id"] for token in written}
    moved = {name: i for name, i in moved.items() if vocab.get(name) != i}
    shared = len(vocab) - len(set(vocab.values()))
    if moved or shared:
        names = ", ".join(f"{name} is {vocab.get(name)}, not {moved[name]}" for name in moved)
        raise DataError(
            f"tokenizer {source}: its ids differ from those it was made with: "
            f"{names[:200] or f'several pieces share {shared} of them'}",
            allowed="a vocabulary without gaps below the ids of added tokens",
            fix="fill the gaps in its vocabulary with unused pieces",
        )


def _name_without_id(tokenizer: HuggingFaceTokenizer) -> str:
    """A token's name that the vocabulary does not have."""
    name = "<unknown>"
    while tokenizer.token_to_id(name) is not None:
        name += ">"
    return name
