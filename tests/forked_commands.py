"""Python files run as commands, each a fork of one process that has done their imports.

Every command is a process of its own, with its own arguments, environment, output and exit code,
and runs its file from the top as `__main__`. Only the imports are shared, which are most of what a
launch costs that refuses its input.
"""

import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

LONGEST_S = 300  # a command that hangs is ended by a signal after so long


class ForkedCommands:
    """Runs `python FILE ARGUMENTS...` with `imports` done before, until closed."""

    def __init__(self, *imports: str, flags: Sequence[str] = (), env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *flags, __file__, *imports],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self, file: str | Path, *arguments: str, env: Mapping[str, str], cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """How the command ended and what it said."""
        asking, telling = self._process.stdin, self._process.stdout
        assert asking is not None
        assert telling is not None
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            wish = {"arguments": [str(file), *arguments], "env": dict(env), "cwd": str(cwd or ".")}
            asking.write(json.dumps({**wish, "out": str(out), "err": str(err)}) + "\n")
            asking.flush()
            code = int(telling.readline())
            return subprocess.CompletedProcess(
                wish["arguments"], code, out.read_text(), err.read_text()
            )

    def close(self) -> None:
        """End the process that the commands were forks of."""
        self._process.communicate(timeout=60)


def answer_until_closed() -> None:
    """Fork for each line of the input; in the fork, return when its command has run."""
    for line in sys.stdin:
        wish = json.loads(line)
        child = os.fork()
        if child == 0:
            become(wish)
            return
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def become(wish: dict[str, Any]) -> None:
    """Be the process that the command would have started."""
    for number, path, mode in (
        (0, os.devnull, os.O_RDONLY),
        (1, wish["out"], os.O_WRONLY | os.O_CREAT),
        (2, wish["err"], os.O_WRONLY | os.O_CREAT),
    ):
        opened = os.open(path, mode)
        os.dup2(opened, number)
        os.close(opened)
    signal.alarm(LONGEST_S)
    os.chdir(wish["cwd"])
    os.environ.clear()
    os.environ.update(wish["env"])
    if "jax" in sys.modules:
        # Read from the environment when JAX was imported, which was before this command.
        devices = int(os.environ["JAX_NUM_CPU_DEVICES"])
        sys.modules["jax"].config.update("jax_num_cpu_devices", devices)
    sys.argv = wish["arguments"]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    del sys.path[0]  # this folder, which no command has on its path
    for name in sys.argv[1:]:
        import_module(name)
    answer_until_closed()
