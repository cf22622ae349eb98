"""What a launch command prints: the plan, what starts, what differs, what went wrong.

Results go to stdout, notes and errors to stderr. Nothing is wrapped: a path or a command that is
broken over two lines cannot be copied.
"""

import logging
import os
import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress

from rich.console import Console
from rich.text import Text

from chomp.errors import ChompError, LaunchError, StorageError
from chomp.executor import PlannedStep, StepFailure, read_status
from chomp.executor.status import ERROR
from chomp.launch.step_result import RaisedElsewhere, log_of, log_path
from chomp.storage import LockHolder, exists, is_folder, join, list_folder, open_stream
from chomp.storage.printable import PlainConsole, PlainFormatter
from chomp.tracking.run_files import RESOLVED_CONFIG, TRAIN_LOG

_console = PlainConsole(soft_wrap=True)
_errors = PlainConsole(stderr=True, soft_wrap=True)
_ACTION_STYLES = {"run": "bold", "skip": "green", "wait": "yellow"}
_VERBS = {"run": "continued", "skip": "reused", "wait": "waited for"}
# Enough for the end of a traceback, and little enough for a terminal.
_TAIL_LINES, _TAIL_BYTES = 8, 8192


def show_log_warnings() -> None:
    """Show warnings of Python's log on the terminal; a run's own log file takes the rest.

    No-op if the program has log handlers already: they are its own.
    """
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(PlainFormatter("%(levelname)s: %(message)s"))
    root.addHandler(handler)


def print_plan(planned: Sequence[PlannedStep]) -> None:
    """One line for each step: action, name, where, why."""
    width = max(len(item.step.name) for item in planned)
    for item in planned:
        text = f" {item.step.name:<{width}}  {item.path}  ({item.reason})"
        _print(_console, _ACTION_STYLES[item.action], f"{item.action:<4}", text)


def print_nothing_run(what: str) -> None:
    """What was shown is all that happened."""
    _console.print(f"This is {what}; nothing was run.")


def print_start(planned: PlannedStep, *, has_log: bool = False) -> None:
    """A step starts. `has_log`: what it prints is not seen here, so say where it is."""
    reason = planned.reason
    if planned.action == "wait":
        reason = "another process was running it, and has ended"
    log = f"log: {log_path(planned.path)}" if has_log else ""
    parts = filter(None, [planned.step.description, f"({reason})", log])
    _print(_console, "bold", planned.step.name, "  ".join(parts))


def print_wait(planned: PlannedStep, holder: LockHolder | None) -> None:
    """Another process runs a step, and this one waits: who it is, and how to continue."""
    stop = f" (kill {holder.pid} on {holder.host})" if holder else ""
    _print(
        _console,
        "yellow",
        "Waiting",
        f"for {planned.title}\n  held by {holder or 'another process'}\n"
        f"  This continues as soon as that process ends or is stopped{stop}.",
    )


def print_gpu_wait(planned: PlannedStep, count: int) -> None:
    """A step is to start and waits for GPUs that other steps of this launch have."""
    _print(_console, "yellow", "Waiting", f"for {count} GPU{'s' * (count > 1)}: {planned.title}")


def print_done(planned: PlannedStep) -> None:
    """There was nothing to do."""
    _print(_console, "green", "Already done:", f"{planned.step.name} is at {planned.path}")


def print_lost_checkpoints(planned: Sequence[PlannedStep]) -> None:
    """Say which runs count as done although their last checkpoint, or all of them, are gone."""
    for item in planned:
        if item.action != "skip" or not exists(join(item.path, RESOLVED_CONFIG)):
            continue
        folder = join(item.path, "checkpoints")
        names = list_folder(folder) if is_folder(folder) else []
        steps = getattr(getattr(item.config, "trainer", None), "steps", r"\d+")
        if not any(re.fullmatch(rf"step-{steps}", name) for name in names):
            what = "checkpoint" if isinstance(steps, str) else f"step-{steps}"
            _print_note(
                f"{item.title} is done, but {folder} has no {what} any more: it was deleted or "
                f"moved.\n  To make the run again: {force_flag(item)}"
            )


def print_differences(planned: Sequence[PlannedStep]) -> None:
    """What is reused or continued though it was made with other source or settings."""
    for item in planned:
        if item.differences:
            _print_note(
                f"{item.title} is {_VERBS[item.action]}, but it was made with other source or "
                f"settings:\n{_list_differences(item)}\n"
                f"  To run it again from the start: {force_flag(item)}"
            )


def refuse_differences(planned: Sequence[PlannedStep]) -> None:
    """Raise `LaunchError` if anything would be reused or continued that differs."""
    if not (differing := [item for item in planned if item.differences]):
        return
    flags = " ".join(force_flag(item) for item in differing)
    raise LaunchError(
        "\n".join(
            f"{item.title} would be {_VERBS[item.action]} though it differs:\n"
            f"{_list_differences(item)}"
            for item in differing
        ),
        allowed="with --strict, only results made with this source and these settings",
        fix=f"run again from the start with {flags}, or leave out --strict",
    )


def print_restart(number: int, restarts: int) -> None:
    """A preempted run continues in a new process."""
    _print(_errors, "yellow", "Preempted.", f"Starting again (restart {number} of {restarts}).")


def print_stop(why: str) -> None:
    """The command was interrupted."""
    _print(_errors, "yellow", "Stopped.", why)


def print_error(error: ChompError, where: str = "") -> None:
    """The command cannot continue."""
    _print(
        _errors, "red", "Error:", "\n".join([f"{where}{error}", *getattr(error, "__notes__", ())])
    )


def print_failure(failure: StepFailure) -> None:
    """A step failed; others may go on. A bug is shown with its traceback.

    What depends on it is listed by `print_failures`.
    """
    planned, error = failure.planned, failure.error
    if error is None:
        return
    if isinstance(error, ChompError):
        print_error(error, f"{planned.title}: ")
        return
    # By Python itself, since rich would cut lines and hide what a bug report needs.
    if isinstance(error.__cause__, RaisedElsewhere):
        # How it came from there to here explains nothing.
        print(error.__cause__.traceback.rstrip("\n"), file=sys.stderr)
    else:
        traceback.print_exception(error)
    _print(_errors, "red", "Error:", f"{planned.title} failed; its folder is {planned.path}")


def print_failures(failures: Sequence[StepFailure], *, of: int) -> None:
    """The end of a run with failures: each failed step, its log and the last lines of it."""
    titles = {failure.planned.path: failure.planned.title for failure in failures}
    lines = []
    for failure in failures:
        planned = failure.planned
        if failure.error is None:
            needs = next(titles[path] for path in planned.dependencies if path in titles)
            lines.append(f"  {planned.title}: not run, since a step it depends on failed ({needs})")
            continue
        log = log_of(failure.error) or _local_log(planned)
        lines.append(f"  {planned.title}: see {log}")
        # The traceback of a bug was printed above.
        if isinstance(failure.error, ChompError) and not log.endswith((planned.path, ERROR)):
            with suppress(StorageError), open_stream(log) as stream:
                stream.seek(-min(_TAIL_BYTES, stream.seek(0, os.SEEK_END)), os.SEEK_END)
                printed = stream.read().decode("utf-8", "replace").splitlines()
                last = [line for line in printed if line.strip()][-_TAIL_LINES:]
                lines += [f"    | {line}" for line in last]
    failed = sum(failure.error is not None for failure in failures)
    rest = f", {len(failures) - failed} more not run" if failed < len(failures) else ""
    head = f"{failed} of {of} step{'s' * (of > 1)}{rest}"
    _print(_errors, "red", "Failed:", "\n".join([head, *lines]))


def force_flag(planned: PlannedStep) -> str:
    """The flag that runs a step again from the start, and no other step."""
    # A hyphen needs no escape outside of brackets, and reads better without.
    pattern = re.escape(planned.step.name).replace(r"\-", "-")
    return f"--force '^{pattern}$'"


def _print(console: Console, style: str, label: str, text: str) -> None:
    # As Text and not as markup: what is printed may hold brackets of its own.
    console.print(Text.assemble((label, style), " ", text))


def _print_note(text: str) -> None:
    _print(_errors, "yellow", "Note:", text)


def _list_differences(planned: PlannedStep) -> str:
    return "\n".join(f"  {each}" for each in planned.differences)


def _local_log(planned: PlannedStep) -> str:
    """The log of a step that ran in this process: its run's, else its traceback or folder."""
    with suppress(StorageError):  # a folder that cannot be read is why it failed, perhaps
        run_log, status = join(planned.path, TRAIN_LOG), read_status(planned.path)
        # Not one of an earlier attempt.
        if status and exists(run_log) and os.stat(run_log).st_mtime >= status.started:
            return run_log
        if exists(join(planned.path, ERROR)):
            return join(planned.path, ERROR)
    return planned.path
