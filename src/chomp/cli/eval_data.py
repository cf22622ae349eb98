"""The data that a checkpoint is evaluated on: the run's own held-out stores, or what --data names.

Files that are named are tokenized with the run's tokenizer, all of them, nothing held out. Their
stores lie under the outputs prefix by their content, so the second evaluation of the same files
builds nothing.
"""

import contextlib
import glob
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from chomp.cli.loaded_run import LoadedRun
from chomp.data import (
    MANIFEST,
    EvalDataset,
    JsonlSource,
    ParquetSource,
    RowLimits,
    Source,
    StoreBuildConfig,
    TextFormat,
    TextSource,
    build_eval_datasets,
    build_store,
    read_manifest,
    source_fingerprint,
)
from chomp.errors import DataError, require
from chomp.executor import ExecutorStep, plan_steps, run_plan, this_output_path, versioned
from chomp.launch.console import print_start, print_wait
from chomp.mesh import is_first, raise_together
from chomp.storage import (
    exists,
    glob_files,
    is_folder,
    is_local,
    join,
    name_of,
    normalise,
    require_writable_folder,
)
from chomp.tracking.run_files import DERIVED, RESOLVED_CONFIG, resolved_config

_JSONL = (".jsonl", ".jsonl.gz", ".jsonl.zst")
_PARQUET = ".parquet"
_COMPRESSED = (".gz", ".zst")
_TEXT = (".txt", ".text", ".md")
# The first word of the metrics of averaged weights, which is none that data may be called.
_AVERAGED = "ema"
_log = logging.getLogger(__name__)


# --- the run's own ------------------------------------------------------------------------------


def held_out_datasets(run: LoadedRun, limits: RowLimits | None = None) -> list[EvalDataset]:
    """The run's held-out rows in the order of names; `DataError` for a store that is not there."""
    for name, path in held_out_stores(run).items():
        if exists(join(path, MANIFEST)):
            continue
        is_relative = is_local(path) and not os.path.isabs(path)
        by = "" if run.folder is None else f", by {join(run.folder, RESOLVED_CONFIG)}"
        given = f"component {name!r}, whose held-out store {path}{by}, is not there"
        fix = f"pass -o data.components.{name}.validation_store=PATH"
        raise DataError(
            f"{given}, seen from the current folder" if is_relative else given,
            allowed="a run whose stores are where they were, or the place they are at now",
            fix=f"run the command where the run was started, or {fix}" if is_relative else fix,
        )
    data, seq_len = run.config.data, run.config.trainer.seq_len
    return build_eval_datasets(data, run.tokenizer, seq_len=seq_len, limits=limits)


def held_out_stores(run: LoadedRun) -> dict[str, str]:
    """The folder of each component's held-out store, by name; one that has none is left out."""
    parts = run.config.data.components
    stores = {name: parts[name].validation_store for name in sorted(parts)}
    return {name: path for name, path in stores.items() if path is not None}


def known_stores(run: LoadedRun) -> dict[str, bool]:
    """Whether each store holds what it held when the run was trained; a difference is logged.

    A run that did not write down what its stores held has nothing to compare: none is in it.
    """
    recorded = {} if run.folder is None else resolved_config(run.folder)
    for key in (DERIVED, "data", "held_out_hashes"):  # an older run has none of it
        below = recorded.get(key)
        recorded = below if isinstance(below, dict) else {}
    stores = held_out_stores(run)
    known = {
        name: read_manifest(path).fingerprint() == recorded[name]
        for name, path in stores.items()
        if name in recorded
    }
    for name in (name for name, is_same in known.items() if not is_same):
        _log.warning(
            "the held-out store of %s at %s holds other data than when the run was trained: the "
            "numbers are not the run's own, and do not go into its record",
            *(name, stores[name]),
        )
    return known


# --- what --data names --------------------------------------------------------------------------


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
        parts = item.name.split("/")
        require(
            not {"", ".", ".."} & set(parts) and parts[0] != _AVERAGED,
            f"--data {item.path} under the name {item.name!r}",
            allowed="words joined by single slashes, the first not `ema`, where the metrics of "
            "averaged weights are",
            fix=f"name it, as in --data text/web={item.path}: that becomes eval/text/web/loss",
        )
        require(
            [other.name for other in found].count(item.name) == 1,
            f"--data with the name {item.name} twice",
            allowed="a name for each, which is its tag in the results",
            fix=f"name them, as in --data {item.name}/one={item.path}",
        )
    return found


def store_folders(
    run: LoadedRun, data: Sequence[NamedData], *, prefix: str, text_key: str
) -> dict[str, str]:
    """The folder of each store by name, with those built that are not there yet."""
    steps = {}
    for item in data:
        if not item.files:
            continue
        source = _source(item)
        steps[item.name] = ExecutorStep(
            name=f"tokens/{item.name}-evaluated",
            description=f"tokenize {item.path}",
            fn=build_store,
            config=StoreBuildConfig(
                output_path=this_output_path(),
                name=versioned(item.name),
                source=source,  # where it is does not count, what it holds does
                source_fingerprint=versioned(source_fingerprint(source, component=item.name)),
                format=versioned(TextFormat(text_key=text_key)),
                split=versioned("validation"),
                validation_fraction=versioned(1.0),  # all of a file is evaluated
                tokenizer_path=run.tokenizer_folder,
                tokenizer_hash=versioned(run.tokenizer.content_hash),
            ),
        )
    # One by one: equal files under two names are one step, and then one line of a plan.
    planned = {name: plan_steps([step], prefix=prefix)[-1] for name, step in steps.items()}
    with raise_together("building the data to evaluate"):
        if planned and is_first():
            require_writable_folder(prefix)  # before an hour of tokenizing
            # What building prints is no part of the results, which another program may read.
            with contextlib.redirect_stdout(sys.stderr):
                failures = run_plan(
                    plan_steps(steps.values(), prefix=prefix),
                    lambda planned: planned.step.fn(planned.config),
                    on_start=print_start,
                    on_wait=print_wait,
                )
            for failure in failures:
                assert failure.error is not None, "no step here depends on another"
                raise failure.error
    folders = {item.name: item.path for item in data}
    folders |= {name: step.path for name, step in planned.items()}
    for item in data:
        if read_manifest(folders[item.name]).num_documents == 0:
            raise DataError(
                f"--data {item.name}={item.path}, which holds no document",
                allowed="at least one document with a text: white space alone is none",
                fix="correct the path, or write something into it",
            )
    return folders


def _named(text: str) -> NamedData:
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
            f"--data {text}: there is no file at {path}",
            allowed="a token store, or files, folders and patterns of text, JSON lines or Parquet",
            fix="correct the path; it is read relative to the current folder",
        )
    # The name of a file without its suffixes, or of the last folder that a pattern names.
    parts = [part for part in normalise(path).split("/") if part]
    plain = [part for part in parts if not glob.has_magic(part)]
    if len(plain) == len(parts):
        usual = name_of(path).lstrip(".").partition(".")[0] or "data"
    else:
        usual = next(reversed(plain), "data")
    return NamedData(name=name or usual, path=path, files=files)


def _files(path: str) -> tuple[str, ...]:
    if is_folder(path):
        return tuple(glob_files(join(glob.escape(path), "**/*")))
    # Written out, a name may hold what a pattern would understand otherwise.
    return tuple(glob_files(glob.escape(path) if exists(path) else path))


def _source(item: NamedData) -> Source:
    """The source of the files, whose names say what they are: they must agree."""
    kinds: dict[str, str] = {}
    for file in item.files:
        name = file.lower()  # as in NEWS.JSONL
        allowed = f"text files, {', '.join(_JSONL)} and {_PARQUET}"
        kind = "JSON lines" if name.endswith(_JSONL) else "text"
        kinds["Parquet" if name.endswith(_PARQUET) else kind] = file
        require(
            kind == "JSON lines" or not name.endswith(_COMPRESSED),
            f"--data {file}, a compressed file that is not JSON lines by its name",
            allowed=allowed,
            fix="decompress it, or rename it if it holds JSON lines",
        )
        require(
            not name.endswith(".json"),
            f"--data {file}, whose name does not say whether each line of it is a record",
            allowed=allowed,
            fix="rename it to .jsonl if each line is a JSON object; else write it so first",
        )
    if len(kinds) > 1:
        (one, first), (other, second) = sorted(kinds.items())[:2]
        raise DataError(
            f"--data {item.path} with more than one kind: {first} is {one}, {second} is {other}",
            allowed="files of one kind under one name",
            fix="name them apart, as in --data 'NAME=FOLDER/*.jsonl'",
        )
    # The very files that were listed: the pattern might match more by the time it is read.
    paths = tuple(map(glob.escape, item.files))
    if "JSON lines" in kinds:
        return JsonlSource(paths=paths)
    if "Parquet" in kinds:
        return ParquetSource(paths=paths)
    unknown = [file for file in item.files if not file.lower().endswith(_TEXT)]
    if unknown:
        # A table or a program is text too, if that was meant.
        _log.warning("%s is read as plain text, all of it one document", unknown[0])
    return TextSource(paths=paths)
