"""What moves a step's output folder, and what never does."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pytest
from executor_samples import step, work
from hypothesis import given, settings
from hypothesis import strategies as st

from chomp.errors import LaunchError
from chomp.executor import (
    ExecutorStep,
    InputName,
    PlannedStep,
    output_path_of,
    plan_steps,
    this_output_path,
    versioned,
)

Planned = Callable[..., list[PlannedStep]]

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


def hash_of(config: Any, name: str = "own") -> str:
    return plan_steps([ExecutorStep(name, work, config)], prefix="nowhere")[-1].identity.hash


def turned(value: Any) -> Any:
    """The value with the keys of every mapping in the opposite order."""
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in reversed(value)}
    return [turned(item) for item in value] if isinstance(value, list) else value


@settings(max_examples=40, deadline=None)
@given(PLAIN)
def test_the_order_of_keys_does_not_matter(value: Any):
    assert hash_of(versioned(value)) == hash_of(versioned(turned(value)))
    assert hash_of({"a": 1, "b": versioned(value)}) == hash_of({"b": versioned(value), "a": 1})


@settings(max_examples=40, deadline=None)
@given(PLAIN, PLAIN)
def test_two_versioned_values_share_a_folder_only_if_they_are_equal(one: Any, other: Any):
    is_same = repr(sort(one)) == repr(sort(other))
    assert (hash_of(versioned(one)) == hash_of(versioned(other))) == is_same


def sort(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: sort(value[key]) for key in sorted(value)}
    return [sort(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": {"b": 1}}, {"a.b": 1}),
        ([1], {"0": 1}),
        (1, 1.0),
        (1, True),
        (None, {}),
        ([], {}),
        (this_output_path(), this_output_path("None")),
        (InputName.hardcoded("a"), InputName.hardcoded("b")),
    ],
)
def test_values_that_only_look_alike_are_different_versions(one: Any, other: Any):
    assert hash_of({"a": versioned(one)}) != hash_of({"a": versioned(other)})


def test_what_is_not_versioned_stays_out_of_the_identity():
    config = {"lr": versioned(1e-3), "log_every": 5, "out": this_output_path()}
    same = {"lr": versioned(1e-3), "log_every": 9, "out": this_output_path("sub"), "more": None}
    assert hash_of(config) == hash_of(same)
    one, other = ({"opt": each(lr=versioned(2.0))} for each in (AdamW, Lion))
    assert hash_of(one) == hash_of(other)
    described = ExecutorStep("own", print, config, description="x", override_output_path="there")
    assert plan_steps([described], prefix="nowhere")[0].identity.hash == hash_of(config)


def test_name_versioned_values_and_dependencies_make_the_identity():
    hashes = [
        hash_of({"a": versioned(1)}),
        hash_of({"a": versioned(2)}),
        hash_of({"b": versioned(1)}),
        hash_of({"a": versioned(1)}, name="another"),
        hash_of({"a": versioned(1), "b": versioned(None)}),
        hash_of({"a": versioned(1), "in": output_path_of(step("other", 1))}),
        hash_of({"a": versioned(1), "in": output_path_of(step("other", 2))}),
        hash_of({"a": versioned(1), "in": step("other", 2) / "sub"}),
        hash_of({"a": versioned(1), "in": versioned([step("other", 2) / "sub"])}),
        hash_of({"a": versioned(1), "in": InputName.hardcoded("raw")}),
    ]
    assert len(set(hashes)) == len(hashes)
    assert {len(text) for text in hashes} == {12}


def test_a_change_at_the_bottom_moves_everything_above_it():
    def top(version: int) -> PlannedStep:
        middle = step("middle", data=step("bottom", version) / "x")
        return plan_steps([step("top", data=output_path_of(middle))], prefix="nowhere")[-1]

    assert top(1).path == top(1).path
    assert top(1).path != top(2).path


def test_the_prefix_moves_the_path_and_not_the_hash():
    own = step("a/own", [this_output_path(), step("other") / "x", InputName.hardcoded("raw")])
    here, there = (plan_steps([own], prefix=where)[-1] for where in ("here", "memory://there/x"))
    assert here.identity.hash == there.identity.hash
    assert here.path == f"here/a/own-{here.identity.hash}"
    assert there.path == f"memory://there/x/a/own-{here.identity.hash}"


@dataclass(frozen=True)
class AdamW:
    lr: float = 1.0


@dataclass(frozen=True)
class Lion:
    lr: float = 1.0


class Kind(StrEnum):
    FAST = "fast"


def test_two_classes_of_equal_fields_are_different_versions_and_neither_is_a_mapping():
    faked = [{"<class>": "AdamW", "lr": 1.0}, {"lr": 1.0}]
    for wrap in (lambda x: x, lambda x: {"a": x}, lambda x: [0, x]):
        hashes = [hash_of({"v": versioned(wrap(each))}) for each in (AdamW(), Lion(), *faked)]
        assert len(set(hashes)) == len(hashes)


def test_the_module_of_a_class_does_not_matter():
    # As the class of a launch file, which is `__main__` where that file is the command.
    elsewhere = dataclass(frozen=True)(
        type("AdamW", (), {"__annotations__": {"lr": float}, "lr": 1.0, "__module__": "__main__"})
    )
    assert hash_of(versioned(elsewhere())) == hash_of(versioned(AdamW()))


def test_an_enum_is_the_text_that_a_file_writes_for_it():
    assert hash_of(versioned([Kind.FAST])) == hash_of(versioned(["fast"]))
    assert hash_of(versioned({Kind.FAST: 1})) == hash_of(versioned({"fast": 1}))


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"a": [x]}, lambda x: AdamW(lr=x)])
def test_a_text_that_reads_like_a_path_is_none(wrap: Callable[[Any], Any]):
    other = step("other")
    titles = [f"other-{hash_of(other.config, 'other')}", "<prefix>/q", "<output>", "<output>/q"]
    paths = [output_path_of(other), InputName.hardcoded("q")]
    paths += [this_output_path(), this_output_path("q")]
    hashes = [hash_of(versioned(wrap(each)), "own") for each in [*titles, *paths]]
    assert len(set(hashes)) == len(hashes)


def test_a_path_below_a_step_is_not_that_of_a_step_with_a_longer_name():
    below = f"{hash_of(step('a').config, 'a')}/b"
    longer = step(f"a-{below}")
    ending = hash_of(longer.config, longer.name)
    assert hash_of(step("a") / f"b-{ending}") != hash_of(output_path_of(longer))


def test_the_whole_config_and_a_key_called_so_are_different():
    assert hash_of(versioned(1)) != hash_of({"the config": versioned(1)})
    one, other = {'a"': {'b"': versioned(1)}}, {"a\"'.'b\"": versioned(1)}
    assert hash_of(one) != hash_of(other)


def test_a_list_is_not_a_mapping_with_its_indexes_as_keys():
    for mark in (versioned, lambda x: step("other") / str(x)):
        assert hash_of([mark(5)]) != hash_of({"0": mark(5)})
        assert hash_of({"a": [0, mark(5)]}) != hash_of({"a": {"1": mark(5)}})
    assert hash_of({"0": versioned(5)}) != hash_of({"~20": versioned(5)})
    assert hash_of({"0": versioned(5)}) == hash_of(versioned({"0": 5}))


def test_equal_steps_are_one_step(planned: Planned):
    plan = planned(
        step("b", data=output_path_of(step("a"))), step("c", data=step("a") / "x"), step("a")
    )
    assert [item.step.name for item in plan] == ["a", "b", "c"]
    assert plan[1].config["data"] == plan[0].path
    assert plan[2].config["data"] == f"{plan[0].path}/x"


def test_equal_steps_from_a_generator_are_not_taken_for_others(prefix: str):
    # Each step is gone before the next one is made, so Python may give both the same id().
    plan = plan_steps((step(f"s{i // 2}", i // 2) for i in range(40)), prefix=prefix)
    assert [item.step.name for item in plan] == [f"s{i}" for i in range(20)]


def test_steps_of_one_identity_that_would_not_do_the_same_are_refused(planned: Planned):
    with pytest.raises(LaunchError, match=r"differ in lr \(1 and 2\).*versioned\(\.\.\.\)"):
        planned(step("own", lr=1), step("own", lr=2))
    with pytest.raises(LaunchError, match=r"work and builtins\.print"):
        planned(step("own"), ExecutorStep("own", print, step("own").config))


def test_two_different_steps_in_one_folder_are_refused(planned: Planned, prefix: str):
    def there(name: str, version: int = 1, path: str = f"{prefix}/there") -> ExecutorStep:
        return ExecutorStep(name, work, {"v": versioned(version)}, override_output_path=path)

    assert len(planned(there("a"), there("a"))) == 1
    for other in (there("b"), there("a", 2), there("b", path=f"{prefix}/there/")):
        with pytest.raises(LaunchError, match=r"two different steps, 'a' and .*/there\. Allowed"):
            planned(there("a"), other)


def test_one_step_may_be_made_in_two_folders(planned: Planned, prefix: str):
    own = step("own")
    copy = ExecutorStep("own", work, own.config, override_output_path=f"{prefix}/copy")
    assert [item.path for item in planned(own, copy)][1] == f"{prefix}/copy"
    assert planned(step("reader", data=copy / "x"))[-1].config["data"] == f"{prefix}/copy/x"


@pytest.mark.parametrize("mark", [lambda x: x, versioned], ids=["plain", "versioned"])
def test_a_cycle_is_found_and_drawn(planned: Planned, mark: Callable[[Any], Any]):
    first, last = step("first"), step("last")
    middle = step("middle", data=output_path_of(first))
    object.__setattr__(first, "config", [mark(output_path_of(last))])
    object.__setattr__(last, "config", mark(middle / "sub"))
    with pytest.raises(LaunchError, match="each other: first -> last -> middle -> first"):
        planned(step("top", data=output_path_of(first)))
    own = step("own")
    object.__setattr__(own, "config", mark(output_path_of(own)))
    with pytest.raises(LaunchError, match="each other: own -> own"):
        planned(own)
