"""`chomp report`: a page of one or several runs, from their folders alone."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chomp.cli.config_arguments import Action
from chomp.cli.terminal import print_table, say
from chomp.errors import StorageError, require

if TYPE_CHECKING:  # for annotations alone
    from collections.abc import Mapping, Sequence

# The mark is typer's: it leaves the lines of the paragraph after it as they are.
EXAMPLES = """\b
Examples:
  chomp report runs/chomp/base_smoke-0123abcd
  chomp report runs/chomp/* --out report
  chomp report runs/longer --against runs/chomp/base_smoke-0123abcd
  chomp report runs/longer --profile
"""

# From here on somebody at the terminal wonders: a second and a half of reading.
_SHOW_PROGRESS_BYTES = 200_000_000

Runs = Annotated[
    list[str], typer.Argument(metavar="RUN...", help="Run folders, or their metrics files.")
]


def report(
    runs: Runs,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Where index.html goes; default: report/ in the run, or here for several runs.",
        ),
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="RUN", help="Also compare configs with this run's.")
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Also sum up each run's newest trace.")
    ] = False,
    is_opened: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
) -> Action:
    """What `chomp report` does."""
    return partial(report_runs, runs, out, against, profile, is_opened)


def report_runs(
    runs: Sequence[str], out: str | None, against: str | None, with_profile: bool, is_opened: bool
) -> int:
    """Write the page and say where it is."""
    import webbrowser
    from pathlib import Path

    from chomp.report.payload import page_payload
    from chomp.report.written_page import require_free, write_page

    _require_different(runs)
    folder = Path(_default_folder(runs) if out is None else out)
    # Before anything is read, which may take long.
    require_free(folder)
    other = None if against is None else _config_of(against)
    if with_profile and len(runs) == 1:
        _require_trace(runs[0])
    parts = _read(runs)
    if with_profile:
        parts = [_with_profile(part, is_alone=len(parts) == 1) for part in parts]
    page = write_page(page_payload(parts, against=other), folder)
    for part in parts:
        for problem in part["problems"]:
            say(f"{part['name']}: {problem}", style="yellow")
    say(f"run page: {page}")
    if is_opened:
        webbrowser.open(Path(page).resolve().as_uri())
    return 0


def _require_different(runs: Sequence[str]) -> None:
    """Refuse a run that is given twice, be it by its folder and by its metrics file."""
    import os

    from chomp.storage import is_local

    folders = [_folder_of(run) for run in runs]
    places = [os.path.realpath(folder) if is_local(folder) else folder for folder in folders]
    again = next((at for at, place in enumerate(places) if place in places[:at]), None)
    require(
        again is None,
        given=f"{folders[again or 0]} twice",
        allowed="each run once",
        fix="leave one out",
    )


def _folder_of(run: str) -> str:
    """The run's folder, which may be given by the metrics file in it."""
    from chomp.storage import exists, is_folder, normalise, parent_of

    path = normalise(run)
    return parent_of(path) if exists(path) and not is_folder(path) else path


def _require_trace(run: str) -> None:
    """Raise `StorageError` if a run has no trace."""
    from chomp.report.trace.newest_file import newest_trace
    from chomp.tracking.run_files import resolved_config

    folder = _folder_of(run)
    newest_trace(folder, resolved_config(folder))


def _default_folder(runs: Sequence[str]) -> str:
    """Beside the run it is of; a page of several runs belongs to none of them."""
    from chomp.storage import is_local, join
    from chomp.storage.files import require_inside
    from chomp.tracking.run_files import REPORT

    if len(runs) > 1:
        return REPORT
    folder = _folder_of(runs[0])
    require(
        is_local(folder),
        given=f"{runs[0]} without --out",
        allowed="a page on a mounted filesystem",
        fix="add --out DIR",
    )
    require_inside(join(folder, REPORT), folder)
    return join(folder, REPORT)


def _read(runs: Sequence[str]) -> list[dict[str, Any]]:
    from rich.progress import Progress

    from chomp.report.many_runs import run_payloads, total_bytes

    is_quiet = total_bytes(runs) < _SHOW_PROGRESS_BYTES
    with Progress(transient=True, disable=is_quiet) as progress:
        task = progress.add_task(f"reading {len(runs)} runs", total=len(runs))
        return run_payloads(runs, on_read=lambda _: progress.advance(task))


def _config_of(run: str) -> tuple[str, Mapping[str, str]]:
    """The name and the config of a run that is compared with."""
    from chomp.report.run_facts import config_leaves
    from chomp.storage import name_of
    from chomp.tracking import without_secrets
    from chomp.tracking.run_files import RESOLVED_CONFIG, resolved_config

    config = without_secrets(resolved_config(run))
    require(
        bool(config),
        given=f"--against {run}, where there is no {RESOLVED_CONFIG}",
        allowed="a run folder",
        fix="correct the path, or leave --against out",
    )
    return str(config.get("run_id") or name_of(run)), config_leaves(config)


def _with_profile(part: dict[str, Any], *, is_alone: bool) -> dict[str, Any]:
    """The run with what its newest trace says, which is printed as well.

    Among other runs, one without a trace says so on the page; alone it is an error.
    """
    from chomp.report.trace.summary import summary_of_run
    from chomp.report.trace.tables import headline, summary_tables
    from chomp.tracking.run_files import resolved_config

    try:
        summary = summary_of_run(part["folder"], resolved_config(part["folder"]))
    except StorageError as error:
        if is_alone:
            raise
        return {**part, "problems": [*part["problems"], str(error)]}
    say(f"{part['name']}: {headline(summary)}")
    for table in summary_tables(summary):
        print_table(table)
    for note in summary.notes:
        say(note, style="yellow")
    return {**part, "profile": summary.payload()}
