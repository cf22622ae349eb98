"""Tokenizers: text to ids and back, each identified by its content."""

from chomp.tokenize.load import (
    DESCRIPTION,
    load_hub_tokenizer,
    load_tokenizer,
    save_tokenizer,
    show_hub_warnings_once,
)
from chomp.tokenize.tokenizer import (
    MIN_BPE_VOCAB_SIZE,
    BpeTokenizer,
    ByteTokenizer,
    JsonTokenizer,
    Tokenizer,
    UnencodableText,
    bytes_per_token,
    tokenizer_from_json_file,
    train_bpe,
)

__all__ = [
    "DESCRIPTION", "MIN_BPE_VOCAB_SIZE", "BpeTokenizer", "ByteTokenizer", "JsonTokenizer",
    "Tokenizer", "UnencodableText", "bytes_per_token", "load_hub_tokenizer", "load_tokenizer",
    "save_tokenizer", "show_hub_warnings_once", "tokenizer_from_json_file", "train_bpe",
]  # fmt: skip
