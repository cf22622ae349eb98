"""The task files below a folder, looked at before lm-eval is: it passes over what it cannot read.

Nothing in them is run here. Messages name the options of `chomp harness`, which are the fields of
`eval.harness` too.
"""

from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from chomp.errors import require

_YAML = (".yaml", ".yml")
_DATA_TAGS = "tag:yaml.org,2002:"
_INDEXED = ".yaml"  # what lm-eval looks for


def require_no_code(include_path: str, known_metrics: Container[str]) -> None:
    """Raise `ConfigError` if a file below, or one that it includes, would have lm-eval run Python.

    By what the YAML means and not by how it is written: a tag has many spellings. A metric that
    lm-eval does not know is a script to it, here or on a hub.
    """
    for path in _with_included(_files(include_path)):
        code = next(_code_in(path, known_metrics), None)
        require(
            code is None,
            given=f"{path}, which {code}",
            allowed="tasks that are data alone, unless code is allowed",
            fix="read the code and pass --allow-code (allow_code=true), or move the file out of "
            "the folder",
        )


def unreadable_files(include_path: str) -> dict[str, str]:
    """The files below that lm-eval leaves out without a word, and why, on one line each."""
    faults = {str(path): _fault(path) for path in _files(include_path)}
    return {path: fault for path, fault in faults.items() if fault is not None}


def _files(include_path: str) -> Iterator[Path]:
    found = sorted(Path(include_path).rglob("*"))
    return (path for path in found if path.suffix in _YAML and path.is_file())


def _with_included(paths: Iterable[Path]) -> Iterator[Path]:
    """The files, and those that they go on from, wherever they lie and whatever their names."""
    seen: set[Path] = set()
    waiting = list(paths)
    while waiting:
        path = waiting.pop(0)
        if path.resolve() not in seen and path.is_file():
            seen.add(path.resolve())
            yield path
            root = _root(path)
            is_mapping = isinstance(root, yaml.MappingNode)
            waiting += [path.parent / each for each in _included(root)] if is_mapping else []


def _code_in(path: Path, known_metrics: Container[str]) -> Iterator[str]:
    for node in _nodes(_root(path), set()):
        if not node.tag.startswith(_DATA_TAGS):
            yield f"names Python functions ({node.tag})"
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            is_other = key.value == "metric" and value.value not in known_metrics
            if is_other or key.value == "hf_evaluate":
                yield f"has a metric that is none of lm-eval's own ({key.value}: {value.value})"


def _root(path: Path) -> yaml.Node | None:
    """What a file holds, in the encoding it says; None if lm-eval cannot read it either."""
    try:
        found: yaml.Node | None = yaml.compose(path.read_bytes(), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError):
        return None
    return found


def _nodes(node: Any, seen: set[int]) -> Iterator[yaml.Node]:
    if isinstance(node, tuple):  # a key and its value
        for part in node:
            yield from _nodes(part, seen)
    elif isinstance(node, yaml.Node) and id(node) not in seen:
        seen.add(id(node))
        yield node
        for part in node.value if isinstance(node, yaml.CollectionNode) else ():
            yield from _nodes(part, seen)


def _fault(path: Path) -> str | None:
    if path.suffix != _INDEXED:
        return f"lm-eval reads files whose names end in {_INDEXED}"
    try:
        # Its structure alone: values such as !function are no business of this reader.
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        return " ".join(str(error).split())
    if not isinstance(root, yaml.MappingNode):
        return "it holds no fields"
    for included in _included(root):
        if not (path.parent / included).is_file():
            return f"it includes {included}, which is not there"
    return None


def _included(root: Any) -> list[str]:
    """The files that a file says it goes on from."""
    found = [value for key, value in root.value if key.value == "include"]
    nodes = [node for value in found for node in _one_or_more(value)]
    return [node.value for node in nodes if isinstance(node, yaml.ScalarNode)]


def _one_or_more(node: Any) -> list[Any]:
    return list(node.value) if isinstance(node, yaml.SequenceNode) else [node]
