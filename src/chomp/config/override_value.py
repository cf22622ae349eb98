"""What the text after the `=` of an override means, given the declared type of its field."""

from collections.abc import Mapping
from typing import Any

from chomp.config.declared import is_text
from chomp.config.paths import KeyPath, dotted
from chomp.config.shaping import Shaping
from chomp.config.words import allowed_values
from chomp.config.yaml_text import parsed_override
from chomp.errors import ConfigError


def override_value(
    text: str,
    declared: Any,
    at: KeyPath,
    written: KeyPath,
    names_around: Mapping[KeyPath, list[str]],
) -> Any:
    """The value as plain data with canonical names and defaults filled in.

    Text fields take the text itself, less a pair of quotes around all of it; for all others it is
    YAML. Only the problems a walk can see are raised here; types are checked with the whole config.
    `at` is the field's own path, `written` that of the override. `names_around`: see `Shaping`.
    """
    if is_text(declared):
        value = _text_or_null(text)
    elif text:
        value = parsed_override(text, source="the value")
    else:
        # As from an unset shell variable; YAML would read null.
        raise ConfigError(
            f"{dotted(written)} is given no value",
            allowed=allowed_values(declared),
            fix="write the value after '='",
        )
    shaping = Shaping(names_around)
    shaped = shaping.shaped(declared, value, at, written)
    if shaping.problems:
        errors = list(shaping.problems.values())
        raise errors[0] if len(errors) == 1 else ConfigError(" ".join(map(str, errors)))
    return shaped


def _text_or_null(text: str) -> Any:
    """The text for a text field. A `null` is null even where that is refused: it is never meant
    as the word, and a run called "null" would be found out too late."""
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    if is_quoted:
        return parsed_override(text, source="the value")
    return None if text == "null" else text
