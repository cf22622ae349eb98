"""A command on a Ray cluster: `python -m chomp.launch.ray_run [options] -- command`.

Sends this folder, submits the command, shows what it prints and ends with its exit code. Ctrl-C
leaves the job alone and says how to follow and how to stop it: a terminal that is closed must not
end a run of days. With --auto-stop it stops the job. Values of variables are never printed, not
even in errors: any of them may be a key.

Everything goes through Ray's public job API (`JobSubmissionClient`). The folder travels as
`working_dir`, its packages below `src` as `py_modules`. Variables travel as `env_vars`, which Ray
shows on its dashboard, in its list of jobs and in its logs. Keys are therefore split in two halves
that say nothing alone: one is a variable, the other a file in one more package, which the job
removes when it begins (`job_start`). docs/tutorials/cluster.md says who can read them.
"""

import asyncio
import getpass
import http.client
import json
import logging
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
import yaml

from chomp.errors import ChompError, LaunchError, require
from chomp.launch import job_start
from chomp.launch.console import print_error, show_log_warnings
from chomp.launch.main import parse_options
from chomp.launch.ray_runner import host_and_port, import_ray, require_listening
from chomp.launch.step_result import INTERRUPTED_EXIT_CODE
from chomp.storage.paths import require_current_folder
from chomp.storage.secrets import is_secret_name

_USAGE = "python -m chomp.launch.ray_run OPTIONS -- python experiments/grug/base/launch.py"
_ABOUT_VARIABLES = "Variables for the command: --env_vars KEY=VALUE, KEY VALUE or KEY (repeatable)."
_ENV_VARS = "--env_vars"
_ENV_VARS_ALLOWED = "KEY=VALUE, KEY VALUE, or the KEY of a variable that is set here"
# Read by trackers and by downloads; set here, they are meant for the command, too.
_ALWAYS_SENT = ("WANDB_API_KEY", "HF_TOKEN")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")  # and not python-coverage or the like
_EXTRA_OF_RAY = "ray"  # which the driver of a job needs, whatever else it needs
_PREFIX = "CHOMP_PREFIX"
# How long a job that is stopped may save before it is killed; Ray's own: 3.
_STOP_WAIT = {"RAY_JOB_STOP_WAIT_TIME_S": "120"}
_NOBODY_READS_EXIT_CODE = 128 + signal.SIGPIPE  # as shells report a command that a pipe has ended

_JOB_START = "chomp_job_start"
# Files of Ray's cluster launcher, by the name of the cluster.
_CLUSTERS = Path("infra/clusters")
BIG_FILE_BYTES = 20_000_000
# In the syntax of .gitignore. Results are at the top alone: a package may have such a folder, too.
_RESULTS = ("/outputs", "/runs", "/wandb")
_NEVER = (".git", ".venv", "__pycache__", "node_modules", ".ssh", ".aws", ".netrc")
_SECRET_FILES = (".env*", "*.pem", "*.key")

_PORT = 8265
_VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
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
    command = words[at + 1 :]

    def run(
        no_wait: Annotated[
            bool, typer.Option("--no-wait", "--no_wait", help="Submit, and do not follow.")
        ] = False,
        auto_stop: Annotated[
            bool, typer.Option("--auto-stop", help="Stop the job when this command is stopped.")
        ] = False,
        cluster: Annotated[
            str | None,
            typer.Option(help="Address, launcher file or its name; default: RAY_ADDRESS, or here."),
        ] = None,
        extra: Annotated[
            list[str] | None,
            typer.Option(metavar="A,B", help="Extras of pyproject.toml to install, by uv."),
        ] = None,
        submission_id: Annotated[
            str | None, typer.Option(help="Name of the job; one that the cluster has not seen.")
        ] = None,
        entrypoint_num_cpus: Annotated[
            float | None, typer.Option(min=0, help="CPUs of the command itself.")
        ] = None,
        entrypoint_num_gpus: Annotated[
            float | None, typer.Option(min=0, help="GPUs of the command itself.")
        ] = None,
        entrypoint_memory: Annotated[
            int | None, typer.Option(min=0, metavar="BYTES", help="Memory of the command itself.")
        ] = None,
        entrypoint_resources: Annotated[
            str | None, typer.Option(metavar="JSON", help='Other resources: {"TPU": 4}.')
        ] = None,
    ) -> int:
        require(
            bool(command),
            "no command" if "--" in words else "no command, since there is no --",
            allowed="a command behind --",
            fix=f"write {_USAGE}",
        )
        variables = job_environment(groups, os.environ)
        require_current_folder()
        folder = Path.cwd()
        keys = {name: value for name, value in variables.items() if is_secret_name(name)}
        extras = [name for text in extra or [] for name in text.split(",") if name]
        entrypoint = entrypoint_of(command, extras, Path("pyproject.toml"), has_keys=bool(keys))
        resources = _resources(entrypoint_resources)
        client = job_client(cluster)
        address = str(client.get_address())
        commit = git_commit()
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
                f"--env_vars {_PREFIX}=..."
            )
        name = submission_id or submission_id_of(command)
        submit(
            client,
            name,
            shlex.join(entrypoint),
            folder,
            environment=environment,
            keys=keys,
            entrypoint_num_cpus=entrypoint_num_cpus,
            entrypoint_num_gpus=entrypoint_num_gpus,
            entrypoint_memory=entrypoint_memory,
            entrypoint_resources=resources,
        )
        too_big = big_files(folder)
        left_out = f", without files over {BIG_FILE_BYTES / 1e6:g} MB: {', '.join(too_big[:5])}"
        _say(f"Submitted {name} to {address}: {shlex.join(command)}")
        _say(f"  sent: {folder}{left_out if too_big else ''}{' and more' * (len(too_big) > 5)}")
        _say(f"  variables: {', '.join(sorted(environment))}")
        if keys:
            _say(f"  keys, which the cluster does not show: {', '.join(sorted(keys))}")
        say_how = partial(
            _say,
            f"  follow: ray job logs {name} --follow --address {address}\n"
            f"  stop:   ray job stop {name} --address {address}",
        )
        if no_wait:
            say_how()
            return 0
        return _follow_or_leave(client, name, say_how, auto_stop=auto_stop)

    try:
        groups, others = split_environment_words(words[:at])
        chosen = parse_options(
            run,
            others,
            help=f"{_USAGE}\n\n{_ABOUT_VARIABLES}",
            allowed="the options that --help lists, before --",
            fix=f"write {_USAGE}",
        )
        return 0 if chosen is None else int(chosen())
    except ChompError as error:
        print_error(error)
        return error.exit_code
    except KeyboardInterrupt:  # before there was a job to follow
        _say("Interrupted while submitting; if the job is there, `ray job list` shows it.")
        return INTERRUPTED_EXIT_CODE


def split_environment_words(words: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """The words of each `--env_vars` (or `-e`), and all other words of the command line."""
    groups: list[list[str]] = []
    others: list[str] = []
    is_open = False
    for word in words:
        option, is_joined, value = word.partition("=")
        if option in (_ENV_VARS, "--env-vars", "-e"):
            groups.append([value] if is_joined else [])
            is_open = not is_joined
        elif is_open and not word.startswith("-"):
            groups[-1].append(word)
        else:
            is_open = False
            others.append(word)
    return groups, others


def job_environment(groups: Sequence[Sequence[str]], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that the groups of words ask for, and the keys that are always sent.

    Raises `ConfigError` for words that name nothing.
    """
    variables = {name: environ[name] for name in _ALWAYS_SENT if environ.get(name)}
    for words in groups:
        require(
            len(words) > 0,
            f"{_ENV_VARS} without anything behind it",
            allowed=_ENV_VARS_ALLOWED,
            fix=f"write for example {_ENV_VARS} GRUG_RUN_ID=trial",
        )
        if len(words) == 2 and not any("=" in word for word in words):
            require(
                words[1] not in environ,
                f"{_ENV_VARS} with two names of variables that could be a name and its value",
                allowed=_ENV_VARS_ALLOWED,
                fix=f"write KEY=VALUE, or {_ENV_VARS} twice to send both",
            )
            words = [f"{words[0]}={words[1]}"]
        for word in words:
            name, is_valued, value = word.partition("=")
            require(
                _NAME.fullmatch(name) is not None,
                f"{_ENV_VARS} with an invalid name (not shown: it may be a key)",
                allowed=_ENV_VARS_ALLOWED,
                fix="begin the name with a letter, and use letters, digits and _ only",
            )
            require(
                bool(is_valued) or name in environ,
                f"{_ENV_VARS} {name}, which is not set here",
                allowed=_ENV_VARS_ALLOWED,
                fix=f"export {name} first, or give its value: {name}=...",
            )
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
        flags = [word for name in wanted for word in ("--extra", name)]
        rest = words[2:] if words[:2] == ["uv", "run"] else ["--", *words]
        words = ["uv", "run", *flags, *rest]
    if has_keys:
        python = command[0] if _PYTHON.fullmatch(Path(command[0]).name) else "python"
        words = [python, "-m", _JOB_START, *words]
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
    given = next((os.environ[name] for name in _VARIABLES if os.environ.get(name)), None)
    address = job_address(cluster or given or f"127.0.0.1:{_PORT}")
    import_ray()
    from ray.job_submission import JobSubmissionClient  # noqa: PLC0415

    # Ray logs every upload; the command prints what matters.
    for handler in logging.getLogger("ray").handlers:
        handler.setLevel(logging.WARNING)
    # In Ray they would override what --cluster says.
    kept = {name: os.environ.pop(name) for name in _VARIABLES if name in os.environ}
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
    if cluster.endswith((".yaml", ".yml")):
        return job_address(f"http://{_head_of_launcher(Path(cluster))}:{_PORT}")
    if not any(mark in cluster for mark in ":.") and cluster != "localhost":
        path = _CLUSTERS / f"{cluster}.yaml"
        if path.is_file():
            return job_address(str(path))
        known = ", ".join(sorted(each.stem for each in _CLUSTERS.glob("*.yaml"))) or "none"
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
            allowed="a running cluster, and rights to ask its cloud about it",
            fix=f"ray up {path}, or keep ray dashboard {path} running beside this and give "
            f"--cluster http://127.0.0.1:{_PORT}",
        ) from error


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

    `environment` are variables that the cluster shows to whoever may look at it; `keys` are
    variables that it does not show: a command with keys begins with `python -m chomp_job_start`.
    """
    with tempfile.TemporaryDirectory() as kept:
        modules, variables = packages_below(folder), dict(environment)
        if keys:
            content = json.dumps(dict(keys)).encode()
            pad = secrets.token_bytes(len(content))
            variables[job_start.HALF] = pad.hex()
            package = Path(kept, _JOB_START)
            package.mkdir(mode=0o700)
            shutil.copyfile(job_start.__file__, package / "__main__.py")
            (package / "__init__.py").touch()
            half = bytes(a ^ b for a, b in zip(content, pad, strict=True))
            (package / job_start.KEYS_FILE).write_bytes(half)
            modules.append(str(package))
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
    listing = _git(
        folder, "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory"
    )
    ignored = [name for name in (listing or "").split("\0") if name]
    exact = [f"/{_escape(name.rstrip('/'))}" for name in [*ignored, *big_files(folder)]]
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
        if Path(name).parts[0] not in results and set(_NEVER).isdisjoint(Path(name).parts)
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


def _escape(name: str) -> str:
    """A file name as a pattern of .gitignore that matches nothing else."""
    escaped = re.sub(r"([\\*?\[\]!#])", r"\\\1", name)
    return re.sub(r" (?= *$)", r"\\ ", escaped)


# ---- The job, once it is submitted ------------------------------------------------------------


def follow(client: Any, submission_id: str) -> int:
    """Print what the job prints until it has ended; the exit code of its command.

    A connection that breaks is made again. 130 for a job that was stopped. Raises `NobodyReads` if
    the output cannot be printed any more; the job goes on.
    """
    # Whatever breaks here breaks again below, which is patient.
    with suppress(Exception):
        deadline = time.monotonic() + _USUAL_START_S
        while (details := client.get_job_info(submission_id)).status.value == "PENDING":
            if time.monotonic() > deadline:
                _say(str(details.message))
                break
            time.sleep(_PAUSE_S)
    details = asyncio.run(_follow_to_end(client, submission_id))
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


async def _follow_to_end(client: Any, submission_id: str) -> Any:
    """Print what the job prints; its details, once it has ended."""
    num_shown = 0  # characters
    silent_since: float | None = None
    while True:
        seen = 0  # on this connection: Ray gives the log from its beginning on each one
        is_heard = False
        try:
            async for text in client.tail_job_logs(submission_id):
                is_heard = True
                fresh = text[max(num_shown - seen, 0) :]
                seen += len(text)
                num_shown = max(num_shown, seen)
                try:
                    sys.stdout.write(fresh)
                    sys.stdout.flush()
                except BrokenPipeError as error:
                    raise NobodyReads from error  # a connection that broke is another matter
            details = client.get_job_info(submission_id)
            silent_since = None
            if details.status.is_terminal():
                return details
        except NobodyReads:
            raise
        # Of requests, aiohttp and Ray, which have no class in common.
        except Exception as error:
            now = time.monotonic()
            # A connection that worked, perhaps for days, is lost only now.
            silent_since = now if is_heard or silent_since is None else silent_since
            if now - silent_since > _PATIENCE_S:
                raise LaunchError(
                    f"the cluster has not answered for {_PATIENCE_S:.0f} s ({error}); the job "
                    f"{submission_id} may go on",
                    allowed="a cluster that can be reached",
                    fix=f"look later: ray job logs {submission_id} --follow",
                ) from error
        await asyncio.sleep(_PAUSE_S)


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


def _resources(text: str | None) -> dict[str, float] | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    is_fine = isinstance(found, dict) and all(
        isinstance(amount, int | float) and not isinstance(amount, bool) and amount > 0
        for amount in found.values()
    )
    require(
        is_fine,
        f"--entrypoint-resources {text}",
        allowed="a JSON mapping of names to numbers above 0",
        fix="write for example --entrypoint-resources '{\"TPU\": 4}'",
    )
    return found


def _follow_or_leave(
    client: Any, name: str, say_how: Callable[[], None], *, auto_stop: bool
) -> int:
    """Follow the job until it has ended or this command is stopped; the exit code."""
    # As Ctrl-C: whoever follows is told to end, not the job. But what is ignored stays ignored:
    # under nohup, a terminal that is closed is nothing to this process.
    earlier = {
        number: signal.signal(number, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        try:
            return follow(client, name)
        except KeyboardInterrupt:
            code = INTERRUPTED_EXIT_CODE
        except NobodyReads:
            code = _NOBODY_READS_EXIT_CODE
            # Python flushes it once more at its end, and would complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if auto_stop:
            _say("Stopping the job; it may save first.")
            try:
                stop(client, name)
            except KeyboardInterrupt:
                _say("No longer waiting for its end.")
                say_how()
        else:
            _say("No longer following; the job goes on.")
            say_how()
        return code
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    """Print about the job to stderr, since stdout is what the job itself prints."""
    with suppress(OSError):  # the terminal may be gone
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
