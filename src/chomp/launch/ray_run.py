"""A command on a Ray cluster: `python -m chomp.launch.ray_run [options] -- command`.

Sends this folder, submits the command by Ray's public job API, shows what it prints and ends with
its exit code. Ctrl-C leaves the job alone: a terminal that is closed must not end a run of days.
Values of variables are never printed, not even in errors: any may be a key.
"""

import argparse
import asyncio
import getpass
import http.client
import inspect
import json
import logging
import math
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from pydantic import PositiveFloat, TypeAdapter

from chomp.errors import ChompError, ConfigError, LaunchError, require
from chomp.launch.console import print_error, show_log_warnings
from chomp.launch.ray_runner import KEY_NAMES, host_and_port, import_ray, require_listening
from chomp.launch.step_result import INTERRUPTED_EXIT_CODE
from chomp.storage.paths import require_current_folder
from chomp.storage.secrets import is_secret_name

_USAGE = "python -m chomp.launch.ray_run OPTIONS -- python experiments/grug/base/launch.py"
_ENV_VARS = "--env_vars"
# Read by trackers and by downloads; set here, they are meant for the command, too.
_ALWAYS_SENT = ("WANDB_API_KEY", "HF_TOKEN")
_EXTRA_OF_RAY = "ray"  # which the driver of a job needs, whatever else it needs
_PREFIX = "CHOMP_PREFIX"
# How long a job that is stopped may save before it is killed; Ray's own: 3.
_STOP_WAIT = {"RAY_JOB_STOP_WAIT_TIME_S": "120"}
_NOBODY_READS_EXIT_CODE = 128 + signal.SIGPIPE  # as shells report a command that a pipe has ended
_JOB_START = "chomp_job_start"  # the package that `start_with_keys` travels in
# Files of Ray's cluster launcher, by the name of the cluster.
_CLUSTERS = Path("infra/clusters")
BIG_FILE_BYTES = 20_000_000
# In the syntax of .gitignore. Results are at the top alone: a package may have such a folder, too.
_RESULTS = ("/outputs", "/runs", "/wandb")
_NEVER = (".git", ".venv", "__pycache__", "node_modules", ".ssh", ".aws", ".netrc")
_SECRET_FILES = (".env*", "*.pem", "*.key")
_PORT = 8265
_ADDRESSES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
_PROBE_S = 5.0
_FIX = "start one with ray start --head, correct --cluster, or reach it by ray dashboard or ssh -L"
_PATIENCE_S = 60.0  # how long a connection may be down before the user is told
_PAUSE_S = 1.0
_USUAL_START_S = 15.0  # after that the user is told what the job waits for


class NobodyReads(Exception):
    """The job's output was piped to a program that has ended, as `head` does."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    show_log_warnings()
    words = list(sys.argv[1:] if arguments is None else arguments)
    at = words.index("--") if "--" in words else len(words)
    try:
        return _run(parse_options(words[:at]), words[at + 1 :])
    except ChompError as error:
        print_error(error)
        return error.exit_code
    except KeyboardInterrupt:  # before there was a job to follow
        _say("Interrupted while submitting; if the job is there, `ray job list` shows it.")
        return INTERRUPTED_EXIT_CODE


def _run(options: argparse.Namespace, command: Sequence[str]) -> int:
    require(bool(command), "no command", allowed="a command behind --", fix=f"write {_USAGE}")
    resources = {name: n for name, n in vars(options).items() if name.startswith("entrypoint_")}
    for name, amount in resources.items():
        require(
            not isinstance(amount, float | int) or amount >= 0,
            f"--{name.replace('_', '-')} {amount}",
            allowed="0 or more",
            fix="give what the command itself takes of a node, or leave it out",
        )
    if options.entrypoint_resources is not None:
        try:
            adapter = TypeAdapter(dict[str, PositiveFloat])
            custom = adapter.validate_json(options.entrypoint_resources, strict=True)
        except ValueError as error:
            raise ConfigError(
                f"--entrypoint-resources {options.entrypoint_resources}",
                allowed="a JSON mapping of names to numbers above 0",
                fix="write for example --entrypoint-resources '{\"TPU\": 4}'",
            ) from error
        resources["entrypoint_resources"] = custom
    variables = job_environment(options.env_vars, os.environ)
    keys = {name: value for name, value in variables.items() if is_secret_name(name)}
    require_current_folder()
    folder = Path.cwd()
    extras = [name for text in options.extra for name in text.split(",") if name]
    entrypoint = entrypoint_of(command, extras, Path("pyproject.toml"), has_keys=bool(keys))
    client = job_client(options.cluster)
    address, commit = str(client.get_address()), git_commit()
    environment = {**_STOP_WAIT, **({"GIT_COMMIT": commit} if commit else {})}
    if os.environ.get(_PREFIX):
        environment[_PREFIX] = os.environ[_PREFIX]
    environment |= {name: value for name, value in variables.items() if name not in keys}
    has_prefix = any(word.partition("=")[0] == "--prefix" for word in command)
    if not (has_prefix or environment.get(_PREFIX)):
        # Not guessed: a dashboard on this machine may be a tunnel to another one.
        _say(
            f"Note: without {_PREFIX} or --prefix, outputs go into the job's copy of this\n"
            "  folder, which Ray removes. Choose a place that lasts: "
            f"{_ENV_VARS} {_PREFIX}=..."
        )
    job = options.submission_id or submission_id_of(command)
    entry = shlex.join(entrypoint)
    submit(client, job, entry, folder, environment=environment, keys=keys, **resources)
    too_big = big_files(folder)
    left_out = f", without files over {BIG_FILE_BYTES / 1e6:g} MB: {', '.join(too_big[:5])}"
    _say(f"Submitted {job} to {address}: {shlex.join(command)}")
    _say(f"  sent: {folder}{left_out if too_big else ''}{' and more' * (len(too_big) > 5)}")
    _say(f"  variables: {', '.join(sorted(environment))}")
    if keys:
        _say(f"  keys, which the cluster does not show: {', '.join(sorted(keys))}")
    how = (
        f"  follow: ray job logs {job} --follow --address {address}\n"
        f"  stop:   ray job stop {job} --address {address}"
    )
    if options.no_wait:
        _say(how)
        return 0
    # SIGTERM and SIGHUP as Ctrl-C: whoever follows is told to end, not the job. But what is ignored
    # stays ignored: under nohup, a terminal that is closed is nothing to this process.
    earlier = {
        number: signal.signal(number, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        try:
            return follow(client, job)
        except KeyboardInterrupt:
            code = INTERRUPTED_EXIT_CODE
        except NobodyReads:
            code = _NOBODY_READS_EXIT_CODE
            # Python flushes it once more at its end, and would complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if options.auto_stop:
            _say("Stopping the job; it may save first.")
            with suppress(KeyboardInterrupt):
                stop(client, job)
                return code
            _say("No longer waiting for its end.")
        else:
            _say("No longer following; the job goes on.")
        _say(how)
        return code
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # What an option cannot take may be a key that stands behind a mistyped --env_vars.
        shown = message.partition("explicit argument")[0]
        raise ConfigError(
            shown, allowed="the options that --help lists, before --", fix=f"write {_USAGE}"
        )


def parse_options(words: Sequence[str]) -> argparse.Namespace:
    """The options before `--`; `ConfigError` for a wrong one. `--help` ends the process."""
    parser = _Parser(
        usage=_USAGE, description="Run a command on a Ray cluster.", allow_abbrev=False
    )
    add = parser.add_argument
    add("--no-wait", "--no_wait", action="store_true", help="submit, and do not follow")
    add("--auto-stop", action="store_true", help="stop the job when this command is stopped")
    where = "address, launcher file or its name; default: RAY_ADDRESS, or here"
    add("--cluster", help=where)
    variables = "variables for the command: KEY=VALUE, KEY VALUE or KEY (repeatable)"
    add("-e", _ENV_VARS, "--env-vars", nargs="*", action="append", default=[], help=variables)
    extras = "extras of pyproject.toml to install, by uv"
    add("--extra", action="append", default=[], metavar="A,B", help=extras)
    add("--submission-id", help="name of the job; one that the cluster has not seen")
    add("--entrypoint-num-cpus", type=float, help="CPUs of the command itself")
    add("--entrypoint-num-gpus", type=float, help="GPUs of the command itself")
    add("--entrypoint-memory", type=int, metavar="BYTES", help="memory of the command itself")
    add("--entrypoint-resources", metavar="JSON", help='other resources: {"TPU": 4}')
    options, unknown = parser.parse_known_args(words)
    if unknown:
        # Names of options alone: other words may be keys, behind a mistyped --env_vars.
        names = [word.partition("=")[0] for word in unknown if word.startswith("--")]
        words_left = f"{len(unknown)} words before -- that belong to no option"
        parser.error(f"unknown: {' '.join(names)}" if names else words_left)
    return options


def job_environment(groups: Sequence[Sequence[str]], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that the words of each `--env_vars` ask for, and the keys always sent.

    Raises `ConfigError` for words that name nothing.
    """

    def refuse(fault: str) -> NoReturn:
        raise ConfigError(
            f"{_ENV_VARS} {fault}",
            allowed="KEY=VALUE, KEY VALUE, or the KEY of a variable that is set here",
            fix=f"write for example {_ENV_VARS} GRUG_RUN_ID=trial, or export the variable first",
        )

    variables = {name: environ[name] for name in _ALWAYS_SENT if environ.get(name)}
    for words in groups:
        if not words:
            refuse("without anything behind it")
        if len(words) == 2 and not any("=" in word for word in words):
            if words[1] in environ:
                refuse("with two names of variables that could be a name and its value")
            words = ["=".join(words)]
        for word in words:
            name, is_valued, value = word.partition("=")
            if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is None:
                refuse("with an invalid name (not shown: it may be a key)")
            if not is_valued and name not in environ:
                refuse(f"{name}, which is not set here")
            variables[name] = value if is_valued else environ[name]
    return variables


def entrypoint_of(
    command: Sequence[str], extras: Sequence[str], project: Path, *, has_keys: bool
) -> list[str]:
    """The words that run the command there.

    With extras of the project, in an environment that uv makes there; under `uv run`, Ray starts
    the workers of the job by uv, too, with the same extras. With keys, behind the words that put
    them in place.
    """
    words = list(command)
    if extras:
        known: list[str] = []
        if project.is_file():
            found: dict[str, Any] = tomllib.loads(project.read_text()).get("project", {})
            known = sorted(found.get("optional-dependencies", {}))
        unknown = [name for name in extras if name not in known]
        require(
            not unknown,
            f"--extra {','.join(unknown)}",
            allowed=f"extras of {project}: {', '.join(known) or 'it has none'}",
            fix="correct the name, or add the extra there",
        )
        wanted = dict.fromkeys([*extras, *([_EXTRA_OF_RAY] if _EXTRA_OF_RAY in known else [])])
        rest = words[2:] if words[:2] == ["uv", "run"] else ["--", *words]
        words = ["uv", "run", *(word for name in wanted for word in ("--extra", name)), *rest]
    if has_keys:
        # The python that the command names, and not python-coverage or the like.
        is_python = re.fullmatch(r"python(\d+(\.\d+)?)?", Path(command[0]).name)
        words = [command[0] if is_python else "python", "-m", _JOB_START, *words]
    return words


def submission_id_of(command: Sequence[str]) -> str:
    """A name for the job that says who runs what since when."""
    files = [Path(word).stem for word in command if word.endswith((".py", ".sh"))]
    what = (files or [Path(command[0]).name])[0]
    now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return f"ray-run-{getpass.getuser()}-{what}-{now}-{secrets.token_hex(2)}"


def git_commit() -> str | None:
    """The commit of this folder, with `-dirty` if files differ from it; None without git."""
    commit = _git(Path(), "rev-parse", "HEAD")
    if commit is None:
        return None
    return f"{commit.strip()}-dirty" if _git(Path(), "status", "--porcelain") else commit.strip()


# ---- The cluster ------------------------------------------------------------------------------


def job_client(cluster: str | None) -> Any:
    """A client of Ray's job API on the cluster, which answers; `LaunchError` if it does not.

    `cluster` is the address of a dashboard or of a head, or the file or the name of one of Ray's
    launcher; None: what RAY_API_SERVER_ADDRESS or RAY_ADDRESS say, else this machine.
    """
    given = next((os.environ[name] for name in _ADDRESSES if os.environ.get(name)), None)
    address = job_address(cluster or given or f"127.0.0.1:{_PORT}")
    import_ray()
    from ray.job_submission import JobSubmissionClient  # noqa: PLC0415

    # Ray logs every upload; the command prints what matters.
    for handler in logging.getLogger("ray").handlers:
        handler.setLevel(logging.WARNING)
    # In Ray they would override what --cluster says.
    kept = {name: os.environ.pop(name) for name in _ADDRESSES if name in os.environ}
    try:
        return JobSubmissionClient(address)
    except Exception as error:  # Ray's own, and those of the libraries it calls
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise LaunchError(
            f"the Ray cluster at {address} takes no jobs from here ({first})",
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
    if not re.search(r"[:.]", cluster) and cluster != "localhost":
        path = _CLUSTERS / f"{cluster}.yaml"
        if not path.is_file():
            known = ", ".join(sorted(each.stem for each in _CLUSTERS.glob("*.yaml"))) or "none"
            raise LaunchError(
                f"--cluster {cluster}, for which there is no {path}",
                allowed=f"a cluster of that folder ({known}), an address, or a file",
                fix=f"correct the name; for a machine of that name write {cluster}:{_PORT}",
            )
        cluster = str(path)
    if cluster.endswith((".yaml", ".yml")):
        import_ray()
        from ray.autoscaler.sdk import get_head_node_ip  # noqa: PLC0415

        try:
            cluster = f"http://{get_head_node_ip(cluster)}:{_PORT}"
        # Whatever a file that is none, or a cloud's library, raises.
        except Exception as error:
            raise LaunchError(
                f"the head of the cluster in {cluster} cannot be found "
                f"({type(error).__name__}: {error})",
                allowed="a file of Ray's cluster launcher, whose cluster runs, and rights to ask "
                "its cloud about it",
                fix=f"ray up {cluster}, or keep ray dashboard {cluster} running beside this and "
                f"give --cluster http://127.0.0.1:{_PORT}",
            ) from error
    if "://" not in cluster:
        host, port = host_and_port(cluster, _PORT)
        require_listening(host, port, what="the Ray cluster", fix=_FIX)
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        # Head and dashboard have ports of their own, and people name either.
        try:
            urllib.request.urlopen(f"{url}/api/version", timeout=_PROBE_S).close()
        except urllib.error.HTTPError:
            return url  # it wants a token, which Ray's client has
        except (OSError, http.client.HTTPException):
            return f"{host}:{port}"
        return url
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


# ---- What is sent -----------------------------------------------------------------------------


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

    `environment` are variables, which Ray shows on its dashboard, in its list of jobs and in logs.
    `keys` are not shown: they travel in two halves that say nothing alone, one a variable, the
    other a file in a package (`py_modules`), which the job removes when it begins with
    `python -m chomp_job_start`. docs/tutorials/cluster.md says who can read them.
    """
    with tempfile.TemporaryDirectory() as kept:
        modules, variables = packages_below(folder), dict(environment)
        if keys:
            content = json.dumps({**keys, KEY_NAMES: " ".join(sorted(keys))}).encode()
            pad = secrets.token_bytes(len(content))
            variables["CHOMP_JOB_KEYS"] = pad.hex()
            package = Path(kept, _JOB_START)
            package.mkdir(mode=0o700)
            (package / "__init__.py").touch()
            start = f"{inspect.getsource(start_with_keys)}\n\nstart_with_keys()\n"
            (package / "__main__.py").write_text(start)
            half = bytes(a ^ b for a, b in zip(content, pad, strict=True))
            (package / "keys.bin").write_bytes(half)
            modules.append(str(package))
        runtime_env: dict[str, Any] = {
            "working_dir": str(folder),
            "excludes": excludes_of(folder),
            "env_vars": variables,
            **({"py_modules": modules} if modules else {}),
        }
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


def start_with_keys() -> None:
    """Put the keys that a job was sent into its environment, and become its command.

    The source of this function is sent as a package of its own (`python -m chomp_job_start ...`):
    nothing else of chomp is on the node yet, so it uses the standard library alone.
    """
    import json  # noqa: PLC0415
    import os  # noqa: PLC0415
    import sys  # noqa: PLC0415
    from pathlib import Path  # noqa: PLC0415

    pad = bytes.fromhex(os.environ.pop("CHOMP_JOB_KEYS"))
    place = Path(__file__).with_name("keys.bin")
    try:
        half = place.read_bytes()
        place.unlink()
    except OSError:
        sys.exit(
            "the keys that were sent to this job are no longer there. Allowed: one start for each "
            "submission. Fix: submit it again."
        )
    os.environ.update(json.loads(bytes(a ^ b for a, b in zip(half, pad, strict=True))))
    try:
        os.execvp(sys.argv[1], sys.argv[1:])
    except OSError as error:
        print(f"{sys.argv[1]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)  # as shells report it


def excludes_of(folder: Path) -> list[str]:
    """What of a folder is not sent, as patterns of .gitignore.

    Results, environments, files that hold keys, what git ignores, and files too big for code.
    """
    listing = _git(
        folder, "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory"
    )
    ignored = [name.rstrip("/") for name in (listing or "").split("\0") if name]
    exact = []
    for name in [*ignored, *big_files(folder)]:
        # As a pattern that matches nothing else.
        escaped = re.sub(r"([\\*?\[\]!#])", r"\\\1", name)
        exact.append("/" + re.sub(r" (?= *$)", r"\\ ", escaped))
    return [*_RESULTS, *_NEVER, *_SECRET_FILES, *exact]


def big_files(folder: Path) -> list[str]:
    """Files of a folder that are too big for code, of those that would be sent otherwise."""
    listing = _git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listing is None:
        names = [str(path.relative_to(folder)) for path in folder.rglob("*")]
    else:
        names = [name for name in listing.split("\0") if name]
    results = {name.strip("/") for name in _RESULTS}
    return sorted(
        name
        for name, path in ((name, folder / name) for name in names)
        if path.parts[len(folder.parts)] not in results and set(_NEVER).isdisjoint(path.parts)
        if path.is_file() and path.stat().st_size > BIG_FILE_BYTES
    )


def packages_below(folder: Path) -> list[str]:
    """Folders of the packages in `src`, which a checkout makes importable by installing."""
    return sorted(str(path.parent) for path in (folder / "src").glob("*/__init__.py"))


def _git(folder: Path, *words: str) -> str | None:
    """What a git command prints in a folder; None where there is no repository, or no git."""
    command = ["git", *words]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


# ---- The job, once it is submitted ------------------------------------------------------------


def follow(client: Any, submission_id: str) -> int:
    """Print what the job prints until it has ended; the exit code of its command.

    A connection that breaks is made again. 130 for a job that was stopped. Raises `NobodyReads` if
    the output cannot be printed any more; the job goes on.
    """
    num_shown = 0  # characters
    broken_since: float | None = None

    async def print_log() -> None:
        nonlocal num_shown, broken_since
        seen = 0  # on this connection: Ray gives the log from its beginning on each one
        async for text in client.tail_job_logs(submission_id):
            broken_since = None
            fresh = text[max(num_shown - seen, 0) :]
            seen += len(text)
            num_shown = max(num_shown, seen)
            try:
                sys.stdout.write(fresh)
                sys.stdout.flush()
            except BrokenPipeError as error:
                raise NobodyReads from error  # a connection that broke is another matter

    slow_at = time.monotonic() + _USUAL_START_S
    while True:
        try:
            details = client.get_job_info(submission_id)
            if details.status.value != "PENDING":
                asyncio.run(print_log())
                details = client.get_job_info(submission_id)
            elif time.monotonic() > slow_at:
                slow_at = math.inf
                _say(str(details.message))
            broken_since = None
            if details.status.is_terminal():
                break
        except NobodyReads:
            raise
        except Exception as error:  # of requests, aiohttp and Ray, which have no class in common
            now = time.monotonic()
            broken_since = now if broken_since is None else broken_since
            if now - broken_since > _PATIENCE_S:
                raise LaunchError(
                    f"the cluster has not answered for {_PATIENCE_S:.0f} s ({error}); the job "
                    f"{submission_id} may go on",
                    allowed="a cluster that can be reached",
                    fix=f"look later: ray job logs {submission_id} --follow",
                ) from error
        time.sleep(_PAUSE_S)
    if details.status.value == "SUCCEEDED":
        return 0
    if details.status.value == "STOPPED":
        _say("The job was stopped.")
        return INTERRUPTED_EXIT_CODE
    code: int | None = details.driver_exit_code
    if code is None:
        # It never began: its folder could not be made there, or no node has what it asks for.
        _say(f"The job failed: {details.message}")
        return 1
    return code if code >= 0 else 128 - code  # by a signal, as shells report it


def stop(client: Any, submission_id: str) -> None:
    """Ask the job to save and end, and return when it has ended, or has not begun."""
    try:
        client.stop_job(submission_id)
        while not (status := client.get_job_status(submission_id)).is_terminal():
            if status.value == "PENDING":
                # Ray has nobody to tell yet, and that can take as long as the cluster is full.
                _say("The job has not begun; it is stopped as soon as it does.")
                break
            time.sleep(_PAUSE_S)
    except Exception as error:
        raise LaunchError(
            f"the job {submission_id} may go on: {_reason(error)}",
            allowed="a cluster that can be reached while its job is stopped",
            fix=f"look whether it runs, and stop it: ray job stop {submission_id}",
        ) from error


def _reason(error: Exception) -> str:
    """The line that says what went wrong, out of a server's whole traceback."""
    lines = [line.strip() for line in str(error).splitlines() if re.search(r"\w", line)]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception): ", line)]
    return (named or lines or [type(error).__name__])[-1]


def _say(text: str) -> None:
    """Print about the job to stderr, since stdout is what the job itself prints."""
    with suppress(OSError):  # the terminal may be gone
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
