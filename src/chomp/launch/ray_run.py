"""A command on a Ray cluster: `python -m chomp.launch.ray_run [options] -- command`.

Sends this folder, submits the command through Ray's job API, shows what it prints and ends with
its exit code. Ctrl-C leaves the job alone and says how to follow and how to stop it: a terminal
that is closed must not end a run of days. With --auto-stop it stops the job. Values of variables
are never printed, not even in errors: any of them may be a key.
"""

import getpass
import json
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from chomp.errors import ChompError, ConfigError, require
from chomp.launch.console import print_error, show_log_warnings
from chomp.launch.ray_submit import (
    BIG_FILE_BYTES,
    JOB_START,
    NobodyReads,
    big_files,
    follow,
    job_client,
    say,
    stop,
    submit,
)
from chomp.launch.step_result import INTERRUPTED_EXIT_CODE
from chomp.storage.paths import require_current_folder
from chomp.storage.secrets import is_secret_name

_USAGE = "python -m chomp.launch.ray_run OPTIONS -- python experiments/grug/base/launch.py"
_ENV_VARS = "--env_vars"
_ENV_VARS_ALLOWED = "KEY=VALUE, KEY VALUE, or the KEY of a variable that is set here"
# Asked for by trackers and by downloads; set here, they are meant for the command, too.
_ALWAYS_SENT = ("WANDB_API_KEY", "HF_TOKEN")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")  # and not python-coverage or the like
# The driver of a job needs Ray itself, whatever else it needs.
_EXTRA_OF_RAY = "ray"
_PREFIX = "CHOMP_PREFIX"
# How long a job that is stopped may save before it is killed; Ray's own: 3.
_STOP_WAIT = {"RAY_JOB_STOP_WAIT_TIME_S": "120"}
_NOBODY_READS_EXIT_CODE = 128 + signal.SIGPIPE  # as shells report a command that a pipe has ended


@dataclass(frozen=True, kw_only=True)
class _Options:
    no_wait: bool
    auto_stop: bool
    cluster: str | None
    extras: Sequence[str]
    submission_id: str | None
    entrypoint_resources: Mapping[str, Any]  # by the names of `JobSubmissionClient.submit_job`


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    show_log_warnings()
    words = list(sys.argv[1:] if arguments is None else arguments)
    at = words.index("--") if "--" in words else len(words)
    command = words[at + 1 :]
    try:
        groups, others = split_environment_words(words[:at])
        options = _parse(others)
        if options is None:
            return 0  # help was asked for
        require(
            bool(command),
            "no command" if "--" in words else "no command, since there is no --",
            allowed="a command behind --",
            fix=f"write {_USAGE}",
        )
        return _run(options, command, job_environment(groups, os.environ))
    except ChompError as error:
        print_error(error)
        return error.exit_code
    except KeyboardInterrupt:  # before there was a job to follow
        say("Interrupted while submitting; if the job is there, `ray job list` shows it.")
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
                fix=f"write KEY=VALUE, or {_ENV_VARS} twice to hand on both",
            )
            words = [f"{words[0]}={words[1]}"]
        for word in words:
            name, is_valued, value = word.partition("=")
            require(
                _NAME.fullmatch(name) is not None,
                f"{_ENV_VARS} with a name that is none (not shown: it may be a key)",
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


def with_extras(command: Sequence[str], extras: Sequence[str], project: Path) -> list[str]:
    """The command in an environment with those extras of the project, which uv makes there.

    Under `uv run`, Ray starts the workers of the job by uv, too, with the same extras.
    """
    if not extras:
        return list(command)
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
    rest = command[2:] if list(command[:2]) == ["uv", "run"] else ["--", *command]
    return ["uv", "run", *flags, *rest]


def entrypoint_of(
    command: Sequence[str], extras: Sequence[str], project: Path, *, has_keys: bool
) -> list[str]:
    """The words that run the command there, behind those that put its keys in place, if any."""
    words = with_extras(command, extras, project)
    if not has_keys:
        return words
    python = command[0] if _PYTHON.fullmatch(Path(command[0]).name) else "python"
    return [python, "-m", JOB_START, *words]


def submission_id_of(command: Sequence[str]) -> str:
    """A name for the job that says who runs what since when."""
    files = [Path(word).stem for word in command if word.endswith((".py", ".sh"))]
    what = (files or [Path(command[0]).name])[0]
    now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return f"ray-run-{getpass.getuser()}-{what}-{now}-{secrets.token_hex(2)}"


def git_commit() -> str | None:
    """The commit of this folder, with `-dirty` if files differ from it; None without git."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None
    return f"{commit}-dirty" if _git("status", "--porcelain") else commit


def _parse(words: Sequence[str]) -> _Options | None:
    """What the options say, or None once help was shown."""

    def command(
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
    ) -> _Options:
        return _Options(
            no_wait=no_wait,
            auto_stop=auto_stop,
            cluster=cluster,
            extras=[name for text in extra or [] for name in text.split(",") if name],
            submission_id=submission_id,
            entrypoint_resources={
                "entrypoint_num_cpus": entrypoint_num_cpus,
                "entrypoint_num_gpus": entrypoint_num_gpus,
                "entrypoint_memory": entrypoint_memory,
                "entrypoint_resources": _resources(entrypoint_resources),
            },
        )

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    words_of_help = (
        "Variables for the command: --env_vars KEY=VALUE, KEY VALUE or KEY (repeatable)."
    )
    app.command(help=f"{_USAGE}\n\n{words_of_help}")(command)
    try:
        parsed = app(list(words), standalone_mode=False, prog_name="ray_run")
    except Exception as error:
        # Wrong options: typer raises these out of its own or an installed click, by version.
        if not hasattr(error, "format_message"):
            raise
        raise ConfigError(
            error.format_message().rstrip("."),
            allowed="the options that --help lists, before --",
            fix=f"write {_USAGE}",
        ) from error
    return parsed if isinstance(parsed, _Options) else None


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


def _run(options: _Options, command: Sequence[str], variables: dict[str, str]) -> int:
    require_current_folder()
    folder = Path.cwd()
    keys = {name: value for name, value in variables.items() if is_secret_name(name)}
    words = entrypoint_of(command, options.extras, Path("pyproject.toml"), has_keys=bool(keys))
    client = job_client(options.cluster)
    address = str(client.get_address())
    environment = _with_usual(variables, command)
    environment = {name: environment[name] for name in environment.keys() - keys.keys()}
    submission_id = options.submission_id or submission_id_of(command)
    submit(
        client,
        submission_id,
        shlex.join(words),
        folder,
        environment=environment,
        keys=keys,
        **options.entrypoint_resources,
    )
    too_big = big_files(folder)
    left_out = f", without files over {BIG_FILE_BYTES / 1e6:g} MB: {', '.join(too_big[:5])}"
    say(f"Submitted {submission_id} to {address}: {shlex.join(command)}")
    say(f"  sent: {folder}{left_out if too_big else ''}{' and more' * (len(too_big) > 5)}")
    say(f"  variables: {', '.join(sorted(environment))}")
    if keys:
        say(f"  keys, which the cluster does not show: {', '.join(sorted(keys))}")
    if options.no_wait:
        _say_how(submission_id, address)
        return 0
    return _follow(client, submission_id, address, auto_stop=options.auto_stop)


def _follow(client: Any, submission_id: str, address: str, *, auto_stop: bool) -> int:
    # As Ctrl-C: whoever follows is told to go, not the job. But what is ignored stays so: under
    # nohup, a terminal that is closed is nothing to this process.
    others = [
        each
        for each in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(each) is not signal.SIG_IGN
    ]
    earlier = {each: signal.signal(each, signal.default_int_handler) for each in others}
    code = INTERRUPTED_EXIT_CODE
    try:
        return follow(client, submission_id)
    except KeyboardInterrupt:
        _leave(client, submission_id, address, auto_stop=auto_stop)
    except NobodyReads:
        code = _NOBODY_READS_EXIT_CODE
        # Python flushes it once more at its end, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _leave(client, submission_id, address, auto_stop=auto_stop)
    finally:
        for each, handler in earlier.items():
            signal.signal(each, handler)
    return code


def _leave(client: Any, submission_id: str, address: str, *, auto_stop: bool) -> None:
    """Follow no longer, and stop the job if it is to end with this command."""
    if not auto_stop:
        say("No longer following; the job goes on.")
        _say_how(submission_id, address)
        return
    say("Stopping the job; it may save first.")
    try:
        stop(client, submission_id)
    except KeyboardInterrupt:
        say("No longer waiting for its end.")
        _say_how(submission_id, address)


def _with_usual(variables: dict[str, str], command: Sequence[str]) -> dict[str, str]:
    """The variables of the job: the given ones, the commit, and where its outputs go."""
    commit = git_commit()
    usual = {**_STOP_WAIT, **({"GIT_COMMIT": commit} if commit else {})}
    if os.environ.get(_PREFIX):
        usual[_PREFIX] = os.environ[_PREFIX]
    environment = usual | variables
    has_prefix = any(word.partition("=")[0] == "--prefix" for word in command)
    if not (has_prefix or environment.get(_PREFIX)):
        # Not guessed: a dashboard on this machine may be a tunnel to another one.
        say(f"Note: without {_PREFIX} or --prefix, outputs go into the job's copy of this folder,")
        say(f"  which Ray removes. Choose a place that lasts: --env_vars {_PREFIX}=...")
    return environment


def _say_how(submission_id: str, address: str) -> None:
    say(f"  follow: ray job logs {submission_id} --follow --address {address}")
    say(f"  stop:   ray job stop {submission_id} --address {address}")


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main())
