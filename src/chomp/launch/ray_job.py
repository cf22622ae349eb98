"""A command that runs on a cluster as a job of Ray: submitted, followed, and how it ended."""

import asyncio
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chomp.errors import LaunchError, message
from chomp.launch.outcome import INTERRUPTED_EXIT_CODE

# While the connection is down; after that somebody is better told.
_PATIENCE_S = 60.0
_PAUSE_S = 1.0


@dataclass(frozen=True, kw_only=True)
class RayJob:
    """What is submitted."""

    submission_id: str
    entrypoint: str  # for a shell
    archive: str  # a zip of the folder that it starts in
    packages: Sequence[str]  # folders of packages that are to be importable
    environment: Mapping[str, str]
    # Of the command alone; what it asks the cluster for by itself comes on top.
    num_cpus: float | None = None
    num_gpus: float | None = None
    memory_bytes: int | None = None
    resources: Mapping[str, float] | None = None


class FollowedJob:
    """A job on a cluster, by its id."""

    def __init__(self, client: Any, submission_id: str) -> None:
        self._client, self._id = client, submission_id
        self._num_shown = 0  # characters of its log

    def exit_code(self) -> int:
        """Show what the job says until it has ended; the exit code of its command.

        A connection that breaks is made again. 130 for a job that was stopped.
        """
        last_heard = time.monotonic()
        while True:
            try:
                asyncio.run(self._show())
                details = self._client.get_job_info(self._id)
                last_heard = time.monotonic()
                if details.status.is_terminal():
                    return _exit_code(details)
            # Of requests, aiohttp and Ray, which have no class in common.
            except Exception as error:
                if time.monotonic() - last_heard > _PATIENCE_S:
                    raise _lost(self._id, error) from error
            time.sleep(_PAUSE_S)

    def stop(self) -> None:
        """Ask the job to save and end, and return when it has ended."""
        self._client.stop_job(self._id)
        while not self._client.get_job_status(self._id).is_terminal():
            time.sleep(_PAUSE_S)

    async def _show(self) -> None:
        seen = 0
        # From its beginning, whenever it is asked for.
        async for text in self._client.tail_job_logs(self._id):
            fresh = text[max(self._num_shown - seen, 0) :]
            seen += len(text)
            self._num_shown = max(self._num_shown, seen)
            sys.stdout.write(fresh)
            sys.stdout.flush()


def submitted(client: Any, job: RayJob) -> FollowedJob:
    """The job, once the cluster has taken it. `LaunchError` if it does not."""
    environment: dict[str, Any] = {
        "working_dir": job.archive,
        "env_vars": dict(job.environment),
        "excludes": ["__pycache__"],
    }
    if job.packages:
        environment["py_modules"] = list(job.packages)
    try:
        client.submit_job(
            entrypoint=job.entrypoint,
            submission_id=job.submission_id,
            runtime_env=environment,
            entrypoint_num_cpus=job.num_cpus,
            entrypoint_num_gpus=job.num_gpus,
            entrypoint_memory=job.memory_bytes,
            entrypoint_resources=None if job.resources is None else dict(job.resources),
        )
    except Exception as error:  # of requests and of Ray, which have no class in common
        told = _reason(error)
        for value in job.environment.values():  # which an error may quote
            told = told.replace(value, "...") if len(value) > 3 else told
        raise LaunchError(
            message(
                given=f"the cluster did not take the job {job.submission_id} ({told})",
                allowed="an id that was never used there, and resources that one of its nodes has",
                fix="leave out --submission-id, or lower what --entrypoint-... asks for",
            )
        ) from error
    return FollowedJob(client, job.submission_id)


def _reason(error: Exception) -> str:
    """The line that says what went wrong, out of a server's whole traceback."""
    lines = [line.strip() for line in str(error).splitlines() if re.search(r"\w", line)]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception): ", line)]
    return (named or lines or [type(error).__name__])[-1]


def _exit_code(details: Any) -> int:
    if details.status.value == "SUCCEEDED":
        return 0
    if details.status.value == "STOPPED":
        return INTERRUPTED_EXIT_CODE
    code = details.driver_exit_code
    if code is None:
        # It never began: its folder could not be made there, or no node has what it asks for.
        print(f"The job failed: {details.message}", file=sys.stderr)
        return 1
    return code if code >= 0 else 128 - code  # by a signal, as shells tell it


def _lost(submission_id: str, error: Exception) -> LaunchError:
    return LaunchError(
        message(
            given=f"the cluster has not answered for {_PATIENCE_S:.0f} s ({error}); the job "
            f"{submission_id} may go on",
            allowed="a cluster that can be reached",
            fix=f"look later: ray job logs {submission_id} --follow",
        )
    )
