"""What a run shows, logs and sends: its logging config, and its log file.

Nothing here changes what is trained. The log file takes Python's log messages from a level on. The
terminal takes warnings, as if there were no file: a library that logs each array it saves would
scroll the progress away.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from chomp.config import Config, setting
from chomp.errors import require
from chomp.storage.errors import storage_errors
from chomp.storage.files import open_regular
from chomp.storage.printable import PlainFormatter
from chomp.storage.secrets import redacted
from chomp.tracking.run_files import (
    ARTIFACTS,
    CHECKPOINTS,
    METRICS_FILE,
    ORIGINAL_CONFIG,
    PROFILER,
    REPORT,
    RESOLVED_CONFIG,
    SAMPLES,
    TEMPLATE,
    TOKENIZER,
    TRAIN_LOG,
)

# What a run folder holds beside the files that are named here.
_TAKEN = (
    *(RESOLVED_CONFIG, ORIGINAL_CONFIG, METRICS_FILE, SAMPLES, ARTIFACTS, PROFILER, TEMPLATE),
    *(TOKENIZER, REPORT, TRAIN_LOG, "tensorboard", CHECKPOINTS),
)

Level = Literal["DEBUG", "INFO", "WARNING", "ERROR"]
# Loggers with a level of their own, which that of the root does not reach. Orbax logs by absl.
_OWN_LEVELS = ("absl", "chomp", "experiments", "jax", "jaxlib", "orbax")
_FORM = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@dataclass(frozen=True, kw_only=True)
class WandbConfig(Config):
    """Weights & Biases, a copy of the record for the browser. Its files go to ./wandb or WANDB_DIR.

    `enabled` null: when WANDB_API_KEY is set. `mode` null: WANDB_MODE, or online.
    """

    enabled: bool | None = None
    project: str | None = None  # null: that of `logging.project`
    entity: str | None = None  # null: the account's own
    run_name: str | None = None  # null: the run's id
    mode: Literal["online", "offline", "disabled"] | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TensorBoardConfig(Config):
    """TensorBoard event files, one folder for each attempt under `folder` in the run folder."""

    enabled: bool = False
    folder: str = "tensorboard"

    def __post_init__(self) -> None:
        _require_own("logging.tensorboard.folder", self.folder, "tensorboard")


@dataclass(frozen=True, kw_only=True)
class LoggingConfig(Config):
    """What a run shows and keeps while it runs. Files lie in the run folder."""

    project: str = "chomp"
    console: bool = True  # false: neither bar nor lines
    console_use_rich: bool = True  # false: lines, on a terminal too
    level: Level = "INFO"  # of the log file; the terminal shows warnings
    log_file: str | None = "train.log"  # null: no log file
    metrics_file: str = "metrics.jsonl"
    wandb: WandbConfig = field(default_factory=WandbConfig)
    tensorboard: TensorBoardConfig = field(default_factory=TensorBoardConfig)
    # The config file as somebody wrote it, for the run folder. `chomp train` fills it in.
    original_config: str | None = setting(default=None, mark="cosmetic", is_versioned=False)

    def __post_init__(self) -> None:
        fix = "remove it, or name the project"
        is_named = bool(self.project.strip())
        require(is_named, f"logging.project={self.project!r}", allowed="a name", fix=fix)
        _require_own("logging.metrics_file", self.metrics_file, METRICS_FILE)
        places = {"metrics_file": self.metrics_file, "tensorboard.folder": self.tensorboard.folder}
        if self.log_file is not None:
            _require_own("logging.log_file", self.log_file, TRAIN_LOG)
            places["log_file"] = self.log_file
        # In order, one that lies inside another or equals it comes right after it.
        ordered = sorted(f"{place}/" for place in places.values())
        require(
            not any(inner.startswith(outer) for outer, inner in pairwise(ordered)),
            ", ".join(f"logging.{name}={place}" for name, place in places.items()),
            allowed="different paths, none inside another",
            fix="rename one of them",
        )


def _require_own(name: str, value: str, usual: str) -> None:
    """Refuse a path that leaves the run folder, or that is taken there for something else."""
    parts = value.split("/")
    is_inside = bool(value.strip()) and not any(part in ("", ".", "..") for part in parts)
    require(
        is_inside and (value == usual or not (parts[0] in _TAKEN or parts[0].startswith("."))),
        f"{name}={value!r}",
        allowed=f"a path inside the run folder, other than {', '.join(_TAKEN)}",
        fix=f"set {name} to a plain name, such as {usual}",
    )


@contextmanager
def logged_to(path: str | None, level: str = "INFO") -> Iterator[None]:
    """While it is open, messages from `level` on go to the file too; None: only the terminal."""
    root = logging.getLogger()
    others = list(root.handlers)
    handlers: list[logging.Handler] = []
    if path is not None:
        with storage_errors(path, "write"):  # a pipe would be waited for
            os.close(open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT))
            to_file = logging.FileHandler(path, encoding="utf-8")
        to_file.setFormatter(_WithoutSecrets(_FORM))
        to_file.setLevel(level)
        handlers.append(to_file)
    if not others:  # Python shows warnings by itself only while nobody else handles them
        to_terminal = logging.StreamHandler()
        to_terminal.setFormatter(PlainFormatter())
        to_terminal.setLevel(logging.WARNING)
        handlers.append(to_terminal)
    loggers = [root, *map(logging.getLogger, _OWN_LEVELS)]
    listening: list[logging.Logger | logging.Handler] = [*loggers, *others]
    before = [(item, item.level) for item in listening]
    if path is not None:
        for other in others:
            # What opens up for the file stays closed for whoever listened before.
            other.setLevel(max(other.level, root.level))
        for logger in loggers:
            logger.setLevel(level)
    for handler in handlers:
        root.addHandler(handler)
    try:
        yield
    finally:
        for item, old in before:
            item.setLevel(old)
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()


class _WithoutSecrets(PlainFormatter):
    """A formatter whose lines hold no secret, tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, redacted."""
        return redacted(super().format(record))
