"""Fields of a versioned config: which move the folder, which do not, and that a plan names them."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from executor_samples import run_here, step, work
from hypothesis import given, settings
from hypothesis import strategies as st

from chomp.config import Config, setting
from chomp.executor import (
    ExecutorStep,
    PlannedStep,
    StepFailure,
    output_path_of,
    plan_steps,
    run_plan,
    this_output_path,
    versioned,
)

Planned = Callable[..., list[PlannedStep]]
Ran = Callable[..., list[StepFailure]]


@dataclass(frozen=True, kw_only=True)
class Watch(Config):
    every: int = 1


@dataclass(frozen=True, kw_only=True)
class Part(Config):
    weight: float = 1.0
    tags: tuple[str, ...] = setting(default=(), mark="cosmetic")


@dataclass(frozen=True, kw_only=True)
class Trainer(Config):
    width: int = 8
    steps: int = setting(default=100, mark="schedule")
    log_every: int = setting(default=10, mark="cosmetic")
    watch: Watch = setting(default_factory=Watch, mark="cosmetic")
    store: str = setting(default="a", mark="cosmetic", is_versioned=True)
    load: str = setting(default="", mark="cosmetic", is_versioned=False)
    parts: tuple[Part, ...] = (Part(),)


@dataclass(frozen=True, kw_only=True)
class Launch(Config):
    trainer: Trainer
    mesh: int = setting(default=1, mark="cosmetic")
    out: str = ""


def own(trainer: Trainer, *, mesh: Any = 1) -> ExecutorStep:
    launch = Launch(trainer=versioned(trainer), mesh=mesh, out=this_output_path())
    return ExecutorStep("own", lambda config: None, launch)


CHANGES = [
    (Trainer(width=9), "trainer.width: 8 -> 9"),
    (Trainer(steps=200), "trainer.steps: 100 -> 200"),
    (Trainer(store="b"), "trainer.store: 'a' -> 'b'"),
    (Trainer(parts=(Part(weight=2.0),)), "trainer.parts.0.weight: 1.0 -> 2.0"),
]
COSMETICS = [
    (Trainer(log_every=20), "trainer.log_every: recorded 10, now 20"),
    (Trainer(watch=Watch(every=5)), "trainer.watch.every: recorded 1, now 5"),
    (Trainer(load="there"), "trainer.load: recorded '', now 'there'"),
    (Trainer(parts=(Part(tags=("x",)),)), "trainer.parts.0.tags: recorded [], now ['x']"),
]


@pytest.mark.parametrize(("changed", "told"), [*CHANGES, *COSMETICS])
def test_a_field_moves_the_folder_unless_it_is_cosmetic_and_is_named_either_way(
    planned: Planned, ran: Ran, changed: Trainer, told: str
):
    assert ran(own(Trainer())) == []
    [plan] = planned(own(changed))
    if (changed, told) in CHANGES:
        assert (plan.action, plan.reason.partition(": ")[2]) == ("run", told)
    else:
        assert (plan.action, plan.reason, plan.differences) == ("skip", "done", (told,))


def test_what_was_asked_of_one_start_is_not_listed_when_a_run_continues(planned: Planned):
    failing = replace(own(Trainer()), fn=lambda config: 1 / 0)
    assert len(run_plan(planned(failing), run_here)) == 1
    [plan] = planned(replace(failing, config=own(Trainer(load="there", log_every=20)).config))
    assert plan.action == "run"
    assert plan.differences == ("trainer.log_every: recorded 10, now 20",)


def test_a_cosmetic_field_that_is_versioned_by_name_counts(planned: Planned, ran: Ran):
    assert ran(own(Trainer(), mesh=versioned(1))) == []
    assert planned(own(Trainer(), mesh=versioned(2)))[0].reason.endswith(": mesh: 1 -> 2")
    assert planned(own(Trainer(), mesh=versioned(1)))[0].differences == ()


def test_the_output_of_a_step_counts_in_a_cosmetic_field_too(planned: Planned):
    def made_from(version: int, field: str) -> str:
        data = output_path_of(step("data", version))
        return planned(own(replace(Trainer(), **{field: data})))[-1].identity.hash

    for field in ("log_every", "load", "watch"):
        assert made_from(1, field) != made_from(2, field)


# ---- Whatever the config looks like ---------------------------------------------------------

SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=2)
FIELDS = st.dictionaries(st.sampled_from("abcdef"), SCALARS, min_size=1)


@settings(max_examples=30, deadline=None)
@given(FIELDS, FIELDS, st.data())
def test_a_change_moves_the_folder_exactly_if_it_is_versioned_and_the_plan_names_it(
    counted: dict[str, Any], others: dict[str, Any], data: st.DataObject
):
    def one(counts: dict[str, Any], loose: dict[str, Any]) -> ExecutorStep:
        # Some marked each by itself, the rest as a whole: both ways of writing it.
        single = {name: versioned(value) for name, value in counts.items() if name < "d"}
        rest = versioned({name: value for name, value in counts.items() if name >= "d"})
        config = {"out": this_output_path(), "single": single, "rest": rest, "loose": loose}
        return ExecutorStep("own", work, config)

    is_versioned = data.draw(st.booleans())
    changed = dict(counted if is_versioned else others)
    name = data.draw(st.sampled_from(sorted(changed)))
    changed[name] = data.draw(SCALARS.filter(lambda value: repr(value) != repr(changed[name])))
    with tempfile.TemporaryDirectory() as prefix:
        before = plan_steps([one(counted, others)], prefix=prefix)
        assert run_plan(before, run_here) == []
        after = one(changed, others) if is_versioned else one(counted, changed)
        [plan] = plan_steps([after], prefix=prefix)
    assert (plan.path != before[0].path) == is_versioned
    if is_versioned:
        field = f"{'single' if name < 'd' else 'rest'}.{name}"
        assert f": {field}: {counted[name]!r} -> {changed[name]!r}" in plan.reason
    else:
        [told] = plan.differences
        assert told == f"loose.{name}: recorded {others[name]!r}, now {changed[name]!r}"
