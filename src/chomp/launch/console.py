"""What a launch command says: the plan, what begins, what differs, what went wrong.

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
# Enough for a traceback's end, and little enough for a terminal.
_TAIL_LINES, _TAIL_BYTES = 8, 8192
_VERBS = {"run": "continued", "skip": "reused", "wait": "waited for"}


def show_log_warnings() -> None:
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


def print_plan(planned: Sequence[PlannedStep]) -> None:
    """One line for each step: action, name, where, why."""
    width = max(len(item.step.name) for item in planned)
    for item in planned:
        _say(
            _console,
            _ACTION_STYLES[item.action],
            f"{item.action:<4}",
            f" {item.step.name:<{width}}  {item.path}  ({item.reason})",
        )


def print_nothing_run(what: str) -> None:
    """What was shown is all that happened."""
    _console.print(f"This is {what}; nothing was run.")


def print_start(planned: PlannedStep, *, has_log: bool = False) -> None:
    """A step begins. `has_log`: what it prints is not seen here, so say where it is."""
    parts = [planned.step.description, f"({planned.reason})"]
    parts += [f"log: {log_path(planned.path)}"] if has_log else []
    _say(_console, "bold", planned.step.name, "  ".join(filter(None, parts)))


def print_wait(planned: PlannedStep, holder: LockHolder | None) -> None:
    """Another process runs a step, and this one waits: who it is, and how to continue."""
    stop = f" (kill {holder.pid} on {holder.host})" if holder else ""
    _say(
        _console,
        "yellow",
        "Waiting",
        f"for {planned.title}, held by {holder or 'another process'}. This goes on as soon as that "
        f"process ends or is stopped{stop}.",
    )


def print_gpu_wait(planned: PlannedStep, count: int) -> None:
    """A step is to begin and waits for GPUs that other steps of this launch have."""
    _say(_console, "yellow", "Waiting", f"for {count} GPU{'s' * (count > 1)}: {planned.title}")


def print_done(planned: PlannedStep) -> None:
    """There was nothing to do."""
    _say(_console, "green", "Already done:", f"{planned.step.name} is at {planned.path}")


def print_lost_checkpoints(planned: Sequence[PlannedStep]) -> None:
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


def print_restart(number: int, restarts: int) -> None:
    """Say that a preempted run goes on in a new process."""
    _say(_errors, "yellow", "Preempted.", f"Starting again, {number} of {restarts} times.")


def print_stop(why: str) -> None:
    """The command was interrupted."""
    _say(_errors, "yellow", "Stopped.", why)


def print_error(error: ChompError) -> None:
    """The command cannot go on."""
    _say(_errors, "red", "Error:", _with_notes(error))


def print_failure(failure: StepFailure) -> None:
    """A step failed; others may go on. A bug is told with its traceback, a dependant at the end."""
    planned, error = failure.planned, failure.error
    if error is None:
        return
    if isinstance(error, ChompError):
        _say(_errors, "red", "Error:", f"{planned.title}: {_with_notes(error)}")
    else:
        _show_bug(error)
        _say(_errors, "red", "Error:", f"{planned.title} failed; its folder is {planned.path}")


def print_failures(failures: Sequence[StepFailure], *, of: int) -> None:
    """How a run ended that was not all well: each failed step, its log and the last lines of it."""
    titles = {failure.planned.path: failure.planned.title for failure in failures}
    lines = []
    for failure in failures:
        planned = failure.planned
        needs = [titles[path] for path in planned.dependencies if path in titles]
        if failure.error is None:
            lines.append(
                f"  {planned.title}: not run, since a step it depends on failed ({needs[0]})"
            )
        else:
            log = log_of(failure.error) or _local_log(planned)
            lines.append(f"  {planned.title}: see {log}")
            # The traceback of a bug was printed above.
            if isinstance(failure.error, ChompError) and not log.endswith((planned.path, ERROR)):
                lines += [f"    | {line}" for line in _last_lines(log)]
    failed = sum(failure.error is not None for failure in failures)
    rest = f", {len(failures) - failed} more not run" if failed < len(failures) else ""
    head = f"{failed} of {of} step{'s' * (of > 1)}{rest}"
    _say(_errors, "red", "Failed:", "\n".join([head, *lines]))


def print_differences(planned: Sequence[PlannedStep]) -> None:
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
        print(error.__cause__.traceback.rstrip("\n"), file=sys.stderr)
    else:
        traceback.print_exception(error)


def _say(console: Console, style: str, label: str, text: str) -> None:
    # As Text and not as markup: what is told may hold brackets of its own.
    console.print(Text.assemble((label, style), " ", text))


def _with_notes(error: ChompError) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


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


def _last_lines(log: str) -> list[str]:
    """The last lines of a log, as much of them as helps; none where it cannot be read."""
    try:
        with open_stream(log) as stream:
            stream.seek(-min(_TAIL_BYTES, stream.seek(0, os.SEEK_END)), os.SEEK_END)
            text = stream.read().decode("utf-8", "replace")
    except StorageError:
        return []
    return [line for line in text.splitlines() if line.strip()][-_TAIL_LINES:]


def _differing(planned: Sequence[PlannedStep]) -> list[PlannedStep]:
    return [item for item in planned if item.differences]


def _listed(planned: PlannedStep) -> str:
    return "\n  ".join(planned.differences)
