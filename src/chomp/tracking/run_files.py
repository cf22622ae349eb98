"""What a run folder holds, and under which names: written by `chomp.training`, read by many rooms.

    config_original.yaml  config_resolved.json  template/  tokenizer/
    metrics.jsonl  train.log  samples/  artifacts/  profiler/  checkpoints/  report/

Here are the names, what a run's own config says about its files and its rows, where its relative
paths lead, and which templates this user's own runs were made with.
"""

import hashlib
import logging
import os
import re
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from chomp.errors import StorageError
from chomp.storage import (
    StrPath,
    exists,
    is_folder,
    is_local,
    is_set_aside,
    join,
    list_folder,
    normalise,
    read_bytes,
    read_json,
)
from chomp.storage.files import MAX_TEXT_BYTES

RESOLVED_CONFIG = "config_resolved.json"
DERIVED = "derived"  # in the resolved config: what follows from the config, and is none of it
ORIGINAL_CONFIG = "config_original.yaml"
METRICS_FILE = "metrics.jsonl"  # unless the run's config has another name for it
CHECKPOINTS = "checkpoints"
SAMPLES = "samples"
ARTIFACTS = "artifacts"
TRAIN_LOG = "train.log"
PROFILER = "profiler"  # unless `train.log_dir` puts traces elsewhere
TEMPLATE = "template"
TOKENIZER = "tokenizer"
REPORT = "report"
# In a sample, between the prompt and what the model made of it.
SAMPLE_MARK = "▸"

# How an attempt says that it ended (`run/outcome`): it did all it should; it took the steps that
# `--max-steps` gave it; or it was asked to stop, by a signal or a person. After the last two the
# same command goes on. Anything else is what it failed with.
FINISHED = "finished"
PIECE_FINISHED = "piece finished"
STOPS = (PIECE_FINISHED, "RunInterrupted", "KeyboardInterrupt", "SystemExit")

# In the names of evaluation metrics of the averaged weights, and what people are told they are.
EMA = "ema"
AVERAGED = "averaged weights"

_SAMPLE = re.compile(r"step-(\d+)\.txt")
# Each is written by a run that has begun, whichever it got to first.
_SIGNS = (RESOLVED_CONFIG, ORIGINAL_CONFIG, METRICS_FILE, TRAIN_LOG, ".executor_status")
_log = logging.getLogger(__name__)


def resolved_config(folder: StrPath) -> dict[str, Any]:
    """The config that a run resolved to, what was derived from it included; empty where none is."""
    location = join(folder, RESOLVED_CONFIG)
    found = read_json(location) if exists(location) else {}
    return found if isinstance(found, dict) else {}


def template_sources(folder: StrPath) -> dict[str, bytes]:
    """The files of a template by module name, as they are now; no pipe is waited for."""
    found = sorted(path for path in Path(folder).glob("*.py") if path.is_file())
    return {path.stem: read_bytes(path, max_bytes=MAX_TEXT_BYTES) for path in found}


def sources_hash(sources: Mapping[str, bytes]) -> str:
    """SHA-256 of a template's sources: two templates with one hash are the same."""
    digest = hashlib.sha256()
    for name, content in sorted(sources.items()):
        # With its length, or the end of one file could pass for the beginning of the next.
        digest.update(f"{name}\0{len(content)}\0".encode("utf-8", "surrogateescape") + content)
    return digest.hexdigest()


def record_in(folder: StrPath, config: Mapping[str, Any]) -> str:
    """The metrics file of a run in `folder`, under the name that its resolved config gives it."""
    name = section_in(config, "logging").get("metrics_file")
    return join(folder, name if isinstance(name, str) and name else METRICS_FILE)


def record_of(folder: StrPath) -> str:
    """The metrics file of the run in `folder`, under the name that its config gives it."""
    return record_in(folder, resolved_config(folder))


def eval_prefix_in(config: Mapping[str, Any] | None) -> str:
    """What the names of a run's evaluation metrics begin with, as its resolved config says."""
    prefix = section_in(config, "eval").get("prefix")
    return prefix if isinstance(prefix, str) and prefix else "eval"


def held_out_prefix(prefix: str, logged: Container[str]) -> str:
    """What the names of the evaluation that counts for a run, or for a row, begin with.

    That is `prefix`, and `prefix/ema` where `logged` has the averaged weights' loss alone.
    """
    is_averaged = f"{prefix}/loss" not in logged and f"{prefix}/{EMA}/loss" in logged
    return f"{prefix}/{EMA}" if is_averaged else prefix


def is_of_averaged(name: str) -> bool:
    """Whether a held-out prefix, or the loss under it, is of the averaged weights."""
    return name.removesuffix("/loss").endswith(f"/{EMA}")


def log_every_in(config: Mapping[str, Any] | None) -> int:
    """How many steps a row of a run is of, as its resolved config says; 1 where it does not."""
    every = section_in(config, "trainer").get("log_every")
    return every if type(every) is int and every > 0 else 1


def section_in(config: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    """A section of a resolved config; empty where it has none, or something else in its place."""
    section = (config or {}).get(name)
    return section if isinstance(section, Mapping) else {}


def is_run_folder(folder: StrPath) -> bool:
    """Whether a run has begun in the folder; one that was only made does not count."""
    if any(exists(join(folder, name)) for name in _SIGNS):
        return True
    try:
        return exists(record_of(folder))
    except StorageError:  # a config that cannot be read has no other name for the record
        return False


def run_folders_in(folder: StrPath) -> list[str]:
    """The run folders right inside of a folder, by name, but for those that were set aside."""
    inside = [join(folder, name) for name in list_folder(folder)] if is_folder(folder) else []
    kept = [path for path in inside if not is_set_aside(path)]
    return [path for path in kept if is_folder(path) and is_run_folder(path)]


def sample_file(step: int) -> str:
    """The name of the sample made after `step` steps, inside the folder of samples."""
    return f"step-{step}.txt"


def samples_in(folder: StrPath) -> dict[int, str]:
    """The files of the run's samples by their step, in order of steps."""
    samples = join(folder, SAMPLES)
    names = list_folder(samples) if is_folder(samples) else []
    found = {int(match[1]): match[0] for match in filter(None, map(_SAMPLE.fullmatch, names))}
    return {step: join(samples, found[step]) for step in sorted(found)}


def reached_path(path: str, run_folder: StrPath) -> str:
    """A relative path as it is found from here, else from the nearest folder above the run.

    As it is where it is found from neither, or is not relative.
    """
    if not is_relative(path) or exists(path):
        return path
    return path_above(path, run_folder) or path


def path_above(path: str, run_folder: StrPath) -> str | None:
    """A relative path in the nearest folder above the run that has it; None where none has."""
    if not is_local(run_folder):
        return None
    folder = os.path.abspath(normalise(run_folder))
    while (parent := os.path.dirname(folder)) != folder:
        if exists(join(parent, path)):
            return join(parent, path)
        folder = parent
    return None


def is_relative(path: str) -> bool:
    """Whether where the path leads depends on where it is asked from."""
    return is_local(path) and not os.path.isabs(normalise(path))


def remember_template(digest: str) -> None:
    """Note that a run of this user has this template. No home to write to is no reason to stop."""
    try:
        folder = _folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(folder / digest, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        if not is_remembered(digest):
            raise PermissionError(f"{folder} is not this user's alone")
    except (OSError, RuntimeError) as error:  # the latter: there is no home at all
        _log.warning(
            "the run's template could not be noted as this user's own (%s); the run goes on, but "
            "`chomp eval` and others may ask for --trust before they run it",
            error,
        )


def is_remembered(digest: str) -> bool:
    """Whether a run of this user had this template. Notes that others could write do not count."""
    try:
        folder = _folder()
        found = [folder.stat(), (folder / digest).lstat()]
    except (OSError, RuntimeError):
        return False
    if not hasattr(os, "geteuid"):  # only POSIX tells
        return True
    return all(info.st_uid == os.geteuid() and not info.st_mode & 0o022 for info in found)


def _folder() -> Path:
    # A relative one would be looked up in the current folder, which may be anybody's.
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    home = state if state.is_absolute() else Path.home() / ".local/state"
    if not home.is_absolute():
        raise RuntimeError(f"the home folder is {str(Path.home())!r}")
    return home / "chomp" / "templates"
