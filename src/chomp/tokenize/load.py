"""Tokenizers from folders, files and the Hugging Face hub.

A folder holds `chomp_tokenizer.json` (what it is) and, unless it is the byte tokenizer, its rules.
The description is written last and carries the content hash, so a half-written folder is refused.
A tokenizer of the hub is identified by its content, not by its name; the download and its cache
are the hub library's, and `HF_HUB_OFFLINE=1` uses the cache alone.
"""

import logging
from typing import Any

from chomp.errors import DataError, StorageError
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
from chomp.tokenize.tokenizer import ByteTokenizer, JsonTokenizer, Tokenizer
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
    write_json_atomic(join(folder, DESCRIPTION), _describe(tokenizer))


def load_tokenizer(folder: str, *, is_tried: bool = False) -> Tokenizer:
    """The tokenizer of a folder, checked against the hash it was saved with.

    Its rules are first tried in a child process, unless the caller says that they were.
    """
    path = join(folder, DESCRIPTION)
    if not exists(path):
        raise DataError(
            f"no tokenizer in {folder} ({DESCRIPTION} is missing)",
            allowed="a folder written by save_tokenizer, complete",
            fix="build the tokenizer again, or correct the path",
        )
    read = read_json(path)
    # Folders from before there was a beginning-of-document id do not name one.
    saved = {"bos_id": None, **read} if isinstance(read, dict) else {}
    types = {"kind": str, "vocab_size": int, "eos_id": int, "content_hash": str}
    is_whole = all(isinstance(saved.get(name), kind) for name, kind in types.items())
    has_bos = isinstance(saved.get("bos_id"), int | None)
    if not is_whole or not has_bos or saved["kind"] not in _KINDS:
        raise _damaged(path, f"{read!r}"[:200])
    tokenizer: JsonTokenizer | ByteTokenizer = ByteTokenizer()
    if saved["kind"] != "byte":
        rules = join(folder, RULES)
        tokenizer = JsonTokenizer(
            read_text(rules, max_bytes=MAX_JSON_BYTES) if is_tried else read_rules(rules),
            eos=saved["eos_id"],
            bos=saved["bos_id"],
            source=rules,
        )
    found = _describe(tokenizer)
    if found["content_hash"] != saved["content_hash"]:
        raise DataError(
            f"tokenizer {folder} has the hash {tokenizer.content_hash[:12]}",
            allowed=f"{saved['content_hash'][:12]}, the hash it was saved with",
            fix="its files were changed after it was saved: build the tokenizer again",
        )
    for name in ("vocab_size", "eos_id", "bos_id"):
        if saved[name] != found[name]:
            raise _damaged(path, f"{name} {saved[name]}, but the tokenizer has {found[name]}")
    return tokenizer


def _describe(tokenizer: JsonTokenizer | ByteTokenizer) -> dict[str, Any]:
    return {
        "kind": "json" if isinstance(tokenizer, JsonTokenizer) else "byte",
        "vocab_size": tokenizer.vocab_size,
        "eos_id": tokenizer.eos_id,
        "bos_id": tokenizer.bos_id,
        "content_hash": tokenizer.content_hash,
    }


def _damaged(path: str, content: str) -> DataError:
    return DataError(
        f"{path} holds {content}",
        allowed="the fields content_hash, eos_id, kind ('json' or 'byte') and vocab_size, as "
        "they were saved; bos_id, a number or null",
        fix="build the tokenizer again: this file was changed after it was saved",
    )


def load_hub_tokenizer(
    name: str,
    *,
    revision: str | None = None,
    eos: int | str | None = None,
    bos: int | str | None = None,
    is_patient: bool = True,
) -> JsonTokenizer:
    """The `tokenizer.json` of the model `name` on the hub, of a branch, tag or commit.

    A branch moves: a later load of the same name can be another tokenizer, with another hash.
    Raises `StorageError` if no hub answers and the cache does not have it, else `DataError`.
    `is_patient`: a hub that does not answer is asked for another half a minute.
    """
    # What the tokenizers library's own `from_pretrained` does, but the file as it was written:
    # that library renumbers tokens, which has to be seen.
    try:
        import huggingface_hub as hub  # noqa: PLC0415  optional, and slow to import

        cached = hub.try_to_load_from_cache(name, "tokenizer.json", revision=revision)
        show_hub_warnings_once()  # only now: the library imports its parts when they are used
        if not (is_patient or isinstance(cached, str)):
            hub.get_hf_file_metadata(hub.hf_hub_url(name, "tokenizer.json", revision=revision))
        path = hub.hf_hub_download(name, "tokenizer.json", revision=revision)
    except Exception as error:  # the hub has its own errors, and lets the network's through
        # They go on for many lines; the first says what happened.
        reason = next(iter(str(error).splitlines()), "").rstrip(".")
        # Wrong names never will be right, nor what the hub has refused; without an answer it may
        # be.
        is_wrong = isinstance(error, ValueError | ImportError) or hasattr(error, "response")
        fix = "check the name, the network and your access"
        if isinstance(error, ImportError):
            fix = "install it: pip install huggingface_hub"
        raise (DataError if is_wrong else StorageError)(
            f"hub tokenizer {name!r}, revision {revision or 'main'!r}: "
            f"{type(error).__name__}: {reason}",
            allowed="the name of a model with a tokenizer.json, on a hub that can be reached",
            fix=f"{fix}; or download its tokenizer.json on another machine and give its path",
        ) from error
    return JsonTokenizer(read_rules(path), eos=eos, bos=bos, source=f"{name} (hub)")


def show_hub_warnings_once() -> None:
    """Take away the handlers that the hub libraries give themselves when they are imported.

    Their messages also go to the handlers of Python's root logger, and would be shown twice.
    """
    for name in ("huggingface_hub", "datasets"):
        logger = logging.getLogger(name)
        for handler in list(logger.handlers):
            if type(handler) is logging.StreamHandler:  # a subclass is somebody's own
                logger.removeHandler(handler)
