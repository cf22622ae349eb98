"""Fingerprints, hashes and differences: equal configs agree, changed fields show."""

import hashlib
from dataclasses import dataclass, make_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from config_samples import (
    AdamConfig,
    ComponentConfig,
    DataConfig,
    Level,
    LoggingConfig,
    ModelConfig,
    MuonConfig,
    Priority,
    run,
)

from chomp.config import (
    MISSING,
    Config,
    Difference,
    canonical_json,
    config_difference,
    config_hash,
    config_to_mapping,
    fingerprint,
    setting,
    validated,
)
from chomp.errors import ConfigError


def test_canonical_json_is_sorted_compact_ascii():
    value = {"b": (1, 2.0, None), "a": [True, Level.INFO, Priority.HIGH, Path("x/y")], "é": {3: 4}}
    assert canonical_json(value) == (
        r'{"a":[true,"info",2,"x/y"],"b":[1,2.0,null],"\u00e9":{"3":4}}'
    )
    assert canonical_json([1e-5, 0.1, 1e22, 1.0, 1]) == "[1e-05,0.1,1e+22,1.0,1]"


def test_a_whole_number_in_a_float_field_agrees_after_validation():
    one, other = MuonConfig(lr=1), MuonConfig(lr=1.0)
    assert canonical_json(validated(one)) == canonical_json(validated(other))
    assert config_hash(run(optimizer=one)) == config_hash(run(optimizer=other))


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"a": [0, float("nan")]}, "a.1=nan (a number). Allowed: a finite number"),
        ({"a": float("-inf")}, "a=-inf (a number)"),
        ({"a": {"b": {1, 2}}}, "a.b={1, 2} (a set)"),
        ({"a": object}, "a=<class 'object'> (a type)"),
        ({"a": AdamConfig}, "(a type)"),
        ({"a": {1.5: 2}}, "a has the key 1.5 (a number)"),
        ({"a": {True: 2}}, "a has the key true (a boolean)"),
        ({1: "a", "1": "b"}, "the config has the key '1' as text and as a number"),
        ({"a": "\ud800"}, "a has the text '\\ud800' with half of a surrogate pair"),
        ({"a": {"\ud800": 1}}, "a has the text '\\ud800' with half of a surrogate pair"),
        (AdamConfig(lr=1.0, betas=(1.0, b"x")), "betas.1=b'x' (a bytes)"),
    ],
)
def test_canonical_json_refuses_by_path_and_type(value, told):
    with pytest.raises(ConfigError) as caught:
        canonical_json(value)
    assert told in str(caught.value)


def test_a_fingerprint_is_the_sha256_of_the_canonical_json():
    assert fingerprint({"a": 1}) == hashlib.sha256(b'{"a":1}').hexdigest()
    assert fingerprint({"b": 2, "a": 1}) == fingerprint({"a": 1, "b": 2})
    assert fingerprint({"a": 1}) != fingerprint({"a": 1.0})


def test_the_config_hash_follows_identity_fields_at_any_depth_and_no_others():
    base = run(data=DataConfig(components={"web": ComponentConfig(weight=1.0)}))
    same = [
        replace(base, steps=7),
        replace(base, logging=LoggingConfig(level=Level.DEBUG, tags=("a",))),
        replace(base, data=replace(base.data, seed=5)),
    ]
    other = [
        replace(base, run_id="b"),
        replace(base, optimizer=MuonConfig()),
        replace(base, model=ModelConfig(vocab_size=257)),
        replace(base, data=DataConfig(components={"web": ComponentConfig(weight=2.0)})),
        replace(base, data=DataConfig(components={"code": ComponentConfig(weight=1.0)})),
    ]
    hashes = [config_hash(config) for config in (base, *other)]
    assert {config_hash(config) for config in same} == {config_hash(base)}
    assert len(set(hashes)) == len(hashes)


def test_the_config_hash_does_not_depend_on_the_order_of_fields():
    fields: list[tuple[str, type, Any]] = [("a", int, 1), ("b", str, "x")]
    forward = make_dataclass("Forward", fields, frozen=True, kw_only=True)
    backward = make_dataclass("Backward", fields[::-1], frozen=True, kw_only=True)
    assert config_hash(forward()) == config_hash(backward())


def test_the_hash_of_a_wrong_config_is_refused():
    with pytest.raises(ConfigError, match="run_id=5"):
        config_hash(run(run_id=5))


def test_equal_configs_do_not_differ():
    assert config_difference(run(), run()) == []
    assert config_difference(run(), config_to_mapping(run())) == []
    assert config_difference({"a": 1, "b": [1.0]}, {"b": (1,), "a": 1.0}) == []


def test_differences_have_paths_values_and_marks():
    before = run(data=DataConfig(components={"web": ComponentConfig(weight=1.0)}))
    after = run(
        steps=7,
        data=DataConfig(
            components={"web": ComponentConfig(weight=2.0), "web.edu": ComponentConfig(weight=1.0)},
            seed=3,
        ),
        logging=LoggingConfig(tags=("a",)),
    )
    assert config_difference(before, after) == [
        Difference(path="data.components.web.weight", before=1.0, after=2.0, mark="identity"),
        Difference(
            path='data.components."web.edu"',
            before=MISSING,
            after={"weight": 1.0, "paths": []},
            mark="identity",
        ),
        Difference(path="data.seed", before=0, after=3, mark="schedule"),
        Difference(path="logging.tags", before=[], after=["a"], mark="cosmetic"),
        Difference(path="steps", before=100, after=7, mark="schedule"),
    ]


def test_a_recorded_mapping_takes_its_marks_from_the_config_beside_it():
    recorded = config_to_mapping(run(steps=7))
    del recorded["jit"]
    recorded["gone"] = True
    assert [str(found) for found in config_difference(recorded, run())] == [
        "steps: 7 -> 100 (schedule)",
        "gone: True -> (missing) (identity)",
        "jit: (missing) -> True (identity)",
    ]
    assert [found.mark for found in config_difference(recorded, config_to_mapping(run()))] == [
        "identity",
        "identity",
        "identity",
    ]


def test_a_boolean_differs_from_a_number_and_lists_are_compared_item_by_item():
    assert config_difference({"a": True}, {"a": 1})[0].path == "a"
    assert [found.path for found in config_difference({"a": [1, 2]}, {"a": [1, 3]})] == ["a.1"]
    assert [found.path for found in config_difference({"a": [1, 2]}, {"a": [1]})] == ["a"]


@dataclass(frozen=True, kw_only=True)
class InnerConfig(Config):
    """Marks below a marked field."""

    strict: int = 1
    loose: int = setting(default=1, mark="cosmetic")


@dataclass(frozen=True, kw_only=True)
class OuterConfig(Config):
    """A schedule section."""

    inner: InnerConfig = setting(default_factory=InnerConfig, mark="schedule")


def test_a_mark_covers_what_is_below_it_and_can_only_be_loosened_there():
    found = config_difference(OuterConfig(), OuterConfig(inner=InnerConfig(strict=2, loose=2)))
    assert [(item.path, item.mark) for item in found] == [
        ("inner.strict", "schedule"),
        ("inner.loose", "cosmetic"),
    ]


@dataclass(frozen=True, kw_only=True)
class Earlier(Config):
    """A config as an earlier version had it."""

    width: int = 8


@dataclass(frozen=True, kw_only=True)
class Later(Config):
    """The same with a field that was added."""

    width: int = 8
    source: str | None = setting(default=None, is_added=True)


def test_a_field_that_was_added_counts_only_where_it_is_set():
    assert config_hash(Later()) == config_hash(Earlier())
    assert config_hash(Later(source="a")) != config_hash(Earlier())
    recorded = config_to_mapping(Earlier())
    assert config_difference(recorded, Later()) == []
    (found,) = config_difference(recorded, Later(source="a"))
    assert (found.path, found.before, found.mark) == ("source", MISSING, "identity")
