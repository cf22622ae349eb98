"""Tokenizers: text to ids and back, each identified by its content."""

from chomp.tokenize.load import load_hub_tokenizer, load_tokenizer, save_tokenizer
from chomp.tokenize.tokenizer import (
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
    "BpeTokenizer",
    "ByteTokenizer",
    "JsonTokenizer",
    "Tokenizer",
    "UnencodableText",
    "bytes_per_token",
    "load_hub_tokenizer",
    "load_tokenizer",
    "save_tokenizer",
    "tokenizer_from_json_file",
    "train_bpe",
]
