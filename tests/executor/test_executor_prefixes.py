"""Prefixes: on disk and as a file:// address all is the same."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from executor_samples import run_here, step

from chomp import storage
from chomp.executor import (
    ExecutorStep,
    output_path_of,
    plan_steps,
    pseudo_dependency_of,
    read_status,
    run_plan,
)
from chomp.executor.identity import add_pin


def story(prefix: str) -> list[Any]:
    """All that may happen to a few steps, and what the plans and the folders said."""
    told: list[Any] = []

    def go(*steps: ExecutorStep, at_once: int = 1, **options: Any) -> None:
        plan = plan_steps(steps, prefix=prefix, **options)
        told.append([(item.title, item.action, item.reason, item.differences) for item in plan])
        failures = run_plan(plan, run_here, max_concurrent=at_once)
        told.append([(item.planned.title, str(item.error)) for item in failures])
        statuses = [read_status(item.path) for item in plan]
        told.append([(each.state, each.attempt) for each in statuses if each is not None])

    def top(**bottom: Any) -> ExecutorStep:
        return step("a/top", data=output_path_of(step("b/bottom", **bottom)))

    go(top(error="no"))
    go(top(), at_once=2)
    go(top(), step("other", 2), force=("bottom",))
    go(top(version=2), only=("bottom",))
    kept, other = (plan_steps([top(version=v)], prefix=prefix)[-1].title for v in (1, 2))
    add_pin(prefix, kept, other)
    go(top(version=2))
    go(replace(step("own"), override_output_path=storage.join(prefix, "chosen")))
    go(replace(step("own", 2), override_output_path=storage.join(prefix, "chosen")))
    go(step("last", data=pseudo_dependency_of(step("never"))))
    return [told, sorted(name.partition(".replaced-")[0] for name in storage.list_folder(prefix))]


def test_steps_are_planned_run_and_reused_alike_below_every_prefix(tmp_path: Path):
    assert story(f"file://{tmp_path}/as-address") == story(str(tmp_path / "as-path"))
