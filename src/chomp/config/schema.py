"""The JSON schema of a config class, from which the config reference is generated."""

from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter

from chomp.config.declared import entry_types, item_type, list_member, mapping_member, sections
from chomp.config.field_comments import field_comments
from chomp.config.fields import ConfigClass, settings_of


def config_schema(cls: type[ConfigClass]) -> dict[str, Any]:
    """JSON schema (draft 2020-12) of a config class, nested classes under `$defs`.

    A class's docstring is its description, a field's comment or `doc` the field's; a setting also
    has the keywords `aliases` and `mark`. Properties carry the canonical names, so a file that uses
    an alias is right for `load_config` though not for an editor that knows only the schema.
    """
    schema = TypeAdapter(cls).json_schema()
    # Two classes of one name have longer ones there, and go without.
    inner = {each.__name__: each for each in classes_inside(cls)}
    for name, part in {cls.__name__: schema, **schema.get("$defs", {})}.items():
        comments = field_comments(inner[name]) if name in inner else {}
        for field, text in comments.items():
            part["properties"][field].setdefault("description", text)
    return schema


def classes_inside(cls: type) -> list[type]:
    """A config class and all that lie inside of it, each once, in the order of their fields."""
    found: dict[type, None] = {}

    def note(section: type) -> None:
        if section in found:
            return
        found[section] = None
        for item in settings_of(section):
            for inner in _sections_in(item.declared):
                note(inner)

    note(cls)
    return list(found)


def _sections_in(declared: Any) -> Iterator[type]:
    """The config classes that a type may hold: itself, as items of a list, or as entries."""
    yield from sections(declared)
    if (items := list_member(declared)) is not None:
        yield from _sections_in(item_type(items, 0))
    if (entries := mapping_member(declared)) is not None:
        yield from _sections_in(entry_types(entries)[1])
