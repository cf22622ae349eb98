"""What a launch command says: the plan, what begins, what differs, what went wrong.

Results go to stdout, notes and errors to stderr. Nothing is wrapped: a path or a command that is
broken over two lines cannot be copied.
"""

import logging
import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress

from rich.console import Console
from rich.text import Text

from chomp.errors import ChompError, LaunchError, StorageError
from chomp.executor import PlannedStep, StepFailure
from chomp.executor.status import ERROR
from chomp.launch.outcome import RaisedElsewhere
from chomp.launch.step_logs import log_path
from chomp.storage import LockHolder, exists, is_folder, join, list_folder
from chomp.storage.printable import PlainConsole, PlainFormatter
from chomp.tracking.run_files import RESOLVED_CONFIG

_console = PlainConsole(soft_wrap=True)
_errors = PlainConsole(stderr=True, soft_wrap=True)
_ACTION_STYLES = {"run": "bold", "skip": "green", "wait": "yellow"}
_VERBS = {"run": "continued", "skip": "reused", "wait": "waited for"}


def tell_warnings_only() -> None:
    """Show warnings of Python's log on the terminal; a run's own log file takes the rest.

    No-op where the program has log handlers already: they are its own.
    """
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(PlainFormatter("%(levelname)s: %(message)s"))
    root.addHandler(handler)


def tell_plan(planned: Sequence[PlannedStep]) -> None:
    """One line for each step: action, name, where, why."""
    width = max(len(item.step.name) for item in planned)
    for item in planned:
        _say(
            _console,
            _ACTION_STYLES[item.action],
            f"{item.action:<4}",
            f" {item.step.name:<{width}}  {item.path}  ({item.reason})",
        )


def tell_nothing_run(what: str) -> None:
    """What was shown is all that happened."""
    _console.print(f"This is {what}; nothing was run.")


def tell_start(planned: PlannedStep, *, has_log: bool = False) -> None:
    """A step begins. `has_log`: what it prints is not seen here, so say where it is."""
    parts = [planned.step.description, f"({planned.reason})"]
    parts += [f"log: {log_path(planned.path)}"] if has_log else []
    _say(_console, "bold", planned.step.name, "  ".join(filter(None, parts)))


def tell_wait(planned: PlannedStep, holder: LockHolder | None) -> None:
    """Another process runs a step, and this one waits: who it is, and how to continue."""
    stop = f" (kill {holder.pid} on {holder.host})" if holder else ""
    _say(
        _console,
        "yellow",
        "Waiting",
        f"for {planned.title}, held by {holder or 'another process'}. This goes on as soon as that "
        f"process ends or is stopped{stop}.",
    )


def tell_gpu_wait(planned: PlannedStep, count: int) -> None:
    """A step is to begin and waits for GPUs that other steps of this launch have."""
    _say(_console, "yellow", "Waiting", f"for {count} GPU{'s' * (count > 1)}: {planned.title}")


def tell_done(planned: PlannedStep) -> None:
    """There was nothing to do."""
    _say(_console, "green", "Already done:", f"{planned.step.name} is at {planned.path}")


def tell_lost_checkpoints(planned: Sequence[PlannedStep]) -> None:
    """Say which runs count as done although their last checkpoint, or all of them, are gone."""
    for item in planned:
        if item.action != "skip" or not exists(join(item.path, RESOLVED_CONFIG)):
            continue
        folder = join(item.path, "checkpoints")
        names = list_folder(folder) if is_folder(folder) else []
        steps = getattr(getattr(item.config, "trainer", None), "steps", r"\d+")
        what = "checkpoint" if isinstance(steps, str) else f"step-{steps}"
        if not any(re.fullmatch(rf"step-{steps}", name) for name in names):
            _say(
                _errors,
                "yellow",
                "Note:",
                f"{item.title} is done, but {folder} has no {what} any more: it was deleted or "
                f"moved.\n  To make the run again: {force_flag(item)}",
            )


def tell_restart(number: int, restarts: int) -> None:
    """Say that a preempted run goes on in a new process."""
    _say(_errors, "yellow", "Preempted.", f"Starting again, {number} of {restarts} times.")


def tell_stop(why: str) -> None:
    """The command was interrupted."""
    _say(_errors, "yellow", "Stopped.", why)


def tell_error(error: ChompError) -> None:
    """The command cannot go on."""
    _say(_errors, "red", "Error:", _with_notes(error))


def tell_failure(failure: StepFailure) -> None:
    """A step failed; others may go on. A bug is told with its traceback, a dependant at the end."""
    planned, error = failure.planned, failure.error
    if error is None:
        return
    if isinstance(error, ChompError):
        _say(_errors, "red", "Error:", f"{planned.title}: {_with_notes(error)}")
    else:
        _show_bug(error)
        _say(_errors, "red", "Error:", f"{planned.title} failed; its folder is {planned.path}")


def tell_failures(failures: Sequence[StepFailure], *, of: int) -> None:
    """The end of a run that was not all well: every step that failed, and where to look."""
    titles = {failure.planned.path: failure.planned.title for failure in failures}
    lines = []
    for failure in failures:
        planned = failure.planned
        needs = [titles[path] for path in planned.dependencies if path in titles]
        if failure.error is None:
            end = f"not run, since a step it depends on failed ({needs[0]})"
        else:
            end = f"see {_log_of(planned)}"
        lines.append(f"  {planned.title}: {end}")
    failed = sum(failure.error is not None for failure in failures)
    rest = f", {len(failures) - failed} more not run" if failed < len(failures) else ""
    head = f"{failed} of {of} step{'s' * (of > 1)}{rest}"
    _say(_errors, "red", "Failed:", "\n".join([head, *lines]))


def tell_differences(planned: Sequence[PlannedStep]) -> None:
    """What is reused or continued though it was made with other source or settings."""
    for item in _differing(planned):
        _say(
            _errors,
            "yellow",
            "Note:",
            f"{item.title} is {_VERBS[item.action]}, but it was made with other source or settings:"
            f"\n  {_listed(item)}\n  To run it again from the start: {force_flag(item)}",
        )


def refuse_differences(planned: Sequence[PlannedStep]) -> None:
    """Raise `LaunchError` if anything would be reused or continued that differs."""
    differing = _differing(planned)
    if not differing:
        return
    flags = " ".join(force_flag(item) for item in differing)
    raise LaunchError(
        "\n".join(
            f"{item.title} would be {_VERBS[item.action]} though it differs:\n  {_listed(item)}"
            for item in differing
        ),
        allowed="with --strict, only results made with this source and these settings",
        fix=f"run again from the start with {flags}, or leave out --strict",
    )


def force_flag(planned: PlannedStep) -> str:
    """The flag that runs a step again from the start, and no other step."""
    # A hyphen needs no escape outside of brackets, and reads better without.
    pattern = re.escape(planned.step.name).replace(r"\-", "-")
    return f"--force '^{pattern}$'"


def _show_bug(error: BaseException) -> None:
    # Python's own, since rich would cut lines and hide what a bug report needs.
    if isinstance(error.__cause__, RaisedElsewhere):
        # How it came from there to here explains nothing.
        print(error.__cause__.args[0].rstrip("\n"), file=sys.stderr)
    else:
        traceback.print_exception(error)


def _say(console: Console, style: str, label: str, text: str) -> None:
    # As Text and not as markup: what is told may hold brackets of its own.
    console.print(Text.assemble((label, style), " ", text))


def _with_notes(error: ChompError) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


def _log_of(planned: PlannedStep) -> str:
    """What tells most of how a step ended: what it printed, else its traceback, else its folder."""
    with suppress(StorageError):  # a folder that cannot be read is why it failed, perhaps
        for place in (log_path(planned.path), join(planned.path, ERROR)):
            if exists(place):
                return place
    return planned.path


def _differing(planned: Sequence[PlannedStep]) -> list[PlannedStep]:
    return [item for item in planned if item.differences]


def _listed(planned: PlannedStep) -> str:
    return "\n  ".join(planned.differences)
