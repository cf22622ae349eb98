"""Processes that train together, as a launcher would start them: forks that share their imports.

Each runs a file from the top with JAX's variables set, writes into files of its own, and ends with
an exit code of its own.
"""

import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

LONGEST_S = 300  # a process that hangs is ended by a signal after so long


class Gang:
    """`count` processes that run a file; `folder` gets what they say."""

    def __init__(
        self,
        file: Path,
        *arguments: str,
        count: int,
        folder: Path,
        imports: Sequence[str] = ("chomp.mesh",),
        num_devices: int = 1,
    ) -> None:
        from chomp.launch.gang import free_port  # of no use to the forks

        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._count = folder, count
        address = f"127.0.0.1:{free_port()}"
        env = {
            **os.environ,
            "JAX_COORDINATOR_ADDRESS": address,
            "JAX_NUM_PROCESSES": str(count),
            "JAX_NUM_CPU_DEVICES": str(num_devices),
            "CHOMP_HEARTBEAT_S": "10",
        }
        self._parent = subprocess.Popen(
            [sys.executable, __file__, ",".join(imports), str(folder), str(file), *arguments],
            env=env,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._parent.stdout is not None
        self.process_ids: list[int] = json.loads(self._parent.stdout.readline())

    def exit_codes(self) -> list[int]:
        """Of all processes, once they have ended; below 0: the signal that ended one."""
        assert self._parent.stdout is not None
        codes: list[int] = json.loads(self._parent.stdout.readline())
        self._parent.wait(timeout=60)
        self._parent.stdout.close()
        return codes

    def outputs(self) -> list[str]:
        """What each wrote to its standard output."""
        return [(self._folder / f"{index}.out").read_text() for index in range(self._count)]

    def errors(self) -> list[str]:
        """What each wrote to its standard error."""
        return [(self._folder / f"{index}.err").read_text() for index in range(self._count)]


def start_and_wait(imports: str, folder: str, file: str, *arguments: str) -> None:
    """Fork the processes; in each of them, run the file."""
    for name in imports.split(","):
        import_module(name)
    children = []
    for index in range(int(os.environ["JAX_NUM_PROCESSES"])):
        child = os.fork()
        if child == 0:
            _become(index, Path(folder))
            sys.argv = [file, *arguments]
            runpy.run_path(file, run_name="__main__")
            return
        children.append(child)
    print(json.dumps(children), flush=True)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(json.dumps(codes), flush=True)


def _become(index: int, folder: Path) -> None:
    os.environ["JAX_PROCESS_ID"] = str(index)
    signal.alarm(LONGEST_S)
    for number, kind in ((1, "out"), (2, "err")):
        opened = os.open(folder / f"{index}.{kind}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, number)
        os.close(opened)


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    start_and_wait(*sys.argv[1:])
