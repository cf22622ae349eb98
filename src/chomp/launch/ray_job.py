"""A command that runs on a cluster as a job of Ray: submitted, followed, and how it ended."""

import asyncio
import logging
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chomp.errors import LaunchError
from chomp.launch.job_keys import place_for_keys, start_package, upload_keys, wipe_keys
from chomp.launch.job_start import PLACE
from chomp.launch.outcome import INTERRUPTED_EXIT_CODE

_log = logging.getLogger(__name__)

# While the connection is down; after that somebody is better told.
_PATIENCE_S = 60.0
_PAUSE_S = 1.0
# A job begins within seconds; after so long it is worth a word what it waits for.
_USUAL_START_S = 15.0


@dataclass(frozen=True, kw_only=True)
class RayJob:
    """What is submitted."""

    submission_id: str
    entrypoint: str  # for a shell; with keys, it begins as `entrypoint_of` says
    archive: str  # a zip of the folder that it starts in
    packages: Sequence[str]  # folders of packages that are to be importable
    environment: Mapping[str, str]  # which the cluster shows to whoever may look at it
    keys: Mapping[str, str]  # variables, too, which it does not
    # Of the command alone; what it asks the cluster for by itself comes on top.
    num_cpus: float | None = None
    num_gpus: float | None = None
    memory_bytes: int | None = None
    resources: Mapping[str, float] | None = None


class NobodyReads(Exception):
    """What the job says was piped to a program that has ended, as `head` does."""


class FollowedJob:
    """A job on a cluster, by its id; `keys` is where its keys were left, if it has any."""

    def __init__(self, client: Any, submission_id: str, keys: str | None = None) -> None:
        self._client, self._id, self._keys = client, submission_id, keys
        self._num_shown = 0  # characters of its log
        self._is_heard = False  # since the connection was made last

    def exit_code(self) -> int:
        """Show what the job says until it has ended; the exit code of its command.

        A connection that breaks is made again. 130 for a job that was stopped. Raises
        `NobodyReads` if what it says can no longer be shown; the job goes on.
        """
        self._await_start()
        silent_since: float | None = None
        while True:
            self._is_heard = False
            try:
                asyncio.run(self._show())
                details = self._client.get_job_info(self._id)
                silent_since = None
                if details.status.is_terminal():
                    _forget(self._client, self._keys)
                    return _exit_code(details)
            except NobodyReads:
                raise
            # Of requests, aiohttp and Ray, which have no class in common.
            except Exception as error:
                now = time.monotonic()
                # One that worked, perhaps for days, is lost only now.
                silent_since = now if self._is_heard or silent_since is None else silent_since
                if now - silent_since > _PATIENCE_S:
                    raise _lost(self._id, error) from error
            time.sleep(_PAUSE_S)

    def stop(self) -> None:
        """Ask the job to save and end, and return when it has ended, or has not begun."""
        try:
            self._client.stop_job(self._id)
            while not (status := self._client.get_job_status(self._id)).is_terminal():
                if status.value == "PENDING":
                    # Ray has nobody to tell yet, and can take as long as the cluster is full.
                    say("The job has not begun; it is stopped as soon as it does.")
                    break
                time.sleep(_PAUSE_S)
        except Exception as error:
            raise _unstopped(self._id, error) from error
        _forget(self._client, self._keys)

    def _await_start(self) -> None:
        """Return when the job has begun, or once its user was told what it waits for."""
        deadline = time.monotonic() + _USUAL_START_S
        # Whatever breaks here breaks again where the job is followed, which is patient.
        with suppress(Exception):
            while (details := self._client.get_job_info(self._id)).status.value == "PENDING":
                if time.monotonic() > deadline:
                    say(str(details.message))
                    return
                time.sleep(_PAUSE_S)

    async def _show(self) -> None:
        seen = 0
        # From its beginning, whenever it is asked for.
        async for text in self._client.tail_job_logs(self._id):
            self._is_heard = True
            fresh = text[max(self._num_shown - seen, 0) :]
            seen += len(text)
            self._num_shown = max(self._num_shown, seen)
            try:
                sys.stdout.write(fresh)
                sys.stdout.flush()
            except BrokenPipeError as error:
                raise NobodyReads from error  # a connection that broke is another matter


def say(text: str) -> None:
    """Tell the user about the job: to stderr, since stdout is what the job itself prints."""
    with suppress(OSError):  # the terminal may be gone
        print(text, file=sys.stderr, flush=True)


def submitted(client: Any, job: RayJob) -> FollowedJob:
    """The job, once the cluster has taken it. `LaunchError` if it does not."""
    # Chosen before the upload: one that is broken off may have left the keys there.
    place = place_for_keys() if job.keys else None
    try:
        if place is not None:
            # Before the job, which fetches them at once.
            upload_keys(client, place, job.keys)
        with tempfile.TemporaryDirectory() as folder:
            client.submit_job(
                entrypoint=job.entrypoint,
                submission_id=job.submission_id,
                runtime_env=_runtime_environment(job, place, Path(folder)),
                entrypoint_num_cpus=job.num_cpus,
                entrypoint_num_gpus=job.num_gpus,
                entrypoint_memory=job.memory_bytes,
                entrypoint_resources=None if job.resources is None else dict(job.resources),
            )
    except BaseException as error:
        _forget(client, place)
        if not isinstance(error, Exception):
            raise  # Ctrl-C; if the job is there, it ends for want of its keys
        # Of requests and of Ray, which have no class in common.
        told = _reason(error)
        for value in (*job.environment.values(), *job.keys.values()):  # which an error may quote
            told = told.replace(value, "...") if len(value) > 3 else told
        raise LaunchError(
            f"the cluster did not take the job {job.submission_id} ({told})",
            allowed="an id that was never used there, and resources that one of its nodes has",
            fix="leave out --submission-id, or lower what --entrypoint-... asks for",
        ) from error
    return FollowedJob(client, job.submission_id, place)


def _runtime_environment(job: RayJob, keys: str | None, folder: Path) -> dict[str, Any]:
    """What the job finds around it, in Ray's words. `folder` is for what is written for it."""
    variables, packages = dict(job.environment), list(job.packages)
    if keys is not None:
        variables[PLACE] = keys
        packages.append(start_package(folder))
    made = {"working_dir": job.archive, "env_vars": variables, "excludes": ["__pycache__"]}
    return {**made, "py_modules": packages} if packages else made


def _forget(client: Any, keys: str | None) -> None:
    """Leave no keys behind for a job that never fetched them."""
    if keys is not None:
        # How the job ended is what matters, and is told whatever becomes of this.
        try:
            wipe_keys(client, keys)
        except Exception as error:
            _log.warning(
                "keys of this job may be left in the cluster's store, until its head ends: %s",
                _reason(error),
            )


def _reason(error: Exception) -> str:
    """The line that says what went wrong, out of a server's whole traceback."""
    lines = [line.strip() for line in str(error).splitlines() if re.search(r"\w", line)]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception): ", line)]
    return (named or lines or [type(error).__name__])[-1]


def _exit_code(details: Any) -> int:
    if details.status.value == "SUCCEEDED":
        return 0
    if details.status.value == "STOPPED":
        say("The job was stopped.")
        return INTERRUPTED_EXIT_CODE
    code = details.driver_exit_code
    if code is None:
        # It never began: its folder could not be made there, or no node has what it asks for.
        say(f"The job failed: {details.message}")
        return 1
    return code if code >= 0 else 128 - code  # by a signal, as shells tell it


def _lost(submission_id: str, error: Exception) -> LaunchError:
    return LaunchError(
        f"the cluster has not answered for {_PATIENCE_S:.0f} s ({error}); the job "
        f"{submission_id} may go on",
        allowed="a cluster that can be reached",
        fix=f"look later: ray job logs {submission_id} --follow",
    )


def _unstopped(submission_id: str, error: Exception) -> LaunchError:
    return LaunchError(
        f"the job {submission_id} may go on: {_reason(error)}",
        allowed="a cluster that can be reached while its job is stopped",
        fix=f"look whether it runs, and stop it: ray job stop {submission_id}",
    )
