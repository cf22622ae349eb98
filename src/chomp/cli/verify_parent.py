"""The parent of the processes that verify-resume kills: imports, forks when asked to, and waits.

Run as a program; `verify_lives.Forks` talks to it, in lines of JSON. A fork is sound because this
process does nothing else: JAX has looked for no device yet, and has no thread that a fork could
lose.
"""

import json
import os
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import jax

from chomp.cli import train  # noqa: F401  # what each fork needs is imported once, here
from chomp.cli.load_config import GivenConfig, load_launch
from chomp.cli.main import exit_code
from chomp.cli.verify_lives import DEVICE_COUNT, RunFacts
from chomp.errors import ChompError, LaunchError, private_names
from chomp.executor.step import replaced
from chomp.tracking.run_files import METRICS_FILE


def serve(given: GivenConfig) -> None:
    """Print what the config says, then fork for each line of the input until it ends."""
    # A launch file may print; the answers must stay apart from that.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        answer = asdict(_facts(given))
    except ChompError as error:
        answer = {"error": str(error), "exit_code": error.exit_code}
    print(json.dumps(answer), file=answers)
    # Python counts the threads of NumPy's library too, which knows how to be forked.
    warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork")
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            answers.close()
            _become(request)
            return
        with suppress(OSError):  # both do it, since the group may be killed at once
            os.setpgid(child, child)
        print(child, file=answers)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers)


def _facts(given: GivenConfig) -> RunFacts:
    step = load_launch(given).steps()[-1]
    config = replaced(step.config, lambda marker: "")
    trainer, saving = (getattr(config, name, None) for name in ("trainer", "checkpoint"))
    steps = getattr(trainer, "steps", None)
    if not isinstance(steps, int) or saving is None:
        raise LaunchError(
            f"{given.path}, whose last step {step.name!r} has no trainer.steps and checkpoint",
            allowed="the config of a run that trains and saves",
            fix="name the fields of the launch config so, as in experiments/grug/base",
        )
    return RunFacts(
        steps=steps,
        has_keep_policies=bool(getattr(saving, "keep", ())),
        record=getattr(getattr(config, "logging", None), "metrics_file", METRICS_FILE),
        can_fork=not _has_devices(),
    )


def _has_devices() -> bool:
    """Whether JAX has looked for devices already, as for a template that makes arrays."""
    with private_names("jax"):
        from jax._src import xla_bridge  # noqa: PLC0415  # nothing public tells without looking

        return bool(xla_bridge.backends_are_initialized())


def _become(request: Mapping[str, Any]) -> None:
    """Be the process that the command would have started, to its end."""
    with suppress(OSError):
        os.setpgid(0, 0)
    for number, path, mode in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    ):
        opened = os.open(path, mode, 0o644)
        os.dup2(opened, number)
        os.close(opened)
    os.dup2(1, 2)
    os.environ.update(request["environment"])
    if DEVICE_COUNT in request["environment"]:
        # Read from the environment when JAX was imported, which was before this command.
        jax.config.update("jax_num_cpu_devices", int(request["environment"][DEVICE_COUNT]))
    sys.exit(exit_code(request["words"]))


if __name__ == "__main__":
    serve(GivenConfig(**json.loads(sys.argv[1])))
