"""`chomp config show`, `diff` and `schema`: configs in full, compared, and what may be in a file.

`show` and `schema` print plain YAML or JSON and nothing else, so that it can be kept as a file.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from chomp.cli.commands import ConfigDiff, ConfigSchema, ConfigShow
from chomp.cli.load_config import (
    ALIASES,
    NULL_IS_DEFAULT,
    RUN_CLASS,
    GivenConfig,
    has_field,
    launch_class,
    load_launch,
    load_module,
)
from chomp.cli.output import print_json, print_rows, say, shorten
from chomp.cli.templates import LAUNCH_FILE, known_template, load_template, template_name
from chomp.config import (
    Mark,
    config_difference,
    config_from_mapping,
    config_schema,
    config_to_mapping,
)
from chomp.config.fields import MARKS, mark_of, settings_of
from chomp.config.files import VARIABLES, to_yaml
from chomp.config.overrides import resolve_also
from chomp.config.schema import field_schema, section_schema, sections_at
from chomp.errors import require
from chomp.tracking import redacted, without_secrets
from chomp.tracking.run_files import DERIVED, TEMPLATE, resolved_config

# What the executor fills in when a run is started: a file has nothing there.
_FILLED_IN = (
    "output_path",
    "resources",
    "data.tokenizer.path",
    "data.components.*.train_store",
    "data.components.*.validation_store",
)
_MEANINGS = {
    "identity": "another run",
    "schedule": "the same run, with --allow",
    "cosmetic": "the same run",
}

Schema = dict[str, Any]
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_REFERENCE = "Reference"
# What says something about a value, and not which values there may be.
_ANNOTATIONS = ("title", "description", "default", "aliases", "also", "mark")


def show_config(asked: ConfigShow) -> int:
    """Print a config with every field; of a file with its template, so that it can be run again."""
    given = GivenConfig(
        path=asked.config, overrides=tuple(asked.overrides or ()), template=asked.template
    )
    if given.is_file:
        launch = load_launch(given)
        launch.steps()  # refuses what no run could be made of
        template = template_name(Path(launch.path).parent, beside=given.path)
        content = {"template": template, **config_to_mapping(launch.config)}
    else:
        content = _recorded_config(given)
    print(redacted(to_yaml(content)), end="")
    return 0


def show_schema(asked: ConfigSchema) -> int:
    """Print the JSON schema of YAML files for a template."""
    path = str(known_template(asked.template) / LAUNCH_FILE)
    schema = file_schema(launch_class(load_module(path), path))
    print(json.dumps(schema, indent=2, ensure_ascii=False))
    return 0


def diff_configs(asked: ConfigDiff) -> int:
    """Print the fields that differ, each with its mark; 0 whether any do or not."""
    paths = asked.before, asked.after
    # --template is for files: a run has its own. Beside one, that of a launch file is refused.
    is_yaml = [GivenConfig(path=path).kind() == "YAML file" for path in paths]
    sides = [
        GivenConfig(path=path, template=asked.template if is_file or not any(is_yaml) else None)
        for path, is_file in zip(paths, is_yaml, strict=True)
    ]
    configs, marks = [], dict[str, Mark]()
    for side in sides:
        if side.is_file:
            launch = load_launch(side)
            configs.append(launch.config)
            # A launch file may leave out the marks that a run has for its sections: to it, all
            # that it does not version is no part of a run.
            of_run = () if launch.run_class is None else settings_of(launch.run_class)
            marks |= {item.name: mark_of(item.field) for item in of_run}
        else:
            content = _recorded_config(side)
            template = load_template(Path(side.path, TEMPLATE), is_trusted=asked.trust)
            run_class = template.part(RUN_CLASS)
            configs.append(config_from_mapping(run_class, content, source=side.path))
    found = []
    for item in config_difference(*configs):
        mark = max(item.mark, marks.get(item.path.partition(".")[0], item.mark), key=MARKS.index)
        # Marks come from the configs themselves, so the values are cleaned only now.
        before, after = without_secrets(item.before), without_secrets(item.after)
        found.append(replace(item, mark=mark, before=before, after=after))
    if len({side.kind() == "run folder" for side in sides}) > 1:
        # Only what a file can have.
        patterns = [pattern for each in _FILLED_IN for pattern in (each, f"{each}.*")]
        found = [
            item for item in found if not any(fnmatchcase(item.path, each) for each in patterns)
        ]
    if asked.as_json:
        print_json([asdict(item) for item in found])
        return 0
    for name, path in zip("AB", paths, strict=True):
        say(f"{name}: {path}")
    counts = {mark: sum(item.mark == mark for item in found) for mark in _MEANINGS}
    parts = [f"{count} {mark} ({_MEANINGS[mark]})" for mark, count in counts.items() if count]
    differ = "field differs" if len(found) == 1 else "fields differ"
    say(f"{len(found)} {differ}: {', '.join(parts)}" if found else "no field differs")
    rows = [
        {
            "field": item.path,
            "A": shorten(repr(item.before)),
            "B": shorten(repr(item.after)),
            "mark": item.mark,
        }
        for item in found
    ]
    if rows:
        print_rows(rows)
    return 0


def _recorded_config(given: GivenConfig) -> dict[str, Any]:
    """The config that a run folder has, without what follows from it."""
    given.refuse_options()
    content = resolved_config(given.path)
    require(
        bool(content),
        f"{given.path}, a {given.kind()} without the config of a run",
        allowed="a YAML file, a launch file or a run folder",
        fix="pass the config or the run",
    )
    return {key: value for key, value in content.items() if key != DERIVED}


# --- the schema of YAML files -------------------------------------------------------------------


def file_schema(cls: type[Any]) -> Schema:
    """The JSON schema of YAML files that fill in a launch config.

    That of the config, and what only files have: the template, variables, aliases.
    """
    schema = config_schema(cls)
    path, _ = resolve_also(cls, tuple(NULL_IS_DEFAULT.split(".")))
    part = field_schema(schema, cls, path)
    if part is not None:
        _add_key(schema, cls, NULL_IS_DEFAULT, {"anyOf": [part, {"type": "null"}]})
    for name, (field, meanings) in ALIASES.items():
        of_field = field_schema(schema, cls, tuple(field.split(".")))
        if of_field is not None and not has_field(cls, name):
            _add_key(schema, cls, name, of_field if meanings is None else {"type": "boolean"})
    parts = {name: _with_references(part) for name, part in schema.get("$defs", {}).items()}
    schema = _with_references(schema)
    own = {"template": _TEXT_OR_NULL, VARIABLES: {"type": ["object", "null"]}}
    reference = {
        "type": "string",
        "pattern": r"^\$variables\.[\w.-]+$",
        "description": "The value of a variable, of any type.",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "properties": {**own, **schema["properties"]},
        "$defs": {**parts, _REFERENCE: reference},
    }


def _add_key(schema: Schema, cls: type[Any], name: str, part: Schema) -> None:
    """Add a key to the section that it is in, which may be one that only files have."""
    section, key = name.split(".")
    if not has_field(cls, section):
        empty = {"type": ["object", "null"], "properties": {}, "additionalProperties": False}
        schema["properties"].setdefault(section, empty)["properties"][key] = part
    for inner in sections_at(cls, (section,)):
        place = section_schema(schema, inner)
        if place is not None:
            place["properties"][key] = part


def _with_references(part: Schema) -> Schema:
    """The schema with a variable allowed instead of any value inside it."""
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


def _or_reference(part: Mapping[str, Any]) -> Schema:
    """The schema of a value or of a variable instead of it, with the annotations around both."""
    annotations = {key: part[key] for key in _ANNOTATIONS if key in part}
    allowed = {key: value for key, value in part.items() if key not in annotations}
    if not allowed:
        return dict(part)
    allowed = _with_references(allowed)
    others = allowed["anyOf"] if set(allowed) == {"anyOf"} else [allowed]
    return {**annotations, "anyOf": [*others, {"$ref": f"#/$defs/{_REFERENCE}"}]}
