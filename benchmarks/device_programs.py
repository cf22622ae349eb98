"""Compiled programs on one device: how long they take, and what the device can do at most."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.timing import in_turn


@dataclass(frozen=True)
class Program:
    """A compiled function and what it is called with."""

    compiled: Any
    arguments: tuple[Any, ...]

    @staticmethod
    def of(function: Callable[..., Any], *arguments: Any) -> "Program":
        """`function` compiled for these arguments; None among them stays None."""
        return Program(jax.jit(function).lower(*arguments).compile(), arguments)

    def result(self) -> Any:
        """What it gives, when the device is done."""
        return jax.block_until_ready(self.compiled(*self.arguments))

    @property
    def temporary_bytes(self) -> int:
        """Memory it takes beside its arguments and results."""
        return int(self.compiled.memory_analysis().temp_size_in_bytes)


def milliseconds(rounds: int, calls: int, *programs: Program) -> list[float]:
    """Median milliseconds of a call of each program, of `calls` in a row, taken in turn."""

    def run(program: Program) -> None:
        for _ in range(calls):
            result = program.compiled(*program.arguments)
        jax.block_until_ready(result)

    for program in programs:
        program.result()
    return [1e3 * s / calls for s in in_turn(rounds, *(lambda p=p: run(p) for p in programs))]


def matmul_ceiling() -> float:
    """Operations per second of one large product: bfloat16 8192³, on a CPU float32 2048³.

    Of random numbers: zeros take less power, and a GPU then runs faster (894 against 788 TFLOP/s
    on an H200, October 2026).
    """
    is_on_cpu = jax.default_backend() == "cpu"
    size, dtype = (2048, jnp.float32) if is_on_cpu else (8192, jnp.bfloat16)
    keys = jax.random.split(jax.random.key(0))
    a, b = (jax.random.normal(key, (size, size), dtype) for key in keys)
    (taken,) = milliseconds(5, 3 if is_on_cpu else 20, Program.of(jnp.matmul, a, b))
    return 2 * size**3 / (taken / 1e3)
