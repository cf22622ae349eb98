"""A run's folder: what it was made of, its record, and the table that sums it up.

config_original.yaml config_resolved.json template/ tokenizer/
metrics.jsonl train.log tensorboard/ samples/ checkpoints/ report/

Of a run of several processes, process 0 writes all of it but its part of the checkpoints; the
others show their warnings and write nothing.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from chomp.checkpoint import CHECKPOINTS
from chomp.config import config_to_mapping, config_to_yaml
from chomp.errors import RunInterrupted, StorageError, require
from chomp.mesh import all_or_none, is_first, leaving_on_error, told_by_first
from chomp.report.written_page import page_of_run, remove_run_page, write_run_page
from chomp.storage import (
    exists,
    is_folder,
    is_local,
    join,
    list_folder,
    make_folder,
    name_of,
    read_text,
    remove_tree,
    write_bytes_atomic,
    write_json_atomic,
    write_text_atomic,
)
from chomp.storage.files import MAX_TEXT_BYTES, require_links_inside
from chomp.storage.paths import require_plain_path
from chomp.storage.printable import PlainConsole, printable
from chomp.tokenize import Tokenizer, save_tokenizer
from chomp.tracking import (
    CompositeTracker,
    ConsoleTracker,
    JsonlTracker,
    NoopTracker,
    Row,
    RunFacts,
    Tracker,
    last_attempt,
    latest_rows,
    logged_to,
    metrics,
    new_wandb_id,
    open_sinks,
    read_metrics,
    recorded_rows,
    recorded_summary,
    redacted,
    require_installed,
    summary_of,
    wants_wandb,
    without_secrets,
)
from chomp.tracking import LoggingConfig as LoggingConfig
from chomp.tracking.known_templates import remember_template
from chomp.tracking.run_files import (
    ARTIFACTS,
    AVERAGED,
    DERIVED,
    EMA,
    FINISHED,
    ORIGINAL_CONFIG,
    PIECE_FINISHED,
    PROFILER,
    REPORT,
    RESOLVED_CONFIG,
    SAMPLE_MARK,
    SAMPLES,
    TEMPLATE,
    TOKENIZER,
    eval_prefix_in,
    held_out_prefix,
    is_of_averaged,
    record_of,
    resolved_config,
    sample_file,
    samples_in,
    sources_hash,
    template_sources,
)
from chomp.training.original_config import original_config, write_original

_logger = logging.getLogger(__name__)

_SAMPLE_TITLE = f"sample: a piece of a text, {SAMPLE_MARK} the model goes on"


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run, opened for one attempt at it."""

    path: str
    attempt: int

    @staticmethod
    @contextmanager
    def open(path: str, config: LoggingConfig | None = None) -> "Iterator[RunFolder]":
        """The folder, made if need be; the attempt is one more than the record has seen.

        While it is open, Python's log messages go to its log file too. Raises `ConfigError` for a
        sink that is not installed. A process that fails inside does not keep the others waiting.
        """
        config = config or LoggingConfig()
        with leaving_on_error():
            with all_or_none("opening the run folder"):
                if is_first():
                    _prepare(path, config)
            is_logged = is_first() and config.log_file is not None
            log_file = join(path, str(config.log_file)) if is_logged else None
            with logged_to(log_file, config.level):
                with all_or_none("reading the record"):
                    record = join(path, config.metrics_file)
                    attempt = last_attempt(record) + 1 if is_first() else 0
                yield RunFolder(path, told_by_first("attempt", attempt))

    @property
    def checkpoints(self) -> str:
        """Where the run's checkpoints lie."""
        return join(self.path, CHECKPOINTS)

    def describe(
        self,
        config: Any,
        *,
        template: Path,
        tokenizer: Tokenizer,
        derived: Mapping[str, Any] | None = None,
    ) -> None:
        """Write what the run is made of: config, the template's own source, tokenizer.

        The original config is the file that the run was started with, else `config` as YAML.
        `derived` is what follows from the config, kept beside it for readers.
        """
        if not is_first():
            return
        given = original_config()
        original = redacted(config_to_yaml(config) if given is None else given)
        write_original(self.path, original, attempt=self.attempt)
        resolved = config_to_mapping(config)
        resolved = resolved if derived is None else {**resolved, DERIVED: dict(derived)}
        write_json_atomic(join(self.path, RESOLVED_CONFIG), without_secrets(resolved))
        copy = join(self.path, TEMPLATE)
        make_folder(copy, inside=self.path)
        sources = template_sources(template)
        # Of an earlier attempt, or damaged: the copy is the template, and nothing else.
        for stale in Path(copy).glob("*.py"):
            if stale.is_dir() and not stale.is_symlink():
                remove_tree(stale)
            elif stale.stem not in sources:
                stale.unlink()
        for name, source in sources.items():
            write_bytes_atomic(join(copy, f"{name}.py"), source)
        # The bytes that are run now, and not what is in the folder, where others may write too.
        remember_template(sources_hash(sources))
        save_tokenizer(tokenizer, join(self.path, TOKENIZER))

    @contextmanager
    def tracker(
        self, config: LoggingConfig, *, total_steps: int, start_step: int
    ) -> Iterator[Tracker]:
        """The record of this attempt, and the sinks that are asked for.

        W&B and TensorBoard are told what `describe` wrote. At the end the summary says how the
        attempt ended. The page of an earlier attempt goes: it would look like that of a run that
        has finished.
        """
        if not is_first():
            yield NoopTracker()
            return
        _remove_page(self.path)
        record = JsonlTracker(join(self.path, config.metrics_file), attempt=self.attempt)
        sinks = self._remote_sinks(config, record)
        if config.console:  # only then: making one already draws its bar on a terminal
            console = ConsoleTracker(
                total_steps,
                start_step=start_step,
                has_bar=config.console_use_rich,
                eval_prefix=eval_prefix_in(resolved_config(self.path)),
            )
            sinks.insert(0, console)  # its bar is gone while the others are waited for
        tracker = CompositeTracker(record, sinks)
        outcome = FINISHED
        try:
            yield tracker
        except BaseException as error:
            is_planned = isinstance(error, RunInterrupted) and error.exit_code == 0
            outcome = PIECE_FINISHED if is_planned else type(error).__name__
            raise
        finally:
            # Where the record cannot be written, it is that which ended the run.
            with suppress(StorageError):
                tracker.log_summary({metrics.RUN_OUTCOME: outcome})
            tracker.finish()
            if outcome == FINISHED:
                _write_page(self.path)

    def _remote_sinks(self, config: LoggingConfig, record: Tracker) -> list[Tracker]:
        settings = resolved_config(self.path)
        run_id = settings.get("run_id")
        name = run_id if isinstance(run_id, str) and run_id else name_of(self.path)
        wandb_id, rows_before = None, 0
        if wants_wandb(config.wandb):
            path = join(self.path, config.metrics_file)
            known = recorded_summary(path).get(metrics.WANDB_RUN_ID)
            rows_before = recorded_rows(path)
            wandb_id = known or new_wandb_id(name)
            if known is None:  # in the record, so that the next attempt continues the same
                record.log_summary({metrics.WANDB_RUN_ID: wandb_id})
        run = RunFacts(
            folder=self.path,
            name=name,
            attempt=self.attempt,
            config=settings,
            wandb_id=wandb_id,
            rows_before=rows_before,
        )
        sinks = open_sinks(config, run, on_address=_shown if config.console else _not_shown)
        original = join(self.path, ORIGINAL_CONFIG)
        for sink in sinks if exists(original) else []:
            sink.log_artifact(original, name="config", kind="config")
        return sinks

    def write_sample(self, step: int, text: str) -> str:
        """Keep generated text; gives the file."""
        path = join(self.path, SAMPLES, sample_file(step))
        if is_first():
            make_folder(join(self.path, SAMPLES), inside=self.path)
            write_text_atomic(path, text)
        return path


def _prepare(path: str, config: LoggingConfig) -> None:
    """Make the folder if need be."""
    require(
        is_local(path),
        f"output_path={path}",
        allowed="a folder on a mounted filesystem: the record is appended to line by line",
        fix="choose a local folder, and copy it when the run has ended",
    )
    require_plain_path(path)
    require_installed(config)
    make_folder(path)
    # Before anything is written: a folder that was unpacked may hold links to anywhere.
    folders = (TEMPLATE, TOKENIZER, SAMPLES, ARTIFACTS, REPORT, PROFILER, CHECKPOINTS)
    files = (config.metrics_file, str(config.log_file or ""))
    require_links_inside(path, [*folders, config.tensorboard.folder, *files])


def print_run_table(path: str, console: Console | None = None) -> None:
    """What came of the run in `path`, from its files alone: losses, speed, places, a sample."""
    console = console or PlainConsole()
    rows = read_metrics(record_of(path))
    steps = latest_rows(rows)
    prefix = held_out_prefix(eval_prefix_in(resolved_config(path)), set().union(*steps))
    evaluated = next((row for row in reversed(steps) if f"{prefix}/loss" in row), None)
    if evaluated is not None:
        console.print(_losses(evaluated, prefix))
    console.print(_facts(path, steps, summary_of(rows)))
    sample = _newest_sample(path)
    if sample is not None:
        shown = Text(printable(sample, console.encoding))
        console.print(Panel(shown, title=_SAMPLE_TITLE, title_align="left"))


def _remove_page(path: str) -> None:
    """Remove the run's page; one that cannot be removed is told, and does the run no harm."""
    try:
        remove_run_page(path)
    except (OSError, StorageError) as error:
        _logger.warning("%s is of an earlier attempt, and stays: %s", page_of_run(path), error)


def _write_page(path: str) -> None:
    """Draw the run's page; what goes wrong there is told, and does the run no harm."""
    try:
        write_run_page(path)
    except Exception:
        _logger.warning(
            "the run is done, but its page could not be written to %s; `chomp report %s` tries "
            "again",
            page_of_run(path),
            path,
            exc_info=True,
        )


def _shown(address: str | None) -> None:
    if address:
        print(f"W&B: {address}", flush=True)  # not by rich, which would write into the bar


def _not_shown(address: str | None) -> None:
    pass


def _losses(evaluated: Row, root: str) -> Table:
    title = f"result of the {AVERAGED}" if is_of_averaged(root) else "result"
    table = Table("held-out", "loss", "bits per byte", "tokens", title=title)
    tags = sorted(
        key.removeprefix(f"{root}/").removesuffix("/tokens")
        for key in evaluated
        if key.startswith(f"{root}/") and key.endswith("/tokens") and key != f"{root}/tokens"
        if not key.startswith(f"{root}/{EMA}/")
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
    speed = summary.get(metrics.RUN_TOKENS_PER_SEC)
    if speed is not None:
        table.add_row(
            "tokens/s",
            f"{float(speed):,.0f} (trained on, wall clock, evaluation and saving included)",
        )
    table.add_row("run folder", path)
    if exists(page_of_run(path)):
        table.add_row("run page", page_of_run(path))
    if _names_in(join(path, CHECKPOINTS)):
        table.add_row("checkpoints", join(path, CHECKPOINTS))
    return table


def _newest_sample(path: str) -> str | None:
    samples = samples_in(path)
    return read_text(samples[max(samples)], max_bytes=MAX_TEXT_BYTES) if samples else None


def _names_in(folder: str) -> list[str]:
    return list_folder(folder) if is_folder(folder) else []


def _number(value: Any) -> str:
    return "-" if value is None else f"{float(value):.4f}"
