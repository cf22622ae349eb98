"""`chomp metrics ...`: the record of a run, shown and sent to a service again."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from chomp.cli.terminal import print_table, say
from chomp.errors import require

if TYPE_CHECKING:
    from chomp.tracking import LoggingConfig, RunFacts, Tracker

Action = Callable[[], int]

metrics_app = typer.Typer(
    no_args_is_help=True, help="The record of a run: show it, send it to a service again."
)

Run = Annotated[str, typer.Argument(metavar="RUN", help="A run folder.")]


class Service(StrEnum):
    """Where a record can be sent."""

    wandb = "wandb"
    tensorboard = "tensorboard"


@metrics_app.command(help="Send every row of a run's record to W&B or TensorBoard.")
def replay(
    run: Run,
    to: Annotated[Service, typer.Option("--to", help="Where to.", show_default=False)],
    run_id: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="ID", help="W&B only: the run to write to; default: a new one."
        ),
    ] = None,
) -> Action:
    """What `chomp metrics replay` does."""
    require(
        run_id is None or to is Service.wandb,
        given=f"--id {run_id} with --to {to}",
        allowed="--id with --to wandb",
        fix="leave it out",
    )
    return partial(replay_run, run, to, run_id)


@metrics_app.command(help="Show the newest values of a run's record, and its summary.")
def show(
    run: Run,
    rows: Annotated[int, typer.Option(min=1, help="How many steps to show.")] = 5,
) -> Action:
    """What `chomp metrics show` does."""
    return partial(show_run, run, rows)


def replay_run(run: str, to: Service, run_id: str | None) -> int:
    """Send the record to the service, with a bar where there is somebody to see it."""
    from pathlib import Path

    from rich.progress import track

    from chomp.tracking import read_metrics
    from chomp.tracking.replay import replay_rows

    path, config, facts = _record(run, run_id)
    rows = read_metrics(path)
    sink, where = _sink(to, config, facts)
    shown = track(rows, description=f"sending to {to}", transient=True, disable=len(rows) < 1000)
    replay_rows(shown, sink, folder=Path(path).parent)
    say(f"{len(rows)} lines of {path} sent to {where}")
    return 0


def show_run(run: str, num_rows: int) -> int:
    """Print the last rows, a column for each step, and the summary."""
    from rich.table import Table

    from chomp.tracking import latest_rows, read_metrics, summary_of

    path, _, _ = _record(run, None)
    record = read_metrics(path)
    steps, summary = latest_rows(record)[-num_rows:], summary_of(record)
    table = Table("metric", *(f"step {row['step']}" for row in steps))
    hidden = {"step", "global_step", "time"}
    for name in dict.fromkeys(name for row in steps for name in row if name not in hidden):
        table.add_row(name, *(_told(row.get(name, "")) for row in steps))
    print_table(table)
    if summary:
        table = Table("summary", "value")
        for name, value in summary.items():
            table.add_row(name, _told(value))
        print_table(table)
    return 0


def _record(run: str, run_id: str | None) -> "tuple[str, LoggingConfig, RunFacts]":
    """The metrics file of a run folder, how it logs, and who it is at a service."""
    from chomp.config import config_from_mapping
    from chomp.storage import exists, join, name_of, read_json
    from chomp.tracking import LoggingConfig, RunFacts, new_wandb_id
    from chomp.tracking.run_files import RESOLVED_CONFIG

    location = join(run, RESOLVED_CONFIG)
    content = read_json(location) if exists(location) else {}
    settings = content if isinstance(content, dict) else {}
    config = config_from_mapping(
        LoggingConfig, settings.get("logging") or {}, source=f"{location}, logging"
    )
    path = join(run, config.metrics_file)
    require(
        exists(path),
        given=f"{run}, where there is no {config.metrics_file}",
        allowed="the folder of a run that has logged a row",
        fix="correct the path",
    )
    name = settings.get("run_id") or name_of(run)
    facts = RunFacts(
        folder=run,
        name=name,
        attempt=1,  # each row tells its own
        config=settings,
        wandb_id=run_id or new_wandb_id(f"{name}-replay"),
    )
    return path, config, facts


def _sink(to: Service, config: "LoggingConfig", facts: "RunFacts") -> "tuple[Tracker, str]":
    from pathlib import Path

    from chomp.storage.files import require_links_inside
    from chomp.tracking import TensorBoardSink, WandbProcess
    from chomp.tracking.sinks import is_installed, missing

    if not is_installed(to):
        raise missing(to, f"--to {to}")
    if to is Service.tensorboard:
        name = f"{config.tensorboard.folder}-replay"
        require_links_inside(facts.folder, [name])
        folder = Path(facts.folder) / name
        return TensorBoardSink(folder), str(folder)
    start = facts.wandb_start(config)
    return WandbProcess(start, on_open=_tell_address), f"W&B run {start.project}/{start.run_id}"


def _tell_address(address: str | None) -> None:
    say(f"W&B: {address or 'offline; send it with `wandb sync`'}")


def _told(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
