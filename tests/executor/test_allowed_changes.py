"""Fields that may differ from what a folder holds: the plan goes on with it, and only with that."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from executor_samples import run_here, status_of, step

from chomp import storage
from chomp.config import setting
from chomp.executor import (
    ExecutorStep,
    plan_steps,
    run_plan,
    this_output_path,
)
from chomp.executor.identity import Identities
from chomp.executor.status import INFO, LOCK


def there(prefix: str, version: Any, *, name: str = "own") -> ExecutorStep:
    """A step in a folder that was chosen by hand."""
    return replace(step(name, version), override_output_path=f"{prefix}/there")


def ran(prefix: str, one: ExecutorStep, *, allow: tuple[str, ...] = ()) -> str:
    """Runs a step; gives the reason that the plan had."""
    plan = plan_steps([one], prefix=prefix, allow=allow)
    assert run_plan(plan, run_here) == []
    return plan[-1].reason


def test_an_allowed_change_goes_on_in_the_folder_and_makes_it_the_new_run(prefix: str):
    ran(prefix, there(prefix, {"a": 1, "b": 2}))
    before = status_of(f"{prefix}/there")
    reason = ran(prefix, there(prefix, {"a": 5, "b": 2}), allow=("version.a",))
    assert reason == f"continues {before.identity} with version.a: 1 -> 5, which is allowed"
    assert storage.read_text(f"{prefix}/there/runs") == "ran\nran\n"
    assert os.listdir(prefix) == ["there"]
    status = status_of(f"{prefix}/there")
    assert (status.attempt, status.state) == (2, "SUCCESS")
    [plan] = plan_steps([there(prefix, {"a": 5, "b": 2})], prefix=prefix)
    assert plan.action == "skip"


OWN = {"a": 1, "b": this_output_path()}


@pytest.mark.parametrize(
    ("allow", "name", "changed"),
    [
        ("version.b", "own", {**OWN, "a": 5}),
        ("version.ab", "own", {**OWN, "a": 5}),
        ("version.a", "other", {**OWN, "a": 5}),
        ("version.a", "own", {**OWN, "b": "<output>"}),
    ],
    ids=["another field", "a longer name", "another step", "a text in place of a path"],
)
def test_what_is_not_allowed_is_moved_aside(prefix: str, allow: str, name: str, changed: Any):
    ran(prefix, there(prefix, OWN))
    assert "moved aside" in ran(prefix, there(prefix, changed, name=name), allow=(allow,))
    assert storage.read_text(f"{prefix}/there/runs") == "ran\n"
    assert len(os.listdir(prefix)) == 2


def test_a_part_of_an_allowed_field_is_allowed(prefix: str):
    ran(prefix, there(prefix, {"a": [[0, 8]], "b": {"c": 1}}))
    changed = there(prefix, {"a": [[0, 8], [5, 16]], "b": {"c": 2, "d": 3}})
    assert ran(prefix, changed, allow=("version.a", "version.b")).startswith("continues")
    [plan] = plan_steps([there(prefix, 2)], prefix=prefix, force=["own"], allow=["version"])
    assert (plan.reason, plan.continues) == ("forced", None), "whatever is allowed"
    # A folder that does not say what it was made with is not continued.
    Path(prefix, "there", INFO).unlink()
    [plan] = plan_steps([there(prefix, 2)], prefix=prefix, allow=["version"])
    assert plan.continues is None


def test_a_run_that_somebody_is_at_is_waited_for(prefix: str):
    ran(prefix, there(prefix, 1))
    with storage.FileLock.acquire(f"{prefix}/there/{LOCK}", timeout_s=5):
        [plan] = plan_steps([there(prefix, 2)], prefix=prefix, allow=["version"])
    assert plan.action == "wait"
    assert plan.continues is not None


# ---- Fields that no identity counts ---------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Inner:
    width: int = 1
    load: str | None = setting(default=None, is_versioned=False)


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Inner
    start: Inner = setting(default_factory=Inner, is_versioned=False)


@pytest.mark.parametrize(
    ("config", "is_same"),
    [
        (Outer(inner=Inner(load="there")), True),
        (Outer(inner=Inner(), start=Inner(width=7)), True),
        (Outer(inner=Inner(width=2)), False),
    ],
)
def test_an_unversioned_field_changes_no_identity(config: Outer, is_same: bool):
    def identity(value: Outer) -> str:
        return Identities().of(step("one", {"run": value})).hash

    assert (identity(config) == identity(Outer(inner=Inner()))) is is_same
