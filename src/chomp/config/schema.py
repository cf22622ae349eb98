"""The JSON schema of a config class, from which the config reference is generated."""

import ast
import inspect
import io
import textwrap
import tokenize
from functools import cache
from itertools import combinations
from typing import Any

from pydantic import TypeAdapter

from chomp.config.fields import (
    KIND,
    Bounds,
    ConfigClass,
    also_names,
    fields_at,
    is_config,
    sections,
    settings_of,
    type_info,
)

Schema = dict[str, Any]


def config_schema(cls: type[ConfigClass]) -> Schema:
    """JSON schema (draft 2020-12) of the mappings that a config class takes.

    Nested classes are under `$defs`. A class's docstring is its description, a field's comment the
    field's; a setting also has the keywords `aliases` and `mark`. Aliases and names in other
    sections are properties as well. A rule between fields is not in it.
    """
    schema = TypeAdapter(cls).json_schema()
    for each in classes_inside(cls):
        part = section_schema(schema, each)
        if part is not None:
            for field, text in field_comments(each).items():
                part["properties"][field].setdefault("description", text)
            for item in settings_of(each):
                _add_bounds(part["properties"][item.name], item.bounds)
        for item in settings_of(each):
            # A section that has a default may leave out any field.
            default = None if item.is_required else item.default()
            kept = section_schema(schema, type(default)) if is_config(default) else None
            if kept is not None:
                kept.pop("required", None)
    for each in classes_inside(cls):
        _add_names(schema, each)
    return schema


def section_schema(schema: Schema, cls: type) -> Schema | None:
    """The part of a schema that is about a class; None where two classes have one name."""
    if schema.get("title") == cls.__name__:
        return schema
    # Two classes of one name have longer ones there, and go without.
    found: Schema | None = schema.get("$defs", {}).get(cls.__name__)
    return found


def field_schema(schema: Schema, cls: type, path: tuple[str, ...]) -> Schema | None:
    """What a schema of a class says about a field inside of it; None if it has no such field."""
    for owner, item in fields_at(cls, path):
        section = section_schema(schema, owner)
        return None if section is None else section["properties"][item.name]
    return None


def sections_at(cls: type, path: tuple[str, ...]) -> tuple[type, ...]:
    """The config classes that a dotted place inside of a class may hold."""
    return tuple(inner for _, item in fields_at(cls, path) for inner in sections(item.declared))


def classes_inside(cls: type) -> list[type]:
    """A config class and all config classes inside it, each once, in the order of fields."""
    found: list[type] = []

    def note(declared: Any) -> None:
        info = type_info(declared)
        for section in info.sections:
            if section not in found:
                found.append(section)
                for item in settings_of(section):
                    note(item.declared)
        for inner in (*info.item_types[:1], *(info.entry_types or ())[1:]):
            note(inner)

    note(cls)
    return found


@cache  # reading a source file again for each of its classes would be slow
def field_comments(cls: type) -> dict[str, str]:
    """What a class says about each field in comments, on one line: beside it, or right above it.

    Inherited fields keep their comments.
    """
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):  # a class without a file: made at run time, or built in
            continue
        comments: dict[int, str] = {}
        alone: set[int] = set()  # lines that are nothing but a comment
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                line = token.start[0]
                comments[line] = token.string.lstrip("# ").rstrip()
                if not token.line[: token.start[1]].strip():
                    alone.add(line)
        (body,) = ast.parse(source).body
        assert isinstance(body, ast.ClassDef), "the source of a class is a class"
        for statement in body.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                first, last = statement.lineno, statement.end_lineno or statement.lineno
                above = first
                while above - 1 in alone:
                    above -= 1
                # In between, comments are about parts of the default and not about the field.
                lines = dict.fromkeys([*range(above, first + 1), last])
                if text := " ".join(comments[x] for x in lines if x in comments):
                    found[statement.target.id] = text
    return {item.name: found[item.name] for item in settings_of(cls) if item.name in found}


def _add_bounds(part: Schema, bounds: Bounds, is_whole: bool = True) -> None:
    """Bound a number, and the numbers that a list or a mapping holds."""
    if part.get("type") in ("integer", "number"):
        words = ("exclusiveMinimum", "minimum", "exclusiveMaximum", "maximum")
        part |= {word: end for word, end in zip(words, bounds, strict=True) if end is not None}
    for member in part.get("anyOf", []):
        _add_bounds(member, bounds, is_whole)
    held = [part.get("items"), part.get("additionalProperties"), *part.get("prefixItems", [])]
    for inner in held if is_whole else ():
        if isinstance(inner, dict):
            _add_bounds(inner, bounds, is_whole=False)


def _add_names(schema: Schema, cls: type) -> None:
    """Let a class's fields be given by all of their names, and its unions by their kinds."""
    part = section_schema(schema, cls)
    for item in settings_of(cls):
        if part is not None and item.aliases:
            part["properties"] |= dict.fromkeys(item.aliases, part["properties"][item.name])
            both = combinations(item.spellings, 2)
            rules: list[Schema] = [{"not": {"required": list(pair)}} for pair in both]
            if item.name in part.get("required", []):
                part["required"].remove(item.name)
                rules.append({"anyOf": [{"required": [each]} for each in item.spellings]})
            part.setdefault("allOf", []).extend(rules)
        if len(sections(item.declared)) > 1:
            for member in sections(item.declared):
                # A default kind does not decide which of several configs a mapping is.
                chosen = section_schema(schema, member)
                if chosen is not None and KIND not in chosen.setdefault("required", []):
                    chosen["required"].append(KIND)
    for other in also_names(cls):
        field = field_schema(schema, cls, other.field)
        for section in sections_at(cls, other.section):
            place = section_schema(schema, section)
            if place is not None and field is not None:
                named = {"anyOf": [field, {"const": 0}]} if other.zero_is_null else field
                place["properties"][other.name[-1]] = named
