"""The page docs/references/config.md, made from the config classes of the templates.

uv run python -m chomp.cli.config_page > docs/references/config.md
"""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from chomp.cli.earlier_data import OF_STREAM, SPECIAL_IDS, UNREAD_DEFAULTS
from chomp.cli.earlier_keys import NULL_IS_DEFAULT, OF_SOURCES, RULES, Fixed, Moved, Rule
from chomp.cli.earlier_words import taken_values
from chomp.cli.launch_files import RUN_CLASS, launch_class, loaded_module
from chomp.cli.template_folder import GRUG, LAUNCH_FILE

if TYPE_CHECKING:  # for annotations alone
    from chomp.config import Mark
    from chomp.config.fields import Setting

_FIRST = "base"  # whose sections stand for those of all: templates differ in their models
_MODEL = "model"
_MOST_DEFAULT = 60  # characters

_INTRODUCTION = """# Config

Made from the config classes by `python -m chomp.cli.config_page`; do not edit by hand.
`chomp config schema` prints the same as a JSON schema, `chomp config show CONFIG` what a file comes
to.

- A YAML file says which template it configures (`template: base`, or a folder; `megalodon` where it
  says nothing) and fills in the config of that template's launch file. `-o key=value` after a
  command changes single fields. Unknown keys are refused at every depth, with the nearest one.
- A file changes only the fields that it names, at every depth: the others are as the launch file
  has them. Defaults below are those of the launch file; another `kind` of a section starts from the
  defaults of that kind. Entries of a mapping (`data.components`) and items of a list are exactly
  those that the file has. After `-o`, a mapping replaces a section as a whole.
- `variables: {width: 256}` may stand at the top: `$variables.width` is the value itself, and
  `"{$variables.width}"` or `"${variables.width}"` its text inside of other text.
- The mark says what a change means for a run that is continued. *identity*: it is another run.
  *schedule*: the same run, if it is told so (`--allow optim.lr`). *cosmetic*: nothing.
- Other names work in files and after `-o`; what a run writes down has the field's own name.
- A text under a key that is a secret by its name (`hf_token`, `api_key`) is refused, in `variables`
  too: runs keep their files. Secrets belong in the environment.
"""
_EARLIER = """## Keys of the first chomp

Files of the first chomp can be read: most of their keys are fields above, or other names of them.
These are taken for another field, or refused with what is said here. Defaults of the first chomp
that change nothing here are let through, so that a file may have them written out.

| key | here |
|---|---|"""
# Keys of which a value is let through for what else the file says.
_WHERE = {
    "data.tokenizer.add_eos": "it is `false` with `kind: byte`",
    "data.tokenizer.add_bos": "it is `true` with `kind: hf` and the token is known: `bos_token` of "
    "the tokenizer's folder, or `model.bos_token_id` with `auto_set_special_tokens: false`",
    "data.tokenizer.auto_set_special_tokens": "it is `false` with `kind: hf`: then the ids are "
    "`model.eos_token_id` and, with `add_bos: true`, `model.bos_token_id`",
}
_PYTHON_WORDS = {"None": "null", "True": "true", "False": "false"}


class _Template(NamedTuple):
    """The classes of one template: of its launch file, and of a run, whose marks count."""

    launch: type
    run: type | None


class _Section(NamedTuple):
    """One table of the page: a config class at its place."""

    title: str
    cls: type
    mark: Mark
    default: Any  # what the launch file has there; None: nothing, or one of another class


def config_page(root: Path = Path()) -> str:
    """The whole page, for the templates of a checkout."""
    files = sorted((root / GRUG).glob(f"*/{LAUNCH_FILE}"))
    templates = {path.parent.name: _template(str(path)) for path in files}
    parts = [_INTRODUCTION, *_tables(templates[_FIRST], _FIRST)]
    for name, template in templates.items():
        if name != _FIRST:
            parts += [
                table for table in _tables(template, name) if table.startswith(f"## {_MODEL}")
            ]
    return "\n".join([*parts, _earlier_keys()])


def _template(path: str) -> _Template:
    module = loaded_module(path)
    return _Template(launch_class(module, path), getattr(module, RUN_CLASS, None))


def _tables(template: _Template, name: str) -> Iterator[str]:
    """Every table of a template, under its heading."""
    from chomp.config.fields import mark_of, settings_of

    of_run = (
        {}
        if template.run is None
        else {item.name: mark_of(item.field) for item in settings_of(template.run)}
    )
    for section in _sections(template.launch, "", "identity"):
        marks = of_run if section.cls is template.launch else {}
        model = section.title == _MODEL or section.title.startswith(f"{_MODEL}.")
        title = f"{section.title}, of {name}" if model else section.title
        yield _table(section._replace(title=title), marks)


def _earlier_keys() -> str:
    lines = [_EARLIER]
    lines += [f"| `{name}` | {_told(rule)}{_let_through(name)} |" for name, rule in RULES.items()]
    lines += [f"| `{name}` | `{use}`{_let_through(name)} |" for name, use in OF_SOURCES.items()]
    lines += [
        f"| `{name}` | the field of that name; `null` is its default |" for name in NULL_IS_DEFAULT
    ]
    return "\n".join([*lines, ""])


def _told(rule: Rule) -> str:
    if isinstance(rule, Moved):
        values = (rule.values or {}).items()
        return f"`{rule.to}`" + "".join(f", {_code(value)} is `{meant}`" for value, meant in values)
    taken = " or ".join(map(_code, taken_values(rule)))
    if isinstance(rule, Fixed):
        return f"only {taken}: {rule.here}; {rule.use}"
    return f"refused{f', but for {taken}' if taken else ''}: {rule.here}; {rule.use}"


def _let_through(name: str) -> str:
    """What else decides whether a value is let through, or what it is."""
    key = name.rpartition(".")[2]
    if key == "vocab_size_multiple":
        return ", which is rounded up to a multiple of it, and so that it holds the tokenizer's ids"
    if name in _WHERE:
        return f"; let through where {_WHERE[name]}"
    if name.startswith("data.") and key in OF_STREAM:
        return f"; with `backend: hf` it is `data.components.text.stream.{OF_STREAM[key]}`"
    if key in SPECIAL_IDS:
        other = " and `add_bos: true`" if key == "bos_token_id" else ""
        return (
            f" with `auto_set_special_tokens: false`{other}; else the tokenizer's own token "
            f"counts, and only {_code(SPECIAL_IDS[key])} is let through with `kind: byte` or `bpe`"
        )
    if key in UNREAD_DEFAULTS:
        values = " or ".join(map(_code, UNREAD_DEFAULTS[key]))
        return f"; {values} is let through where nothing reads it"
    return ""


def _code(value: Any) -> str:
    return f"`{json.dumps(value)}`"


def _sections(cls: type, place: str, mark: Mark, default: Any = None) -> Iterator[_Section]:
    """The tables of a class and of all below it, in the order of the fields."""
    from chomp.config.fields import MARKS, mark_of, sections, settings_of

    yield _Section(place or "The top level", cls, mark, default)
    for item in settings_of(cls):
        inner = max(mark, mark_of(item.field), key=MARKS.index)
        for suffix, declared in _held(item.declared):
            found = sections(declared)
            for section in found:
                title = f"{place}.{_name(item)}{suffix}".lstrip(".") + _kind(section, found)
                has = None if suffix else _value(item, default)
                yield from _sections(section, title, inner, has if type(has) is section else None)


def _held(declared: Any) -> Iterator[tuple[str, Any]]:
    """A type itself, the items of its list and the entries of its mapping, each with its place."""
    from chomp.config.fields import entry_types, item_type, list_member, mapping_member

    yield "", declared
    if (items := list_member(declared)) is not None:
        yield ".0", item_type(items, 0)
    if (entries := mapping_member(declared)) is not None:
        yield ".NAME", entry_types(entries)[1]


def _kind(section: type, among: tuple[type, ...]) -> str:
    """Which of several configs a section is."""
    from chomp.config.fields import kinds_of

    return f" (kind: {kinds_of(section)[0]})" if len(among) > 1 else ""


def _table(section: _Section, marks: Mapping[str, Mark]) -> str:
    """A class as a table; `marks` go before those of its own fields."""
    from chomp.config.fields import MARKS, mark_of, settings_of
    from chomp.config.schema import field_comments

    comments = field_comments(section.cls)
    lines = [
        _line(
            item,
            section.default,
            max(section.mark, marks.get(item.name, mark_of(item.field)), key=MARKS.index),
            comments.get(item.name, ""),
        )
        for item in settings_of(section.cls)
    ]
    head = ["| key | type | default | mark | other names | meaning |", "|---|---|---|---|---|---|"]
    about = " ".join((section.cls.__doc__ or "").split())
    return "\n".join([f"## {section.title}", "", about, "", *head, *lines, ""])


def _line(item: Setting, around: Any, mark: Mark, comment: str) -> str:
    others = [name for name in item.spellings if name != _name(item)] + list(item.also)
    cells = [
        f"`{_name(item)}`",
        ", ".join(filter(None, (_type(item.declared), str(item.bounds)))),
        _default(item, around),
        mark,
        ", ".join(f"`{name}`" for name in others) or "-",
        _as_yaml(comment) or "-",
    ]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _as_yaml(comment: str) -> str:
    """A comment with the words of YAML for those of Python, which it was written beside."""
    return re.sub(r"\b(None|True|False)\b", lambda word: _PYTHON_WORDS[word[1]], comment)


def _name(item: Setting) -> str:
    """A field as YAML files write it: a section by its alias, if it has one (`train`, `optim`)."""
    from chomp.config.fields import sections

    return item.aliases[0] if item.aliases and sections(item.declared) else item.name


def _type(declared: Any) -> str:
    from chomp.config.fields import allows_none, members, sections
    from chomp.config.messages import describe_type

    if sections(declared):
        others = [part for part in members(declared) if part not in sections(declared)]
        words = ["a section", *map(describe_type, others), *["null"] * allows_none(declared)]
        return " or ".join(words)
    for place, inner in _held(declared):
        if place and sections(inner):
            return "a section for each " + ("item of a list" if place == ".0" else "name")
    return describe_type(declared)


def _default(item: Setting, around: Any) -> str:
    """What a file gets that leaves a field out; `around` is what the launch file has around it."""
    from chomp.config.fields import sections
    from chomp.config.parse import plain_value

    if item.is_required and around is None:
        return "required"
    value = _value(item, around)
    if sections(item.declared) and value is not None:
        return "its own"
    made = plain_value(value)
    if around is None and callable(item.field.default_factory) and made not in ({}, []):
        return "made at the start"  # what a function makes may follow from the environment
    text = json.dumps(made, ensure_ascii=False)
    if len(text) > _MOST_DEFAULT:
        return "its own" if isinstance(made, dict | list) else f"`{text[:_MOST_DEFAULT]}…`"
    return f"`{text}`"


def _value(item: Setting, around: Any) -> Any:
    """What a field has where a file leaves it out."""
    if around is not None:
        return getattr(around, item.name)
    return None if item.is_required else item.default()


if __name__ == "__main__":
    print(config_page(), end="")
