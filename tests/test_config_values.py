"""Every field of every config class, given values that cannot be right: refused, with fields."""

from pathlib import Path
from typing import Any

import pytest

from chomp.cli.load_config import launch_class, load_module
from chomp.config import config_from_mapping
from chomp.config.fields import Setting, sections, settings_of, type_info
from chomp.config.schema import classes_inside
from chomp.errors import ConfigError

ROOT = Path(__file__).parents[1]
BLANK: list[Any] = ["", " ", [], {}, [[]], [""], {"": 0}, {"a": -1}]
WRONG: list[Any] = [-1, 2**70, 1e30, -1e30, True, *BLANK]
# What a class needs besides the field in question.
NEEDED: dict[str, dict[str, Any]] = {
    "GrugModelConfig": {"vocab_size": 512},
    "TextSource": {"paths": ["a.txt"]},
    "JsonlSource": {"paths": ["a.jsonl"]},
    "ParquetSource": {"paths": ["a.parquet"]},
    "ArraysSource": {"paths": ["a.npy"]},
    "HuggingFaceSource": {"path": "a/b"},
    "MemorySource": {"documents": ["a"]},
    "MixtureStage": {"start_step": 0, "weights": {"a": 1}},
    "HarnessConfig": {"tasks": ["a"], "include_defaults": True},
    "KeepPolicy": {"every": 1},
}
# Values above that mean something after all.
RIGHT: dict[str, tuple[Any, ...]] = {
    "GrugModelConfig.output_size": (-1,),  # one logit for each id
    "GrugOptimizerConfig.grad_clip_norm": (1e30, 2**70),  # so large a norm is no limit
    "ChatFormat.turn_end": ("", " "),
    "MemorySource.documents": ([""],),  # an empty document
    "MixtureStage.weights": ({}, {"": 0}),  # compared with the components where these are known
    "LmDataConfig.components": ({},),  # filled in by a launch file
    "LmDataConfig.validation": ({},),  # no set of one's own
    "Resources.custom": ({},),
}


def fields() -> dict[str, tuple[type, Setting]]:
    """Every field of every class in the launch configs of the templates."""
    found: dict[str, tuple[type, Setting]] = {}
    for path in sorted((ROOT / "experiments/grug").glob("*/launch.py")):
        launch = launch_class(load_module(str(path)), str(path))
        for cls in classes_inside(launch):
            if cls is not launch:  # its own fields are a name, a path and sections
                found |= {
                    f"{cls.__module__}.{cls.__name__}.{each.name}": (cls, each)
                    for each in settings_of(cls)
                }
    return found


def is_right(item: Setting, value: Any) -> bool:
    """Whether a value fits what the field is for."""
    if value is True:
        return bool in (type_info(item.declared).scalars or ())
    # No file and no task is nothing to read or to do: right only where it is the default.
    return value == [] and not item.is_required and item.default() == ()


FIELDS = fields()


@pytest.mark.parametrize("place", FIELDS)
def test_a_value_that_cannot_be_right_is_refused_with_what_is_allowed(place: str):
    cls, item = FIELDS[place]
    name = f"{cls.__name__}.{item.name}"
    accepted = []
    values = [value for value in WRONG if value != {} or not sections(item.declared)]
    for value in values:
        try:
            config_from_mapping(cls, {**NEEDED.get(cls.__name__, {}), item.name: value})
        except ConfigError as error:
            for problem in error.problems or (error,):
                assert problem.given, value
                assert problem.allowed, value
                assert problem.fix, value
        else:
            accepted.append(value)
    right = [value for value in values if is_right(item, value)] + list(RIGHT.get(name, ()))
    assert {*map(repr, accepted)} == {*map(repr, right)}  # True is no 1
