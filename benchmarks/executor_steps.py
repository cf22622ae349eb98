"""The steps that `benchmarks.executor` plans, in a file that needs no JAX, as a launch file's."""

from typing import Any

from chomp.executor import ExecutorStep, output_path_of, versioned

# As many fields as the config of a base run has; each step of a sweep has another lr.
SETTINGS = {f"section_{i}": {f"field_{j}": j for j in range(10)} for i in range(8)}


def work(config: Any) -> None:
    """What a step does: nothing."""


def sweep(count: int, *, depth: int = 4) -> list[ExecutorStep]:
    """Runs that differ in one field each, over one step that all of them need."""
    data = ExecutorStep("tokens", work, {"version": versioned(1)})
    return [
        ExecutorStep(
            "sweep/run",
            work,
            {"data": output_path_of(data), "run": versioned({**SETTINGS, "lr": i, "depth": depth})},
        )
        for i in range(count)
    ]


def chain(count: int) -> list[ExecutorStep]:
    """Steps that each need the one before; the last of them leads to all."""
    last = ExecutorStep("s0", work, {"run": versioned(SETTINGS)})
    for i in range(1, count):
        last = ExecutorStep(f"s{i}", work, {"a": output_path_of(last), "run": versioned(SETTINGS)})
    return [last]
