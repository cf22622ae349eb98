"""The schema of YAML files takes what `chomp train` takes, key by key, and nothing else."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from chomp.cli.config import file_schema
from chomp.config.files import parse_yaml
from experiments.grug.array_stacked.launch import GrugArrayStackedLaunchConfig
from experiments.grug.base.launch import GrugBaseLaunchConfig
from experiments.grug.megalodon.launch import GrugMegalodonLaunchConfig
from experiments.grug.moe.launch import GrugMoeLaunchConfig
from tests.cli.test_legacy_keys import HINTS, TAKEN, merged

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
CLASSES = {
    "array_stacked": GrugArrayStackedLaunchConfig,
    "base": GrugBaseLaunchConfig,
    "megalodon": GrugMegalodonLaunchConfig,
    "moe": GrugMoeLaunchConfig,
}


@pytest.fixture(scope="module")
def schemas() -> dict[str, jsonschema.Draft202012Validator]:
    made = {name: file_schema(cls) for name, cls in CLASSES.items()}
    for schema in made.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    return {name: jsonschema.Draft202012Validator(schema) for name, schema in made.items()}


def complaints(schemas: Any, content: Any, template: str = "base") -> list[str]:
    found = schemas[template].iter_errors(content)
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in found]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_shipped_configs_are_right_by_it(schemas, path: Path):
    content = parse_yaml(path.read_text(), source=str(path))
    assert complaints(schemas, content, content["template"]) == []


@pytest.mark.parametrize("key", TAKEN)
def test_a_key_that_a_file_may_have_is_in_it(schemas, key: str):
    value, _, _, around = TAKEN[key]
    assert complaints(schemas, merged(key, value, around)) == []


@pytest.mark.parametrize("key", HINTS)
def test_a_key_of_the_first_chomp_is_not_in_it(schemas, key: str):
    assert complaints(schemas, merged(key, None, {}))


@pytest.mark.parametrize(
    "content",
    [
        {"trian": {}},
        {"train": {"stepz": 3}},
        {"train": {"steps": "many"}},
        {"optim": {"lr": "3e-3"}},
        {"train": {"steps": 3}, "trainer": {"steps": 3}},
        {"optim": {"muon": {"ns_stepz": 3}}},
        {"data": {"components": {"a": {"source": {"part": "code"}}}}},  # of no kind
        {"data": {"components": {"a": {"source": {"kind": "embeded"}}}}},
        {"data": {"tokenizer": {"kind": "hff"}}},
        {"debug": {"nan_chek": True}},
        {"data": {"components": {"a": {"source": {"kind": "text"}}}}},  # without paths
        {"template": 3},
        {"variables": [1]},
        {"train": {"steps": "$variable.n"}},
        {"train": {"steps": "${variables.n}"}},  # text, and no number
        [],
    ],
    ids=str,
)
def test_what_a_file_may_not_have_is_not_in_it(schemas, content: Any):
    assert complaints(schemas, content)


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"template": None, "variables": None, "debug": None},
        {"model": "$variables.model", "train": {"batch_size": [[0, 8], ["$variables.at", 16]]}},
        {"data": {"tokenizer": "$variables.a.b"}, "variables": {"a": {"b": 1}}},
        {"data": {"components": {"a": "$variables.a"}}},
        {"debug": {"nan_check": "$variables.check"}},
        {"logging": {"wandb": {"tags": ["$variables.tag"]}}},
    ],
    ids=str,
)
def test_a_variable_may_stand_for_anything(schemas, content: Any):
    assert complaints(schemas, content) == []


def test_a_config_without_sections_has_a_schema_too():
    @dataclass(frozen=True, kw_only=True)
    class FlatLaunchConfig:
        width: int = 3

    validator = jsonschema.Draft202012Validator(file_schema(FlatLaunchConfig))
    assert list(validator.iter_errors({"template": "mine", "width": "$variables.width"})) == []
    assert list(validator.iter_errors({"width": "wide"}))
