"""The GPUs that this process may hand to others, without asking JAX, which would take them."""

import itertools
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

VISIBLE = "CUDA_VISIBLE_DEVICES"
PLATFORMS = "JAX_PLATFORMS"
_NONE = {"-1", "NoDevFiles"}
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


def hidden_gpus(has_gpus: bool) -> dict[str, str]:
    """Variables of a process that is to see no GPU."""
    hidden = {VISIBLE: ""}
    # JAX that was installed for GPUs complains where it finds none, unless it is not to look.
    return hidden | {PLATFORMS: "cpu"} if has_gpus and not os.environ.get(PLATFORMS) else hidden


class GpuPool:
    """GPUs that are lent to one process at a time. Threads may share it."""

    def __init__(self, names: Sequence[str]) -> None:
        self.size = len(names)
        self._free = list(names)
        self._changed = threading.Condition()

    @contextmanager
    def lent(self, count: int, on_wait: Callable[[], None] = lambda: None) -> Iterator[list[str]]:
        """The names of `count` GPUs that nobody else has; waits until there are so many.

        `on_wait` is called once, before that.
        """
        with self._changed:
            if len(self._free) < count:
                on_wait()
            self._changed.wait_for(lambda: len(self._free) >= count)
            names, self._free = self._free[:count], self._free[count:]
        try:
            yield names
        finally:
            with self._changed:
                # In front: a step that comes next finds the same, and not yet another one.
                self._free = names + self._free
                self._changed.notify_all()
