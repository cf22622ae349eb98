"""The newest finished run of a variant among the outputs of this machine."""

from collections.abc import Iterable
from dataclasses import dataclass

from chomp.errors import StorageError
from chomp.executor import read_status
from chomp.executor.status import StepInfo, read_info
from chomp.storage import exists, is_folder, is_set_aside, join, list_folder
from chomp.tracking import latest_rows, read_metrics
from chomp.tracking.run_files import eval_prefix_in, held_out_prefix, record_in, resolved_config

RUNS = "grug"  # below the folder of outputs


@dataclass(frozen=True)
class LastRun:
    """How a run ended, and where it is."""

    path: str
    metric: str
    value: float
    steps: int

    def __str__(self) -> str:
        return f"{self.metric} {self.value:.4f} at step {self.steps} ({self.path})"


def last_runs(outputs: str, names: Iterable[str]) -> dict[str, LastRun]:
    """The newest finished run of each variant that has one below the folder of outputs.

    Told by what the executor recorded. A run that cannot be read is passed over: this is a look
    around, and no place to fail.
    """
    folder = join(outputs, RUNS)
    # All folders are looked at once, though many variants may ask.
    newest: dict[str, tuple[float, LastRun]] = {}
    wanted = set(names)
    for path in [join(folder, name) for name in list_folder(folder)] if is_folder(folder) else []:
        if is_set_aside(path):
            continue
        try:
            variant, finished, run = _finished_run(path)
        except (StorageError, LookupError):
            continue
        if variant in wanted and finished > newest.get(variant, (0.0,))[0]:
            newest[variant] = (finished, run)
    return {name: run for name, (_, run) in newest.items()}


def _finished_run(path: str) -> tuple[str, float, LastRun]:
    """Variant, time of the end, and end of a run; `LookupError` for a folder that has none."""
    info, status = read_info(path), read_status(path)
    # A run that was stopped has a last row as well, which says nothing of the variant.
    if info is None or status is None or status.state != "SUCCESS" or status.finished is None:
        raise LookupError(path)
    config = resolved_config(path)
    record = record_in(path, config)
    rows = latest_rows(read_metrics(record)) if exists(record) else []
    held_out = held_out_prefix(eval_prefix_in(config), set().union(*rows))
    # The first that the run has logged tells how it ended.
    for metric in (f"{held_out}/loss", "train/loss"):
        for row in reversed(rows):
            value = row.get(metric)  # null where it was not finite
            if isinstance(value, int | float):
                run = LastRun(path, metric, float(value), int(row["step"]) + 1)
                return variant_of(info), status.finished, run
    raise LookupError(path)


def variant_of(info: StepInfo) -> str:
    """The variant whose launch file a run came from.

    A launch file that was run by its path is `__main__`, so the function's own name has to tell.
    """
    module, _, function = info.fn.rpartition(".")
    parts = module.split(".")
    if parts[:2] == ["experiments", "grug"] and len(parts) > 2:
        return parts[2]
    return function.removeprefix("train_")
