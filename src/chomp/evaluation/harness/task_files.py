"""The task files below a folder, looked at before lm-eval is: it passes over what it cannot read.

Nothing in them is run here. Messages name the options of `chomp harness`, which are the fields of
`eval.harness` too.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from chomp.errors import require

_YAML = (".yaml", ".yml")
_INDEXED = ".yaml"  # what lm-eval looks for


def require_no_code(include_path: str) -> None:
    """Raise `ConfigError` if a file below names Python, which lm-eval would import unasked."""
    for path in _files(include_path):
        require(
            b"!function" not in path.read_bytes(),
            given=f"{path}, which names Python functions (!function)",
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
