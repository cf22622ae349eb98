"""A byte-level BPE trained here: the same texts give the same vocabulary."""

from collections.abc import Iterable

from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from chomp.errors import DataError, message
from chomp.tokenize.json_tokenizer import JsonTokenizer

EOS_TOKEN = "<|endoftext|>"
MIN_BPE_VOCAB_SIZE = 257  # every byte, and the end of a document

BpeTokenizer = JsonTokenizer  # what is trained here and what is read from a file are one thing


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
    return JsonTokenizer(tokenizer.to_str(), eos=EOS_TOKEN, source="as trained")
