"""A run's folder: what it was made of, its record, samples and checkpoints.

config_original.yaml config_resolved.json template/ tokenizer/
metrics.jsonl train.log tensorboard/ samples/ checkpoints/ report/

Of a run of several processes, process 0 writes all of it but its part of the checkpoints; the
others show their warnings and write nothing.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chomp.checkpoint import CHECKPOINTS
from chomp.config import config_to_mapping, config_to_yaml
from chomp.errors import RunInterrupted, StorageError, require
from chomp.mesh import broadcast, is_first, leave_on_error, raise_together
from chomp.report.payload import page_of_run, remove_run_page, write_run_page
from chomp.storage import (
    exists,
    is_local,
    join,
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
from chomp.tokenize import Tokenizer, save_tokenizer
from chomp.tracking import (
    CompositeTracker,
    ConsoleTracker,
    JsonlTracker,
    LoggingConfig,
    NoopTracker,
    RunFacts,
    Tracker,
    last_attempt,
    logged_to,
    metrics,
    new_wandb_id,
    open_sinks,
    recorded_rows,
    recorded_summary,
    redacted,
    require_installed,
    wants_wandb,
    without_secrets,
)
from chomp.tracking.run_files import (
    ARTIFACTS,
    DERIVED,
    FINISHED,
    ORIGINAL_CONFIG,
    PIECE_FINISHED,
    PROFILER,
    REPORT,
    RESOLVED_CONFIG,
    SAMPLES,
    TEMPLATE,
    TOKENIZER,
    eval_prefix_in,
    remember_template,
    resolved_config,
    sample_file,
    sources_hash,
    template_sources,
)

_logger = logging.getLogger(__name__)


def default_run_id(variant: str) -> str:
    """`GRUG_RUN_ID` or the variant's name, then `-$FERRY_DATE` if that is set."""
    run_id = os.environ.get("GRUG_RUN_ID") or variant
    ferry_date = os.environ.get("FERRY_DATE")
    return f"{run_id}-{ferry_date}" if ferry_date else run_id


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
        with leave_on_error():
            with raise_together("opening the run folder"):
                if is_first():
                    _prepare(path, config)
            has_log = is_first() and config.log_file is not None
            with logged_to(join(path, str(config.log_file)) if has_log else None, config.level):
                with raise_together("reading the record"):
                    record = join(path, config.metrics_file)
                    attempt = last_attempt(record) + 1 if is_first() else 0
                yield RunFolder(path, broadcast("attempt", attempt))

    @property
    def checkpoints(self) -> str:
        """The folder of the run's checkpoints."""
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

        The original config is `logging.original_config`, the file that the run was started with,
        or else `config` as YAML. `derived` follows from the config and is kept for readers.
        """
        if not is_first():
            return
        original = config.logging.original_config
        self._write_original(redacted(original or config_to_yaml(config)))
        resolved = config_to_mapping(config)
        resolved["logging"].pop("original_config")
        resolved |= {} if derived is None else {DERIVED: dict(derived)}
        write_json_atomic(join(self.path, RESOLVED_CONFIG), without_secrets(resolved))
        copy = join(self.path, TEMPLATE)
        make_folder(copy, inside=self.path)
        sources = template_sources(template)
        # The copy is the template and nothing else, whatever an earlier attempt left there.
        for stale in Path(copy).glob("*.py"):
            if stale.is_dir() and not stale.is_symlink():
                remove_tree(stale)
            elif stale.stem not in sources:
                stale.unlink()
        for name, source in sources.items():
            write_bytes_atomic(join(copy, f"{name}.py"), source)
        # By the bytes that run now: others may write into the folder.
        remember_template(sources_hash(sources))
        save_tokenizer(tokenizer, join(self.path, TOKENIZER))

    def _write_original(self, text: str) -> None:
        """Write config_original.yaml; another one that was there before attempt 3 is kept as
        config_original.before-3.yaml.
        """
        path = join(self.path, ORIGINAL_CONFIG)
        before = read_text(path, max_bytes=MAX_TEXT_BYTES) if exists(path) else text
        aside = join(self.path, f"config_original.before-{self.attempt}.yaml")
        # A start that failed before its first row had this same number, and trained nothing.
        if before != text and not exists(aside):
            write_text_atomic(aside, before)
        write_text_atomic(path, text)

    @contextmanager
    def tracker(
        self, config: LoggingConfig, *, total_steps: int, start_step: int
    ) -> Iterator[Tracker]:
        """The record of this attempt, and the sinks that are asked for.

        At the end the summary says how the attempt ended. The page of an earlier attempt is
        removed: it would look like that of a run that has finished.
        """
        if not is_first():
            yield NoopTracker()
            return
        try:
            remove_run_page(self.path)
        except (OSError, StorageError) as error:
            page = page_of_run(self.path)
            _logger.warning("%s is of an earlier attempt and could not be removed: %s", page, error)
        record = JsonlTracker(join(self.path, config.metrics_file), attempt=self.attempt)
        sinks = self._remote_sinks(config, record)
        if config.console:  # making one draws its bar on a terminal
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
            # If the record cannot be written, that is what ended the run.
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
            recorded_id = recorded_summary(path).get(metrics.WANDB_RUN_ID)
            rows_before = recorded_rows(path)
            wandb_id = recorded_id or new_wandb_id(name)
            if recorded_id is None:  # in the record, so that the next attempt continues the same
                record.log_summary({metrics.WANDB_RUN_ID: wandb_id})
        run = RunFacts(
            folder=self.path,
            name=name,
            attempt=self.attempt,
            config=settings,
            wandb_id=wandb_id,
            rows_before=rows_before,
        )

        def show_address(address: str | None) -> None:
            if address and config.console:
                print(f"W&B: {address}", flush=True)  # not by rich, which would write into the bar

        sinks = open_sinks(config, run, on_address=show_address)
        original = join(self.path, ORIGINAL_CONFIG)
        for sink in sinks if exists(original) else []:
            sink.log_artifact(original, name="config", kind="config")
        return sinks

    def write_sample(self, step: int, text: str) -> str:
        """Write generated text; returns the file's path."""
        path = join(self.path, SAMPLES, sample_file(step))
        if is_first():
            make_folder(join(self.path, SAMPLES), inside=self.path)
            write_text_atomic(path, text)
        return path


def _prepare(path: str, config: LoggingConfig) -> None:
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


def _write_page(path: str) -> None:
    try:
        write_run_page(path)
    except Exception:  # the run is done: its page must not make it fail
        _logger.warning(
            "the run is done, but its page could not be written to %s; `chomp report %s` tries "
            "again",
            page_of_run(path),
            path,
            exc_info=True,
        )
