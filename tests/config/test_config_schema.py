"""The JSON schema says what the config reference needs to say, comments of fields included."""

import json
from dataclasses import dataclass, field

from config_samples import RunConfig

import chomp.config
from chomp.config import Config, config_schema, setting
from chomp.config.schema import classes_inside, field_comments


def test_the_schema_has_types_docs_aliases_marks_and_nested_classes():
    schema = config_schema(RunConfig)
    steps = schema["properties"]["steps"]
    assert steps["type"] == "integer"
    assert steps["default"] == 100
    assert steps["description"] == "Updates."
    assert steps["aliases"] == ["num_steps"]
    assert steps["mark"] == "schedule"
    rate = schema["$defs"]["AdamConfig"]["properties"]["lr"]
    assert rate["description"] == "Peak learning rate."
    assert rate["aliases"] == ["learning_rate", "rate"]
    assert schema["description"] == "A whole run."
    assert schema["required"] == ["model"]
    assert schema["properties"]["logging"]["mark"] == "cosmetic"


def test_the_schema_forbids_unknown_keys_and_is_json():
    schema = config_schema(RunConfig)
    assert schema["additionalProperties"] is False
    assert all(
        part["additionalProperties"] is False
        for part in schema["$defs"].values()
        if part["type"] == "object"
    )
    assert json.loads(json.dumps(schema)) == schema


@dataclass(frozen=True, kw_only=True)
class Inner(Config):
    width: int = 4  # of a row


@dataclass(frozen=True, kw_only=True)
class Base(Config):
    # Two lines
    # above it.
    steps: int = 3

    # Of nothing: a line lies between.

    plain: int = 2
    said: int = setting(default=1)  # What it is.


@dataclass(frozen=True, kw_only=True)
class Outer(Base):
    inner: Inner = field(
        # of the default, not of the field
        default_factory=Inner,
    )
    many: dict[str, tuple[Inner, ...]] = field(default_factory=dict)  # by name
    plain: int = 3  # said here


def test_a_field_is_described_by_its_comments():
    assert field_comments(Base) == {"steps": "Two lines above it.", "said": "What it is."}


def test_inherited_fields_keep_their_comments_and_new_ones_replace_them():
    assert field_comments(Outer) == {
        "steps": "Two lines above it.",
        "plain": "said here",
        "said": "What it is.",
        "many": "by name",
    }


def test_a_class_without_a_source_has_none():
    assert field_comments(type("Made", (Inner,), {})) == {"width": "of a row"}


def test_the_schema_describes_fields_of_nested_classes_too():
    schema = config_schema(Outer)
    assert schema["properties"]["steps"]["description"] == "Two lines above it."
    assert schema["$defs"]["Inner"]["properties"]["width"]["description"] == "of a row"
    assert classes_inside(Outer) == [Outer, Inner]


def test_the_public_names_are_exactly_these():
    assert chomp.config.__all__ == [
        "MISSING",
        "Config",
        "Difference",
        "Mark",
        "apply_overrides",
        "canonical_json",
        "config_difference",
        "config_from_mapping",
        "config_hash",
        "config_schema",
        "config_to_mapping",
        "config_to_yaml",
        "fingerprint",
        "setting",
        "unset_additions",
        "validated",
    ]
    assert all(hasattr(chomp.config, name) for name in chomp.config.__all__)
