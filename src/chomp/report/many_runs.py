"""The parts of many runs, read side by side where that is worth starting processes for.

Reading is the parsing of text, which threads of one Python cannot share. So this process reads, and
beside it one more for each further core: programs of their own, started by name, that neither copy
this process (it may hold JAX's threads) nor import whatever script called it.
"""

import contextlib
import json
import queue
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import IO, Any

from chomp.errors import ConfigError, StorageError
from chomp.report.record import read_record
from chomp.report.run_payload import PAGE_POINTS, run_payload
from chomp.storage import exists, file_info
from chomp.tokenize.worker import available_cores
from chomp.tracking.run_files import record_of

# Below that, one process is done before a second has started: half a second, or 80 MB of lines.
_WORTH_A_PROCESS_BYTES = 80_000_000

Told = Callable[[str], None]


def run_payloads(
    folders: Sequence[str],
    *,
    points: int = PAGE_POINTS,
    on_read: Told | None = None,
    readers: int | None = None,
) -> list[dict[str, Any]]:
    """The part of each run for a page they share, in the order given.

    `on_read` is told each folder when it is done. `readers` are the processes beside this one, by
    default as many as pay. What is no run is a `ConfigError`.
    """
    share = points // max(1, len(folders))
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in range(len(folders)):
        waiting.put(index)
    found: dict[int, dict[str, Any]] = {}

    def take_all(read: Callable[[str, int], dict[str, Any]]) -> None:
        while True:
            try:
                index = waiting.get_nowait()
            except queue.Empty:
                return
            found[index] = read(folders[index], share)
            if on_read is not None:
                on_read(folders[index])

    if readers is None:
        readers = num_readers(total_bytes(folders), len(folders), available_cores())
    with _Readers(readers) as processes:
        threads = [_Served(take_all, process) for process in processes]
        try:
            take_all(_read_here)
        except BaseException:
            for process in processes:
                process.kill()
            raise
        finally:
            for thread in threads:
                thread.join()
    for thread in threads:
        thread.raise_failure()
    return [found[index] for index in range(len(folders))]


def total_bytes(folders: Sequence[str]) -> int:
    """The size of all records together; a folder that has none yet counts nothing."""
    return sum(_record_bytes(folder) for folder in folders)


def serve(requests: IO[str], answers: IO[str]) -> None:
    """What a reading process does: a run for each line that comes in, until they end."""
    for line in requests:
        request = json.loads(line)
        answer: dict[str, Any]
        try:
            answer = {"run": _read_here(request["folder"], request["points"])}
        except (ConfigError, StorageError) as error:
            answer = {"error": str(error)}
        except Exception:
            answer = {"crash": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


def _read_here(folder: str, points: int) -> dict[str, Any]:
    return run_payload(read_record(folder), points=points)


def _record_bytes(folder: str) -> int:
    try:
        path = record_of(folder)
        return file_info(path).size_bytes if exists(path) else 0
    except StorageError:
        return 0


def num_readers(num_bytes: int, num_runs: int, cores: int) -> int:
    """Processes that pay beside this one, for so many bytes of lines in so many runs."""
    return max(0, min(cores, num_runs, num_bytes // _WORTH_A_PROCESS_BYTES) - 1)


class _Readers:
    """Reading processes, which end with the context."""

    def __init__(self, count: int) -> None:
        self._all = [_started() for _ in range(count)]

    def __enter__(self) -> "list[subprocess.Popen[str]]":
        return self._all

    def __exit__(self, *_: object) -> None:
        for process in self._all:
            _pipe(process.stdin).close()  # the end of its input ends it
            _pipe(process.stdout).close()
            process.wait()


class _Served(threading.Thread):
    """A thread that lets one process read, and keeps what went wrong."""

    def __init__(
        self,
        take_all: Callable[[Callable[[str, int], dict[str, Any]]], None],
        process: "subprocess.Popen[str]",
    ) -> None:
        super().__init__(daemon=True)
        self._take_all, self._process = take_all, process
        self._failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Read until nothing is left."""
        try:
            self._take_all(self._read)
        except BaseException as error:
            self._failure = error

    def raise_failure(self) -> None:
        """Raise what ended the thread before its time, if anything did."""
        if self._failure is not None:
            raise self._failure

    def _read(self, folder: str, points: int) -> dict[str, Any]:
        request = json.dumps({"folder": folder, "points": points})
        with contextlib.suppress(BrokenPipeError):  # it is gone, as its silence will tell
            print(request, file=_pipe(self._process.stdin), flush=True)
        line = _pipe(self._process.stdout).readline()
        if not line:
            raise _gone(folder, self._process.wait())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ConfigError(answer["error"])
        if "crash" in answer:
            raise RuntimeError(
                f"reading {folder} failed in a process of its own:\n{answer['crash']}"
            )
        run: dict[str, Any] = answer["run"]
        return run


def _gone(folder: str, code: int) -> StorageError:
    """What to say of a process that ended without an answer."""
    if code < 0:  # by a signal, as the system ends what takes too much
        return StorageError(
            f"the process that read {folder} was killed by signal {-code}",
            allowed="enough memory for the records: twice the size of each",
            fix="give fewer runs at a time",
        )
    return StorageError(
        f"the process that read {folder} exited with code {code}",
        allowed=f"a Python ({sys.executable}) that can import chomp by itself",
        fix="see its output above",
    )


def _started() -> "subprocess.Popen[str]":
    return subprocess.Popen(
        # -P: a file of the folder it is called in must not stand in for a module.
        [sys.executable, "-P", "-m", "chomp.report.many_runs"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        # Ctrl-C is for the process that writes the page; this one ends when its input is closed.
        start_new_session=True,
    )


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None  # opened by _started
    return pipe


if __name__ == "__main__":
    serve(sys.stdin, sys.stdout)
