"""The JSON schema of a config class, from which the config reference is generated."""

from typing import Any

from pydantic import TypeAdapter

from chomp.config.fields import ConfigClass


def config_schema(cls: type[ConfigClass]) -> dict[str, Any]:
    """JSON schema (draft 2020-12) of a config class, nested classes under `$defs`.

    A class's docstring and a setting's `doc` are descriptions; a setting also has the keywords
    `aliases` and `mark`. Properties carry the canonical names, so a file that uses an alias is
    right for `load_config` though not for an editor that knows only the schema.
    """
    return TypeAdapter(cls).json_schema()
