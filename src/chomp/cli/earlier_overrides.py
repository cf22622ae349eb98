"""Overrides of keys of the first chomp, which mean what the same keys mean in a file."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from chomp.cli.earlier_keys import NULL_IS_DEFAULT, OF_SOURCES, ONLY_EARLIER, RULES, Moved
from chomp.cli.earlier_words import has_field, is_taken, refusal, unknown_earlier, written
from chomp.errors import ConfigError, message

if TYPE_CHECKING:  # for annotations alone
    from chomp.config.names import AlsoName

_NULLS = ("null", "~", "")
# What a file has beside the config of its template, and what to do in the place of an override.
OF_FILES = {
    "template": "use --template NAME",
    "variables": "change the fields that are made from it, or the file",
}


def own_override(config: Any, text: str) -> str | None:
    """An override as the config that it changes spells it; None: it says what is done anyway.

    Raises `ConfigError` for a key that was replaced.
    """
    from chomp.config.files import parse_yaml
    from chomp.config.names import resolve_also, split_override

    split = split_override(text)
    if split is None:
        return text  # refused where overrides are applied
    cls = type(config)
    parts, value = split
    path, by = resolve_also(cls, parts)
    if _lacks_section(config, path, by):
        if value in ("0", *_NULLS):
            return None
        # Whether anything is held out is judged once all overrides are applied.
        return f"{'.'.join(map(str, path[:-1]))}={{{path[-1]}: {value}}}"
    first = _canonical(cls, parts[0])
    name = ".".join([first, *parts[1:]])
    if name in NULL_IS_DEFAULT and value in _NULLS:
        return _default_override(cls, parts)
    if has_field(cls, name):
        return text
    rule = RULES.get(name)
    if rule is None:
        _refuse_of_file(cls, text, name, parts)
        return text
    if isinstance(rule, Moved) and rule.values is None:
        return _placed(config, rule, value)  # its own type says what the text means
    meant = parse_yaml(value, source="the value")
    if isinstance(rule, Moved):
        values = rule.values or {}
        return f"{rule.to}={values[meant] if isinstance(meant, bool) else value}"
    if is_taken(rule, meant):
        return None
    raise ConfigError(f"override: {text!r}: {refusal(name, rule, meant)}")


def _refuse_of_file(cls: type, text: str, name: str, parts: Sequence[str]) -> None:
    """Raise for a key that only a file may have, and for one that nothing has."""
    from chomp.config.fields import dotted

    told = None
    if name in OF_SOURCES:
        told = message(
            given=f"{dotted(parts)}, which a YAML file may have",
            allowed="fields of the template's config",
            fix=f"use {OF_SOURCES[name]}",
        )
    elif parts[0] in OF_FILES and not has_field(cls, parts[0]):
        told = message(
            given=f"{dotted(parts)}, which only a YAML file has",
            allowed="fields of the template's config",
            fix=OF_FILES[parts[0]],
        )
    elif parts[0] == ONLY_EARLIER and not has_field(cls, ONLY_EARLIER):
        told = unknown_earlier(name)
    if told is not None:
        raise ConfigError(f"override: {text!r}: {told}")


def _default_override(cls: type, parts: tuple[str, ...]) -> str | None:
    """An override with the default of its field in the place of null; None: there is no field."""
    from chomp.config.fields import Setting, sections, settings_by_spelling
    from chomp.config.names import resolve_also

    path, _ = resolve_also(cls, parts)
    classes: tuple[type, ...] = (cls,)
    items: list[Setting] = []
    for part in path:
        known = [settings_by_spelling(each).get(part) for each in classes]
        items = [item for item in known if item is not None]
        classes = tuple(inner for item in items for inner in sections(item.declared))
    if not items:
        return None
    return f"{'.'.join(parts)}={written(items[0].default())}"


def _lacks_section(config: Any, path: Sequence[str], by: AlsoName | None) -> bool:
    """Whether a path is that of a period in a section that is not there: `train.eval_every`."""
    return by is not None and by.zero_is_null and _at(config, path[:-1]) is None


def _placed(config: Any, rule: Moved, value: str) -> str | None:
    """An override of the field that a key moved to, with its section where the config has none."""
    section, _, key = rule.to.rpartition(".")
    if _at(config, section.split(".")) is not None:
        return f"{rule.to}={value}"
    if value in _NULLS and rule.is_null_left_out:
        return None
    return f"{section}={{{key}: {value}}}"


def _at(config: Any, path: Sequence[str]) -> Any:
    """What is at a path inside of a config; None where there is nothing."""
    from chomp.config.fields import settings_by_spelling

    here = config
    for part in path:
        cls: type = type(here)
        item = None if here is None else settings_by_spelling(cls).get(part)
        here = None if item is None else getattr(here, item.name)
    return here


def _canonical(cls: type, section: str) -> str:
    """A section as the tables name it: `train` and `optim`, however the config spells them."""
    from chomp.config.fields import settings_by_spelling

    item = settings_by_spelling(cls).get(section)
    known = {name.partition(".")[0] for name in RULES}
    spellings: Iterable[str] = () if item is None else item.spellings
    return next((name for name in spellings if name in known), section)
