"""A run's folder: what the run was made of, its record, samples and checkpoints.

config_original.yaml config_resolved.json template/ tokenizer/
metrics.jsonl train.log tensorboard/ samples/ checkpoints/ report/

Of a run of several processes, process 0 writes all of it but its part of the checkpoints; the
others show their warnings and write nothing.
"""

import logging
import os
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

import chomp
from chomp import storage, tracking
from chomp.config import config_to_mapping, config_to_yaml
from chomp.data import BatchSchedule, read_manifest
from chomp.errors import ConfigError, RunInterrupted, StorageError, require
from chomp.mesh import broadcast, is_first, leave_on_error, raise_together
from chomp.report.page import page_of_run, remove_run_page, write_run_page
from chomp.storage import join
from chomp.storage.files import MAX_TEXT_BYTES, require_links_inside
from chomp.storage.paths import require_plain_path
from chomp.tokenize import Tokenizer, save_tokenizer
from chomp.tracking import LoggingConfig, Tracker, metrics, run_files
from chomp.variants.checkout import checkout_root, described_head

_LIBRARIES = ("jax", "jaxlib", "numpy", "optax", "equinox", "orbax-checkpoint")

_logger = logging.getLogger(__name__)


def default_run_id(variant: str) -> str:
    """`GRUG_RUN_ID` or the variant's name, then `-$FERRY_DATE` if that is set."""
    run_id = os.environ.get("GRUG_RUN_ID") or variant
    ferry_date = os.environ.get("FERRY_DATE")
    return f"{run_id}-{ferry_date}" if ferry_date else run_id


# ---- What files of a run say about it --------------------------------------------------------


def environment() -> dict[str, Any]:
    """Versions, and the core and device counts on which results depend bit for bit."""
    # The cores that this process may use, where the system can tell (Linux).
    has_affinity = hasattr(os, "sched_getaffinity")
    return {
        "python": platform.python_version(),
        "chomp": chomp.__version__,  # not from an install: a checkout on the path has none
        **{name: version(name) for name in _LIBRARIES},
        "cores": len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1,
        "devices": jax.device_count(),
        "device_kind": jax.devices()[0].device_kind,
        "processes": jax.process_count(),
    }


def environment_summary() -> dict[str, Any]:
    """The environment of an attempt as values of its record, with the commit of the checkout."""
    values = environment()
    with suppress(ConfigError):  # an installed library has no checkout
        values["commit"] = described_head(checkout_root(Path(chomp.__file__).parent))
    known = {name: value for name, value in values.items() if value is not None}
    return {metrics.name_from(metrics.ENVIRONMENT, name): known[name] for name in known}


def result_header(run: Any, step: int, weights: str) -> dict[str, Any]:
    """What every file of results begins with: which weights, and what computed the results.

    `run` has tokenizer, mp and mesh; `step` counts completed steps; `weights` is `params`, `ema` or
    `both`. The loop and the commands write it alike.
    """
    return {
        "step": step,
        "weights": weights,
        "tokenizer_hash": run.tokenizer.content_hash,
        "precision": asdict(run.mp),  # bfloat16 gives other digits than float32
        "mesh": dict(run.mesh.shape),  # sums over more devices round otherwise
        "time": time.time(),
        "versions": environment(),
    }


def derived_values(config: Any) -> dict[str, Any]:
    """What follows from a run's config, for `config_resolved.json`; its stores must be built."""
    trainer, schedule = config.trainer, config.optimizer.schedule(config.trainer.steps)
    batches = BatchSchedule(trainer.batch_size, trainer.grad_accum)
    stores = {name: part.validation_store for name, part in sorted(config.data.components.items())}
    return {
        "optim": {
            "warmup_steps_effective": schedule.warmup_steps,
            "decay_steps_effective": schedule.decay_steps,
        },
        "train": {
            "data_seed_effective": trainer.seed if trainer.data_seed is None else trainer.data_seed,
            "total_tokens": batches.examples_before(trainer.steps) * trainer.seq_len,
            "flops_per_token": config.model.flops_per_token(trainer.seq_len),
        },
        # A path may hold other data by the time somebody evaluates the run again.
        "data": {
            "held_out_hashes": {
                name: read_manifest(path).fingerprint()
                for name, path in stores.items()
                if path is not None
            }
        },
    }


# ---- The folder ------------------------------------------------------------------------------


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
                    _make_folder(path, config)
            has_log = is_first() and config.log_file is not None
            log_file = join(path, str(config.log_file)) if has_log else None
            with tracking.logged_to(log_file, config.level):
                with raise_together("reading the record"):
                    record, attempt = join(path, config.metrics_file), 0
                    if is_first():
                        attempt = tracking.last_attempt(record) + 1
                yield RunFolder(path, broadcast("attempt", attempt))

    @property
    def checkpoints(self) -> str:
        """The folder of the run's checkpoints."""
        return join(self.path, run_files.CHECKPOINTS)

    def describe(
        self,
        config: Any,
        template: Path,
        tokenizer: Tokenizer,
        derived: Mapping[str, Any] | None = None,
    ) -> None:
        """Write what the run is made of: config, the template's own source, tokenizer.

        The original config is `logging.original_config`, the file that the run was started with,
        or else `config` as YAML; one that was there before attempt 3 and differs is kept as
        config_original.before-3.yaml. `derived` follows from the config and is kept for readers.
        """
        if not is_first():
            return
        # Bytes: one that was damaged may be no text any more, and is kept like any other.
        text = tracking.redacted(config.logging.original_config or config_to_yaml(config)).encode()
        path = join(self.path, run_files.ORIGINAL_CONFIG)
        aside = join(self.path, f"config_original.before-{self.attempt}.yaml")
        # A start that failed before its first row had this same number, and trained nothing.
        if storage.exists(path) and not storage.exists(aside):
            before = storage.read_bytes(path, max_bytes=MAX_TEXT_BYTES)
            if before != text:
                storage.write_bytes_atomic(aside, before)
        storage.write_bytes_atomic(path, text)

        resolved = config_to_mapping(config)
        resolved["logging"].pop("original_config")
        if derived is not None:
            resolved[run_files.DERIVED] = dict(derived)
        resolved_path = join(self.path, run_files.RESOLVED_CONFIG)
        storage.write_json_atomic(resolved_path, tracking.without_secrets(resolved))

        copy = join(self.path, run_files.TEMPLATE)
        storage.make_folder(copy, inside=self.path)
        sources = run_files.template_sources(template)
        # The copy is the template and nothing else, whatever an earlier attempt left there.
        for stale in Path(copy).glob("*.py"):
            if stale.is_dir() and not stale.is_symlink():
                storage.remove_tree(stale)
            elif stale.stem not in sources:
                stale.unlink()
        for name, source in sources.items():
            storage.write_bytes_atomic(join(copy, f"{name}.py"), source)
        # By the bytes that run now: others may write into the folder.
        run_files.remember_template(run_files.sources_hash(sources))
        save_tokenizer(tokenizer, join(self.path, run_files.TOKENIZER))

    def template_hash(self) -> str:
        """The hash of the copied template; the original may be edited while the run trains."""
        if not is_first():
            return ""
        copy = join(self.path, run_files.TEMPLATE)
        return run_files.sources_hash(run_files.template_sources(copy))

    @contextmanager
    def tracker(
        self, config: LoggingConfig, *, total_steps: int, start_step: int
    ) -> Iterator[Tracker]:
        """The record of this attempt, and the sinks that are asked for.

        At the end the summary says how the attempt ended. The page of an earlier attempt is
        removed: it would look like that of a run that has finished.
        """
        if not is_first():
            yield tracking.NoopTracker()
            return
        page = page_of_run(self.path)
        try:
            remove_run_page(self.path)
        except (OSError, StorageError) as error:
            _logger.warning("%s is of an earlier attempt and could not be removed: %s", page, error)
        record = tracking.JsonlTracker(join(self.path, config.metrics_file), attempt=self.attempt)
        settings = run_files.resolved_config(self.path)
        sidecar = self._start_sidecar(config, record, settings)
        sinks = []
        if config.console:  # making one draws its bar on a terminal
            console = tracking.ConsoleTracker(
                total_steps,
                start_step=start_step,
                has_bar=config.console_use_rich,
                eval_prefix=run_files.eval_prefix_in(settings),
            )
            sinks.append(console)
        tracker = tracking.CompositeTracker(record, sinks)
        outcome = run_files.FINISHED
        try:
            yield tracker
        except BaseException as error:
            is_planned = isinstance(error, RunInterrupted) and error.exit_code == 0
            outcome = run_files.PIECE_FINISHED if is_planned else type(error).__name__
            raise
        finally:
            # If the record cannot be written, that is what ended the run.
            with suppress(StorageError):
                tracker.log_summary({metrics.RUN_OUTCOME: outcome})
            try:
                tracker.finish()
            finally:
                if sidecar is not None:
                    sidecar.finish()
            if outcome == run_files.FINISHED:
                try:
                    write_run_page(self.path)
                except Exception:  # the run is done: its page must not make it fail
                    text = "the run is done, but its page could not be written to %s; `chomp "
                    text += "report %s` tries again"
                    _logger.warning(text, page, self.path, exc_info=True)

    def _start_sidecar(
        self, config: LoggingConfig, record: Tracker, settings: Mapping[str, Any]
    ) -> tracking.Sidecar | None:
        """The process that sends the record to W&B and TensorBoard, where they are asked for."""
        path, wandb = join(self.path, config.metrics_file), None
        if tracking.wants_wandb(config.wandb):
            run_id = settings.get("run_id")
            name = run_id if isinstance(run_id, str) and run_id else storage.name_of(self.path)
            wandb_id = tracking.recorded_summary(path).get(metrics.WANDB_RUN_ID)
            if wandb_id is None:  # into the record, so that the next attempt continues the same
                wandb_id = tracking.new_wandb_id(name)
                record.log_summary({metrics.WANDB_RUN_ID: wandb_id})
            original = join(self.path, run_files.ORIGINAL_CONFIG)
            wandb = tracking.wandb_start(
                config,
                name=name,
                run_id=wandb_id,
                settings=settings,
                attempt=self.attempt,
                config_file=original if storage.exists(original) else None,
            )

        def show_address(address: str | None) -> None:
            if address and config.console:
                print(f"W&B: {address}", flush=True)  # not by rich, which would write into the bar

        return tracking.start_sidecar(
            path,
            folder=self.path,
            wandb=wandb,
            tensorboard=config.tensorboard.folder if config.tensorboard.enabled else None,
            on_address=show_address,
        )

    def write_sample(self, step: int, text: str) -> str:
        """Write generated text; returns the file's path."""
        path = join(self.path, run_files.SAMPLES, run_files.sample_file(step))
        if is_first():
            storage.make_folder(join(self.path, run_files.SAMPLES), inside=self.path)
            storage.write_text_atomic(path, text)
        return path


def _make_folder(path: str, config: LoggingConfig) -> None:
    require(
        storage.is_local(path),
        f"output_path={path}",
        allowed="a folder on a mounted filesystem: the record is appended to line by line",
        fix="choose a local folder, and copy it when the run has ended",
    )
    require_plain_path(path)
    tracking.require_installed(config)
    storage.make_folder(path)
    # Before anything is written: a folder that was unpacked may hold links to anywhere.
    names = [config.metrics_file, str(config.log_file or ""), config.tensorboard.folder]
    names += [run_files.TEMPLATE, run_files.TOKENIZER, run_files.SAMPLES, run_files.ARTIFACTS]
    names += [run_files.REPORT, run_files.PROFILER, run_files.CHECKPOINTS]
    require_links_inside(path, names)
