"""The names that users rely on, as the product itself shows them: `surface()`.

Commands with their flags, config keys of each template with their other spellings, metric keys,
environment variables in the pages, and what templates and pages import from the library.
"""

import ast
import contextlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from chomp.cli.main import app, exit_code

ROOT = Path(__file__).parents[1]
RECORDED = Path(__file__).with_name("golden") / "public_surface.txt"
GRUG = ROOT / "experiments/grug"
PAGES = [ROOT / "README.md", GRUG / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Variables of ours; those of JAX, W&B and others are not for us to keep.
_VARIABLE = re.compile(r"\b(?:CHOMP|GRUG|FERRY|SPEEDRUN|LEVANTER)_[A-Z_]*[A-Z]\b")


def surface() -> list[str]:
    """Every public name as a line, `kind: name`, sorted."""
    templates = sorted(path.parent.name for path in GRUG.glob("*/launch.py"))
    lines = {f"command: {line}" for line in _commands("chomp", typer.main.get_command(app))}
    lines |= {f"command: launch.py {flag}" for flag in _launch_flags()}
    keys = {name: _config_keys(name) for name in templates}
    for key in set().union(*keys.values()):
        having = [name for name in templates if key in keys[name]]
        only = "" if having == templates else f" ({' '.join(having)})"
        lines.add(f"config: {key}{only}")
    lines |= {f"metric: {name}" for name in _metric_keys()}
    lines |= {f"environment: {name}" for page in PAGES for name in _VARIABLE.findall(_text(page))}
    lines |= {f"name: {name}" for source in _sources() for name in _imported(source)}
    return sorted(lines)


def _commands(path: str, command: Any) -> Iterator[str]:
    inner = getattr(command, "commands", {})
    if not inner:
        yield path
    for parameter in command.params:
        for flag in [*parameter.opts, *parameter.secondary_opts]:
            yield f"{path} {flag}" if flag.startswith("-") else f"{path} {flag.upper()}"
    for name, below in inner.items():
        yield from _commands(f"{path} {name}", below)


def _launch_flags() -> set[str]:
    command = [sys.executable, str(GRUG / "base/launch.py"), "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", shown))


def _config_keys(template: str) -> set[str]:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        assert exit_code(["config", "schema", "--template", template]) == 0
    schema = json.loads(shown.getvalue())
    # Two names of one section: what is below is listed once.
    twice = re.compile(r"^(?:trainer|optimizer)\..*")
    return {key for key in _keys(schema, schema["$defs"], "") if not twice.match(key)}


def _keys(node: Any, definitions: dict[str, Any], path: str) -> Iterator[str]:
    """Dotted keys of a schema; `<name>` stands for any key of a mapping."""
    if "$ref" in node:
        yield from _keys(definitions[node["$ref"].rpartition("/")[2]], definitions, path)
    for part in ("anyOf", "allOf", "oneOf"):
        for choice in node.get(part, []):
            yield from _keys(choice, definitions, path)
    if "items" in node and isinstance(node["items"], dict):
        yield from _keys(node["items"], definitions, f"{path}[]")
    if isinstance(node.get("additionalProperties"), dict):
        yield from _keys(node["additionalProperties"], definitions, f"{path}.<name>")
    for key, below in node.get("properties", {}).items():
        inner = f"{path}.{key}".removeprefix(".")
        if inner.count(".") < 12:
            yield inner
            yield from _keys(below, definitions, inner)


def _metric_keys() -> set[str]:
    page = _text(ROOT / "docs/references/metrics.md")
    rows = re.findall(r"^\| (`[^|]+) \| ([^|]+) \|", page, re.MULTILINE)
    return {name for row in rows for cell in row for name in re.findall(r"`([^`]+)`", cell)}


def _sources() -> Iterator[str]:
    for path in sorted((ROOT / "experiments").rglob("*.py")):
        yield _text(path)
    for page in PAGES:
        yield from re.findall(r"^```python\n(.*?)^```", _text(page), re.MULTILINE | re.DOTALL)


def _imported(source: str) -> Iterator[str]:
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a page's fragment
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "chomp":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("chomp."))


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
