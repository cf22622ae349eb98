"""What of the steps is planned: a choice by name, and what is pointed to without being needed."""

from collections.abc import Callable

import pytest
from executor_samples import step

from chomp import storage
from chomp.errors import ConfigError, LaunchError
from chomp.executor import (
    ExecutorStep,
    PlannedStep,
    StepFailure,
    output_path_of,
    plan_steps,
    pseudo_dependency_of,
    this_output_path,
    versioned,
)

Planned = Callable[..., list[PlannedStep]]
Ran = Callable[..., list[StepFailure]]


def names(plan: list[PlannedStep]) -> list[tuple[str, str]]:
    return [(item.step.name, item.action) for item in plan]


def tree() -> list[ExecutorStep]:
    """Two runs over one store each, and a report over both."""
    runs = [step(f"run-{name}", data=step(f"tokens-{name}") / "") for name in "ab"]
    return [*runs, step("report", data=[output_path_of(run) for run in runs])]


def only(prefix: str, *patterns: str, force: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    return names(plan_steps(tree(), prefix=prefix, only=patterns, force=force))


def test_only_plans_what_matches_and_what_that_needs(prefix: str, ran: Ran):
    assert only(prefix, "run-a") == [("tokens-a", "run"), ("run-a", "run")]
    assert only(prefix, "^tokens-b$", "-a") == [
        ("tokens-a", "run"),
        ("run-a", "run"),
        ("tokens-b", "run"),
    ]
    assert [name for name, _ in only(prefix, "report")] == [
        "tokens-a",
        "run-a",
        "tokens-b",
        "run-b",
        "report",
    ]
    assert ran(step("tokens-a")) == []
    assert only(prefix, "run-a") == [("tokens-a", "skip"), ("run-a", "run")]
    assert only(prefix, "tokens-a") == [("tokens-a", "skip")]


def test_force_reaches_only_what_only_leaves(prefix: str, ran: Ran):
    assert ran(*tree()) == []
    assert only(prefix, "run-a", force=("tokens",)) == [("tokens-a", "run"), ("run-a", "skip")]
    with pytest.raises(ConfigError, match="--force 'run-b', which is found in no step's name"):
        only(prefix, "run-a", force=("run-b",))


@pytest.mark.parametrize("option", ["only", "force"])
@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(", r"'\(', which is not a regular expression"),
        ("ruin", "'ruin', which is found in no step's name.*a part of one of report, run-a, run-b"),
        ("", "'', which is found in no step's name"),
    ],
)
def test_a_choice_that_cannot_help_is_refused(prefix: str, option: str, pattern: str, words: str):
    with pytest.raises(ConfigError, match=f"--{option} {words}"):
        plan_steps(tree(), prefix=prefix, **{option: (pattern,)})


# ---- Pseudo-dependencies --------------------------------------------------------------------


def reader(version: int = 1, mark: Callable[..., str] = pseudo_dependency_of) -> ExecutorStep:
    config = {"data": mark(step("seen", version), "x"), "out": this_output_path()}
    return ExecutorStep("reader", step("any").fn, config)


def test_a_pseudo_dependency_gives_the_path_and_is_neither_planned_nor_awaited(
    planned: Planned, ran: Ran
):
    [plan] = planned(reader())
    [seen] = planned(step("seen"))
    assert plan.config["data"] == f"{seen.path}/x"
    assert plan.dependencies == ()
    assert ran(reader()) == []
    assert not storage.exists(seen.path)
    [forced] = planned(reader(), force=(".",))
    assert forced.step.name == "reader"
    both = step("both", a=pseudo_dependency_of(step("seen")), b=step("seen") / "x")
    assert [item.step.name for item in planned(both)] == ["seen", "both"], "it is needed, too"


def test_a_pseudo_dependency_is_part_of_the_identity_as_another_is(planned: Planned):
    def hash_of(one: ExecutorStep) -> str:
        return planned(one)[-1].identity.hash

    assert hash_of(reader(1)) != hash_of(reader(2))
    assert hash_of(reader(1)) == hash_of(reader(1, mark=output_path_of))
    marked = ExecutorStep("reader", print, {"data": versioned([pseudo_dependency_of(step("s"))])})
    assert [item.step.name for item in planned(marked)] == ["reader"]


def test_a_cycle_through_a_pseudo_dependency_is_one(planned: Planned):
    own = step("own")
    object.__setattr__(own, "config", [pseudo_dependency_of(step("other", data=own / "x"))])
    with pytest.raises(LaunchError, match="own -> other -> own"):
        planned(own)
