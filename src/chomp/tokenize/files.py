"""A tokenizer as a folder: what it is (`chomp_tokenizer.json`) and, unless bytes, its rules beside.

The description is written last and carries the content hash, so a half-written folder is refused.
"""

from typing import Any

from chomp.errors import DataError
from chomp.storage import (
    exists,
    join,
    make_folder,
    read_json,
    read_text,
    write_json_atomic,
    write_text_atomic,
)
from chomp.storage.files import MAX_JSON_BYTES
from chomp.tokenize.byte import ByteTokenizer
from chomp.tokenize.json_tokenizer import JsonTokenizer
from chomp.tokenize.protocol import Tokenizer
from chomp.tokenize.trial import read_rules

DESCRIPTION = "chomp_tokenizer.json"
RULES = "tokenizer.json"
# "bpe" is what folders say that were written when there was no other vocabulary.
_KINDS = ("byte", "json", "bpe")


def save_tokenizer(tokenizer: Tokenizer, folder: str) -> None:
    """Write the tokenizer into `folder`; complete once the description is there."""
    if not isinstance(tokenizer, JsonTokenizer | ByteTokenizer):
        raise DataError(
            f"a tokenizer of type {type(tokenizer).__name__}",
            allowed="a JsonTokenizer or a ByteTokenizer",
            fix="save it with its own library: chomp could not load it again",
        )
    make_folder(folder)
    if isinstance(tokenizer, JsonTokenizer):
        write_text_atomic(join(folder, RULES), tokenizer.to_json())
    write_json_atomic(join(folder, DESCRIPTION), _described(tokenizer))


def load_tokenizer(folder: str, *, is_tried: bool = False) -> Tokenizer:
    """The tokenizer of a folder, checked against the hash it was saved with.

    Its rules are first tried in a child process, unless the caller says that they were.
    """
    saved = _description(folder)
    tokenizer: JsonTokenizer | ByteTokenizer = ByteTokenizer()
    if saved["kind"] != "byte":
        rules = join(folder, RULES)
        tokenizer = JsonTokenizer(
            read_text(rules, max_bytes=MAX_JSON_BYTES) if is_tried else read_rules(rules),
            eos=saved["eos_id"],
            bos=saved["bos_id"],
            source=rules,
        )
    if tokenizer.content_hash != saved["content_hash"]:
        raise DataError(
            f"tokenizer {folder} has the hash {tokenizer.content_hash[:12]}",
            allowed=f"{saved['content_hash'][:12]}, the hash it was saved with",
            fix="its files were changed after it was saved: build the tokenizer again",
        )
    found = _described(tokenizer)
    for name in ("vocab_size", "eos_id", "bos_id"):
        if saved[name] != found[name]:
            raise _damaged(folder, f"{name} {saved[name]}, but the tokenizer has {found[name]}")
    return tokenizer


def _described(tokenizer: JsonTokenizer | ByteTokenizer) -> dict[str, Any]:
    return {
        "kind": "json" if isinstance(tokenizer, JsonTokenizer) else "byte",
        "vocab_size": tokenizer.vocab_size,
        "eos_id": tokenizer.eos_id,
        "bos_id": tokenizer.bos_id,
        "content_hash": tokenizer.content_hash,
    }


def _description(folder: str) -> dict[str, Any]:
    path = join(folder, DESCRIPTION)
    if not exists(path):
        raise DataError(
            f"no tokenizer in {folder} ({DESCRIPTION} is missing)",
            allowed="a folder written by save_tokenizer, complete",
            fix="build the tokenizer again, or correct the path",
        )
    read = read_json(path)
    # Folders from before there was a beginning-of-document id do not name one.
    description = {"bos_id": None, **read} if isinstance(read, dict) else {}
    types = {"kind": str, "vocab_size": int, "eos_id": int, "content_hash": str}
    is_whole = all(isinstance(description.get(name), kind) for name, kind in types.items())
    has_bos = isinstance(description.get("bos_id"), int | None)
    if not is_whole or not has_bos or description["kind"] not in _KINDS:
        raise _damaged(folder, f"{read!r}"[:200])
    return description


def _damaged(folder: str, content: str) -> DataError:
    return DataError(
        f"{join(folder, DESCRIPTION)} holds {content}",
        allowed="the fields content_hash, eos_id, kind ('json' or 'byte') and vocab_size, as "
        "they were saved; bos_id, a number or null",
        fix="build the tokenizer again: this file was changed after it was saved",
    )
