"""The parent of the forks that verify-resume kills: imports, forks when told to, and waits.

A fork is sound because this process does nothing else: JAX has looked for no device yet, and has
no thread that a fork could lose. Run as a program; `verify_forks` talks to it, in lines of JSON.
"""

# ruff: noqa: PLC0415
# What is imported inside functions imports JAX, and no file of this room does when it is imported.

import json
import os
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from chomp.cli.given_config import GivenConfig
from chomp.cli.launch_files import launch_steps
from chomp.cli.main import exit_code
from chomp.cli.verify_forks import DEVICE_COUNT, RunFacts
from chomp.errors import ChompError, LaunchError, message
from chomp.executor.step import replaced


def serve(given: GivenConfig) -> None:
    """Tell what the config says, then fork for each line of the input until it ends."""
    # A launch file may print; what is told must stay apart from that.
    telling = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    told = _told_facts(given)
    print(json.dumps(told), file=telling)
    # Python counts the threads of NumPy's library too, which knows how to be forked.
    warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork")
    for line in sys.stdin:
        wish = json.loads(line)
        child = os.fork()
        if child == 0:
            telling.close()
            _become(wish)
            return
        with suppress(OSError):  # both do it: whoever reads the id may kill its group at once
            os.setpgid(child, child)
        print(child, file=telling)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=telling)


def _told_facts(given: GivenConfig) -> dict[str, Any]:
    try:
        return asdict(_facts(given))
    except ChompError as error:
        return {"error": str(error), "exit_code": error.exit_code}


def _facts(given: GivenConfig) -> RunFacts:
    from chomp.checkpoint.layout import CHECKPOINTS, METADATA, UNFINISHED
    from chomp.tracking.run_files import METRICS_FILE

    step = launch_steps(given)[-1]
    config = replaced(step.config, lambda marker: "")
    trainer, saving = (getattr(config, name, None) for name in ("trainer", "checkpoint"))
    steps = getattr(trainer, "steps", None)
    if not isinstance(steps, int) or saving is None:
        raise LaunchError(
            message(
                given=f"{given.path}, whose last step {step.name!r} has no trainer.steps and "
                "checkpoint",
                allowed="the config of a run that trains and saves",
                fix="name the fields of the launch config so, as in experiments/grug/base",
            )
        )
    return RunFacts(
        steps=steps,
        has_keep_policies=bool(getattr(saving, "keep", ())),
        record=getattr(getattr(config, "logging", None), "metrics_file", METRICS_FILE),
        checkpoints=CHECKPOINTS,
        metadata=METADATA,
        unfinished=UNFINISHED,
        can_fork=not _has_devices(),
    )


def _has_devices() -> bool:
    """Whether JAX has looked for devices already, as a template that makes arrays would have it."""
    from chomp.errors import private_names

    with private_names("jax"):
        from jax._src import xla_bridge  # nothing public tells without looking for them

        return bool(xla_bridge.backends_are_initialized())


def _become(wish: Mapping[str, Any]) -> None:
    """Be the process that the command would have started, to its end."""
    with suppress(OSError):
        os.setpgid(0, 0)
    for number, path, mode in (
        (0, os.devnull, os.O_RDONLY),
        (1, wish["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    ):
        opened = os.open(path, mode, 0o644)
        os.dup2(opened, number)
        os.close(opened)
    os.dup2(1, 2)
    os.environ.update(wish["environment"])
    if DEVICE_COUNT in wish["environment"]:
        import jax

        # Read from the environment when JAX was imported, which was before this command.
        jax.config.update("jax_num_cpu_devices", int(wish["environment"][DEVICE_COUNT]))
    sys.exit(exit_code(wish["words"]))


if __name__ == "__main__":
    serve(GivenConfig(**json.loads(sys.argv[1])))
