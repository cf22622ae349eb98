"""`chomp config schema`: what a YAML file for `chomp train` may hold, as a JSON schema.

The schema of a template's launch config, and around it what only files have: the name of the
template, variables, and keys of the first chomp.
"""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from chomp.cli.earlier_keys import NULL_IS_DEFAULT, ONLY_EARLIER, RULES, Moved, Rule
from chomp.cli.earlier_words import has_field, taken_values

Schema = dict[str, Any]

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE = "Reference"
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_NULL: Schema = {"type": "null"}
# Keys that are read together with others, which decide what they mean and whether they are taken.
_READ_TOGETHER: dict[str, Schema] = {
    "data.backend": {"enum": ["hf", "local_text"]},
    "data.hf_dataset": {"type": "string"},
    "data.hf_name": _TEXT_OR_NULL,
    "data.hf_split": {"type": "string"},
    "data.text_key": {"type": "string"},
    "data.local_text": _TEXT_OR_NULL,
    "data.shuffle_buffer_size": {"type": "integer"},
    "data.max_retries": {"type": "integer"},
    "data.retry_delay_sec": {"type": "number"},
    "data.max_eval_samples": {"type": "integer"},
    "data.tokenizer.hf_name_or_path": _TEXT_OR_NULL,
    "data.tokenizer.vocab_size_multiple": {"type": ["integer", "null"], "minimum": 1},
    "data.tokenizer.add_eos": {"type": "boolean"},
    "data.tokenizer.add_bos": {"type": "boolean"},
    "data.tokenizer.auto_set_special_tokens": {"type": "boolean"},
    "model.bos_token_id": {"type": ["integer", "null"]},
    "model.eos_token_id": {"type": ["integer", "null"]},
    "model.param_dtype": _TEXT_OR_NULL,
    "model.compute_dtype": _TEXT_OR_NULL,
    "logging.run_dir": _TEXT_OR_NULL,
}
# What says something about a value, and not which values there may be.
_ANNOTATIONS = ("title", "description", "default", "aliases", "also", "mark")


def file_schema(cls: type[Any]) -> Schema:
    """The schema of YAML files that fill in a launch config."""
    from chomp.config import config_schema
    from chomp.config.variables import SECTION

    schema = config_schema(cls)
    for name, part in list(_earlier_keys(schema, cls)):
        _put(schema, cls, name, part)
    sections = {name: _with_references(part) for name, part in schema.get("$defs", {}).items()}
    schema = _with_references(schema)
    own = {"template": _TEXT_OR_NULL, SECTION: {"type": ["object", "null"]}}
    return {
        "$schema": _DRAFT,
        **schema,
        "properties": {**own, **schema["properties"]},
        "$defs": {**sections, _REFERENCE: _reference()},
    }


def _earlier_keys(schema: Schema, cls: type[Any]) -> Iterator[tuple[str, Schema]]:
    """The keys of the first chomp that a file may have and the template has not."""
    from chomp.config.names import resolve_also
    from chomp.config.schema import field_schema

    for name in {**RULES, **_READ_TOGETHER}:
        if has_field(cls, name):
            continue
        part = _READ_TOGETHER.get(name)
        if part is None:
            part = _of_rule(RULES[name], schema, cls)
        if part is not None:
            yield name, part
    more = {name: _NULL for name in NULL_IS_DEFAULT} | {"data.tokenizer.kind": {"const": "hf"}}
    for name, part in more.items():
        found = field_schema(schema, cls, resolve_also(cls, _parts(name))[0])
        if found is not None:
            yield name, {"anyOf": [found, part]}


def _of_rule(rule: Rule, schema: Schema, cls: type[Any]) -> Schema | None:
    """What a key may hold by its rule; None: nothing."""
    from chomp.config.schema import field_schema

    if not isinstance(rule, Moved):
        values = taken_values(rule)
        return {"enum": list(values)} if values else None
    meant = {"type": "boolean"} if rule.values else field_schema(schema, cls, _parts(rule.to))
    if meant is None:
        return None
    return {"anyOf": [meant, _NULL]} if rule.is_null_left_out else meant


def _put(schema: Schema, cls: type[Any], name: str, part: Schema) -> None:
    """Add a key to the section that it is in, which may be one that only files have."""
    from chomp.config.schema import section_schema, sections_at

    *path, key = _parts(name)
    if path == [ONLY_EARLIER] and not has_field(cls, ONLY_EARLIER):
        empty = {"type": ["object", "null"], "properties": {}, "additionalProperties": False}
        schema["properties"].setdefault(ONLY_EARLIER, empty)["properties"][key] = part
    for section in sections_at(cls, tuple(path)):
        place = section_schema(schema, section)
        if place is not None:
            place["properties"][key] = part


def _or_reference(part: Schema) -> Schema:
    """A value or a variable in its place, with what is said about it around both."""
    said = {key: part[key] for key in _ANNOTATIONS if key in part}
    allowed = {key: value for key, value in part.items() if key not in said}
    if not allowed:
        return part
    allowed = _with_references(allowed)
    others = allowed["anyOf"] if set(allowed) == {"anyOf"} else [allowed]
    return {**said, "anyOf": [*others, {"$ref": f"#/$defs/{_REFERENCE}"}]}


def _with_references(part: Schema) -> Schema:
    """The same, with a variable allowed in the place of anything inside of it."""
    made = dict(part)
    if "properties" in made:
        made["properties"] = {key: _or_reference(each) for key, each in part["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(made.get(key), dict):
            made[key] = _or_reference(part[key])
    for key, change in (("prefixItems", _or_reference), ("anyOf", _with_references)):
        if key in made:
            made[key] = [change(each) for each in part[key]]
    return made


def _reference() -> Schema:
    return {
        "type": "string",
        "pattern": r"^\$variables\.[\w.-]+$",
        "description": "The value of a variable, of any type.",
    }


def _parts(name: str) -> tuple[str, ...]:
    return tuple(name.split("."))
