"""Mappings and Python instances become checked configs, and mappings again."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, dataclass, field
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import jsonschema
import pytest
from config_samples import (
    MODEL,
    AdamConfig,
    AttentionConfig,
    BlockConfig,
    ComponentConfig,
    DataConfig,
    Level,
    ModelConfig,
    MuonConfig,
    Priority,
    RunConfig,
    StageConfig,
    run,
)
from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from chomp.config import (
    Config,
    config_difference,
    config_from_mapping,
    config_schema,
    config_to_mapping,
    setting,
    validated,
)
from chomp.errors import ConfigError


def parsed(**fields: Any) -> RunConfig:
    return config_from_mapping(RunConfig, {"model": MODEL, **fields})


WEB = {"components": {"web": {"weight": 1}}}


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({}, {}),
        ({"run_id": "a"}, {"run_id": "a"}),
        ({"steps": 1000}, {"steps": 1000}),
        ({"steps": 1e3}, {"steps": 1000}),
        ({"num_steps": 1}, {"steps": 1}),
        ({"ema_beta": 1}, {"ema_beta": 1.0}),
        ({"data": WEB}, {"data.components.web": {"weight": 1.0, "paths": []}}),
        ({"priority": 2}, {"priority": 2}),
        ({"width_or_name": 5}, {"width_or_name": 5}),
        ({"width_or_name": "5"}, {"width_or_name": "5"}),
        ({"fallback": {"kind": "adamw"}}, {"fallback": config_to_mapping(AdamConfig())}),
        ({"fallback": None}, {}),
        ({"optimizer": {"kind": "adamw", "lr": 1}}, {"optimizer.lr": 1.0}),
        ({"optim": {"kind": "adamw", "learning_rate": 1e-3}}, {"optimizer.lr": 1e-3}),
        ({"optim": {"kind": "adamw", "rate": 1e-3}}, {"optimizer.lr": 1e-3}),
        (
            {"logging": {"level": Level.DEBUG, "tags": ("a", "b"), "log_file": Path("x/y.log")}},
            {"logging.level": "debug", "logging.tags": ["a", "b"], "logging.log_file": "x/y.log"},
        ),
    ],
)
def test_what_is_given_is_taken_as_its_declared_type_and_silence_means_the_default(given, changed):
    found = {item.path: item.after for item in config_difference(run(), parsed(**given))}
    assert found == changed
    assert [type(found[path]) for path in changed] == [type(value) for value in changed.values()]


def test_the_kind_chooses_the_member_of_a_union():
    assert parsed(optimizer={"kind": "muon", "ns_steps": 3}).optimizer == MuonConfig(ns_steps=3)
    assert parsed(optimizer=MuonConfig(lr=1)).optimizer == MuonConfig(lr=1.0)
    assert parsed(priority=2).priority is Priority.HIGH


NUMBERS = [1.5, "1.5", "1" * 400, "abc", "", True, None, 2.0**60, "inf", float("nan")]
NOT_FINITE = [float("nan"), float("inf"), 10**400]
REFUSED = [
    ("steps", "an integer", NUMBERS),
    ("ema_beta", "a finite number", NOT_FINITE),
    ("ema_beta", "a number or null", [True, "nan", "inf", "-inf"]),
    ("jit", "true or false", [0, 1, 1.0, "1", "maybe", None, []]),
    ("priority", "one of 1, 2", [True, 1.5, "1"]),
    ("run_id", "a string", [5, 1.5, True, None, ["a"]]),
    ("model.dtype", "one of 'float32', 'bfloat16'", ["Bfloat16", "bfloat16 ", 16]),
]


@pytest.mark.parametrize(
    ("field", "allowed", "given"),
    [(field, allowed, given) for field, allowed, values in REFUSED for given in values],
)
def test_no_other_type_is_taken_for_a_value(field: str, allowed: str, given: Any):
    section, _, name = field.rpartition(".")
    with pytest.raises(ConfigError, match=rf"^config: {field}=") as caught:
        parsed(**({section: {**MODEL, name: given}} if section else {name: given}))
    assert caught.value.allowed == allowed


@pytest.mark.parametrize(
    ("given", "meant"),
    [({"ema_beta": "3e-4"}, "0.0003"), ({"steps": "1_000"}, "1000"), ({"jit": "no"}, "false")],
)
def test_text_is_no_number_and_no_boolean_as_in_the_schema(given, meant):
    with pytest.raises(ConfigError) as caught:
        parsed(**given)
    assert caught.value.fix == f"write {meant}, without quotes"
    schema = jsonschema.Draft202012Validator(config_schema(RunConfig))
    assert [error.path[0] for error in schema.iter_errors({"model": MODEL, **given})] == [*given]


def test_two_spellings_of_one_field_are_an_error():
    with pytest.raises(ConfigError, match=r"optim\.lr and optim\.rate are the same field"):
        parsed(optim={"kind": "adamw", "lr": 1e-3, "rate": 1e-3})
    with pytest.raises(ConfigError, match=r"optimizer and optim are the same field"):
        parsed(optimizer={"kind": "muon"}, optim={"kind": "muon"})


def test_an_instance_built_in_python_is_checked_at_every_depth():
    deep = AttentionConfig(num_heads=8, num_kv_heads=4, window="many")
    config = run(model=ModelConfig(vocab_size=256, block=BlockConfig(attention=deep)))
    with pytest.raises(
        ConfigError, match=r"^RunConfig: model\.block\.attention\.window='many' \(a string\)"
    ):
        validated(config)


def test_validation_returns_an_equal_config_with_numbers_of_their_declared_type():
    config = run(ema_beta=1, optimizer=AdamConfig(betas=(0, 1)))
    again = validated(config)
    assert again == config
    assert type(again.ema_beta) is float
    assert [type(beta) for beta in again.optimizer.betas] == [float, float]
    with pytest.raises(FrozenInstanceError):
        again.steps = 3


def test_a_subclass_is_refused_because_no_file_could_name_it():
    @dataclass(frozen=True, kw_only=True)
    class WiderConfig(ModelConfig):
        pass

    with pytest.raises(ConfigError, match=r"model is an instance of WiderConfig\. .*ModelConfig"):
        validated(run(model=WiderConfig(vocab_size=1)))


def test_a_check_of_a_class_is_told_once_with_its_path():
    with pytest.raises(ConfigError) as caught:
        config_from_mapping(
            RunConfig, {"model": {**MODEL, "block": {"attention": {"num_kv_heads": 3}}}}
        )
    assert str(caught.value) == (
        "config: model.block.attention: num_heads=8 with num_kv_heads=3. "
        "Allowed: num_kv_heads that divides num_heads. "
        "Fix: set num_kv_heads to a divisor of num_heads."
    )


def test_a_check_waits_until_the_fields_it_reads_are_right():
    with pytest.raises(ConfigError) as caught:
        config_from_mapping(
            RunConfig,
            {"model": {**MODEL, "block": {"attention": {"num_kv_head": 8, "num_heads": 6}}}},
        )
    assert "divides" not in str(caught.value)
    assert "did you mean num_kv_heads?" in str(caught.value)


@dataclass(frozen=True, kw_only=True)
class DerivedConfig(Config):
    """A class with a field nobody gives and a check that is a plain ValueError."""

    width: int = 1
    doubled: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if self.width < 0:
            raise ValueError("width is negative")
        object.__setattr__(self, "doubled", 2 * self.width)


def test_a_field_the_constructor_does_not_take_is_derived_and_not_written():
    config = config_from_mapping(DerivedConfig, {"width": 3})
    assert config.doubled == 6
    assert config_to_mapping(config) == {"width": 3}
    with pytest.raises(ConfigError, match="doubled is not a known key"):
        config_from_mapping(DerivedConfig, {"doubled": 3})
    with pytest.raises(ConfigError, match=r"^config: width is negative$"):
        config_from_mapping(DerivedConfig, {"width": -3})


def refuse_odd(number: int) -> int:
    if number % 2:
        raise PydanticCustomError("odd", "not odd")
    return number


@dataclass(frozen=True, kw_only=True)
class ShapesConfig:
    """Container types beyond those of a run."""

    by_number: dict[int, float] = field(default_factory=dict)
    by_level: dict[Level, int] = field(default_factory=dict)
    names: str | tuple[str, ...] = ()
    grid: tuple[tuple[int, ...], ...] = ()
    items: list[int] = field(default_factory=list)
    pair: tuple[str, int] = ("a", 1)
    stages: tuple[AdamConfig | MuonConfig, ...] = ()
    tagged: Annotated[AdamConfig | MuonConfig, Field(discriminator="kind")] = field(
        default_factory=AdamConfig
    )
    folders: tuple[Path, ...] = ()
    table: dict[str, tuple[int, ...]] = field(default_factory=dict)
    day: date | None = None
    even: Annotated[int, AfterValidator(refuse_odd)] = 2


def test_other_containers_round_trip():
    config = ShapesConfig(
        by_number={3: 0.5},
        by_level={Level.DEBUG: 2},
        names=("a", "b"),
        grid=((1, 2), ()),
        items=[1],
        pair=("b", 2),
        stages=(MuonConfig(), AdamConfig()),
    )
    mapping = config_to_mapping(config)
    assert mapping["by_number"] == {"3": 0.5}
    assert mapping["by_level"] == {"debug": 2}
    assert config_from_mapping(ShapesConfig, json.loads(json.dumps(mapping))) == config


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"by_number": {"x": 1}}, "by_number has the key 'x' (a string)"),
        ({"by_number": {1: 1, "1": 2}}, "by_number has the key '1' as text and as a number"),
        ({"by_number": {None: 1}}, "by_number has the key null"),
        ({"by_level": {"loud": 1}}, "keys that are each one of 'info', 'debug'"),
        ({"names": ["a", 5]}, "names.1=5 (an integer). Allowed: a string. "),
        ({"grid": [[1], [2, "x"]]}, "grid.1.1='x' (a string). Allowed: an integer"),
        ({"pair": ["a"]}, "a list of 2 items: a string, an integer"),
        ({"pair": ["a", 1, 2]}, "pair=['a', 1, 2] (a list)"),
        ({"stages": [{"kind": "muon"}, {"kind": "adamw", "lr": "x"}]}, "stages.1.lr='x'"),
        ({"tagged": {"kind": "muon", "lr": "x"}}, "tagged.lr='x' (a string)"),
        ({"tagged": {"kind": "adamw", "lr": -1}}, "config: tagged: lr=-1.0. "),
        ({"tagged": {"kind": "sgd"}}, "tagged.kind='sgd' (a string)"),
        ({"even": 3}, "even=3 (an integer). Allowed: an integer, not odd. Fix: "),
        ({"folders": [5]}, "folders.0=5 (an integer). Allowed: a path. Fix: write it in quotes"),
        ({"folders": {}}, "folders={} (a mapping). Allowed: a list, each item a path"),
        ({"table": [1]}, "Allowed: a mapping, each value a list, each item an integer"),
        ({"table": {"a": [None]}}, "table.a.0=null"),
        ({"day": "soon"}, "day='soon' (a string). Allowed: a date or null"),
        ({"pair": Level.INFO}, "pair=<Level.INFO: 'info'> (a Level)"),
    ],
)
def test_mistakes_in_other_containers_are_named(given, told):
    with pytest.raises(ConfigError) as caught:
        config_from_mapping(ShapesConfig, given)
    assert told in str(caught.value)


def test_a_default_is_checked_like_a_given_value():
    @dataclass(frozen=True, kw_only=True)
    class WrongDefault:
        size: int = "big"

    with pytest.raises(ConfigError, match="size='big'"):
        config_from_mapping(WrongDefault, {})


def test_a_class_where_a_spelling_means_two_fields_is_refused():
    @dataclass(frozen=True, kw_only=True)
    class Ambiguous:
        size: int = 1
        width: int = setting(default=1, aliases=("size",))

    with pytest.raises(TypeError, match="'size' means both size and width"):
        config_from_mapping(Ambiguous, {})


def test_a_union_of_configs_without_kinds_is_refused():
    @dataclass(frozen=True, kw_only=True)
    class NoKind:
        part: ComponentConfig | AdamConfig = field(default_factory=AdamConfig)

    with pytest.raises(TypeError, match=r"ComponentConfig .* needs a field kind"):
        config_from_mapping(NoKind, {"part": {"weight": 1}})


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """Sections whose values here are not the defaults of their classes."""

    model: ModelConfig = field(
        default_factory=lambda: ModelConfig(
            vocab_size=512, block=BlockConfig(attention=AttentionConfig(num_heads=16, window=9))
        )
    )
    optimizer: AdamConfig | MuonConfig = field(
        default_factory=lambda: AdamConfig(lr=0.5, betas=(0.5, 0.6))
    )
    data: DataConfig = field(
        default_factory=lambda: DataConfig(
            components={"web": ComponentConfig(weight=1.0, paths=(Path("a"),))},
            stages=(StageConfig(start=3),),
            seed=7,
        )
    )


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({"model": {}}, {}),
        ({"model": {"hidden_dim": 8}}, {"model.hidden_dim": 8}),
        (
            {"model": {"block": {"attention": {"window": 5}}}},
            {"model.block.attention.window": 5},
        ),
        ({"optimizer": {"kind": "adamw", "lr": 1}}, {"optimizer.lr": 1.0}),
        ({"data": {"seed": 8}}, {"data.seed": 8}),
    ],
)
def test_a_section_given_in_part_changes_only_what_it_names(given, changed):
    difference = config_difference(LaunchConfig(), config_from_mapping(LaunchConfig, given))
    assert {item.path: item.after for item in difference} == changed
    schema = jsonschema.Draft202012Validator(config_schema(LaunchConfig))
    assert list(schema.iter_errors(given)) == []


def test_another_kind_starts_from_the_defaults_of_its_class():
    changed = config_from_mapping(LaunchConfig, {"optimizer": {"kind": "muon", "ns_steps": 9}})
    assert changed.optimizer == MuonConfig(ns_steps=9)


def test_entries_of_a_mapping_and_items_of_a_list_are_those_that_are_given():
    data = {"components": {"web": {"weight": 2}}, "stages": [{"weights": {"web": 1}}]}
    changed = config_from_mapping(LaunchConfig, {"data": data}).data
    assert changed.components == {"web": ComponentConfig(weight=2.0)}
    assert changed.stages == (StageConfig(weights={"web": 1.0}),)
    assert changed.seed == 7
