"""The text of config files: YAML to plain data, and plain data or a config to YAML.

YAML is safe, has each key once, and none of the surprises of YAML 1.1: `3e-4` is a number; `no`,
`12:30`, `010` and `2026-01-31` are text. What is written out is quoted wherever a YAML 1.1 reader
would see something else. Who reads or writes the file decides where, and how atomically.
"""

import re
from typing import Any

import yaml

from chomp.config.fields import ConfigClass
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
_BOOL = re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z")
_NULL = re.compile(r"(?:~|null|Null|NULL|)\Z")
_MERGE = re.compile(r"<<\Z")


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
    """Raise `ConfigError` for a text that would take minutes or gigabytes to read or to print."""
    excess = _excess(text)
    if excess is not None:
        raise ConfigError(
            f"{source} has {excess}",
            allowed=f"{MAX_YAML_BYTES:,} bytes, {MAX_YAML_VALUES:,} values, {MAX_YAML_DEPTH} "
            f"levels, numbers of {MAX_NUMBER_LENGTH} characters",
            fix="correct the text; a list this long belongs in a data file",
        )


def _excess(text: str | bytes) -> str | None:
    """What is too large, found without building any value: aliases count as written out."""
    if len(text) > MAX_YAML_BYTES:
        return f"{len(text):,} bytes"
    open_values: list[tuple[str | None, int]] = [(None, 0)]  # anchor and size, outermost first
    sizes: dict[str | None, int] = {}
    try:
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
                is_plain = event.style is None
                if is_plain and len(event.value) > MAX_NUMBER_LENGTH and _NUMBER.match(event.value):
                    return f"a number of {len(event.value):,} characters"
            anchor, so_far = open_values.pop()
            open_values.append((anchor, so_far + size))
            if len(open_values) > MAX_YAML_DEPTH:
                return f"values nested more than {MAX_YAML_DEPTH} levels deep"
            if so_far + size > MAX_YAML_VALUES:
                return f"more than {MAX_YAML_VALUES:,} values, aliases written out"
    except yaml.YAMLError:
        return None  # the loader says what is wrong, and where
    return None


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
    ("bool", _BOOL, "tTfF"),
    ("int", _INT, "-+0123456789"),
    ("float", _FLOAT, "-+.0123456789"),
    ("null", _NULL, ["~", "n", "N", ""]),
    ("merge", _MERGE, "<"),
):
    _Loader.add_implicit_resolver(_TAG + _kind, _pattern, list(_first))
_Loader.add_constructor(f"{_TAG}map", _constructed_whole)
_Loader.add_constructor(f"{_TAG}seq", _constructed_whole)
_Dumper.add_representer(str, _represented_text)
_Dumper.add_implicit_resolver(f"{_TAG}float", _FLOAT, list("-+.0123456789"))
