"""The JSON schema says what the config reference needs to say."""

import json

from config_samples import RunConfig

from chomp.config import config_schema


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
