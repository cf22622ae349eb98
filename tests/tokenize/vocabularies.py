"""Small real vocabularies, of the kinds that models on the hub have, trained on three texts."""

import json
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as HuggingFaceTokenizer

TEXTS = [
    "def add(a, b):\n    return a + b\n",
    "The cat sat on the mat, and the hat sat on the cat.\n",
    "Grüße aus Köln, 東京 and 🦖.\n" * 3,
]
SPECIALS = ["<unk>", "<s>", "</s>"]
BYTE_PIECES = [f"<0x{byte:02X}>" for byte in range(256)]
MARK = "▁"

_LLAMA_3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+"
)


def byte_level(merged: list[str], *, special: list[str], plain: list[str]) -> HuggingFaceTokenizer:
    """A byte-level tokenizer as others make them: no merges, tokens added as told."""
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *merged]
    tokenizer = HuggingFaceTokenizer(models.BPE({word: i for i, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in special])
    tokenizer.add_tokens([AddedToken(text) for text in plain])
    return tokenizer


def llama_3() -> str:
    """Byte-level behind a regex of its own; whole words are looked up before merges."""
    tokenizer = HuggingFaceTokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_LLAMA_3_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
    return tokenizer.to_str()


def llama_2() -> str:
    """BPE over "▁" with byte fallback; a normaliser puts a blank in front."""
    tokenizer = _sentencepiece_bpe()
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]
    )
    tokenizer.decoder = _metaspace_decoder(strips=True)
    return with_byte_pieces(tokenizer)


def gemma() -> str:
    """BPE over "▁" with byte fallback and nothing in front; runs of blanks are added tokens too."""
    tokenizer = _sentencepiece_bpe()
    tokenizer.normalizer = normalizers.Replace(" ", MARK)
    tokenizer.decoder = _metaspace_decoder(strips=False)
    rules = HuggingFaceTokenizer.from_str(with_byte_pieces(tokenizer))
    rules.add_tokens([AddedToken(MARK * 2, normalized=False), AddedToken("\n", normalized=False)])
    return rules.to_str()


def unigram(prepend_scheme: str = "always", *, with_fallback: bool = True) -> str:
    """A SentencePiece unigram."""
    tokenizer = HuggingFaceTokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme)
    tokenizer.decoder = _metaspace_decoder(strips=prepend_scheme != "never")
    trainer = trainers.UnigramTrainer(
        vocab_size=80, special_tokens=SPECIALS, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return with_byte_pieces(tokenizer) if with_fallback else tokenizer.to_str()


def bert(pre_tokenizer: Any = None) -> str:
    """A WordPiece that lowers case."""
    tokenizer = HuggingFaceTokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=120, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer.to_str()


def letters(*pieces: str, unknown: str | None = None, special: str = "</s>") -> str:
    """A BPE of nothing but `pieces`, and one special token."""
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = HuggingFaceTokenizer(models.BPE(vocab, [], unk_token=unknown))
    tokenizer.add_special_tokens([special])
    return tokenizer.to_str()


def with_byte_pieces(tokenizer: HuggingFaceTokenizer) -> str:
    """The rules with an id for every byte behind the special tokens, as SentencePiece has them.

    The trainers of the library cannot make them.
    """
    rules = json.loads(tokenizer.to_str())
    model = rules["model"]
    model["byte_fallback"] = True
    count = len(SPECIALS)
    if model["type"] == "Unigram":
        fallback = [[piece, -20.0] for piece in BYTE_PIECES]
        model["vocab"][count:count] = fallback
    else:
        pieces = sorted(model["vocab"], key=model["vocab"].get)
        pieces[count:count] = BYTE_PIECES
        model["vocab"] = {piece: i for i, piece in enumerate(pieces)}
    return json.dumps(rules)


def changed(text: str, **model: Any) -> str:
    """The rules with other settings of the model."""
    rules = json.loads(text)
    rules["model"].update(model)
    return json.dumps(rules)


def _sentencepiece_bpe() -> HuggingFaceTokenizer:
    model = models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = HuggingFaceTokenizer(model)
    trainer = trainers.BpeTrainer(vocab_size=120, special_tokens=SPECIALS, show_progress=False)
    texts = [MARK + text.replace(" ", MARK) for text in TEXTS]
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _metaspace_decoder(*, strips: bool) -> Any:
    parts = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if strips else parts)
