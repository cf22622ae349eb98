"""Tokenizers: any `tokenizer.json`, a byte-level BPE trained here, and plain bytes.

What is special is an id, never a text: a document that quotes "<|endoftext|>" does not end there.
A character that has no id is an error, never an unknown token. Identity is a hash of the content:
two tokenizers with one hash give the same ids.
"""

import hashlib
import json
import re
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as HuggingFaceTokenizer

from chomp.errors import DataError
from chomp.storage import StrPath
from chomp.tokenize.trial import read_rules

# Axes: V vocabulary.

EOS_TOKEN = "<|endoftext|>"
MIN_BPE_VOCAB_SIZE = 257  # every byte, and the end of a document
# The library takes 160 bytes for each byte of a text. Longer texts are encoded in pieces.
MAX_TEXT = 1 << 20
# Tables of all ids are made. The largest vocabularies in use have a quarter of a million ids.
MAX_IDS = 1 << 24
# Training takes time quadratic in the length of a word: 0.5 MB without a space took 102 s. So it
# cuts words at a length that no ordinary text has; otherwise the rule is GPT-2's.
MAX_TRAINING_WORD = 1024
_GPT2_WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+".replace(
    "+", f"{{1,{MAX_TRAINING_WORD}}}"
)
# In the vocabularies of GPT-2, Llama 3, SentencePiece, Gemma and BERT.
# Not "<|end|>" and "<|eot_id|>": those end a turn of a chat, in vocabularies that have both.
USUAL_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "[SEP]")
_CUT_WINDOW = 1 << 16  # where to look for the start of a word
_WORD_START = re.compile(r"(?<=\S) (?=\S)")
_BYTE_PIECE = re.compile("<0x([0-9A-F]{2})>")
BYTE_PIECES = tuple(f"<0x{byte:02X}>" for byte in range(256))
_SHOWN = 12  # special tokens listed in an error; some vocabularies have hundreds
_CONTEXT = 20  # characters of the text shown on each side


@runtime_checkable
class Tokenizer(Protocol):
    """Text to token ids and back. Where a document ends or begins is an id, never a text."""

    vocab_size: int  # every id is below it
    eos_id: int  # ends a document
    bos_id: int | None  # put in front of a document; None: nothing is

    @property
    def content_hash(self) -> str:
        """SHA-256 of everything that decides which ids a text gets."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        """Ids of each text, without those that begin and end a document.

        A text that has no ids of its own (an unknown character) is an `UnencodableText`.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids; bytes that are not UTF-8 become the replacement character."""
        ...

    def token_bytes(self) -> list[bytes | None]:
        """The raw bytes behind each id; None for ids that stand for no text (end of document)."""
        ...


class UnencodableText(DataError):
    """A text that has no ids; `text_index` is its number in the batch, from 0."""

    def __init__(
        self, given: str, *, allowed: str = "", fix: str = "", text_index: int = 0
    ) -> None:
        super().__init__(given, allowed=allowed, fix=fix)
        self.text_index = text_index


class ByteTokenizer:
    """Ids 0-255 are the bytes of the UTF-8 text; 256 ends a document. None begins one."""

    vocab_size = 257
    eos_id = 256
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
            refusals = (_lone_surrogate(i, text) for i, text in enumerate(texts))
            raise next(filter(None, refusals)) from error

    def decode(self, ids: Sequence[int]) -> str:
        """The bytes as text; ids that stand for no byte are left out."""
        # A model may have more ids than its tokenizer, and an untrained one samples them.
        return bytes(i for i in ids if i < self.eos_id).decode(errors="replace")

    def token_bytes(self) -> list[bytes | None]:
        """Each byte for itself, nothing for the end of a document."""
        return [*(bytes([i]) for i in range(256)), None]


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
        self._tokenizer = _parse(text, source)
        self._text = str(self._tokenizer.to_str())
        self._added = self._tokenizer.get_added_tokens_decoder()
        specials = {i: token.content for i, token in self._added.items() if token.special}
        if eos is None:
            usual = {i: name for i, name in specials.items() if name in USUAL_ENDS}
            if len(usual) != 1:
                which = f"{_listed(usual)} each have" if usual else "no special token has"
                raise DataError(
                    f"tokenizer {source}, in which {which} a usual name for the end of a document",
                    allowed="exactly one such token, or a named one; special tokens: "
                    f"{_listed(specials)}",
                    fix="name the token that ends a document, by id or text: eos=...",
                )
            eos = next(iter(usual))
        self.eos_id = _special_id(eos, "end-of-document", specials, source)
        # No default: vocabularies that have such a token are as often trained without it.
        self.bos_id = (
            None if bos is None else _special_id(bos, "beginning-of-document", specials, source)
        )
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
        self._pieces = _Pieces(rules)
        self.can_encode_any_text = self._pieces.give_ids_to_any_text(vocab)
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
        """Ids of each text, on all cores.

        A long text is cut in front of words; only one without words gets other ids by that.
        """
        if all(len(text) <= MAX_TEXT for text in texts):
            return self._encode(texts)
        batch = []
        for index, text in enumerate(texts):
            ids = array("I")
            for start, end in _cut(text):
                if start > 0 and text[start] == " ":
                    # It belongs to the word behind it, unless the rules put one in front of any
                    # text.
                    around = text[start - 1 : start + 2]
                    parts = [around, around[0], around[1:], around[2:]]
                    whole, before, behind, bare = self._encode(parts, index, start - 1)
                    start += whole == before + bare != before + behind
                ids.extend(self._encode([text[start:end]], index, start)[0])
            batch.append(ids)
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
        load = partial(JsonTokenizer, eos=self.eos_id, bos=self.bos_id, source="from a pickle")
        return load, (self._text,)

    def _encode(self, texts: Sequence[str], index: int = 0, offset: int = 0) -> list[list[int]]:
        """Ids of each text. `index` and `offset` say where the first one stands, for errors."""
        try:
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except BaseException as error:
            if not _is_of_library(error):
                raise
            raise self._refusal(texts, error, index, offset) from error
        batch = [encoding.ids for encoding in encodings]
        if not self._never_given:
            return batch
        for number, (text, ids) in enumerate(zip(texts, batch, strict=True), index):
            if self._never_given.isdisjoint(ids):
                continue
            # Encoded once more, the slow way, which tells where in the text each id is from.
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
            at = next(i for i, token in enumerate(encoding.ids) if token in self._never_given)
            name = self._tokenizer.id_to_token(encoding.ids[at])
            why = f"has no id of its own and would become {name!r}"
            raise _unencodable(number, text, encoding.offsets[at], why, offset)
        return batch

    def _refusal(
        self, texts: Sequence[str], error: BaseException, first: int, offset: int
    ) -> BaseException:
        """What to raise when the library refused a batch: the first text and character at fault."""

        def is_refused(text: str) -> bool:
            try:
                self._tokenizer.encode(text, add_special_tokens=False)
            except BaseException as error:
                if not _is_of_library(error):
                    raise
                return True
            return False

        for index, text in enumerate(texts, first):
            if is_refused(text):
                # A word may be refused whose characters are not: then all of the text is named.
                culprit = next(filter(is_refused, dict.fromkeys(text)), text)
                span = text.index(culprit), text.index(culprit) + len(culprit)
                return _lone_surrogate(index, text, offset) or _unencodable(
                    index, text, span, f"has no id ({error})", offset
                )
        return error

    def _guard(self, model: dict[str, Any], specials: set[str]) -> frozenset[int]:
        """Cut quoted names of tokens apart; the ids that have to be looked for in what comes out.

        The tokenizer then cuts such a name in a text behind its first character, so that no piece
        of text is the name as a whole; other texts keep their ids. The cut comes last, behind the
        normaliser, which may make "</s>" out of something else. Names of one character cannot be
        cut. Takes a third of a Unigram's speed (5 MB of Python, one core, 2026-11).
        """
        pieces, names = self._pieces, set(specials)
        if pieces.unknown is not None:
            names.add(pieces.unknown)
        if pieces.has_byte_fallback:
            names.update(BYTE_PIECES)
        # Those that the model can give to a text in which they are written.
        if model["type"] == "Unigram":
            names &= {piece for piece, _ in model["vocab"]}
        elif model["type"] != "BPE" or model["ignore_merges"]:
            names &= model["vocab"].keys()
        else:
            # A BPE gives what it merges, and its alphabet; being in the vocabulary is not enough.
            prefix = model["continuing_subword_prefix"] or ""
            merged = {left + right.removeprefix(prefix) for left, right in model["merges"]}
            names &= merged | {piece for piece in model["vocab"] if len(piece) == 1}
        rests: dict[str, list[str]] = {}
        for name in sorted(names):
            if len(name) > 1:
                rests.setdefault(name[0], []).append(re.escape(name[1:]))
        if rests:
            cuts = (f"{re.escape(first)}(?={'|'.join(rest)})" for first, rest in rests.items())
            split = pre_tokenizers.Split(Regex("|".join(cuts)), "isolated")
            before = self._tokenizer.pre_tokenizer
            self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
                [split] if before is None else [before, split]
            )
        looked_for = {name for name in names if len(name) == 1}
        if not self.can_encode_any_text and pieces.unknown is not None:
            looked_for.add(pieces.unknown)
        elif not self.can_encode_any_text and pieces.model == "BPE":
            # Without an unknown token a BPE drops what it does not know. With one that is not in
            # its vocabulary it fails, as the other models do.
            unused = "<unknown>"
            while self._tokenizer.token_to_id(unused) is not None:
                unused += ">"
            self._tokenizer.model.unk_token = unused
        ids = map(self._tokenizer.token_to_id, looked_for)
        return frozenset(i for i in ids if i is not None)


BpeTokenizer = JsonTokenizer  # what is trained here and what is read from a file are one thing


def tokenizer_from_json_file(
    path: StrPath, *, eos: int | str | None = None, bos: int | str | None = None
) -> JsonTokenizer:
    """The tokenizer in a `tokenizer.json`, local or behind fsspec."""
    return JsonTokenizer(read_rules(path), eos=eos, bos=bos, source=str(path))


def train_bpe(texts: Iterable[str], *, vocab_size: int) -> BpeTokenizer:
    """A byte-level BPE of `vocab_size` ids trained on `texts`, the same for the same texts."""
    if vocab_size < MIN_BPE_VOCAB_SIZE:
        raise DataError(
            f"vocab_size={vocab_size} of a BPE",
            allowed=f"{MIN_BPE_VOCAB_SIZE} or more: one id for each byte and one to end a document",
            fix="raise vocab_size, or use the byte tokenizer",
        )
    tokenizer = HuggingFaceTokenizer(models.BPE())
    # No prefix space: a document's first word is not another word than its second.
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    in_words = pre_tokenizers.Split(Regex(_GPT2_WORDS), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([in_words, as_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pieces = (text[start:end] for text in texts for start, end in _cut(text))
    tokenizer.train_from_iterator(pieces, trainer)
    # Encoding takes time linear in a word's length, so it needs no bound.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return JsonTokenizer(tokenizer.to_str(), eos=EOS_TOKEN, source="as trained")


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


def _cut(text: str) -> Iterator[tuple[int, int]]:
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


def _parse(text: str, source: str) -> HuggingFaceTokenizer:
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
    # The library numbers added tokens itself, wrongly where the vocabulary leaves ids out.
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    written = {each["content"]: each["id"] for each in json.loads(text).get("added_tokens") or []}
    moved = {name: i for name, i in written.items() if vocab.get(name) != i}
    shared = len(vocab) - len(set(vocab.values()))
    if moved or shared:
        names = ", ".join(f"{name} is {vocab.get(name)}, not {moved[name]}" for name in moved)
        raise DataError(
            f"tokenizer {source}: its ids differ from those it was made with: "
            f"{names[:200] or f'several pieces share {shared} of them'}",
            allowed="a vocabulary without gaps below the ids of added tokens",
            fix="fill the gaps in its vocabulary with unused pieces",
        )
    # A limit meant for a model's input would cut documents short without a word.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None  # random merges: other ids for the same text
    return tokenizer


def _is_of_library(error: BaseException) -> bool:
    # It raises bare Exception, and a class of its own below BaseException where its code panics.
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _special_id(named: int | str, role: str, specials: Mapping[int, str], source: str) -> int:
    for token_id, name in specials.items():
        if named in (token_id, name):
            return token_id
    what = f"{role} id {named}" if isinstance(named, int) else f"{role} token {named!r}"
    raise DataError(
        f"tokenizer {source}: {what} is not one of its special tokens",
        allowed=f"a special token: {_listed(specials)}",
        fix="name one of these, by id or text",
    )


def _listed(specials: Mapping[int, str]) -> str:
    shown = [f"{i} ({specials[i]})" for i in sorted(specials)]
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return ", ".join(shown[:_SHOWN]) + more or "there is none"


def _unencodable(
    index: int, text: str, span: tuple[int, int], why: str, offset: int = 0
) -> UnencodableText:
    """The error for the characters of `span` in text number `index` of a batch.

    `offset`: where `text` begins, if it is a piece of a longer one.
    """
    start, end = span
    piece, around = text[start:end][:_CONTEXT], text[max(0, start - _CONTEXT) : end + _CONTEXT]
    # `ascii` where a character is half of a pair: such a message could not be printed otherwise.
    shown = [repr(each) if each.isprintable() else ascii(each) for each in (piece, around)]
    code = f" (U+{ord(piece):04X})" if len(piece) == 1 else ""
    return UnencodableText(
        f"character {offset + start}: {shown[0]}{code} {why}, in {shown[1]}",
        allowed="texts whose characters all have ids",
        fix="use a tokenizer that can write any text (byte-level or with byte fallback), or "
        "remove such characters from the documents",
        text_index=index,
    )


def _lone_surrogate(index: int, text: str, offset: int = 0) -> UnencodableText | None:
    """The error for a text that is no Unicode (half of a surrogate pair); None if it is."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        why = "is half of a surrogate pair, which UTF-8 cannot hold"
        return _unencodable(index, text, (error.start, error.start + 1), why, offset)
    return None


class _Pieces:
    """How the pieces of a vocabulary are written, read from its rules (parsed JSON).

    byte-level     every character of a piece is one byte (GPT-2, Llama 3)
    byte fallback  "<0x0A>" is the byte 10 (Llama 2, Gemma)
    space mark     "▁" is a blank (Metaspace, or a normaliser that writes it)
    "##", "</w>"   marks of a word's inside and end, which are no text (WordPiece, CLIP)

    From this follow the raw bytes of a piece, and whether every text has ids.
    """

    def __init__(self, rules: Mapping[str, Any]) -> None:
        model = rules["model"]
        parts = [*_parts(rules["normalizer"]), *_parts(rules["pre_tokenizer"])]
        self.model: str = model["type"]  # "BPE", "Unigram", "WordPiece" or "WordLevel"
        self.is_byte_level = any(part["type"] == "ByteLevel" for part in parts)
        self.has_byte_fallback = bool(model.get("byte_fallback"))
        # What the first part that does writes in the place of a blank.
        marks = [
            part["replacement"] if part["type"] == "Metaspace" else part["content"]
            for part in parts
            if part["type"] == "Metaspace"
            or (part["type"] == "Replace" and part["pattern"] == {"String": " "})
        ]
        self._space_mark: str | None = next(filter(None, marks), None)
        self._inner_prefix: str = model.get("continuing_subword_prefix") or ""
        self._end_suffix: str = model.get("end_of_word_suffix") or ""
        self.unknown: str | None = model.get("unk_token")  # stands for whatever has no piece
        if model["type"] == "Unigram" and model["unk_id"] is not None:
            self.unknown = model["vocab"][model["unk_id"]][0]

    def raw_bytes(self, piece: str) -> bytes | None:
        """The bytes of text that `piece` stands for; None if no text is ever given it."""
        if self.has_byte_fallback and (byte := _BYTE_PIECE.fullmatch(piece)):
            return bytes([int(byte[1], 16)])
        # A piece that is nothing but the mark is a word written like it.
        text = piece.removeprefix(self._inner_prefix).removesuffix(self._end_suffix) or piece
        if self.is_byte_level:
            byte_of = _byte_of_character()
            is_written = byte_of.keys() >= set(text)
            return bytes(byte_of[character] for character in text) if is_written else None
        return (text.replace(self._space_mark, " ") if self._space_mark else text).encode()

    def give_ids_to_any_text(self, vocab: Mapping[str, int]) -> bool:
        """True if no text can meet the unknown piece, whatever characters it holds."""
        if self.model not in ("BPE", "Unigram"):
            return False  # a word that is too long or not listed is unknown as a whole
        if self.has_byte_fallback and vocab.keys() >= set(BYTE_PIECES):
            return True
        # Where a word's inside and end are marked, a byte has to be there in each of these forms.
        forms = {(p, s) for p in ("", self._inner_prefix) for s in ("", self._end_suffix)}
        return self.is_byte_level and all(
            f"{prefix}{character}{suffix}" in vocab
            for character in _byte_of_character()
            for prefix, suffix in forms
        )


@cache
def _byte_of_character() -> dict[str, int]:
    """The byte-level alphabet read backwards.

    Printable Latin-1 characters stand for their own byte; the other bytes, in order, for the
    characters from U+0100 on.
    """
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in own]
    return {chr(byte): byte for byte in own} | {chr(256 + i): b for i, b in enumerate(others)}


def _parts(component: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The component itself, or the parts of a sequence of them."""
    if component is None:
        return []
    if component["type"] != "Sequence":
        return [component]
    inner = component.get("normalizers") or component.get("pretokenizers") or []
    return [part for entry in inner for part in _parts(entry)]
