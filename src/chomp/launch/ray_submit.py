"""A folder and a command as a job of Ray: submitted, followed, and how it ended.

Everything goes through Ray's public job API (`JobSubmissionClient`). The folder travels as
`working_dir`, its packages below `src` as `py_modules`. Variables travel as `env_vars`, which Ray
shows on its dashboard, in its list of jobs and in its logs. Keys are therefore split in two halves
that say nothing alone: one is a variable, the other a file in one more package, which the job
removes when it begins (`job_start`). docs/tutorials/cluster.md says who can read them.
"""

import asyncio
import http.client
import json
import logging
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from chomp.errors import LaunchError
from chomp.launch import job_start
from chomp.launch.ray_connection import host_and_port, import_ray, require_listening
from chomp.launch.step_result import INTERRUPTED_EXIT_CODE

JOB_START = "chomp_job_start"
# Files of Ray's cluster launcher, by the name of the cluster.
CLUSTERS = Path("infra/clusters")
BIG_FILE_BYTES = 20_000_000
# In the syntax of .gitignore. Results are at the top alone: a package may have such a folder, too.
_RESULTS = ("/outputs", "/runs", "/wandb")
_NEVER = (".git", ".venv", "__pycache__", "node_modules", ".ssh", ".aws", ".netrc")
_SECRET_FILES = (".env*", "*.pem", "*.key")
_SHOWN = 5
_PORT = 8265
_VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
_PROBE_S = 5.0
_FIX = "start one with ray start --head, correct --cluster, or reach it by ray dashboard or ssh -L"
# How long a connection may be down before the user is told.
_PATIENCE_S = 60.0
_PAUSE_S = 1.0
# A job begins within seconds; after so long it is worth a word what it waits for.
_USUAL_START_S = 15.0


class NobodyReads(Exception):
    """The job's output was piped to a program that has ended, as `head` does."""


def say(text: str) -> None:
    """Print about the job to stderr, since stdout is what the job itself prints."""
    with suppress(OSError):  # the terminal may be gone
        print(text, file=sys.stderr, flush=True)


def job_client(cluster: str | None, environ: Mapping[str, str] | None = None) -> Any:
    """A client of Ray's job API on the cluster, which answers; `LaunchError` if it does not.

    `cluster` is the address of a dashboard or of a head, or the file or the name of one of Ray's
    launcher; None: what RAY_API_SERVER_ADDRESS or RAY_ADDRESS say, else this machine.
    """
    environ = os.environ if environ is None else environ
    given = next((environ[name] for name in _VARIABLES if environ.get(name)), None)
    address = job_address(cluster or given or f"127.0.0.1:{_PORT}")
    import_ray()
    from ray.job_submission import JobSubmissionClient  # noqa: PLC0415

    # Ray logs every upload; the command prints what matters.
    for handler in logging.getLogger("ray").handlers:
        handler.setLevel(logging.WARNING)
    # In Ray they would count for more than what --cluster says.
    kept = {name: os.environ.pop(name) for name in _VARIABLES if name in os.environ}
    try:
        return JobSubmissionClient(address)
    except Exception as error:  # Ray's own, and those of the libraries it calls
        raise LaunchError(
            f"the Ray cluster at {address} takes no jobs from here ({_first_line(error)})",
            allowed="a dashboard of ray[default], and the token of its cluster",
            fix="for a token: copy it to ~/.ray/auth_token, or set RAY_AUTH_MODE=token and "
            f"RAY_AUTH_TOKEN; else {_FIX}",
        ) from error
    finally:
        os.environ.update(kept)


def job_address(cluster: str) -> str:
    """The dashboard of the cluster as http://host:port, or host:port of its head.

    Somebody listens there. Raises `LaunchError` for what names no cluster.
    """
    if cluster.endswith((".yaml", ".yml")):
        return job_address(f"http://{_head_of_launcher(Path(cluster))}:{_PORT}")
    if not any(mark in cluster for mark in ":.") and cluster != "localhost":
        path = CLUSTERS / f"{cluster}.yaml"
        if path.is_file():
            return job_address(str(path))
        known = ", ".join(sorted(each.stem for each in CLUSTERS.glob("*.yaml"))) or "none"
        raise LaunchError(
            f"--cluster {cluster}, for which there is no {path}",
            allowed=f"a cluster of that folder ({known}), an address, or a file",
            fix=f"correct the name; for a machine of that name write {cluster}:{_PORT}",
        )
    if "://" not in cluster:
        host, port = host_and_port(cluster, _PORT)
        require_listening(host, port, what="the Ray cluster", fix=_FIX)
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        # Head and dashboard have ports of their own, and people name either.
        return url if _speaks_http(url) else f"{host}:{port}"
    parts = urlsplit(cluster)
    if parts.scheme == "ray" and parts.hostname:  # the address for Ray's clients
        return job_address(f"http://{parts.hostname}:{_PORT}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise LaunchError(
            f"--cluster {cluster}",
            allowed="http://host:port of a dashboard, host:port of a head, or a launcher file",
            fix=f"write for example --cluster http://127.0.0.1:{_PORT}",
        )
    port = parts.port or (443 if parts.scheme == "https" else 80)
    require_listening(parts.hostname, port, what="the Ray dashboard", fix=_FIX)
    return cluster.rstrip("/")


def submit(
    client: Any,
    submission_id: str,
    entrypoint: str,
    folder: Path,
    *,
    environment: Mapping[str, str],
    keys: Mapping[str, str],
    **entrypoint_resources: Any,
) -> None:
    """Submit a command that starts in a copy of `folder`. `LaunchError` if it is not taken.

    `environment` are variables that the cluster shows to whoever may look at it; `keys` are
    variables that it does not show: a command with keys begins with `python -m chomp_job_start`.
    """
    with tempfile.TemporaryDirectory() as kept:
        modules, variables = packages_below(folder), dict(environment)
        if keys:
            content = json.dumps(dict(keys)).encode()
            pad = secrets.token_bytes(len(content))
            half = bytes(a ^ b for a, b in zip(content, pad, strict=True))
            modules.append(_write_job_start(Path(kept), half))
            variables[job_start.HALF] = pad.hex()
        runtime_env: dict[str, Any] = {
            "working_dir": str(folder),
            "excludes": excludes_of(folder),
            "env_vars": variables,
        }
        if modules:
            runtime_env["py_modules"] = modules
        try:
            client.submit_job(
                entrypoint=entrypoint,
                submission_id=submission_id,
                runtime_env=runtime_env,
                **entrypoint_resources,
            )
        except Exception as error:  # of requests and of Ray, which have no class in common
            reason = _reason(error)
            for value in (*environment.values(), *keys.values()):  # which an error may quote
                reason = reason.replace(value, "...") if len(value) > 3 else reason
            raise LaunchError(
                f"the cluster did not take the job {submission_id} ({reason})",
                allowed="an id that was never used there, a folder of less than 512 MB, and "
                "resources that one of the nodes has",
                fix="leave out --submission-id, add what is not code to .gitignore, or lower what "
                "--entrypoint-... asks for",
            ) from error


def excludes_of(folder: Path) -> list[str]:
    """What of a folder is not sent, as patterns of .gitignore.

    Results, environments, files that hold keys, what git ignores, and files too big for code.
    """
    command = [
        "git",
        "ls-files",
        "-z",
        "--others",
        "--ignored",
        "--exclude-standard",
        "--directory",
    ]
    ignored = _lines_of_git(folder, command) or []
    exact = [f"/{_escape(name.rstrip('/'))}" for name in [*ignored, *big_files(folder)]]
    return [*_RESULTS, *_NEVER, *_SECRET_FILES, *exact]


def big_files(folder: Path) -> list[str]:
    """Files of a folder that are too big for code, of those that would be sent otherwise."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = _lines_of_git(folder, command)
    if names is None:
        names = [str(path.relative_to(folder)) for path in folder.rglob("*")]
    results = {name.strip("/") for name in _RESULTS}
    return sorted(
        name
        for name, path in ((name, folder / name) for name in names)
        if Path(name).parts[0] not in results and set(_NEVER).isdisjoint(Path(name).parts)
        if path.is_file() and path.stat().st_size > BIG_FILE_BYTES
    )


def packages_below(folder: Path) -> list[str]:
    """Folders of the packages in `src`, which a checkout makes importable by installing."""
    return sorted(str(path.parent) for path in (folder / "src").glob("*/__init__.py"))


def follow(client: Any, submission_id: str) -> int:
    """Print what the job prints until it has ended; the exit code of its command.

    A connection that breaks is made again. 130 for a job that was stopped. Raises `NobodyReads` if
    the output cannot be printed any more; the job goes on.
    """
    _await_start(client, submission_id)
    log = _JobLog(client, submission_id)
    silent_since: float | None = None
    while True:
        log.is_heard = False
        try:
            asyncio.run(log.print_new())
            details = client.get_job_info(submission_id)
            silent_since = None
            if details.status.is_terminal():
                return _exit_code(details)
        except NobodyReads:
            raise
        # Of requests, aiohttp and Ray, which have no class in common.
        except Exception as error:
            now = time.monotonic()
            # A connection that worked, perhaps for days, is lost only now.
            silent_since = now if log.is_heard or silent_since is None else silent_since
            if now - silent_since > _PATIENCE_S:
                raise LaunchError(
                    f"the cluster has not answered for {_PATIENCE_S:.0f} s ({error}); the job "
                    f"{submission_id} may go on",
                    allowed="a cluster that can be reached",
                    fix=f"look later: ray job logs {submission_id} --follow",
                ) from error
        time.sleep(_PAUSE_S)


def stop(client: Any, submission_id: str) -> None:
    """Ask the job to save and end, and return when it has ended, or has not begun."""
    try:
        client.stop_job(submission_id)
        while not (status := client.get_job_status(submission_id)).is_terminal():
            if status.value == "PENDING":
                # Ray has nobody to tell yet, and can take as long as the cluster is full.
                say("The job has not begun; it is stopped as soon as it does.")
                break
            time.sleep(_PAUSE_S)
    except Exception as error:
        raise LaunchError(
            f"the job {submission_id} may go on: {_reason(error)}",
            allowed="a cluster that can be reached while its job is stopped",
            fix=f"look whether it runs, and stop it: ray job stop {submission_id}",
        ) from error


class _JobLog:
    """What a job has printed; Ray gives it from its beginning whenever it is asked for."""

    def __init__(self, client: Any, submission_id: str) -> None:
        self._client, self._id = client, submission_id
        self._num_shown = 0  # characters
        self.is_heard = False  # since the connection was made last

    async def print_new(self) -> None:
        """Print what was not printed yet, until the connection ends."""
        seen = 0
        async for text in self._client.tail_job_logs(self._id):
            self.is_heard = True
            fresh = text[max(self._num_shown - seen, 0) :]
            seen += len(text)
            self._num_shown = max(self._num_shown, seen)
            try:
                sys.stdout.write(fresh)
                sys.stdout.flush()
            except BrokenPipeError as error:
                raise NobodyReads from error  # a connection that broke is another matter


def _await_start(client: Any, submission_id: str) -> None:
    """Return when the job has begun, or once the user was told what it waits for."""
    deadline = time.monotonic() + _USUAL_START_S
    # Whatever breaks here breaks again where the job is followed, which is patient.
    with suppress(Exception):
        while (details := client.get_job_info(submission_id)).status.value == "PENDING":
            if time.monotonic() > deadline:
                say(str(details.message))
                return
            time.sleep(_PAUSE_S)


def _exit_code(details: Any) -> int:
    if details.status.value == "SUCCEEDED":
        return 0
    if details.status.value == "STOPPED":
        say("The job was stopped.")
        return INTERRUPTED_EXIT_CODE
    code: int | None = details.driver_exit_code
    if code is None:
        # It never began: its folder could not be made there, or no node has what it asks for.
        say(f"The job failed: {details.message}")
        return 1
    return code if code >= 0 else 128 - code  # by a signal, as shells report it


def _write_job_start(folder: Path, half_of_keys: bytes) -> str:
    """The package that starts a command with its keys, written below `folder`."""
    package = folder / JOB_START
    package.mkdir(mode=0o700)
    shutil.copyfile(job_start.__file__, package / "__main__.py")
    (package / "__init__.py").touch()
    (package / job_start.KEYS_FILE).write_bytes(half_of_keys)
    return str(package)


def _lines_of_git(folder: Path, command: list[str]) -> list[str] | None:
    """The names that a git command lists, None where there is no repository."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return [name for name in done.stdout.split("\0") if name] if done.returncode == 0 else None


def _escape(name: str) -> str:
    """A file name as a pattern of .gitignore that matches nothing else."""
    escaped = re.sub(r"([\\*?\[\]!#])", r"\\\1", name)
    return re.sub(r" (?= *$)", r"\\ ", escaped)


def _speaks_http(url: str) -> bool:
    try:
        urllib.request.urlopen(f"{url}/api/version", timeout=_PROBE_S).close()
    except urllib.error.HTTPError:
        return True  # it wants a token, which Ray's client has
    except (OSError, http.client.HTTPException):
        return False
    return True


def _head_of_launcher(path: Path) -> str:
    """The address of the head of a cluster that Ray's launcher has started."""
    try:
        config = yaml.safe_load(path.read_text())
        is_fine = isinstance(config, dict) and "cluster_name" in config and "provider" in config
        fault = None if is_fine else "it has no cluster_name and provider"
    except (OSError, yaml.YAMLError) as error:
        fault = str(error)
    if fault is not None:
        raise LaunchError(
            f"--cluster {path}: {fault}",
            allowed="a file of Ray's cluster launcher, as `ray up` takes it",
            fix="give such a file, or the address of the cluster",
        )
    import_ray()
    from ray.autoscaler.sdk import get_head_node_ip  # noqa: PLC0415

    try:
        return get_head_node_ip(str(path))
    # Whatever a cloud's library raises for want of rights, network or a cluster.
    except Exception as error:
        raise LaunchError(
            f"the head of the cluster in {path} cannot be found ({error})",
            allowed="a cluster that runs, and rights to ask its cloud about it",
            fix=f"ray up {path}, or keep ray dashboard {path} running beside this and give "
            f"--cluster http://127.0.0.1:{_PORT}",
        ) from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _reason(error: Exception) -> str:
    """The line that says what went wrong, out of a server's whole traceback."""
    lines = [line.strip() for line in str(error).splitlines() if re.search(r"\w", line)]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception): ", line)]
    return (named or lines or [type(error).__name__])[-1]
