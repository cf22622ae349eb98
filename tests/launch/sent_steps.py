"""Functions of steps that are run in other processes: each leaves traces in its folder."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chomp.errors import DataError, RunInterrupted
from chomp.executor import ExecutorStep, Resources, this_output_path

LONGEST_S = 240.0


class RareError(DataError):
    """A kind of error that only its own file knows."""


def work(config: dict[str, Any]) -> None:
    """Do as `config["wish"]` says, in the process that this is called in."""
    out, wish = Path(config["out"]), config.get("wish", "")
    index = os.environ.get("JAX_PROCESS_ID", "0")
    print(f"printed by {os.getpid()}")
    (out / f"seen-{index}").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
    (out / f"platforms-{index}").write_text(os.environ.get("JAX_PLATFORMS", "any"))
    with (out / "starts").open("a") as file:
        file.write(f"{index}\n")
    match wish:
        case "data":
            raise DataError("no documents")
        case "rare":
            error = RareError("something rare")
            error.add_note("a note")
            raise error
        case "bug":
            raise ZeroDivisionError("a bug")
        case "exit":
            sys.exit("gave up")
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "crashes":
            os.abort()
        case "leaves":
            os._exit(3)
        case "never ends":
            _go_on(out)
        case "until let go":
            (out / "ready").touch()
            wait_for(out / "go")
        case "until asked":
            _wait_to_be_asked(out)
        case "one is lost once":
            _lose_one(out, index, times=1)
        case "one is always lost":
            _lose_one(out, index, times=100)
        case "one fails":
            _fail_in_one(out, index)


def step(name: str, wish: str = "", *, resources: Resources | None = None) -> ExecutorStep:
    """A step that does as it is told."""
    config = {"out": this_output_path(), "wish": wish}
    return ExecutorStep(name, work, config, resources=resources)


def wait_for(path: Path) -> None:
    """Return when there is something at `path`."""
    wait_until(path.exists, f"nothing came to {path}")


def wait_until(condition: Callable[[], object], failure: str = "it never came") -> None:
    """Return when the condition holds."""
    deadline = time.monotonic() + LONGEST_S
    while not condition():
        assert time.monotonic() < deadline, failure
        time.sleep(0.005)


def _wait_to_be_asked(out: Path) -> None:
    """As a training run does: save and end when SIGTERM comes."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    (out / "ready").touch()
    wait_until(lambda: asked)
    (out / "saved").touch()
    raise RunInterrupted("SIGTERM: the state is saved at step-5.", exit_code=75)


def _go_on(out: Path) -> None:
    """Work with a process of its own, and save when asked to, which is not to happen.

    Whoever finds "alone" in its folder has nothing left to do.
    """
    if (out / "alone").exists():
        return
    helper = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({LONGEST_S})"])
    signal.signal(signal.SIGTERM, lambda number, frame: (out / "saved").touch())
    (out / "ready").write_text(f"{os.getpid()} {helper.pid}")
    helper.wait()


def _lose_one(out: Path, index: str, *, times: int) -> None:
    """Process 1 is killed as often as told; process 0 works on until it is ended or was not."""

    def starts_of(member: str) -> int:
        return (out / "starts").read_text().split().count(member)

    if index == "1" and (tries := starts_of("1")) <= times:
        # Not before the other has begun, or it would be ended without a trace.
        wait_until(lambda: starts_of("0") >= tries)
        os.kill(os.getpid(), signal.SIGKILL)
    wait_until(lambda: starts_of("1") > times)


def _fail_in_one(out: Path, index: str) -> None:
    """Process 1 raises an error of its own; process 0 only notices, as JAX would say it."""
    if index == "1":
        raise DataError("no documents")
    wait_for(out / "seen-1")  # nobody notices before

    class JaxRuntimeError(RuntimeError):
        pass

    raise JaxRuntimeError("UNKNOWN: Gloo all-reduce failed: connection closed by peer")
