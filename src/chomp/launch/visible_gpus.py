"""The GPUs that this process may hand to others, without asking JAX, which would take them."""

import itertools
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

VISIBLE = "CUDA_VISIBLE_DEVICES"
PLATFORMS = "JAX_PLATFORMS"
_NONE = {"-1", "NoDevFiles"}
_GPU_PLATFORMS = {"cuda", "gpu", "rocm"}  # by which JAX is told to use one
_WAIT_S = 30.0  # the first question after a boot wakes every GPU


def visible_gpus() -> list[str]:
    """Names of the NVIDIA GPUs this process sees: what CUDA_VISIBLE_DEVICES lists, else all."""
    given = os.environ.get(VISIBLE)
    if given is not None:
        names = [name.strip() for name in given.split(",") if name.strip()]
        # As CUDA reads it: nothing counts from the first that is none, such as -1.
        return list(itertools.takewhile(lambda name: name not in _NONE, names))
    query = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True, timeout=_WAIT_S)
    except (OSError, subprocess.SubprocessError):
        return []  # no driver, or one that does not answer: nothing to give
    return answer.stdout.split()


def is_on_cpu() -> bool:
    """Whether JAX was told to leave GPUs alone: one may try something on the CPU beside them."""
    return os.environ.get(PLATFORMS, "").split(",")[0] == "cpu"


def hidden_gpus(environ: Mapping[str, str], *, has_gpus: bool) -> dict[str, str]:
    """Variables of a process that is to see no GPU, over those that it has from elsewhere.

    `has_gpus` says whether there are any to hide.
    """
    platforms = [name for name in environ.get(PLATFORMS, "").split(",") if name]
    others = [name for name in platforms if name not in _GPU_PLATFORMS]
    # JAX that was told to use a GPU ends where it finds none; and so it is left what else it was
    # told of, a TPU say. JAX that was told nothing would only complain, if it is made for GPUs.
    is_told = len(others) < len(platforms) or (has_gpus and not platforms)
    return {VISIBLE: ""} | ({PLATFORMS: ",".join(others) or "cpu"} if is_told else {})


class GpuPool:
    """GPUs that are lent to one process at a time, first come first served. Threads may share it.

    Who wants many would else wait for as long as there are others who want few.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.size = len(names)
        self._free = list(names)
        self._queue: list[object] = []
        self._changed = threading.Condition()

    @contextmanager
    def lend(
        self,
        count: int,
        on_wait: Callable[[], None] = lambda: None,
        require_wanted: Callable[[], None] = lambda: None,
    ) -> Iterator[list[str]]:
        """The names of `count` GPUs that nobody else has; waits until there are so many.

        `on_wait` is called once, before that. `require_wanted` is called before they are taken and
        whenever `look_again` is; it may raise, and then nobody waits any more. None are there at
        once.
        """
        names = self._taken(count, on_wait, require_wanted) if count else []
        try:
            yield names
        finally:
            with self._changed:
                # In front: a step that comes next finds the same, and not yet another one.
                self._free = names + self._free
                self._changed.notify_all()

    def look_again(self) -> None:
        """Let all who wait see whether they are still wanted."""
        with self._changed:
            self._changed.notify_all()

    def _taken(
        self, count: int, on_wait: Callable[[], None], require_wanted: Callable[[], None]
    ) -> list[str]:
        turn = object()

        def is_turn() -> bool:
            require_wanted()
            return self._queue[0] is turn and len(self._free) >= count

        with self._changed:
            self._queue.append(turn)
        try:
            with self._changed:
                is_waiting = not is_turn()
            if is_waiting:
                on_wait()  # out of the lock: a terminal that is full would stop all others
            with self._changed:
                self._changed.wait_for(is_turn)
                names, self._free = self._free[:count], self._free[count:]
                return names
        finally:
            with self._changed:
                self._queue.remove(turn)
                self._changed.notify_all()  # the next in the queue may find enough
