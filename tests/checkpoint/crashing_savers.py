"""Run as a program: kills and fails saves at every touch of the disk, in FOLDER; tells as JSON.

    crashing_savers.py FOLDER [N ...]

A save, the promotion of what it saved and the deletion of what it replaces run again and again,
under an audit hook that sees every file opened for writing and every folder made, renamed or
removed below FOLDER, by us or by Orbax. At the N-th touch the process is killed (`kill`), or that
call fails once (`EIO`), or that call and all later ones that need space fail (`ENOSPC`); for each
N, or for every one until the work is done before its N-th touch. No hook sees a sync: `sync` is
`os.fsync` failing at its N-th call, for every N. Nor does one see TensorStore, which writes from
C++: `limit` makes it fail by a limit on the size of files, and `timer` kills at the N-th fiftieth
of a second, which may be inside of its writes. `fork` kills a run that goes back to an
old checkpoint at each rename that puts the newer ones aside. A fresh process then looks at what is
left.
"""

import errno
import json
import logging
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import jax
import numpy as np
from restore_samples import about, run

from chomp.checkpoint import (
    CheckpointConfig,
    Checkpointer,
    LoadOptions,
    list_checkpoints,
    restore_checkpoint,
    restore_latest_or_initialize,
)
from chomp.checkpoint.checksums import receipt_of
from chomp.checkpoint.format import step_path
from chomp.errors import ChompError
from chomp.mesh import MeshConfig, create_mesh

KEPT, OLD, NEW, LATER = 1, 2, 3, 4  # steps: a permanent and a temporary one, and what is saved
DIED, FAILED, DONE = "died", "failed", "done"
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_NEEDS_SPACE = ("open", "os.mkdir", "os.rename", "os.link")


def state_at(step: int) -> dict[str, jax.Array]:
    """A state that tells its step, made without a compiler: a life is to be short."""
    draw = np.random.default_rng(step)
    arrays = {"w": draw.standard_normal((64, 32), np.float32), "step": np.int32(step)}
    return {name: jax.device_put(array) for name, array in arrays.items()}


class Faults:
    """Calls `act` at the N-th touch, or the N-th sync, of anything below a folder."""

    def __init__(self, *, of_syncs: bool = False) -> None:
        self.folder = ""
        self.touches = 0
        self._at = 0
        self._act: Callable[[str], None] | None = None
        self._is_lasting = False
        if of_syncs:
            os.fsync = partial(self._synced, os.fsync)
        else:
            sys.addaudithook(self._hook)

    def arm(self, folder: Path, at: int, act: Callable[[str], None], *, is_lasting: bool) -> None:
        """Count from now on, and act at the touch number `at` (and later ones)."""
        self.folder, self.touches, self._at = str(folder), 0, at
        self._act, self._is_lasting = act, is_lasting

    def disarm(self) -> None:
        """Act no more."""
        self._act = None

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._act is not None and self._is_touch(event, arguments):
            self._count(event, self._act)

    def _synced(self, fsync: Callable[[int], None], descriptor: int) -> None:
        if self._act is not None and self._is_below(os.readlink(f"/proc/self/fd/{descriptor}")):
            self._count("os.fsync", self._act)
        fsync(descriptor)

    def _count(self, event: str, act: Callable[[str], None]) -> None:
        self.touches += 1
        if self.touches == self._at or (self._is_lasting and self.touches > self._at):
            act(event)

    def _is_touch(self, event: str, arguments: tuple[Any, ...]) -> bool:
        if event == "open":
            path, mode, flags = arguments
            writes = flags & _WRITES if flags is not None else set("wax+") & set(mode or "")
            return bool(writes) and self._is_below(path)
        if event in ("os.mkdir", "os.rmdir", "os.remove"):
            # Relative to an open folder is how `rmtree` goes about it.
            return arguments[-1] != -1 or self._is_below(arguments[0])
        return event in ("os.rename", "os.link") and self._is_below(arguments[0])

    def _is_below(self, path: object) -> bool:
        return isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path).startswith(
            self.folder
        )


def saver(folder: Path) -> Checkpointer:
    """What saves in all of these lives."""
    config = CheckpointConfig(save_interval_s=None, keep_temporary=1)
    return Checkpointer(str(folder), config, about())


def save(target: Checkpointer, step: int, *, is_final: bool = False) -> None:
    """One save, waited for."""
    where = {"step": step, "data_offset": step, "tokens_seen": step}
    target.save(state_at(step), **where, is_final=is_final)
    target.wait()


def work(folder: Path) -> None:
    """What is interrupted: save, delete what it replaces, make permanent what was saved."""
    target = saver(folder)
    save(target, NEW)
    save(target, NEW, is_final=True)


def prepare(folder: Path) -> None:
    """A folder with a permanent and a temporary checkpoint."""
    target = saver(folder)
    save(target, KEPT, is_final=True)
    save(target, OLD)


def prepare_fork(folder: Path) -> None:
    """A folder with several permanent checkpoints."""
    target = saver(folder)
    for step in (KEPT, OLD, NEW, LATER):
        save(target, step, is_final=True)


def go_back(folder: Path) -> None:
    """Go on from the oldest checkpoint, which puts the newer ones aside."""
    mesh = create_mesh(MeshConfig())
    options = LoadOptions(load_checkpoint_path=step_path(str(folder), KEPT))
    with jax.set_mesh(mesh):
        restore_latest_or_initialize(
            str(folder),
            lambda: state_at(0),
            about=about(attempt=2),
            config=run(),
            mesh=mesh,
            options=options,
        )


def looked_at(folder: Path, mesh: jax.sharding.Mesh) -> dict[str, Any]:
    """What is in a folder, whether all of it is right, and whether the next save puts it right."""
    told: dict[str, Any] = {"names": sorted(path.name for path in folder.iterdir())}
    found = list_checkpoints(str(folder))
    told["steps"] = [item.metadata.step for item in found]
    told["permanent"] = [item.metadata.step for item in found if not item.metadata.is_temporary]
    told["wrong"] = [item.metadata.step for item in found if not _is_right(item, mesh)]
    save(saver(folder), LATER + 1)
    told["names_after_another_save"] = sorted(path.name for path in folder.iterdir())
    return told


def _is_right(item: Any, mesh: jax.sharding.Mesh) -> bool:
    expected = state_at(item.metadata.step)
    restored = restore_checkpoint(item, jax.eval_shape(lambda: expected), mesh=mesh)
    return receipt_of(restored) == receipt_of(expected) == item.metadata.receipt


# ---- Lives ----------------------------------------------------------------------------------


def in_a_fork(live: Callable[[], Any]) -> tuple[int, Any]:
    """How a fork of this process ended, and what `live` gave there. JAX has not started here."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            os.write(writing, json.dumps(live()).encode())
            os._exit(0)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
    os.close(writing)
    with open(reading, "rb") as file:
        text = file.read()
    _, status = os.waitpid(child, 0)
    return status, json.loads(text) if text else None


def killed(
    folder: Path,
    prepared: Path,
    numbers: Iterator[int],
    work: Callable[[Path], None] = work,
    *,
    tick_s: float | None = None,
) -> dict[str, str]:
    """The work killed at its N-th touch, or at the N-th tick, each in a life of its own."""
    outcomes: dict[str, str] = {}
    for number in numbers:
        place = folder / str(number)
        shutil.copytree(prepared, place)

        def live(place: Path = place, number: int = number) -> str:
            if tick_s is None:
                die = partial(os.kill, os.getpid(), signal.SIGKILL)
                Faults().arm(place, number, lambda _: die(), is_lasting=False)
            else:  # its signal ends a process as SIGKILL does: at once
                signal.setitimer(signal.ITIMER_REAL, number * tick_s)
            work(place)
            return DONE

        status, told = in_a_fork(live)
        assert told == DONE or os.WIFSIGNALED(status), f"life {number} ended with {status}"
        outcomes[str(number)] = told or DIED
        if told == DONE:
            break
    return outcomes


def failed(
    folder: Path, prepared: Path, numbers: Iterator[int], code: int, *, of_syncs: bool = False
) -> dict[str, str]:
    """The work with an error at its N-th touch or sync, all in one process, which goes on."""
    faults, outcomes = Faults(of_syncs=of_syncs), {}
    warnings = Warnings()
    logging.getLogger("chomp").addHandler(warnings)
    is_lasting = code == errno.ENOSPC

    def fail(event: str) -> None:
        if not is_lasting or event in _NEEDS_SPACE:
            raise OSError(code, os.strerror(code))

    for number in numbers:
        place = folder / str(number)
        shutil.copytree(prepared, place)
        faults.arm(place, number, fail, is_lasting=is_lasting)
        warnings.texts.clear()
        try:
            work(place)
            is_done = faults.touches < number
            outcomes[str(number)] = DONE if is_done else f"warned: {warnings.texts}"
        except ChompError as error:
            is_done = False
            outcomes[str(number)] = f"{FAILED}: {error}"
        faults.disarm()
        if is_done:
            break
    return outcomes


def limited(folder: Path, prepared: Path) -> dict[str, str]:
    """The work where no file may grow: a full disk, as TensorStore meets it."""
    place = folder / "0"
    shutil.copytree(prepared, place)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, most))
    try:
        work(place)
        return {"0": DONE}
    except ChompError as error:
        return {"0": f"{FAILED}: {error}"}
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


class Warnings(logging.Handler):
    """Keeps what is warned of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        self.texts.append(record.getMessage())


def report(folder: Path, numbers: list[int]) -> dict[str, dict[str, Any]]:
    """Way of failing -> N -> what came of it, and what a fresh process found afterwards."""
    prepared, prepared_fork = folder / "prepared", folder / "prepared_fork"

    def places(how: str) -> Path:
        (folder / how).mkdir()
        return folder / how

    def chosen() -> Iterator[int]:
        return iter(numbers) if numbers else count(1)

    def failing(how: str) -> dict[str, str]:
        some = iter(numbers[::2]) if numbers else count(1)
        return failed(places(how), prepared, some, getattr(errno, how))

    def failing_syncs() -> dict[str, str]:
        return failed(places("sync"), prepared, count(1), errno.EIO, of_syncs=True)

    _in_a_good_fork(lambda: prepare(prepared))
    _in_a_good_fork(lambda: prepare_fork(prepared_fork))
    outcomes = {"kill": killed(places("kill"), prepared, chosen())}
    for how in ("EIO", "ENOSPC"):
        outcomes[how] = _in_a_good_fork(partial(failing, how))
    # A few, at longer and longer intervals: nobody knows how fast this machine is.
    ticks = (round(1.4**n) for n in count(5)) if numbers else count(1)
    outcomes["timer"] = killed(places("timer"), prepared, ticks, tick_s=0.02)
    outcomes["sync"] = _in_a_good_fork(failing_syncs)
    outcomes["fork"] = killed(places("fork"), prepared_fork, count(1), go_back)
    outcomes["limit"] = _in_a_good_fork(lambda: limited(places("limit"), prepared))

    def look() -> dict[str, Any]:
        mesh = create_mesh(MeshConfig())
        with jax.set_mesh(mesh):
            return {
                how: {
                    number: {"outcome": outcome, **looked_at(folder / how / number, mesh)}
                    for number, outcome in ends.items()
                }
                for how, ends in outcomes.items()
            }

    found: dict[str, dict[str, Any]] = _in_a_good_fork(look)
    return found


def _in_a_good_fork(live: Callable[[], Any]) -> Any:
    status, told = in_a_fork(live)
    assert status == 0, f"a life that was not to end early ended with {status}"
    return told


if __name__ == "__main__":
    print(json.dumps(report(Path(sys.argv[1]), list(map(int, sys.argv[2:])))))
