"""Where the processes of a step print to: a log in the step's folder, which all attempts share.

`.executor_log` is that of the only process, or of the first of several; `.executor_log.1` and so on
are those of the others, since lines of two processes in one file belong to nobody.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import BinaryIO

from chomp.executor import PlannedStep, read_status
from chomp.executor.status import LOG
from chomp.storage import join
from chomp.storage.atomic import open_to_append
from chomp.storage.errors import storage_errors


def log_path(folder: str, member: int = 0) -> str:
    """The log of a member in the folder of a step."""
    return join(folder, LOG if member == 0 else f"{LOG}.{member}")


@contextmanager
def opened_log(planned: PlannedStep, member: int, count: int) -> Iterator[BinaryIO]:
    """The log of a member, to be printed to, with a line that says whose words follow."""
    header = log_header(planned, member, count)
    with appended_log(log_path(planned.path, member), header) as log:
        yield log


@contextmanager
def appended_log(place: str, header: str) -> Iterator[BinaryIO]:
    """The log at `place`, to be printed to behind `header`."""
    with storage_errors(place, "append to"):
        descriptor = open_to_append(place)
    with open(descriptor, "ab", buffering=0) as log:
        log.write(f"==== {header}\n".encode())
        yield log


def log_header(planned: PlannedStep, member: int, count: int) -> str:
    """Whose words follow: the step, the attempt, which of its processes, when and by whom."""
    status = read_status(planned.path)
    attempt = "" if status is None else f", attempt {status.attempt}"
    part = "" if count == 1 else f", member {member} of {count}"
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return (
        f"{planned.title}{attempt}{part}, started {now} by {os.getpid()} on {socket.gethostname()}"
    )
