"""Shared by the launch tests: a small launch file, run as people run it."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.forked_commands import ForkedCommands

# Two steps, tokens and train, which needs them. `trouble` is not versioned and says how train ends.
LAUNCH_FILE = """
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from chomp.errors import DataError, RunInterrupted
from chomp.executor import ExecutorStep, output_path_of, this_output_path, versioned
from chomp.launch import executor_main


@dataclass(frozen=True, kw_only=True)
class Model:
    width: int = 8
    attention: Literal["auto", "reference"] = "auto"


@dataclass(frozen=True, kw_only=True)
class Launch:
    model: Model = field(default_factory=Model)
    lr: float = 0.1
    name: str = "train"
    trouble: str = ""
    has_steps: bool = True


def tokens(config):
    note_run(config)


def train(config):
    note_run(config)
    match config["trouble"]:
        case "bug":
            raise ZeroDivisionError("a bug [/in] the step")
        case "end of input":
            raise EOFError("a bug that command lines take for Ctrl-D")
        case "data":
            raise DataError("no documents [bold]at all[/bold]" + "." * 100)
        case "saved":
            raise RunInterrupted("SIGTERM: the state is saved [/x].", exit_code=75)
        case "ctrl-c":
            signal.raise_signal(signal.SIGINT)


def note_run(config):
    with open(config["out"] + "/runs", "a") as file:
        file.write("ran\\n")


def steps(launch):
    made = ExecutorStep("tokens", tokens, {"out": this_output_path()}, description="make tokens")
    config = {
        "model": versioned(launch.model),
        "lr": versioned(launch.lr),
        "trouble": launch.trouble,
        "data": output_path_of(made),
        "out": this_output_path(),
    }
    return [ExecutorStep(launch.name, train, config)] if launch.has_steps else []


def dry_run(config, is_data_ready):
    if config["trouble"] == "memory":
        raise DataError("does not fit")
    print("dry run:", config["model"], config["data"], config["out"], is_data_ready)


if __name__ == "__main__":
    executor_main(
        steps,
        Launch(),
        description="Train something small.",
        report=lambda path: print("report:", path, Path(path, "runs").exists()),
        dry_run=dry_run,
    )
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def launch_file(tmp_path: Path) -> Path:
    """The launch file, alone in its folder."""
    path = tmp_path / "template" / "launch.py"
    path.parent.mkdir()
    path.write_text(LAUNCH_FILE)
    return path


@pytest.fixture(scope="module")
def commands() -> Iterator[ForkedCommands]:
    """Runs files that import what the launch file does."""
    started = ForkedCommands("chomp.launch", flags=("-W", "error"), env=os.environ)
    yield started
    started.close()


@pytest.fixture
def launch(commands: ForkedCommands, launch_file: Path, tmp_path: Path) -> Run:
    """Runs the launch file with some arguments, in the test's own folder."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        inherited = {key: value for key, value in os.environ.items() if key != "CHOMP_PREFIX"}
        return commands.run(launch_file, *arguments, env={**inherited, **environment}, cwd=tmp_path)

    return run
