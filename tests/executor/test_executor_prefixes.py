"""Prefixes: on disk, as a file:// address and in memory all is the same, on any clock."""

import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from executor_samples import step

from chomp import storage
from chomp.executor import (
    ExecutorStep,
    output_path_of,
    plan_steps,
    pseudo_dependency_of,
    read_status,
    run_plan,
)
from chomp.executor.pins import add_pin
from chomp.storage import Lease, LeaseWatch


@pytest.fixture(params=["plain", "file://", "memory://"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A prefix of each kind that steps can be run below."""
    inside = f"{tmp_path}/outputs"
    names = {"plain": inside, "file://": f"file://{inside}", "memory://": f"memory://{tmp_path}"}
    yield names[request.param]
    storage.remove_tree(names[request.param])


def story(prefix: str) -> list[Any]:
    """All that may happen to a few steps, and what the plans and the folders said."""
    told: list[Any] = []

    def go(*steps: ExecutorStep, at_once: int = 1, **options: Any) -> None:
        plan = plan_steps(steps, prefix=prefix, **options)
        told.append([(item.title, item.action, item.reason, item.differences) for item in plan])
        failures = run_plan(plan, lambda item: item.step.fn(item.config), max_concurrent=at_once)
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


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return story(str(tmp_path_factory.mktemp("expected")))


def test_steps_are_planned_run_and_reused_alike_below_every_prefix(place: str, expected: list[Any]):
    assert story(place) == expected


@pytest.mark.parametrize("hours", [-30, 0, 30])
def test_a_lock_is_judged_by_its_silence_whatever_the_clocks_say(tmp_path: Path, hours: int):
    lock = str(tmp_path / "lock")
    with Lease.acquire(lock, timeout_s=0):
        record = storage.read_json(lock)
    # As a machine would leave it whose clock is off by so much.
    then = datetime.now(UTC) + timedelta(hours=hours)
    record |= {"host": "elsewhere", "heartbeat_s": 1e-3, "acquired_at": then.isoformat()}
    watch = LeaseWatch(stale_after_s=0.1)
    for beat in range(3):
        storage.write_json_atomic(lock, {**record, "beat": beat})
        os.utime(lock, (then.timestamp(), then.timestamp()))
        assert Lease.try_acquire(lock, watch=watch) is None, "it has just changed"
    with Lease.acquire(lock, timeout_s=30, stale_after_s=0.1, poll_s=0.01) as taken:
        assert taken.still_held()
