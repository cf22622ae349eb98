"""How long it takes to plan a thousand steps, and what the executor adds to running them.

    uv run python -m benchmarks.executor [--quick]

A plan reads and writes nothing, so it should answer while one still looks at the screen: a chain, a
sweep that is new, one that is done, and one that changed against as many earlier runs, where every
step is compared with each of them. The whole command, `launch.py --plan`, has Python's start in it.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.executor_steps import chain, sweep
from benchmarks.record import Figure, record
from benchmarks.timing import note
from chomp.executor import ExecutorStep, plan_steps, run_plan

PLAN_GOAL_S = 2.0  # for a thousand steps
STEPS, QUICK_STEPS = 1000, 200
ROUNDS = 3
LAUNCH_FILE = """
from dataclasses import dataclass

from benchmarks.executor_steps import sweep
from chomp.launch import executor_main


@dataclass(frozen=True, kw_only=True)
class Launch:
    count: int = {count}


if __name__ == "__main__":
    executor_main(lambda launch: sweep(launch.count), Launch())
"""


def seconds_of(way: Callable[[], Any]) -> float:
    """The median of a few times."""
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        way()
        times.append(time.perf_counter() - begin)
    return median(times)


def main() -> None:
    """Plan, run, plan again, and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer steps; nothing is written")
    is_quick = parser.parse_args().quick
    count = QUICK_STEPS if is_quick else STEPS
    with tempfile.TemporaryDirectory() as folder:
        figures = measured(Path(folder), count)
    record("executor", figures, is_quick=is_quick)


def measured(folder: Path, count: int) -> list[Figure]:
    """Every figure, in the order in which the folder fills."""
    prefix = str(folder / "outputs")
    found: dict[str, float] = {}

    def plan(name: str, steps: list[ExecutorStep]) -> None:
        found[name] = seconds_of(lambda: plan_steps(steps, prefix=prefix))
        note(f"{name}: {found[name]:.2f} s")

    plan(f"plan a chain of {count} steps", chain(count))
    plan(f"plan a new sweep of {count}", sweep(count))
    begin = time.perf_counter()
    run_plan(plan_steps(sweep(count), prefix=prefix), lambda item: None)
    run_s = time.perf_counter() - begin
    plan(f"plan a sweep of {count} that is done", sweep(count))
    plan(f"plan {count} changed against {count} earlier", sweep(count, depth=8))
    file = folder / "launch.py"
    file.write_text(LAUNCH_FILE.format(count=count))
    command = [sys.executable, str(file), "--plan", "--prefix", prefix]
    root = Path(__file__).parents[1]
    name = f"launch.py --plan of {count}, whole command"
    found[name] = seconds_of(
        lambda: subprocess.run(
            command, check=True, capture_output=True, cwd=root, env={"PYTHONPATH": str(root)}
        )
    )
    goals = [
        Figure(name=name, value=value, unit="s", better="lower", goal=PLAN_GOAL_S)
        for name, value in found.items()
    ]
    cost_ms = 1000 * run_s / count
    return [
        *goals,
        Figure(name="executor's own time for a step", value=cost_ms, unit="ms", better="lower"),
    ]


if __name__ == "__main__":
    main()
