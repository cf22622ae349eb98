"""What the rules about keys of the first chomp mean for a value, and what is said of others."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

from typing import Any

from chomp.cli.earlier_keys import ONLY_EARLIER, RULES, Fixed, Replaced
from chomp.errors import message


def is_taken(rule: Fixed | Replaced, value: Any) -> bool:
    """Whether a value changes nothing here; true is not 1, as it is to Python."""
    return any(
        isinstance(value, bool) == isinstance(each, bool) and value == each
        for each in taken_values(rule)
    )


def taken_values(rule: Fixed | Replaced) -> tuple[Any, ...]:
    """The values of a key that change nothing here; none: it is always refused."""
    return (*([rule.value] if isinstance(rule, Fixed) else []), *rule.harmless)


def refusal(name: str, rule: Fixed | Replaced, value: Any) -> str:
    """The message for a key that is not taken with this value."""
    if isinstance(rule, Replaced):
        fine = f" but {' or '.join(map(written, rule.harmless))}" if rule.harmless else ""
        return message(
            given=f"{name} is no key here",
            allowed=f"nothing{fine}, since {rule.here}",
            fix=rule.use,
        )
    return message(
        given=f"{name}={written(value)}",
        allowed=f"{written(rule.value)}, since {rule.here}",
        fix=rule.use,
    )


def unknown_earlier(name: str) -> str:
    """The message for a key of a section that only the first chomp has."""
    from chomp.config.messages import did_you_mean, nearest

    known = [key for key in RULES if key.startswith(f"{ONLY_EARLIER}.")]
    near = nearest(name, known)
    return message(
        given=f"{name} is not a known key{did_you_mean(near)}",
        allowed=f"the keys of {ONLY_EARLIER}: {', '.join(known)}",
        fix=f"rename it to {near}" if near else "remove it",
    )


def written(value: Any) -> str:
    """A value as YAML writes it."""
    from chomp.config.files import to_yaml

    return to_yaml(value).partition("\n")[0]


def has_field(cls: type, name: str) -> bool:
    """Whether a config class has a field by a dotted name, in any spelling."""
    from chomp.config.fields import sections, settings_by_spelling

    classes: tuple[type, ...] = (cls,)
    for part in name.split("."):
        items = [settings_by_spelling(each).get(part) for each in classes]
        found = [item for item in items if item is not None]
        if not found:
            return False
        classes = tuple(inner for item in found for inner in sections(item.declared))
    return True
