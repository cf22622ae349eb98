"""A byte-level BPE trained here: the same texts give the same vocabulary."""

from collections.abc import Iterable

from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as HuggingFaceTokenizer

from chomp.errors import DataError
from chomp.tokenize.json_tokenizer import JsonTokenizer, pieces_of

EOS_TOKEN = "<|endoftext|>"
MIN_BPE_VOCAB_SIZE = 257  # every byte, and the end of a document

# Training takes time quadratic in the length of a word: 0.5 MB without a space took 102 s. So it
# cuts words at a length that no ordinary text has; otherwise the rule is GPT-2's.
MAX_TRAINING_WORD = 1024
_GPT2_WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+".replace(
    "+", f"{{1,{MAX_TRAINING_WORD}}}"
)

BpeTokenizer = JsonTokenizer  # what is trained here and what is read from a file are one thing


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
    pieces = (text[start:end] for text in texts for start, end in pieces_of(text))
    tokenizer.train_from_iterator(pieces, trainer)
    # Encoding takes time linear in a word's length, so it needs no bound.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return JsonTokenizer(tokenizer.to_str(), eos=EOS_TOKEN, source="as trained")
