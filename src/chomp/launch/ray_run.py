"""A command on a Ray cluster: `python -m chomp.launch.ray_run [options] -- command`.

Sends this folder, submits the command through Ray's job API, shows what it prints and ends with
its exit code. Ctrl-C leaves the job alone and says how to follow and how to stop it: a terminal
that is closed must not end a run of days. With --auto-stop it stops the job. Keys travel apart from
the other variables (`job_keys`), and nothing here prints a value.
"""

import json
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from chomp.errors import ChompError, ConfigError, require
from chomp.launch.job_command import entrypoint_of, submission_id_of
from chomp.launch.job_environment import git_commit, job_environment, split_environment_words
from chomp.launch.outcome import INTERRUPTED_EXIT_CODE
from chomp.launch.ray_dashboard import job_client
from chomp.launch.ray_job import FollowedJob, NobodyReads, RayJob, say, submitted
from chomp.launch.shipped_folder import shipped_folder
from chomp.launch.telling import tell_error, tell_warnings_only
from chomp.storage.paths import require_current_folder
from chomp.storage.secrets import is_secret_name

_USAGE = "python -m chomp.launch.ray_run OPTIONS -- python experiments/grug/base/launch.py"
_PREFIX = "CHOMP_PREFIX"
# How long a job that is stopped may save before it is killed; Ray's own: 3.
_STOP_WAIT = ("RAY_JOB_STOP_WAIT_TIME_S", "120")
_NOBODY_READS_EXIT_CODE = 128 + signal.SIGPIPE  # as shells report a command that a pipe has ended


@dataclass(frozen=True, kw_only=True)
class _Wish:
    """What the options ask for."""

    is_waited_for: bool
    is_stopped_with_this: bool
    cluster: str | None
    extras: Sequence[str]
    submission_id: str | None
    num_cpus: float | None
    num_gpus: float | None
    memory_bytes: int | None
    resources: str | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    tell_warnings_only()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        before, command = _parted(words)
        groups, others = split_environment_words(before)
        wish = _parsed(others)
        if wish is None:
            return 0  # help was asked for
        _require_command(words, command)
        return _ran(wish, command, job_environment(groups, os.environ))
    except ChompError as error:
        tell_error(error)
        return error.exit_code
    except KeyboardInterrupt:  # before there was a job to follow
        say("Interrupted while submitting; if the job is there, `ray job list` shows it.")
        return INTERRUPTED_EXIT_CODE


def _parted(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """What is for this command, and the command that it submits."""
    at = words.index("--") if "--" in words else len(words)
    return list(words[:at]), list(words[at + 1 :])


def _require_command(words: Sequence[str], command: Sequence[str]) -> None:
    require(
        bool(command),
        "no command" if "--" in words else "no command, since there is no --",
        allowed="a command behind --",
        fix=f"write {_USAGE}",
    )


def _parsed(words: Sequence[str]) -> _Wish | None:
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
    ) -> _Wish:
        return _Wish(
            is_waited_for=not no_wait,
            is_stopped_with_this=auto_stop,
            cluster=cluster,
            extras=[name for text in extra or [] for name in text.split(",") if name],
            submission_id=submission_id,
            num_cpus=entrypoint_num_cpus,
            num_gpus=entrypoint_num_gpus,
            memory_bytes=entrypoint_memory,
            resources=entrypoint_resources,
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
    return parsed if isinstance(parsed, _Wish) else None


def _ran(wish: _Wish, command: Sequence[str], variables: dict[str, str]) -> int:
    resources = _resources(wish.resources)
    keys = {name: value for name, value in variables.items() if is_secret_name(name)}
    words = entrypoint_of(command, wish.extras, Path("pyproject.toml"), has_keys=bool(keys))
    require_current_folder()
    folder = shipped_folder(Path.cwd())
    client = job_client(wish.cluster)
    address = str(client.get_address())
    environment = _with_usual(variables, command)
    with tempfile.TemporaryDirectory() as kept:
        archive = Path(kept, "folder.zip")
        folder.write_archive(archive)
        job = RayJob(
            submission_id=wish.submission_id or submission_id_of(command),
            entrypoint=shlex.join(words),
            archive=str(archive),
            packages=folder.packages(),
            environment={name: environment[name] for name in environment.keys() - keys.keys()},
            keys=keys,
            num_cpus=wish.num_cpus,
            num_gpus=wish.num_gpus,
            memory_bytes=wish.memory_bytes,
            resources=resources,
        )
        followed = submitted(client, job)
    say(f"Submitted {job.submission_id} to {address}: {shlex.join(command)}")
    say(f"  sent: {folder.told()}")
    say(f"  variables: {', '.join(sorted(job.environment))}")
    if keys:
        say(f"  keys, which the cluster does not show: {', '.join(sorted(keys))}")
    if not wish.is_waited_for:
        _tell_how(job.submission_id, address)
        return 0
    return _followed(followed, job.submission_id, address, is_stopped=wish.is_stopped_with_this)


def _followed(job: FollowedJob, submission_id: str, address: str, *, is_stopped: bool) -> int:
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
        return job.exit_code()
    except KeyboardInterrupt:
        _leave(job, submission_id, address, is_stopped=is_stopped)
    except NobodyReads:
        code = _NOBODY_READS_EXIT_CODE
        # Python flushes it once more at its end, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _leave(job, submission_id, address, is_stopped=is_stopped)
    finally:
        for each, handler in earlier.items():
            signal.signal(each, handler)
    return code


def _leave(job: FollowedJob, submission_id: str, address: str, *, is_stopped: bool) -> None:
    """Follow no longer, and stop the job if it is to end with this command."""
    if not is_stopped:
        say("No longer following; the job goes on.")
        _tell_how(submission_id, address)
        return
    say("Stopping the job; it may save first.")
    try:
        job.stop()
    except KeyboardInterrupt:
        say("No longer waiting for its end.")
        _tell_how(submission_id, address)


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


def _with_usual(variables: dict[str, str], command: Sequence[str]) -> dict[str, str]:
    """The variables of the job: the given ones, the commit, and where its outputs go."""
    commit = git_commit()
    usual = {_STOP_WAIT[0]: _STOP_WAIT[1], **({"GIT_COMMIT": commit} if commit else {})}
    if os.environ.get(_PREFIX):
        usual[_PREFIX] = os.environ[_PREFIX]
    environment = usual | variables
    is_told = any(word.partition("=")[0] == "--prefix" for word in command)
    if not (is_told or environment.get(_PREFIX)):
        # Not guessed: a dashboard on this machine may be a tunnel to another one.
        say(f"Note: without {_PREFIX} or --prefix, outputs go into the job's copy of this folder,")
        say(f"  which Ray removes. Choose a place that lasts: --env_vars {_PREFIX}=...")
    return environment


def _tell_how(submission_id: str, address: str) -> None:
    say(f"  follow: ray job logs {submission_id} --follow --address {address}")
    say(f"  stop:   ray job stop {submission_id} --address {address}")


if __name__ == "__main__":
    sys.exit(main())
