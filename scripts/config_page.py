"""Print docs/references/config.md, made from the config classes of the templates.

uv run python scripts/config_page.py > docs/references/config.md
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from chomp.cli.legacy_keys import HINTS
from chomp.cli.load_config import ALIASES, RUN_CLASS, launch_class, load_module
from chomp.cli.templates import GRUG, LAUNCH_FILE
from chomp.config import Mark
from chomp.config.fields import (
    MARKS,
    Setting,
    kinds_of,
    mark_of,
    sections,
    settings_of,
    type_info,
)
from chomp.config.messages import describe_type
from chomp.config.parse import plain_value
from chomp.config.schema import field_comments

_FIRST = "base"  # whose sections stand for those of all: templates differ in their models
_MODEL = "model"
_MAX_DEFAULT_CHARACTERS = 60

_INTRODUCTION = """# Config

Made from the config classes by `python scripts/config_page.py`; do not edit by hand.
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
  *schedule*: the same run, if `--allow optim.lr` names the field. *cosmetic*: nothing.
- Other names work in files and after `-o`; what a run writes down has the field's own name.
- A text under a key that is a secret by its name (`hf_token`, `api_key`) is refused, in `variables`
  too: runs keep their files. Secrets belong in the environment.
"""
_LEGACY = """## Keys of the first chomp

Three keys of its files are other names here: {aliases}. Other keys that are
no fields above are refused with the hint below; `scripts/convert_chomp_yaml.py OLD > NEW` converts
a file.

| key | instead |
|---|---|"""
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
    return "\n".join([*parts, _legacy_keys()])


def _template(path: str) -> _Template:
    module = load_module(path)
    return _Template(launch_class(module, path), getattr(module, RUN_CLASS, None))


def _tables(template: _Template, name: str) -> Iterator[str]:
    """Every table of a template, under its heading."""
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


def _legacy_keys() -> str:
    aliases = ", ".join(f"`{name}` is `{field}`" for name, (field, _) in ALIASES.items())
    lines = [f"| `{name}` | {hint} |" for name, hint in HINTS.items()]
    return "\n".join([_LEGACY.format(aliases=aliases), *lines, ""])


def _sections(cls: type, place: str, mark: Mark, default: Any = None) -> Iterator[_Section]:
    """The tables of a class and of all below it, in the order of the fields."""
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
    yield "", declared
    info = type_info(declared)
    if info.list_type is not None:
        yield ".0", info.item_type(0)
    if info.entry_types is not None:
        yield ".NAME", info.entry_types[1]


def _kind(section: type, among: tuple[type, ...]) -> str:
    """Which of several configs a section is."""
    return f" (kind: {kinds_of(section)[0]})" if len(among) > 1 else ""


def _table(section: _Section, marks: Mapping[str, Mark]) -> str:
    """A class as a table; `marks` go before those of its own fields."""
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
    return item.aliases[0] if item.aliases and sections(item.declared) else item.name


def _type(declared: Any) -> str:
    info = type_info(declared)
    if info.sections:
        others = [part for part in info.members if part not in info.sections]
        words = ["a section", *map(describe_type, others), *["null"] * info.allows_none]
        return " or ".join(words)
    for place, inner in _held(declared):
        if place and sections(inner):
            return "a section for each " + ("item of a list" if place == ".0" else "name")
    return describe_type(declared)


def _default(item: Setting, around: Any) -> str:
    """What a file gets that leaves a field out; `around` is what the launch file has around it."""
    if item.is_required and around is None:
        return "required"
    value = _value(item, around)
    if sections(item.declared) and value is not None:
        return "its own"
    made = plain_value(value)
    if around is None and callable(item.field.default_factory) and made not in ({}, []):
        return "made at the start"  # what a function makes may follow from the environment
    text = json.dumps(made, ensure_ascii=False)
    if len(text) > _MAX_DEFAULT_CHARACTERS:
        return (
            "its own" if isinstance(made, dict | list) else f"`{text[:_MAX_DEFAULT_CHARACTERS]}…`"
        )
    return f"`{text}`"


def _value(item: Setting, around: Any) -> Any:
    """What a field has where a file leaves it out."""
    if around is not None:
        return getattr(around, item.name)
    return None if item.is_required else item.default()


if __name__ == "__main__":
    print(config_page(), end="")
