"""The text of config files: YAML to plain data, its variables, and plain data or a config to YAML.

YAML is safe, has each key once, and none of the surprises of YAML 1.1: `3e-4` is a number; `no`,
`12:30`, `010` and `2026-01-31` are text. What is written out is quoted wherever a YAML 1.1 reader
would see something else. Who reads or writes the file decides where, and how atomically.

Variables are values that are written once in a file and used in many places of it:

    variables: {width: 256, name: {short: wide}}
    model: {hidden_dim: $variables.width}             the value itself, whatever its type
    run_id: "{$variables.name.short}-${variables.width}"    as text, inside of other text

A variable may use others. The section is gone once the file is read: a config never holds one.
"""

import contextlib
import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from chomp.config.fields import ConfigClass, KeyPath, dotted
from chomp.config.messages import describe_value, did_you_mean, nearest
from chomp.config.parse import Unquoted, config_to_mapping
from chomp.errors import ConfigError

# Nobody writes a config like that; a few hundred bytes of nested aliases stand for more values than
# memory holds, and Python recurses once for every level.
MAX_YAML_BYTES = 4_000_000
MAX_YAML_VALUES = 200_000
MAX_YAML_DEPTH = 64
MAX_NUMBER_LENGTH = 200

# What PyYAML raises for text that cannot be read; all but the first for a scalar that does not fit
# a tag written before it, such as `!!bool x`.
YAML_FAILURES = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError)

_TAG = "tag:yaml.org,2002:"

_FLOAT = re.compile(
    r"""(?:[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
        |\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?
        |[0-9][0-9_]*[eE][-+]?[0-9]+
        |\.(?:inf|Inf|INF))
    |\.(?:nan|NaN|NAN))\Z""",
    re.VERBOSE,
)
# No leading zeros: YAML 1.1 reads 010 as eight, most people as ten, and it may be a name.
_INT = re.compile(r"(?:[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+)\Z")
# What some version of YAML may take for a number: 0x1f, 0o17, 1_000, 12:30:00, 1e5.
_NUMBER = re.compile(r"[-+]?[.]?[0-9][-+0-9a-fA-FxXoO_:.]*\Z")

VARIABLES = "variables"
_NAME = r"[\w-]+(?:\.[\w-]+)*"
_WHOLE = re.compile(rf"\$variables\.({_NAME})")
_INLINE = re.compile(rf"\{{\$variables\.({_NAME})\}}|\$\{{variables\.({_NAME})\}}")
# What is left of a reference that is neither: half of a text would be taken for a value.
_LEFT = re.compile(r"\$\{?variables\b\S*")


def config_to_yaml(config: ConfigClass) -> str:
    """The config as YAML text that reads back equal: every field, declared order."""
    return to_yaml(config_to_mapping(config))


def parse_yaml(text: str, source: str, *, keeps_unquoted: bool = False) -> Any:
    """The one document in a YAML text. Raises `ConfigError` with line and column if it has none.

    With `keeps_unquoted`, scalars without quotes come back as `Unquoted`, for command lines.
    """
    require_bounded(text, source=source)
    try:
        return yaml.load(text, Loader=_OverrideLoader if keeps_unquoted else _Loader)
    except YAML_FAILURES as error:
        reason = " ".join(str(error).split())
        if not isinstance(error, yaml.YAMLError):
            reason = f"a value does not fit the tag before it ({type(error).__name__}: {error})"
        elif isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark) is not None:
            reason = f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
        raise ConfigError(
            f"{source} cannot be read as YAML: {reason}",
            allowed="one YAML document of plain data, each key once",
            fix="correct the text at that point",
        ) from error


def to_yaml(value: Any) -> str:
    """Plain data as YAML text in block style, keys in the order given."""
    text: str = yaml.dump(
        value,
        Dumper=_Dumper,
        sort_keys=False,
        default_flow_style=False,
        allow_unicode=True,  # names and prompts stay readable
        width=100,
    )
    return text


def require_bounded(text: str | bytes, *, source: str) -> None:
    """Raise `ConfigError` for a text that would take minutes or gigabytes to read or to print.

    Found without building any value; aliases count as written out.
    """

    def refuse(excess: str) -> None:
        raise ConfigError(
            f"{source} has {excess}",
            allowed=f"{MAX_YAML_BYTES:,} bytes, {MAX_YAML_VALUES:,} values, {MAX_YAML_DEPTH} "
            f"levels, numbers of {MAX_NUMBER_LENGTH} characters",
            fix="correct the text; a list this long belongs in a data file",
        )

    if len(text) > MAX_YAML_BYTES:
        refuse(f"{len(text):,} bytes")
    open_values: list[tuple[str | None, int]] = [(None, 0)]  # anchor and size, outermost first
    sizes: dict[str | None, int] = {}
    # The loader says what is wrong with a text that is no YAML, and where.
    with contextlib.suppress(yaml.YAMLError):
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            size = 0
            if isinstance(event, yaml.CollectionStartEvent):
                open_values.append((event.anchor, 1))
            elif isinstance(event, yaml.CollectionEndEvent):
                anchor, size = open_values.pop()
                sizes[anchor] = size
            elif isinstance(event, yaml.AliasEvent):
                size = sizes.get(event.anchor, 1)
            elif isinstance(event, yaml.ScalarEvent):
                size = 1
                length = len(event.value) if event.style is None else 0
                if length > MAX_NUMBER_LENGTH and _NUMBER.match(event.value):
                    refuse(f"a number of {length:,} characters")
            anchor, so_far = open_values.pop()
            open_values.append((anchor, so_far + size))
            if len(open_values) > MAX_YAML_DEPTH:
                refuse(f"values nested more than {MAX_YAML_DEPTH} levels deep")
            if so_far + size > MAX_YAML_VALUES:
                refuse(f"more than {MAX_YAML_VALUES:,} values, aliases written out")


# ---- YAML with our scalars --------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with our scalars, each key once and no value inside itself."""

    # Empty here, filled below: the inherited table is the one of YAML 1.1.
    yaml_implicit_resolvers = {}  # noqa: RUF012 (PyYAML declares it without ClassVar)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping of a node. A key may override one merged by `<<`, not one beside it."""
        lines: dict[Any, int] = {}
        for key_node, _ in node.value:
            # A key that is no scalar cannot be a dict key: PyYAML says so itself, below.
            if key_node.tag == f"{_TAG}merge" or not isinstance(key_node, yaml.ScalarNode):
                continue
            key = self.construct_object(key_node, deep=True)
            if key in lines:
                problem = f"the key {key!r} is written twice, first in line {lines[key]}"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
            lines[key] = key_node.start_mark.line + 1
        return super().construct_mapping(node, deep)


class _OverrideLoader(_Loader):
    """The loader for command lines, which leaves it open what an unquoted scalar means."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        value = super().construct_object(node, deep)
        is_unquoted = isinstance(node, yaml.ScalarNode) and node.style is None
        return Unquoted(node.value, value) if is_unquoted else value


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper, which also quotes text that only our loader takes for a number."""


def _represented_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    """Text in the style PyYAML picks, but with rare line ends escaped, which it would fold."""
    style = '"' if set(text) & set("\x85\u2028\u2029") else None
    return dumper.represent_scalar(f"{_TAG}str", text, style=style)


def _constructed_whole(loader: _Loader, node: yaml.Node) -> Any:
    """A list or mapping built in one go, which lets PyYAML refuse one that contains itself."""
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    assert isinstance(node, yaml.SequenceNode), "only lists and mappings are registered below"
    return loader.construct_sequence(node, deep=True)


for _kind, _pattern, _first in (
    ("bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), "tTfF"),
    ("int", _INT, "-+0123456789"),
    ("float", _FLOAT, "-+.0123456789"),
    ("null", re.compile(r"(?:~|null|Null|NULL|)\Z"), ["~", "n", "N", ""]),
    ("merge", re.compile(r"<<\Z"), "<"),
):
    _Loader.add_implicit_resolver(_TAG + _kind, _pattern, list(_first))
_Loader.add_constructor(f"{_TAG}map", _constructed_whole)
_Loader.add_constructor(f"{_TAG}seq", _constructed_whole)
_Dumper.add_representer(str, _represented_text)
_Dumper.add_implicit_resolver(f"{_TAG}float", _FLOAT, list("-+.0123456789"))


# ---- Variables --------------------------------------------------------------------------------


def replace_variables(content: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """The content of a file with every reference replaced, and without the section itself.

    Raises `ConfigError`, headed by `source`, for a reference to nothing, to itself, or to a list or
    mapping inside of text, and for one that is a key.
    """
    values = content.get(VARIABLES)
    if values is not None and not isinstance(values, Mapping):
        raise ConfigError(
            f"{source}: {VARIABLES}={describe_value(values)}",
            allowed="a mapping of names to values",
            fix=f"write {VARIABLES}: {{name: value}}",
        )
    variables = _Variables(values or {})
    try:
        _refuse_as_keys(content, ())
        variables.replace(values or {}, (VARIABLES,))  # unused ones are checked too
        rest = {key: value for key, value in content.items() if key != VARIABLES}
        return {key: variables.replace(value, (key,)) for key, value in rest.items()}
    except ConfigError as error:
        raise error.within(source) from None


class _Variables:
    """The variables of one file, each worked out when it is first needed."""

    def __init__(self, values: Mapping[Any, Any]) -> None:
        self._values = dict(_by_name(values))
        self._known: dict[str, Any] = {}
        self._open: list[str] = []  # those being worked out, each for the one before
        self._num_characters = 0  # that all references have brought in so far

    def replace(self, value: Any, path: KeyPath) -> Any:
        """A value with all references in it replaced."""
        if isinstance(value, Mapping):
            _refuse_as_keys(value, path)
            return {key: self.replace(item, (*path, str(key))) for key, item in value.items()}
        if isinstance(value, list):
            return [self.replace(item, (*path, index)) for index, item in enumerate(value)]
        if not isinstance(value, str):
            return value
        if whole := _WHOLE.fullmatch(value):
            found = self._value(whole[1], path)
            self._count(_size(found), path)
            # A copy: what is changed later in one place must not change in the others.
            return copy.deepcopy(found)
        # What a variable brings in is not looked at again: it was, when it was worked out.
        if left := _LEFT.search(_INLINE.sub("", value)):
            name = left[0].lstrip("${").removeprefix(f"{VARIABLES}.").rstrip("}") or "name"
            raise ConfigError(
                f"{dotted(path)}: {left[0]!r} inside of the text {value!r}",
                allowed="$variables.NAME alone, or {$variables.NAME} inside of text",
                fix=f"write {{$variables.{name}}}",
            )
        return _INLINE.sub(lambda found: self._text(found[1] or found[2], path), value)

    def _text(self, name: str, path: KeyPath) -> str:
        """The value of a variable inside of text."""
        value = self._value(name, path)
        if isinstance(value, Mapping | list):
            raise ConfigError(
                f"{dotted(path)}: the variable {name}, {describe_value(value)}, inside of text",
                allowed="text, numbers, true, false and null inside of text",
                fix=f"write $variables.{name} alone, for the whole of it",
            )
        # As YAML writes it: true and 3.0e-4, not Python's spelling.
        text = value if isinstance(value, str) else to_yaml(value).partition("\n")[0]
        self._count(len(text), path)
        return text

    def _count(self, num_characters: int, path: KeyPath) -> None:
        """Raise `ConfigError` where a few lines would grow to more than memory holds."""
        self._num_characters += num_characters
        if self._num_characters > MAX_YAML_BYTES:
            raise ConfigError(
                f"{dotted(path)}: variables that stand for more text than a file may have",
                allowed=f"{MAX_YAML_BYTES:,} characters, all references replaced",
                fix="use fewer variables inside of other variables",
            )

    def _value(self, name: str, path: KeyPath) -> Any:
        if name in self._known:
            return self._known[name]
        if name in self._open:
            circle = " -> ".join([*self._open, name])
            raise ConfigError(
                f"{dotted(path)}: variables that lead back to themselves: {circle}",
                allowed="variables that end in a value",
                fix=f"write a value for one of {', '.join(self._open)}",
            )
        if name not in self._values:
            # Of a mapping its parts, which are what is used.
            known = sorted(k for k, value in self._values.items() if not isinstance(value, Mapping))
            near = nearest(name, known)
            raise ConfigError(
                f"{dotted(path)}: there is no variable {name}{did_you_mean(near)}",
                allowed=f"the names under {VARIABLES}: {', '.join(known) or 'there are none'}",
                fix=f"write $variables.{near}" if near else f"add it to {VARIABLES}",
            )
        self._open.append(name)
        self._known[name] = self.replace(self._values[name], (VARIABLES, *name.split(".")))
        self._open.pop()
        return self._known[name]


def _size(value: Any) -> int:
    """Characters of a value, about as it is written out."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        return 1 + sum(map(_size, value))
    return 1 + len(value) if isinstance(value, str) else 1


def _by_name(values: Mapping[Any, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Every variable and every part of one by its dotted name; YAML's numbers are names too."""
    for key, value in values.items():
        if re.fullmatch(r"[\w-]+", str(key)):
            yield f"{before}{key}", value
            if isinstance(value, Mapping):
                yield from _by_name(value, f"{before}{key}.")


def _refuse_as_keys(value: Mapping[Any, Any], path: KeyPath) -> None:
    """Raise `ConfigError` for a reference that is a key: names are not replaced."""
    for key, item in value.items():
        if not isinstance(key, str) or not _LEFT.search(key):
            continue
        # Braces without quotes around them are a mapping to YAML, of a name and nothing.
        if path and item is None and _WHOLE.fullmatch(key):
            raise ConfigError(
                f"{dotted(path)}: {{{key}}} without quotes, which YAML takes for a mapping",
                allowed="a reference inside of text in quotes, or a whole one without braces",
                fix=f'write "{{{key}}}", or {key}',
            )
        raise ConfigError(
            f"{dotted(path)}: the key {key!r}",
            allowed="variables in values; a key is what it is written as",
            fix="write the name itself, or make the mapping around it a variable",
        )
