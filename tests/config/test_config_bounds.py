"""Bounds of numbers: declared with the field, checked however a config is made."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from chomp.config import Config, apply_overrides, config_from_mapping, config_schema, setting
from chomp.errors import ConfigError, require


@dataclass(frozen=True, kw_only=True)
class Knobs(Config):
    """One field for each kind of bound."""

    rate: float = setting(default=0.5, gt=0, lt=1)
    count: int = setting(default=4, ge=1)
    share: float | None = setting(default=None, ge=0, le=1)
    period: int | None = setting(
        default=None, gt=0, le=2**31, also=("slotted.period",), zero_is_null=True
    )
    betas: tuple[float, float] = setting(default=(0.9, 0.95), gt=0, lt=1)
    weights: Mapping[str, float] = setting(default_factory=dict, ge=0)
    sizes: int | tuple[tuple[int, int], ...] = setting(default=8, ge=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Slotted(Config):
    """A class that `dataclass` makes a second time."""

    width: int = setting(default=1, ge=1)

    def __post_init__(self) -> None:
        assert self.width, "bounds come first"


@dataclass(frozen=True, kw_only=True)
class Run(Config):
    """Something around the knobs, with an alias and a rule of its own."""

    knobs: Knobs = setting(default_factory=Knobs, aliases=("k",))
    slotted: Slotted = setting(default_factory=Slotted)
    most: int = setting(default=8, ge=1)

    def __post_init__(self) -> None:
        # Divides by a bounded field: bounds come first.
        require(100 % self.most < 100, f"most={self.most}", allowed="no such thing", fix="none")


OUTSIDE = [
    ({"rate": 1.0}, "rate=1.0", "above 0 and below 1"),
    ({"rate": 0}, "rate=0", "above 0 and below 1"),
    ({"count": 0}, "count=0", "at least 1"),
    ({"share": 1.5}, "share=1.5", "from 0 to 1, both allowed, or null"),
    ({"share": -1e-9}, "share=-1e-09", "from 0 to 1, both allowed, or null"),
    ({"period": 10**30}, f"period={10**30}", f"above 0 and at most {2**31}, or null"),
    ({"betas": (0.9, 1.0)}, "betas.1=1.0", "above 0 and below 1"),
    ({"weights": {"web.edu": -2}}, 'weights."web.edu"=-2', "at least 0"),
    ({"sizes": -8}, "sizes=-8", "at least 1"),
]
INSIDE = [
    {"rate": 0.001, "count": 10**30, "share": 0, "period": 2**31},
    {"share": 1, "weights": {"a": 0}, "sizes": ((0, 8),), "betas": (0.1, 0.1)},
    {"share": None, "period": None},
]


@pytest.mark.parametrize(("values", "given", "allowed"), OUTSIDE)
def test_a_number_out_of_its_bounds_is_refused_however_a_config_is_made(
    values: dict[str, Any], given: str, allowed: str
):
    with pytest.raises(ConfigError) as made:
        Knobs(**values)
    assert (made.value.given, made.value.allowed) == (given, allowed)
    assert given.partition("=")[0] in made.value.fix
    with pytest.raises(ConfigError) as read:
        config_from_mapping(Run, {"k": values}, source="run.yaml")
    assert read.value.given.removesuffix(".0") == f"run.yaml: k.{given}".removesuffix(".0")
    assert read.value.allowed == allowed


@pytest.mark.parametrize("values", INSIDE)
def test_what_is_within_its_bounds_is_taken(values: dict[str, Any]):
    assert config_from_mapping(Knobs, values) == Knobs(**values)


def test_every_number_out_of_its_bounds_is_listed():
    with pytest.raises(ConfigError) as caught:
        config_from_mapping(Run, {"most": 0, "knobs": {"count": 0, "betas": [0, 2]}})
    assert [problem.given for problem in caught.value.problems] == [
        "knobs.count=0",
        "knobs.betas.0=0.0",
        "knobs.betas.1=2.0",
        "most=0",
    ]


def test_an_override_is_checked_by_the_name_that_was_typed():
    with pytest.raises(ConfigError) as caught:
        apply_overrides(Run(), ["k.rate=1"])
    assert caught.value.given.endswith(": k.rate=1.0")
    assert caught.value.fix == "set k.rate to a number in that range, such as 0.5"


def test_a_field_given_by_its_name_in_another_section_is_checked_by_that_name():
    assert config_from_mapping(Run, {"slotted": {"period": 0}}).knobs.period is None
    with pytest.raises(ConfigError) as caught:
        config_from_mapping(Run, {"slotted": {"period": -1}})
    assert caught.value.given == "config: slotted.period=-1"


def test_bounds_come_before_the_rules_of_a_class():
    with pytest.raises(ConfigError) as caught:
        Run(most=0)  # else a ZeroDivisionError
    assert caught.value.given == "most=0"


def test_bounds_hold_with_slots_and_below_a_class_that_has_them():
    @dataclass(frozen=True, kw_only=True)
    class Below(Slotted):
        depth: int = setting(default=1, le=2)

    for cls, values in ((Slotted, {"width": 0}), (Below, {"width": 0}), (Below, {"depth": 3})):
        with pytest.raises(ConfigError):
            cls(**values)
    assert Below(depth=2).width == 1


def test_true_is_no_number_out_of_bounds_but_of_a_wrong_type():
    with pytest.raises(ConfigError) as caught:
        config_from_mapping(Knobs, {"count": True})
    assert caught.value.allowed == "an integer"


def test_bounds_are_in_the_schema():
    properties = config_schema(Knobs)["properties"]
    assert properties["rate"] | {"exclusiveMinimum": 0, "exclusiveMaximum": 1} == properties["rate"]
    assert properties["count"]["minimum"] == 1
    number, null = properties["share"]["anyOf"]
    assert (number["minimum"], number["maximum"], null) == (0, 1, {"type": "null"})
    assert properties["weights"]["additionalProperties"]["minimum"] == 0
    assert [item["exclusiveMaximum"] for item in properties["betas"]["prefixItems"]] == [1, 1]
    number, pairs = properties["sizes"]["anyOf"]
    assert number["minimum"] == 1
    assert "minimum" not in str(pairs)


# ---- Mistakes in a class ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        ({"gte": 1}, ConfigError, r"setting\(gte=1\)\. Allowed: .* Fix: .*ge \(at least\)"),
        ({"mark": "vital"}, TypeError, "mark='vital'"),
        ({"aliases": "optim"}, TypeError, r"write aliases=\('optim',\)"),
        ({"also": "train.steps"}, TypeError, r"write also=\('train\.steps',\)"),
        ({"also": ("steps",)}, TypeError, "that is an alias"),
    ],
)
def test_a_wrong_setting_is_refused_where_the_class_is_defined(
    wrong: dict[str, Any], error: type[Exception], text: str
):
    with pytest.raises(error, match=text):
        setting(default=1, **wrong)


def wrong_classes() -> dict[str, Any]:
    @dataclass(frozen=True, kw_only=True)
    class Text(Config):
        name: str = setting(default="a", ge=1)

    @dataclass(frozen=True, kw_only=True)
    class Switch(Config):
        on: bool = setting(default=True, ge=0)

    @dataclass(frozen=True, kw_only=True)
    class Default(Config):
        steps: int = setting(default=0, ge=1)

    @dataclass(frozen=True, kw_only=True)
    class Made(Config):
        rates: tuple[float, ...] = setting(default_factory=lambda: (0.5, 2.0), lt=1)

    return {"Text.name": Text, "Switch.on": Switch, "Default.steps": Default, "Made.rates": Made}


@pytest.mark.parametrize("place", wrong_classes())
def test_bounds_that_do_not_fit_their_field_are_refused_at_first_use(place: str):
    cls = wrong_classes()[place]
    for use in (cls, lambda: config_schema(cls), lambda: config_from_mapping(cls, {})):
        with pytest.raises(ConfigError) as caught:
            use()
        assert caught.value.given.startswith(place)
        assert caught.value.allowed


def test_a_plain_dataclass_is_checked_where_it_is_read():
    @dataclass(frozen=True)
    class Plain:
        steps: int = setting(default=3, ge=1)
        names: list[str] = field(default_factory=list)

    with pytest.raises(ConfigError) as caught:
        config_from_mapping(Plain, {"steps": 0})
    assert caught.value.given == "config: steps=0"
