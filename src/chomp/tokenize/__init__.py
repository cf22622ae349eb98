"""Tokenizers: text to ids and back, each identified by its content."""

from chomp.tokenize.bpe import BpeTokenizer, train_bpe
from chomp.tokenize.byte import ByteTokenizer
from chomp.tokenize.files import load_tokenizer, save_tokenizer
from chomp.tokenize.hub import load_hub_tokenizer
from chomp.tokenize.json_tokenizer import JsonTokenizer, tokenizer_from_json_file
from chomp.tokenize.protocol import Tokenizer, bytes_per_token
from chomp.tokenize.unencodable import UnencodableText

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
