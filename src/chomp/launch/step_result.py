"""What a step in another process leaves behind: how it ended, and what it printed.

The outcome is a small text file, so reading it can do no harm. What the step raised is raised again
by whoever reads it, as the nearest class that is known there. All attempts of a step share a log:
`.executor_log` of its only process, or of the first of several; `.executor_log.1` of the second.
"""

import builtins
import os
import socket
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, BinaryIO

from chomp import errors
from chomp.errors import ChompError, RunInterrupted
from chomp.executor import PlannedStep, read_status
from chomp.executor.status import LOG
from chomp.storage import exists, join, read_json, write_json_atomic
from chomp.storage.errors import storage_errors
from chomp.storage.files import open_to_append

PREEMPTED_EXIT_CODE = 75  # what sysexits.h calls a temporary failure
INTERRUPTED_EXIT_CODE = 130  # as shells report Ctrl-C


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a step ended: it returned, or what it raised."""

    kinds: tuple[str, ...] = ()  # names of the error's class and its bases; none: it returned
    text: str = ""
    notes: tuple[str, ...] = ()
    exit_code: int = 0
    traceback: str = ""

    @property
    def is_preempted(self) -> bool:
        """Whether the step was preempted: it has saved its state and may continue anywhere."""
        return "RunInterrupted" in self.kinds and self.exit_code == PREEMPTED_EXIT_CODE


class RaisedElsewhere(Exception):
    """The traceback of another process: the cause of the error that is raised again here.

    `log` is the file with what that process printed.
    """

    def __init__(self, traceback: str, log: str | None = None) -> None:
        super().__init__(traceback)
        self.traceback = traceback
        self.log = log

    def __str__(self) -> str:
        return f"\n{self.traceback}"


def outcome_of(error: BaseException | None) -> Outcome:
    """The outcome of a step that raised `error`, or that returned."""
    if error is None:
        return Outcome()
    usual = INTERRUPTED_EXIT_CODE if isinstance(error, KeyboardInterrupt) else 1
    return Outcome(
        kinds=tuple(kind.__name__ for kind in type(error).__mro__),
        text=str(error),
        notes=tuple(getattr(error, "__notes__", ())),
        exit_code=error.exit_code if isinstance(error, ChompError) else usual,
        traceback="".join(traceback.format_exception(error)),
    )


def write_outcome(path: str, outcome: Outcome) -> None:
    """Write an outcome to `path`, whole or not at all."""
    write_json_atomic(path, asdict(outcome))


def read_outcome(path: str) -> Outcome | None:
    """The outcome at `path`; None if the process ended before it could write one."""
    if not exists(path):
        return None
    found: dict[str, Any] = read_json(path)
    return Outcome(**{**found, "kinds": tuple(found["kinds"]), "notes": tuple(found["notes"])})


def error_of(outcome: Outcome, log: str | None = None) -> BaseException:
    """What the step raised: a `ChompError` as itself, another as the nearest builtin class.

    Its cause shows the traceback of the other process. Ctrl-C there is a `RunInterrupted` here,
    where nobody pressed a key. `log` is the file with what that process printed.
    """
    described = f"{outcome.kinds[0]}: {outcome.text}" if outcome.kinds else "it returned"
    error: BaseException = RuntimeError(described)
    if "KeyboardInterrupt" in outcome.kinds:
        error = RunInterrupted("The same command continues.", exit_code=INTERRUPTED_EXIT_CODE)
    elif "RunInterrupted" in outcome.kinds:
        error = RunInterrupted(outcome.text, exit_code=outcome.exit_code)
    else:
        # By name alone: what another process wrote must not decide what is imported here.
        for name in outcome.kinds:
            kind = getattr(errors, name, None) or getattr(builtins, name, None)
            if isinstance(kind, type) and issubclass(kind, Exception | SystemExit):
                try:
                    # A class that is not known here is named in the text.
                    error = kind(outcome.text if name == outcome.kinds[0] else described)
                    break
                except TypeError:
                    continue  # one of the few builtins that need more than a text
    for note in outcome.notes:
        error.add_note(note)
    error.__cause__ = RaisedElsewhere(outcome.traceback, log)
    return error


def log_of(error: BaseException) -> str | None:
    """The log of the process in which an error was raised, if that was another one."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, RaisedElsewhere):
        cause = cause.__cause__
    return None if cause is None else cause.log


def log_path(folder: str, member: int = 0) -> str:
    """The log of a member in the folder of a step."""
    return join(folder, LOG if member == 0 else f"{LOG}.{member}")


@contextmanager
def append_log(place: str, header: str) -> Iterator[BinaryIO]:
    """The log at `place`, opened to be printed to after a line with `header`."""
    with storage_errors(place, "append to"):
        descriptor = open_to_append(place)
    with open(descriptor, "ab", buffering=0) as log:
        log.write(f"==== {header}\n".encode())
        yield log


def log_header(planned: PlannedStep, member: int, count: int) -> str:
    """Who prints what follows: the step, the attempt, which of its processes, since when."""
    status = read_status(planned.path)
    attempt = "" if status is None else f", attempt {status.attempt}"
    part = "" if count == 1 else f", member {member} of {count}"
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return (
        f"{planned.title}{attempt}{part}, started {now} by {os.getpid()} on {socket.gethostname()}"
    )
