"""`chomp report`, `watch`, `metrics show` and `metrics replay`: runs, from what they wrote."""

import os
import webbrowser
from pathlib import Path
from typing import Any

from rich.progress import Progress

from chomp.cli.commands import MetricsReplay, MetricsShow, Report, Watch
from chomp.cli.output import print_json, print_rows, print_table, say
from chomp.config import config_from_mapping
from chomp.errors import LaunchError, StorageError, require
from chomp.launch.console import print_stop
from chomp.launch.step_result import INTERRUPTED_EXIT_CODE
from chomp.report.page import page_payload, require_free, write_page
from chomp.report.run_facts import config_leaves
from chomp.report.run_payload import run_payloads, total_bytes
from chomp.report.trace import headline, newest_trace, summary_of_run, summary_tables
from chomp.report.watch import watch
from chomp.storage import exists, is_folder, is_local, join, name_of, normalise, parent_of
from chomp.storage.files import require_inside
from chomp.tracking import (
    LoggingConfig,
    latest_rows,
    new_wandb_id,
    read_metrics,
    start_sidecar,
    summary_of,
    wandb_start,
    without_secrets,
)
from chomp.tracking.metrics import SHORT_KEYS, TRAIN_LOSS
from chomp.tracking.run_files import (
    REPORT,
    RESOLVED_CONFIG,
    is_run_folder,
    resolved_config,
    run_folders_in,
)
from chomp.tracking.sidecar import REPLAY_LOG, is_installed, not_installed

# A second and a half of reading: from here on there is a progress bar.
_SHOW_PROGRESS_BYTES = 200_000_000


# --- report -------------------------------------------------------------------------------------


def write_report(asked: Report) -> int:
    """Write the page of one or several runs and say where it is."""
    # A run may be given by its metrics file; the same run twice is refused however it is given.
    folders = [_folder_of(run) for run in asked.runs]
    places = [os.path.realpath(folder) if is_local(folder) else folder for folder in folders]
    again = next((at for at, place in enumerate(places) if place in places[:at]), None)
    require(
        again is None,
        f"{folders[again or 0]} twice",
        allowed="each run once",
        fix="leave one out",
    )
    is_alone = len(folders) == 1
    out = asked.out
    if out is None and is_alone:
        require(
            is_local(folders[0]),
            f"{asked.runs[0]} without --out",
            allowed="a page on a mounted filesystem",
            fix="add --out DIR",
        )
        require_inside(join(folders[0], REPORT), folders[0])
        out = join(folders[0], REPORT)
    folder = Path(out or REPORT)
    # Before anything is read, which may take long.
    require_free(folder)
    other = None
    if asked.against is not None:
        config = without_secrets(resolved_config(asked.against))
        require(
            bool(config),
            f"--against {asked.against}, where there is no {RESOLVED_CONFIG}",
            allowed="a run folder",
            fix="correct the path, or leave --against out",
        )
        other = str(config.get("run_id") or name_of(asked.against)), config_leaves(config)
    if asked.profile and is_alone:  # raises if there is no trace
        newest_trace(folders[0], resolved_config(folders[0]))
    is_quiet = total_bytes(asked.runs) < _SHOW_PROGRESS_BYTES
    with Progress(transient=True, disable=is_quiet) as progress:
        task = progress.add_task(f"reading {len(folders)} runs", total=len(folders))
        parts = run_payloads(asked.runs, on_read=lambda _: progress.advance(task))
    if asked.profile:
        parts = [_with_profile(part, is_alone=is_alone, is_quiet=asked.as_json) for part in parts]
    page = write_page(page_payload(parts, against=other), folder)
    if asked.as_json:
        names = ("name", "folder", "problems", "profile")
        print_json({"page": str(page), "runs": [{k: part.get(k) for k in names} for part in parts]})
    else:
        for part in parts:
            for problem in part["problems"]:
                say(f"{part['name']}: {problem}", style="yellow")
        say(f"run page: {page}")
    if asked.is_opened:
        webbrowser.open(Path(page).resolve().as_uri())
    return 0


def _folder_of(run: str) -> str:
    path = normalise(run)
    return parent_of(path) if exists(path) and not is_folder(path) else path


def _with_profile(part: dict[str, Any], *, is_alone: bool, is_quiet: bool) -> dict[str, Any]:
    """The run with what its newest trace says, which is printed as well.

    Among other runs, one without a trace says so on the page; alone it is an error.
    """
    try:
        summary = summary_of_run(part["folder"], resolved_config(part["folder"]))
    except StorageError as error:
        if is_alone:
            raise
        return {**part, "problems": [*part["problems"], str(error)]}
    if not is_quiet:
        say(f"{part['name']}: {headline(summary)}")
        for table in summary_tables(summary):
            print_table(table)
        for note in summary.notes:
            say(note, style="yellow")
    return {**part, "profile": summary.payload()}


# --- watch --------------------------------------------------------------------------------------


def watch_run(asked: Watch) -> int:
    """Show the run until it ends or is no longer watched; the exit code."""
    run = asked.run
    require(
        is_local(run) and is_folder(run),
        f"{run}, which is no folder of this machine",
        allowed="the folder of a run, which need not have logged anything yet",
        fix="correct the path; `chomp launch` and `chomp train` print it at the start",
    )
    others = [] if is_run_folder(run) else run_folders_in(run)
    require(
        not others,
        f"{run}, which is no run folder but holds {len(others)}",
        allowed="the folder of one run",
        fix=f"name one of them, such as {others[-1]}" if others else "",
    )
    long_names = {short: name for name, short in SHORT_KEYS.items()}
    drawn = [long_names.get(name, name) for name in asked.metric or ()] or [TRAIN_LOSS]
    try:
        watch(run, metrics=drawn, every_s=asked.every, is_once=asked.once, last_steps=asked.last)
    except KeyboardInterrupt:
        # The usual way to leave, so it must not sound as if the run had been stopped.
        print_stop("Only the watching: the run is as it was.")
        return INTERRUPTED_EXIT_CODE
    return 0


# --- metrics ------------------------------------------------------------------------------------


def show_metrics(asked: MetricsShow) -> int:
    """Print the last rows, a column for each step, and the summary."""
    path, _, _ = _record(asked.run)
    record = read_metrics(path)
    steps, summary = latest_rows(record)[-asked.rows :], summary_of(record)
    if asked.as_json:
        print_json({"rows": steps, "summary": summary})
        return 0

    def text(value: object) -> str:
        return f"{value:.6g}" if isinstance(value, float) else str(value)

    hidden = {"step", "global_step", "time"}
    names = dict.fromkeys(name for row in steps for name in row if name not in hidden)
    rows = [
        {"metric": name} | {f"step {row['step']}": text(row.get(name, "")) for row in steps}
        for name in names
    ]
    print_rows(rows)
    if summary:
        print_rows([{"summary": name, "value": text(value)} for name, value in summary.items()])
    return 0


def replay_metrics(asked: MetricsReplay) -> int:
    """Send the record to a service; rows that it has already are not sent again."""
    run, to = asked.run, asked.to
    path, config, settings = _record(run)
    if not is_installed(to):
        raise not_installed(to, f"--to {to}")
    num_rows = len(read_metrics(path))
    tensorboard = wandb = None
    if to == "tensorboard":
        tensorboard = f"{config.tensorboard.folder}-replay"
        where = join(run, tensorboard)
    else:
        name = settings.get("run_id") or name_of(run)
        wandb_id = asked.id or new_wandb_id(f"{name}-replay")
        wandb = wandb_start(config, name=name, run_id=wandb_id, settings=settings)
        where = f"W&B run {wandb.project}/{wandb_id}"

    def on_address(address: str | None) -> None:
        say(f"W&B: {address or 'offline; send it with `wandb sync`'}")

    sidecar = start_sidecar(
        path,
        folder=run,
        wandb=wandb,
        tensorboard=tensorboard,
        on_address=on_address,
        timeout_s=None,
        log=REPLAY_LOG,
    )
    assert sidecar is not None, "one of the two is given"
    try:
        sidecar.finish()
    except KeyboardInterrupt:
        sidecar.stop()
        raise
    if sidecar.failures:
        raise LaunchError(
            f"{path} could not be sent to {where}: {'; '.join(sidecar.failures)}",
            allowed=f"a {to} that takes the rows",
            fix="correct what it says, and run the same command: it goes on where it stopped",
        )
    say(f"{num_rows} lines of {path} sent to {where}")
    return 0


def _record(run: str) -> tuple[str, LoggingConfig, dict[str, Any]]:
    """The metrics file of a run folder, how it logs, and its resolved config."""
    settings = resolved_config(run)
    config = config_from_mapping(
        LoggingConfig,
        settings.get("logging") or {},
        source=f"{join(run, RESOLVED_CONFIG)}, logging",
    )
    path = join(run, config.metrics_file)
    require(
        exists(path),
        f"{run}, where there is no {config.metrics_file}",
        allowed="the folder of a run that has logged a row",
        fix="correct the path",
    )
    return path, config, settings
