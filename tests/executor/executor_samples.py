"""Steps for the executor tests: each leaves a trace of having run."""

from collections.abc import Callable
from typing import Any

from chomp import storage
from chomp.executor import (
    ExecutorStep,
    PlannedStep,
    StepStatus,
    read_status,
    this_output_path,
    versioned,
)


def work(config: dict[str, Any]) -> None:
    """The function of most steps: adds a line to its folder, and fails when told to."""
    with open(storage.join(config["out"], "runs"), "a") as runs:
        print("ran", file=runs)
    if "error" in config:
        raise ValueError(config["error"])


def step(name: str, version: Any = 1, **config: Any) -> ExecutorStep:
    """A step called `name` that does `work`; `config` holds what is not versioned."""
    marked = {"out": this_output_path(), "version": versioned(version), **config}
    return ExecutorStep(name=name, fn=work, config=marked)


def calling(name: str, fn: Callable[[str], Any], **settings: Any) -> ExecutorStep:
    """A step that calls `fn` with its output folder."""
    return ExecutorStep(
        name, lambda config: fn(config["out"]), {"out": this_output_path()}, **settings
    )


def run_here(item: PlannedStep) -> None:
    """The runner of most tests: calls the step's function."""
    item.step.fn(item.config)


def status_of(path: Any) -> StepStatus:
    """What a folder says of its step, which was begun."""
    status = read_status(str(path))
    assert status is not None
    return status
