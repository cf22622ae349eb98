"""Mappings to configs and back: the gate every config passes, whatever text it came from.

The input is shaped (canonical names, defaults, spelled numbers), then pydantic's `TypeAdapter` over
the plain dataclass checks it strictly as JSON and builds the instances, running each class's own
`__post_init__`. Going through JSON is what makes strictness usable: lists fill tuples and text
fills enums and paths, while nothing else is converted.
"""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from chomp.config.fields import ConfigClass
from chomp.config.messages import note_complaints, raise_problems
from chomp.config.paths import KeyPath
from chomp.config.plain import plain_value
from chomp.config.shaping import Shaping

C = TypeVar("C", bound=ConfigClass)


def config_from_mapping(
    cls: type[C],
    mapping: Mapping[str, Any],
    *,
    source: str = "config",
    written: Mapping[KeyPath, KeyPath] | None = None,
) -> C:
    """The config a mapping describes; defaults where it is silent, and checked like the rest.

    A section given in part has, for the fields it leaves out, what it has if it is left out whole;
    with another `kind`, the defaults of its class. Mappings with free keys are taken as given.
    Values may be plain data, tuples, enums, paths or configs. Raises one `ConfigError`, headed by
    `source`, that lists every problem with its dotted path; `written` has the paths that messages
    spell another way than the mapping.
    """
    return _parsed(cls, mapping, source, written)


def validated(config: C) -> C:
    """An equal config with every field at every depth checked against its declared type.

    For configs built in Python, where a dataclass takes anything. Numbers are brought to their
    declared type (1 becomes 1.0 in a float field).
    """
    return _parsed(type(config), config, type(config).__name__)


def config_to_mapping(config: ConfigClass) -> dict[str, Any]:
    """The config as fresh plain data for JSON: field names, lists for tuples, values for enums."""
    mapping: dict[str, Any] = plain_value(config)
    return mapping


def _parsed(
    cls: type[C], value: Any, source: str, written: Mapping[KeyPath, KeyPath] | None = None
) -> C:
    shaping = Shaping(written=written)
    text = json.dumps(shaping.shaped(cls, value))
    # pydantic runs even when the walk found problems, so that one message lists them all.
    try:
        config: C | None = _adapter(cls).validate_json(text, strict=True)
    except ValidationError as error:
        note_complaints(error, shaping)
        # The message says all that pydantic knew; its own would only repeat that above ours.
        config = None
    raise_problems(source, shaping.problems)
    assert config is not None, "pydantic refused the config, and none of its complaints was noted"
    return config


@cache
def _adapter(cls: type[Any]) -> TypeAdapter[Any]:
    """The validator of a config class, built once: building costs milliseconds."""
    return TypeAdapter(cls)
