"""What `chomp eval --data` names: token stores, or files that become stores of their own.

Files are tokenized with the run's tokenizer, all of them, nothing held out. Their stores lie under
the outputs prefix by their content, so the second evaluation of the same files builds nothing.
"""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

import contextlib
import glob
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chomp.cli.opened_run import OpenedRun
from chomp.errors import DataError, message, require

if TYPE_CHECKING:  # for annotations alone
    from chomp.data import Source
    from chomp.executor import ExecutorStep

_JSONL = (".jsonl", ".jsonl.gz", ".jsonl.zst")
_PARQUET = (".parquet",)
_COMPRESSED = (".gz", ".zst")
_JSON = (".json",)
_TEXT = (".txt", ".text", ".md")
# All of a file is evaluated, so every document is in the held-out part.
_EVERYTHING = 1.0
# The first word of the metrics of averaged weights, which is none that data may be called.
_AVERAGED = "ema"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class NamedData:
    """One `--data`: the tag it is evaluated under, and a store, or the files behind it."""

    name: str
    path: str
    files: tuple[str, ...]  # none: the path is that of a token store


def named_data(given: Sequence[str]) -> list[NamedData]:
    """What each NAME=PATH or PATH means; raises for what is not there, and for equal names."""
    found = [_named(text) for text in given]
    for item in found:
        _require_name(item)
        require(
            [other.name for other in found].count(item.name) == 1,
            given=f"--data with the name {item.name} twice",
            allowed="a name for each, which is its tag in the results",
            fix=f"name them, as in --data {item.name}/one={item.path}",
        )
    return found


def _require_name(item: NamedData) -> None:
    """Raise `ConfigError` for a name that cannot be a tag, and a folder of stores."""
    parts = item.name.split("/")
    require(
        not {"", ".", ".."} & set(parts) and parts[0] != _AVERAGED,
        given=f"--data {item.path} under the name {item.name!r}",
        allowed="words joined by single slashes, the first not `ema`, where the metrics of "
        "averaged weights are",
        fix=f"name it, as in --data text/web={item.path}: that becomes eval/text/web/loss",
    )


def store_folders(
    run: OpenedRun, data: Sequence[NamedData], *, prefix: str, text_key: str
) -> dict[str, str]:
    """The folder of each store by name, with those built that are not there yet."""
    from chomp.executor import plan_steps
    from chomp.mesh import is_first, raise_together

    steps = {item.name: _build_step(item, run, text_key) for item in data if item.files}
    # One by one: equal files under two names are one step, and then one line of a plan.
    planned = {name: plan_steps([step], prefix=prefix)[-1] for name, step in steps.items()}
    with raise_together("building the data to evaluate"):
        if planned and is_first():
            _build(list(steps.values()), prefix)
    built = {name: step.path for name, step in planned.items()}
    folders = {item.name: built.get(item.name, item.path) for item in data}
    for item in data:
        _require_documents(item, folders[item.name])
    return folders


def _require_documents(item: NamedData, folder: str) -> None:
    from chomp.data.store.token_store import read_manifest

    if read_manifest(folder).num_documents == 0:
        raise DataError(
            message(
                given=f"--data {item.name}={item.path}, which holds no document",
                allowed="at least one document with a text: white space alone is none",
                fix="correct the path, or write something into it",
            )
        )


def _build(steps: Sequence[ExecutorStep], prefix: str) -> None:
    from chomp.executor import plan_steps, run_plan
    from chomp.launch.telling import tell_start, tell_wait
    from chomp.storage import require_writable_folder

    require_writable_folder(prefix)  # before an hour of tokenizing
    # What building tells is no part of the results, which another program may read.
    with contextlib.redirect_stdout(sys.stderr):
        failures = run_plan(
            plan_steps(steps, prefix=prefix),
            lambda planned: planned.step.fn(planned.config),
            on_start=tell_start,
            on_wait=tell_wait,
        )
    for failure in failures:
        assert failure.error is not None, "no step here depends on another"
        raise failure.error


def _build_step(item: NamedData, run: OpenedRun, text_key: str) -> ExecutorStep:
    from chomp.data import StoreBuildConfig, TextFormat, build_store
    from chomp.data.steps import named_fingerprint
    from chomp.executor import ExecutorStep, this_output_path, versioned

    source = _source(item)
    return ExecutorStep(
        name=f"tokens/{item.name}-evaluated",
        description=f"tokenize {item.path}",
        fn=build_store,
        config=StoreBuildConfig(
            output_path=this_output_path(),
            name=versioned(item.name),
            source=source,  # where it is does not count, what it holds does
            source_fingerprint=versioned(named_fingerprint(item.name, source)),
            format=versioned(TextFormat(text_key=text_key)),
            split=versioned("validation"),
            validation_fraction=versioned(_EVERYTHING),
            tokenizer_path=run.tokenizer_folder,
            tokenizer_hash=versioned(run.tokenizer.content_hash),
        ),
    )


def _source(item: NamedData) -> Source:
    """The source of the files, whose names say what they are: they must agree."""
    from chomp.data import JsonlSource, ParquetSource, TextSource

    kinds = {_kind(file): file for file in item.files}
    if len(kinds) > 1:
        (one, first), (other, second) = sorted(kinds.items())[:2]
        raise DataError(
            message(
                given=f"--data {item.path} with files of more than one kind: {first} is {one}, "
                f"{second} is {other}",
                allowed="files of one kind under one name",
                fix="name them apart, as in --data 'NAME=FOLDER/*.jsonl'",
            )
        )
    # The very files that were listed: the pattern might match more by the time it is read.
    paths = tuple(map(glob.escape, item.files))
    kind = next(iter(kinds))
    unknown = [file for file in item.files if not file.lower().endswith(_TEXT)]
    if kind == "text" and unknown:
        # A table or a program is text too, if that was meant.
        _log.warning("%s is read as plain text, all of it one document", unknown[0])
    if kind == "JSON lines":
        return JsonlSource(paths=paths)
    return ParquetSource(paths=paths) if kind == "Parquet" else TextSource(paths=paths)


def _kind(file: str) -> str:
    name = file.lower()  # as in NEWS.JSONL
    if name.endswith(_JSONL):
        return "JSON lines"
    if name.endswith(_PARQUET):
        return "Parquet"
    require(
        not name.endswith(_COMPRESSED),
        given=f"--data {file}, a compressed file that is not JSON lines by its name",
        allowed=f"text files, {', '.join(_JSONL)} and {_PARQUET[0]}",
        fix="decompress it, or rename it if it holds JSON lines",
    )
    require(
        not name.endswith(_JSON),
        given=f"--data {file}, whose name does not say whether each line of it is a record",
        allowed=f"text files, {', '.join(_JSONL)} and {_PARQUET[0]}",
        fix="rename it to .jsonl if each line is a JSON object; else write one line for each "
        "document first",
    )
    return "text"


def _named(text: str) -> NamedData:
    from chomp.data.store.token_store import MANIFEST, read_manifest
    from chomp.storage import exists, join

    # A path may hold a `=` too: what is there under the whole text is meant by it.
    name, equals, path = text.partition("=")
    if not equals or _files(text) or exists(text):
        name, path = "", text
    if exists(join(path, MANIFEST)):
        # Its folder is named by a hash, it itself by what it holds.
        own = read_manifest(path).identity.name
        return NamedData(name=name or own, path=path, files=())
    files = _files(path)
    if not files:
        raise DataError(
            message(
                given=f"--data {text}: there is no file at {path}",
                allowed="a token store, files or folders of text, JSON lines or Parquet, or a "
                "pattern that matches some",
                fix="correct the path; it is read relative to the current folder",
            )
        )
    return NamedData(name=name or _usual_name(path), path=path, files=files)


def _files(path: str) -> tuple[str, ...]:
    from chomp.storage import exists, glob_files, is_folder, join

    if is_folder(path):
        return tuple(glob_files(join(glob.escape(path), "**/*")))
    # Written out, a name may hold what a pattern would understand otherwise.
    return tuple(glob_files(glob.escape(path) if exists(path) else path))


def _usual_name(path: str) -> str:
    """The name of a file without its suffixes, or of the last folder that a pattern names."""
    from chomp.storage import name_of, normalise

    parts = [part for part in normalise(path).split("/") if part]
    plain = [part for part in parts if not glob.has_magic(part)]
    if len(plain) == len(parts):
        return name_of(path).lstrip(".").partition(".")[0] or "data"
    return next(reversed(plain), "data")
