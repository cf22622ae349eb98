"""How benchmarks take turns, and tell what they are at."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from rich.console import Console

_console = Console()
_BEGIN = time.perf_counter()


def in_turn(rounds: int, *ways: Callable[[], Any]) -> list[float]:
    """Median seconds of each way. Every round goes through all of them, so noise hits all alike."""
    seconds: list[list[float]] = [[] for _ in ways]
    for _ in range(rounds):
        for way, times in zip(ways, seconds, strict=True):
            begin = time.perf_counter()
            way()
            times.append(time.perf_counter() - begin)
    return [median(times) for times in seconds]


@contextmanager
def phase(name: str) -> Iterator[None]:
    """A line on the console that says what is going on, gone when it is done."""
    with _console.status(name):
        yield


def note(text: str) -> None:
    """A line on the console that stays: what was found, and when."""
    print(f"[{time.perf_counter() - _BEGIN:4.0f} s] {text}", flush=True)
