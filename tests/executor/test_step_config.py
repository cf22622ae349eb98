"""Markers in a step's config: where they may stand, what they turn into, what is refused."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from executor_samples import step, work

from chomp.config import config_from_mapping
from chomp.errors import ConfigError
from chomp.executor import (
    ExecutorStep,
    InputName,
    PlannedStep,
    Resources,
    Versioned,
    output_path_of,
    plan_steps,
    this_output_path,
    versioned,
)

Planned = Callable[..., list[PlannedStep]]


class Pair(NamedTuple):
    """A config may hold NamedTuples, which are built from single items."""

    first: Any
    second: Any


@dataclass(frozen=True)
class Inner:
    """A config in a config, with a field that its class derives from another."""

    value: Any
    derived: Any = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "derived", f"from {self.value}")


def resolved(config: Any, prefix: str) -> Any:
    """The config as a step called `own` gets it."""
    return plan_steps([ExecutorStep("own", work, config)], prefix=prefix)[-1].config


@pytest.mark.parametrize(
    ("wrap", "unwrap"),
    [
        (lambda x: x, lambda c: c),
        (lambda x: {"key": x}, lambda c: c["key"]),
        (lambda x: [0, x], lambda c: c[1]),
        (lambda x: (x, 0), lambda c: c[0]),
        (lambda x: Pair(0, x), lambda c: c.second),
        (lambda x: Inner(x), lambda c: c.value),
        (lambda x: MappingProxyType({"key": x}), lambda c: c["key"]),
        (lambda x: [{"a": (Inner(Pair(x, x)),)}], lambda c: c[0]["a"][0].value.second),
    ],
    ids=["root", "dict", "list", "tuple", "namedtuple", "dataclass", "mapping", "nested"],
)
def test_markers_are_replaced_wherever_they_stand(
    tmp_path: Path, wrap: Callable[[Any], Any], unwrap: Callable[[Any], Any]
):
    prefix = str(tmp_path)
    other = step("other")
    plan = plan_steps([other], prefix=prefix)
    own = unwrap(resolved(wrap(this_output_path("sub")), prefix))
    assert own.startswith(f"{prefix}/own-")
    assert own.endswith("/sub")
    assert unwrap(resolved(wrap(versioned(7)), prefix)) == 7
    assert unwrap(resolved(wrap(output_path_of(other)), prefix)) == plan[0].path
    assert unwrap(resolved(wrap(other / "a/b"), prefix)) == f"{plan[0].path}/a/b"
    assert unwrap(resolved(wrap(versioned(other / "a")), prefix)) == f"{plan[0].path}/a"
    assert unwrap(resolved(wrap(InputName.hardcoded("raw/x")), prefix)) == f"{prefix}/raw/x"


def test_containers_keep_their_type_and_derived_fields_are_made_anew(tmp_path: Path):
    config = resolved([Pair(versioned(1), 2), (versioned(1),), Inner(versioned(3))], str(tmp_path))
    assert config == [Pair(1, 2), (1,), Inner(3)]
    assert [type(item) for item in config] == [Pair, tuple, Inner]
    assert config[2].derived == "from 3"
    unmarked = {"pair": Pair(1, [2]), "inner": Inner(3)}
    assert resolved(unmarked, str(tmp_path)) is unmarked


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda: versioned(versioned(1)), r"inside versioned\(\.\.\.\)\. Allowed"),
        (lambda: versioned({"a": [0, versioned(1)]}), r"at a\.1\."),
        (lambda: versioned(Inner(Pair(versioned(1), 2))), r"at value\.0\."),
        (lambda: Versioned(Versioned(1)), r"inside versioned\(\.\.\.\)\. Allowed"),
    ],
)
def test_versioned_inside_versioned_is_refused(make: Callable[[], Any], where: str):
    with pytest.raises(ConfigError, match=where):
        make()


def test_a_step_in_place_of_its_path_is_refused(planned: Planned):
    with pytest.raises(ConfigError, match=r"a\.0 is the step 'other' itself.*output_path_of"):
        planned(step("own", a=[step("other")]))
    with pytest.raises(ConfigError, match="the step 'other' itself"):
        versioned(step("other"))


@pytest.mark.parametrize("bad", [work, {1, 2}, object(), float("nan"), {("a", "b"): 1}])
@pytest.mark.parametrize("mark", [versioned, lambda x: x], ids=["versioned", "unversioned"])
def test_a_value_that_is_not_plain_data_is_refused_in_the_plan_by_step_and_path(
    planned: Planned, bad: Any, mark: Callable[[Any], Any]
):
    with pytest.raises(ConfigError, match=r"step 'own': settings\.0.*Allowed: .*Fix: "):
        planned(step("own", settings=[mark(bad)]))


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", "a/../b", ".", None])
def test_a_step_needs_a_name_that_is_a_relative_path_and_a_function(name: Any):
    with pytest.raises(ConfigError, match="Fix: name the step"):
        ExecutorStep(name, work, None)
    with pytest.raises(ConfigError, match=r"step 'own' with fn=None.*Fix: pass the function"):
        ExecutorStep("own", None, None)  # type: ignore[arg-type]


def test_a_path_that_leads_out_of_a_folder_is_refused(planned: Planned):
    with pytest.raises(OSError, match=r"relative parts without '\.\.'"):
        planned(step("own", a=this_output_path("../elsewhere")))


class Callme:
    """A function by way of an object."""

    def __call__(self, config: Any) -> None:
        """Do what a step does."""
        work(config)


@pytest.mark.parametrize(
    "fn", [functools.partial(work), functools.wraps(work)(lambda config: work(config)), Callme()]
)
def test_anything_callable_can_be_a_step(
    planned: Planned, ran: Callable[..., list[Any]], fn: Callable[[Any], Any]
):
    own = ExecutorStep("own", fn, {"out": this_output_path()})
    assert ran(own) == []
    assert planned(own)[0].action == "skip"
    assert planned(own)[0].sources, "the source of the template is found behind it"


def test_a_function_of_the_interpreter_or_the_library_has_no_template_source(planned: Planned):
    assert planned(ExecutorStep("own", print, None))[0].sources == {}
    assert planned(ExecutorStep("own", plan_steps, None))[0].sources == {}


# ---- Resources: what a step asks of a machine -------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "given"),
    [
        ({"processes": 0}, "processes=0"),
        ({"processes": 1.5}, "Resources: processes=1.5 (a number)"),
        ({"cpus": -1}, "cpus=-1"),
        ({"gpus": -1}, "gpus=-1"),
        ({"gpus": True}, "Resources: gpus=true (a boolean)"),
        ({"memory_gb": 0}, "memory_gb=0"),
        ({"restarts": -1}, "restarts=-1"),
        ({"custom": {"TPU": 0}}, "custom.TPU=0"),
        ({"custom": {" ": 1}}, "resources.custom with the name [' ']"),
        ({"custom": "TPU"}, "Resources: custom='TPU' (a string)"),
    ],
)
def test_what_no_machine_can_give_is_refused(wrong: dict[str, Any], given: str):
    with pytest.raises(ConfigError) as caught:
        replace(step("own"), resources=Resources(**wrong))
    assert caught.value.given == given
    assert caught.value.allowed


def test_an_unknown_resource_in_a_file_names_the_nearest_known():
    with pytest.raises(ConfigError, match=r"gpu.*did you mean gpus"):
        config_from_mapping(Resources, {"gpu": 1})
    found = config_from_mapping(Resources, {"processes": 2, "custom": {"TPU": 4}})
    assert (found.processes, found.custom) == (2, {"TPU": 4.0})


def test_resources_of_a_step_are_no_mapping_and_no_part_of_its_identity():
    asked = replace(step("own"), resources=Resources(processes=2, gpus=8, custom={"TPU": 4}))
    paths = {plan_steps([each], prefix="nowhere")[0].path for each in (step("own"), asked)}
    assert len(paths) == 1
    with pytest.raises(ConfigError, match=r"step 'own' with resources=\{'gpus': 1\}"):
        replace(step("own"), resources={"gpus": 1})
