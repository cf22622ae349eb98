"""A run's folder: what it was made of, its record, and the table that sums it up.

config_original.yaml config_resolved.json template/ tokenizer/
metrics.jsonl train.log samples/ checkpoints/
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from chomp.config import Config, config_to_mapping, config_to_yaml
from chomp.errors import require
from chomp.storage import (
    exists,
    is_folder,
    is_local,
    join,
    list_folder,
    make_folder,
    read_json,
    read_text,
    write_json_atomic,
    write_text_atomic,
)
from chomp.tokenize import Tokenizer, save_tokenizer
from chomp.tracking import (
    CompositeTracker,
    ConsoleTracker,
    JsonlTracker,
    Row,
    Tracker,
    last_attempt,
    latest_rows,
    read_metrics,
    summary_of,
)

METRICS_FILE = "metrics.jsonl"
RESOLVED_CONFIG = "config_resolved.json"
LOG_FILE = "train.log"
SAMPLES = "samples"
# In a sample, between the prompt and what the model made of it.
SAMPLE_MARK = "▸"
_SAMPLE_TITLE = f"sample: a held-out text begins, {SAMPLE_MARK} the model goes on"
CHECKPOINTS = "checkpoints"
# Whose messages of level INFO belong to a run's log. Orbax alone would write a page at each save.
_OWN_LOGGERS = ("chomp", "experiments")
_SAMPLE = re.compile(r"step-(\d+)\.txt")


@dataclass(frozen=True, kw_only=True)
class LoggingConfig(Config):
    """What a run shows while it runs. `metrics.jsonl` and `train.log` are always written."""

    console: bool = True


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run, opened for one attempt at it."""

    path: str
    attempt: int

    @staticmethod
    @contextmanager
    def open(path: str) -> "Iterator[RunFolder]":
        """The folder, made if need be; the attempt is one more than the record has seen.

        While it is open, Python's log messages go to its train.log too.
        """
        require(
            is_local(path),
            given=f"output_path={path}",
            allowed="a folder on a mounted filesystem: the record is appended to line by line",
            fix="choose a local folder, and copy it when the run has ended",
        )
        make_folder(path)
        with _logged_to(join(path, LOG_FILE)):
            yield RunFolder(path, last_attempt(join(path, METRICS_FILE)) + 1)

    @property
    def checkpoints(self) -> str:
        """Where the run's checkpoints lie."""
        return join(self.path, CHECKPOINTS)

    def describe(self, config: Any, *, template: Path, tokenizer: Tokenizer) -> None:
        """Write what the run is made of: config, the template's own source, tokenizer."""
        write_text_atomic(join(self.path, "config_original.yaml"), config_to_yaml(config))
        write_json_atomic(join(self.path, RESOLVED_CONFIG), config_to_mapping(config))
        copy = join(self.path, "template")
        make_folder(copy)
        for source in sorted(template.glob("*.py")):
            write_text_atomic(join(copy, source.name), source.read_text(encoding="utf-8"))
        save_tokenizer(tokenizer, join(self.path, "tokenizer"))

    @contextmanager
    def tracker(
        self, logging_config: LoggingConfig, *, total_steps: int, start_step: int, step_tokens: int
    ) -> Iterator[Tracker]:
        """The record of this attempt, with the console as a sink if asked for."""
        record = JsonlTracker(join(self.path, METRICS_FILE), attempt=self.attempt)
        sinks: list[Tracker] = []
        if logging_config.console:  # only then: making one already draws its bar on a terminal
            sinks.append(
                ConsoleTracker(total_steps, start_step=start_step, tokens_per_step=step_tokens)
            )
        tracker = CompositeTracker(record, sinks)
        try:
            yield tracker
        finally:
            tracker.finish()

    def write_sample(self, step: int, text: str) -> str:
        """Keep generated text; gives the file."""
        make_folder(join(self.path, SAMPLES))
        path = join(self.path, SAMPLES, f"step-{step}.txt")
        write_text_atomic(path, text)
        return path


def print_run_table(path: str, console: Console | None = None) -> None:
    """What came of the run in `path`, from its files alone: losses, speed, places, a sample."""
    console = console or Console()
    rows = read_metrics(join(path, METRICS_FILE))
    steps = latest_rows(rows)
    prefix = _eval_prefix(path)
    evaluated = next((row for row in reversed(steps) if f"{prefix}/loss" in row), None)
    if evaluated is not None:
        console.print(_losses(evaluated, prefix))
    console.print(_facts(path, steps, summary_of(rows)))
    sample = _newest_sample(path)
    if sample is not None:
        console.print(Panel(Text(sample), title=_SAMPLE_TITLE, title_align="left"))


@contextmanager
def _logged_to(path: str) -> Iterator[None]:
    """Log messages go to the file as well; warnings stay on the terminal, as without it."""
    root = logging.getLogger()
    file = logging.FileHandler(path, encoding="utf-8")
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handlers: list[logging.Handler] = [file]
    if not root.handlers:  # Python shows warnings by itself only while nobody else handles them
        terminal = logging.StreamHandler()
        terminal.setLevel(logging.WARNING)
        handlers.append(terminal)
    levels = {name: logging.getLogger(name).level for name in _OWN_LOGGERS}
    for name in _OWN_LOGGERS:
        logging.getLogger(name).setLevel(logging.INFO)
    for handler in handlers:
        root.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _eval_prefix(path: str) -> str:
    """What the run's evaluation metrics begin with, as its config says."""
    location = join(path, RESOLVED_CONFIG)
    evaluation = read_json(location).get("eval") if exists(location) else None
    return (evaluation or {}).get("prefix", "eval")


def _losses(evaluated: Row, root: str) -> Table:
    table = Table("held-out", "loss", "bits per byte", "tokens", title="result")
    tags = sorted(
        key.removeprefix(f"{root}/").removesuffix("/tokens")
        for key in evaluated
        if key.startswith(f"{root}/") and key.endswith("/tokens") and key != f"{root}/tokens"
        if not key.startswith(f"{root}/ema/")
    )
    for label, prefix in [*((tag, f"{root}/{tag}/") for tag in tags), ("all", f"{root}/")]:
        cells = (evaluated.get(f"{prefix}{name}") for name in ("loss", "bpb"))
        count = evaluated.get(f"{prefix}tokens") or 0
        table.add_row(label, *(_number(cell) for cell in cells), f"{int(count):,}")
    return table


def _facts(path: str, steps: list[Row], summary: Row) -> Table:
    trained = [row for row in steps if "train/loss" in row]
    table = Table(show_header=False, box=None)
    if trained:
        last = trained[-1]
        table.add_row("train loss", _number(last["train/loss"]))
        table.add_row("steps", f"{int(last['step']) + 1:,}")
        table.add_row("tokens trained on", f"{int(last['tokens_seen']):,}")
    speed = summary.get("run/tokens_per_second")
    if speed is not None:
        table.add_row(
            "tokens/s", f"{float(speed):,.0f} (wall clock, evaluation and saving included)"
        )
    table.add_row("run folder", path)
    if _names_in(join(path, CHECKPOINTS)):
        table.add_row("checkpoints", join(path, CHECKPOINTS))
    return table


def _newest_sample(path: str) -> str | None:
    found = filter(None, map(_SAMPLE.fullmatch, _names_in(join(path, SAMPLES))))
    newest = max(found, key=lambda match: int(match[1]), default=None)
    return None if newest is None else read_text(join(path, SAMPLES, newest[0]))


def _names_in(folder: str) -> list[str]:
    return list_folder(folder) if is_folder(folder) else []


def _number(value: Any) -> str:
    return "-" if value is None else f"{float(value):.4f}"
