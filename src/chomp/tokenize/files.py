"""A tokenizer as a folder: what it is (`chomp_tokenizer.json`) and, for BPE, its rules beside it.

The description is written last and carries the content hash, so a half-written folder is refused.
"""

from typing import Any

from chomp.errors import DataError, message
from chomp.storage import (
    exists,
    join,
    make_folder,
    read_json,
    read_text,
    write_json_atomic,
    write_text_atomic,
)
from chomp.tokenize.bpe import BpeTokenizer, parsed_rules
from chomp.tokenize.byte import ByteTokenizer
from chomp.tokenize.protocol import Tokenizer

DESCRIPTION = "chomp_tokenizer.json"
RULES = "tokenizer.json"


def save_tokenizer(tokenizer: Tokenizer, folder: str) -> None:
    """Write the tokenizer into `folder`; complete once the description is there."""
    if not isinstance(tokenizer, BpeTokenizer | ByteTokenizer):
        raise DataError(
            message(
                given=f"a tokenizer of type {type(tokenizer).__name__}",
                allowed="a BpeTokenizer or a ByteTokenizer",
                fix="save it by its own means; this folder could not be loaded again",
            )
        )
    make_folder(folder)
    kind = "byte"
    if isinstance(tokenizer, BpeTokenizer):
        kind = "bpe"
        write_text_atomic(join(folder, RULES), tokenizer.to_json())
    description = {
        "kind": kind,
        "vocab_size": tokenizer.vocab_size,
        "eos_id": tokenizer.eos_id,
        "content_hash": tokenizer.content_hash,
    }
    write_json_atomic(join(folder, DESCRIPTION), description)


def load_tokenizer(folder: str) -> Tokenizer:
    """The tokenizer of a folder, checked against the hash it was saved with."""
    description = _description(folder)
    tokenizer: Tokenizer = ByteTokenizer()
    if description["kind"] == "bpe":
        rules = join(folder, RULES)
        tokenizer = BpeTokenizer(
            parsed_rules(read_text(rules), source=rules), eos_id=description["eos_id"]
        )
    if tokenizer.content_hash != description["content_hash"]:
        raise DataError(
            message(
                given=f"tokenizer {folder} whose rules hash to {tokenizer.content_hash[:12]}",
                allowed=f"{description['content_hash'][:12]}, the hash it was saved with",
                fix="the file was changed after it was built: build the tokenizer again",
            )
        )
    return tokenizer


def _description(folder: str) -> dict[str, Any]:
    path = join(folder, DESCRIPTION)
    if not exists(path):
        raise DataError(
            message(
                given=f"no tokenizer in {folder} ({DESCRIPTION} is missing)",
                allowed="a folder written by save_tokenizer, complete",
                fix="build the tokenizer again, or correct the path",
            )
        )
    description = read_json(path)
    fields = {"kind", "vocab_size", "eos_id", "content_hash"}
    is_whole = isinstance(description, dict) and fields <= description.keys()
    if not is_whole or description["kind"] not in ("bpe", "byte"):
        raise DataError(
            message(
                given=f"{path}, which holds {description!r}"[:200],
                allowed=f"the fields {', '.join(sorted(fields))}, of kind 'bpe' or 'byte'",
                fix="build the tokenizer again; this file was not written by save_tokenizer",
            )
        )
    return dict(description)
