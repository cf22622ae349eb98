"""Tokenizers: text to ids and back, each identified by its content."""

from chomp.tokenize.bpe import BpeTokenizer, train_bpe
from chomp.tokenize.byte import ByteTokenizer
from chomp.tokenize.files import load_tokenizer, save_tokenizer
from chomp.tokenize.protocol import Tokenizer, bytes_per_token

__all__ = [
    "BpeTokenizer",
    "ByteTokenizer",
    "Tokenizer",
    "bytes_per_token",
    "load_tokenizer",
    "save_tokenizer",
    "train_bpe",
]
