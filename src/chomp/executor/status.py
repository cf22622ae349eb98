"""What a step's output folder says about the step: its state, and what it was run with.

.executor_status   state, attempt, host, pid, times, error, identity
.executor_info     name, function, config, identity values, template source
.executor_lock     locked by the process that runs it
.executor_error    traceback of the last failure
.executor_log      what it printed, where it ran in a process of its own
"""

import os
import socket
import time
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from chomp.errors import StorageError
from chomp.storage import exists, join, read_json, write_json_atomic
from chomp.storage.secrets import without_secrets

STATUS = ".executor_status"
INFO = ".executor_info"
LOCK = ".executor_lock"
ERROR = ".executor_error"
LOG = ".executor_log"

StepState = Literal["RUNNING", "SUCCESS", "FAILED", "INTERRUPTED", "DEP_FAILED"]


@dataclass(frozen=True, kw_only=True)
class StepStatus:
    """State of a step as its output folder records it. Times are seconds since 1970."""

    state: StepState
    identity: str
    attempt: int  # how often it was begun; 0 if only a step it depends on failed
    host: str
    pid: int
    started: float
    finished: float | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class StepInfo:
    """What a step was last run with, as its output folder records it."""

    name: str
    identity: str
    values: dict[str, Any]  # dotted path -> versioned value or dependency
    fn: str
    config: Any  # plain data; "<class>" and "<module>" name the class of a config
    description: str
    dependencies: list[str]  # their output folders
    output_path: str
    sources: dict[str, str]  # file name -> SHA-256
    started: float


R = TypeVar("R", StepStatus, StepInfo)
_ADAPTERS: dict[type, TypeAdapter[Any]] = {
    kind: TypeAdapter(kind) for kind in (StepStatus, StepInfo)
}


def read_status(path: str) -> StepStatus | None:
    """The status in an output folder; None where no step was ever begun."""
    return _read_record(StepStatus, join(path, STATUS))


def write_status(path: str, status: StepStatus) -> None:
    """Replace the status, atomically; secrets that an error quotes are not written down."""
    write_json_atomic(join(path, STATUS), without_secrets(asdict(status)))


def read_info(path: str) -> StepInfo | None:
    """What a step was last run with; None where it never was."""
    return _read_record(StepInfo, join(path, INFO))


def write_info(path: str, info: StepInfo) -> None:
    """Replace the info, atomically; secrets in the config are not written down."""
    write_json_atomic(join(path, INFO), without_secrets(asdict(info)))


def started_status(earlier: StepStatus | None, identity: str) -> StepStatus:
    """The status of a step that starts now: one attempt more than the folder has seen."""
    return StepStatus(
        state="RUNNING",
        identity=identity,
        attempt=1 if earlier is None else earlier.attempt + 1,
        host=socket.gethostname(),
        pid=os.getpid(),
        started=time.time(),
    )


def _read_record(kind: type[R], location: str) -> R | None:
    if not exists(location):
        return None
    cause: Exception
    try:
        # Fields that a later version may have added are ignored.
        record: R = _ADAPTERS[kind].validate_python(read_json(location))
        return record
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None  # another process has just moved the folder aside
        cause, reason = error, str(error.__cause__ or error)
    except ValidationError as error:
        faults = []
        for fault in error.errors():
            place = ".".join(map(str, fault["loc"]))
            faults.append(f"{place}: {fault['msg']}" if place else fault["msg"])
        cause, reason = error, "; ".join(faults)
    raise StorageError(
        f"{location} is not the record of a step: {reason}",
        allowed=f"a JSON mapping with {', '.join(field.name for field in fields(kind))}",
        fix="remove the file: the step then runs again, and a run goes on from its newest "
        "checkpoint",
    ) from cause
