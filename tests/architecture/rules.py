"""The architecture as functions: each takes a repository's root and returns its violations.

A violation has three parts (given, allowed, fix) and starts with `file:line`. Source is only read,
except in `commands_that_load_jax`, which runs commands. A room is what lies directly under
`src/chomp`, a folder or a file; a variant is a folder under `experiments/grug`. Either may be
absent.
"""

import ast
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

# A room imports only rooms of a strictly lower layer. The package's own `__init__` runs before any
# room, and `errors` is used by all of them, so these two stand below the rest.
LAYERS = {
    "__init__": -2,
    "errors": -1,
    "step_options": -1,
    "config": 0,
    "storage": 1,
    "mesh": 1,
    "tokenize": 2,
    "kernels": 2,
    "optim": 2,
    "tracking": 2,
    "executor": 2,
    "data": 3,
    "checkpoint": 3,
    "launch": 3,
    "variants": 3,
    "evaluation": 4,
    "report": 4,
    "training": 5,
    "ledger": 5,
    "cli": 6,
    "__main__": 7,
}
OUTSIDE_THE_LIBRARY = ("experiments", "tests", "benchmarks")
FORBIDDEN_NAMES = ("utils", "common", "helpers", "misc", "core", "components")

# What must answer at once, and so without JAX: the module that is run and its arguments.
QUICK_COMMANDS = {
    "chomp --help": ("chomp.cli.main", "--help"),
    "launch.py --plan": ("chomp.launch.main", "--plan"),
    "ray_run --help": ("chomp.launch.ray_run", "--help"),
}
# Runs one of them in a fresh interpreter. Ends with code 3 at the first import of JAX, and prints
# the chain of imports that leads there.
_PROBE = """
import os, runpy, sys, traceback

source, module, argument = sys.argv[1:]

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "jax":
            frames = [f for f in traceback.extract_stack() if f.filename.startswith(source)]
            chain = [f"{os.path.relpath(f.filename, source)}:{f.lineno}" for f in frames]
            print(" -> ".join(chain), flush=True)
            os._exit(3)

sys.meta_path.insert(0, Watch())
sys.argv = ["command", argument]
if argument == "--plan":
    from dataclasses import dataclass

    from chomp.executor import ExecutorStep
    from chomp.launch import executor_main

    @dataclass(frozen=True)
    class Greeting:
        text: str = "hello"

    def steps(config):
        return [ExecutorStep(name="greeting", fn=print, config=config)]

    executor_main(steps, Greeting())
else:
    runpy.run_module(module, run_name="__main__")
"""


@dataclass(frozen=True)
class Import:
    """One imported module, by its absolute name, and where its file imports it."""

    target: str
    line: int
    is_relative: bool


@dataclass(frozen=True)
class Module:
    """One Python file: its dotted name, its path from the root, and what it imports."""

    name: str
    path: str
    imports: tuple[Import, ...]

    @property
    def room(self) -> str:
        """The part of the name below `chomp`; `__init__` for the package itself."""
        return _room_of(self.name)


def violation(given: str, *, allowed: str, fix: str) -> str:
    """The three parts as one line."""
    return f"{given}. Allowed: {allowed}. Fix: {fix}."


def upward_imports(root: Path) -> list[str]:
    """Imports of a room from a layer that is not strictly higher, and rooms without a layer.

    Imports inside functions and under `TYPE_CHECKING` count: they hide a direction, they do not
    change it.
    """
    violations = []
    for module in _library(root):
        if module.room not in LAYERS:
            violations.append(_unknown_room(f"{module.path}:1", module.room))
        for line, room in _room_imports(module):
            where = f"{module.path}:{line}"
            if room not in LAYERS:
                violations.append(_unknown_room(where, room))
            elif module.room in LAYERS and LAYERS[room] >= LAYERS[module.room]:
                violations.append(
                    violation(
                        f"{where}: {_with_layer(module.room)} imports {_with_layer(room)}",
                        allowed="rooms of a strictly lower layer",
                        fix="move the shared piece down, or pass it in as an argument",
                    )
                )
    return violations


def import_cycles(root: Path) -> list[str]:
    """Modules of the library that reach themselves by imports, one violation for each circle.

    Imports inside functions and under `TYPE_CHECKING` count here too. That a submodule runs its
    package's `__init__` first does not count, or every re-export would be a circle.
    """
    modules = {module.name: module for module in _library(root)}
    edges = {
        name: {entry.target: entry.line for entry in module.imports if entry.target in modules}
        for name, module in modules.items()
    }
    violations = []
    seen: set[frozenset[str]] = set()
    for start in sorted(edges):
        circle = _shortest_circle(start, edges)
        if not circle or frozenset(circle) in seen:
            continue
        seen.add(frozenset(circle))
        steps = [
            f"{modules[name].path}:{edges[name][after]} imports {after}"
            for name, after in zip(circle, [*circle[1:], start], strict=True)
        ]
        violations.append(
            violation(
                ", ".join(steps),
                allowed="imports without a circle",
                fix="move what both sides need into a module of its own",
            )
        )
    return violations


def outside_imports(root: Path) -> list[str]:
    """Imports of templates, tests or benchmarks by the library."""
    return [
        violation(
            f"{module.path}:{entry.line}: {module.name} imports {entry.target}",
            allowed="the library's own lower rooms and third parties",
            fix="load a template by path at run time, or move the code into a room of src/chomp",
        )
        for module in _library(root)
        for entry in module.imports
        if entry.target.split(".")[0] in OUTSIDE_THE_LIBRARY
    ]


def relative_imports(root: Path) -> list[str]:
    """Relative imports in the library."""
    return [
        violation(
            f"{module.path}:{entry.line}: {module.name} imports {entry.target} relatively",
            allowed="absolute imports",
            fix=f"write the import from {entry.target}",
        )
        for module in _library(root)
        for entry in module.imports
        if entry.is_relative
    ]


def imports_across_variants(root: Path) -> list[str]:
    """Imports by a variant of anything under `experiments` that is not its own folder."""
    violations = []
    for module in _modules(root, root, root / "experiments" / "grug"):
        if len(Path(module.path).parts) < 4:  # experiments/grug/__init__.py belongs to no variant
            continue
        own = ".".join(module.name.split(".")[:3])
        for entry in module.imports:
            is_own = entry.target == own or entry.target.startswith(own + ".")
            if entry.target.split(".")[0] != "experiments" or is_own:
                continue
            violations.append(
                violation(
                    f"{module.path}:{entry.line}: {own} imports {entry.target}",
                    allowed=f"chomp, third parties and modules of {own}",
                    fix="copy the code into the variant; put `# verbatim: base` above a copy "
                    "that must stay equal",
                )
            )
    return violations


def commands_that_load_jax(root: Path) -> list[str]:
    """Commands that must answer at once and import JAX, or fail.

    Measured: each is run in a fresh interpreter, which also sees what third parties import.
    """
    source = root / "src"
    violations = []
    for command, (module, argument) in QUICK_COMMANDS.items():
        if not source.joinpath(*module.split(".")).with_suffix(".py").is_file():
            continue
        done = subprocess.run(
            [sys.executable, "-c", _PROBE, str(source), module, argument],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(source)},
            capture_output=True,
            text=True,
        )
        if done.returncode == 3:
            chain = done.stdout.strip().rpartition("\n")[2]
            violations.append(
                violation(
                    f"{chain}: `{command}` imports jax",
                    allowed=f"`{command}` without JAX, so that it answers at once",
                    fix="import the module inside the function that starts the command",
                )
            )
        elif done.returncode != 0:
            last_line = done.stderr.strip().rpartition("\n")[2]
            violations.append(
                violation(
                    f"{module}: `{command}` fails with {last_line}",
                    allowed="a command that can be run",
                    fix="run it and read the traceback",
                )
            )
    return violations


def drawer_names(root: Path) -> list[str]:
    """Modules and folders of the library named for being a drawer instead of for what they hold."""
    library = root / "src" / "chomp"
    files = sorted(library.rglob("*.py"))
    named = {path for file in files for path in [file, *file.parents] if library in path.parents}
    return [
        violation(
            f"{path.relative_to(root).as_posix()}:1: the name {path.stem}",
            allowed=f"any name but {', '.join(FORBIDDEN_NAMES)}",
            fix="name it for what it holds",
        )
        for path in sorted(named)
        if path.stem.strip("_") in FORBIDDEN_NAMES
    ]


def room_imports(root: Path) -> tuple[dict[str, set[str]], set[str]]:
    """The rooms that each room imports, and the rooms that import JAX; for drawings."""
    graph: dict[str, set[str]] = {}
    uses_jax = set()
    for module in _library(root):
        graph.setdefault(module.room, set()).update(room for _, room in _room_imports(module))
        if any(entry.target.split(".")[0] in ("jax", "equinox") for entry in module.imports):
            uses_jax.add(module.room)
    return graph, uses_jax


RULES = (
    upward_imports,
    import_cycles,
    outside_imports,
    relative_imports,
    imports_across_variants,
    commands_that_load_jax,
    drawer_names,
)


# --- messages shared by two rules ---------------------------------------------------------------


def _with_layer(room: str) -> str:
    name = "chomp" if room == "__init__" else f"chomp.{room}"
    return f"{name} (layer {LAYERS[room]})"


def _unknown_room(where: str, room: str) -> str:
    return violation(
        f"{where}: chomp.{room} is a room without a layer",
        allowed=", ".join(name for name in LAYERS if name != "__init__"),
        fix="add it to the table LAYERS in tests/architecture/rules.py, or correct the name",
    )


# --- walking the graph --------------------------------------------------------------------------


def _room_of(name: str) -> str:
    return name.split(".")[1] if "." in name else "__init__"


def _room_imports(module: Module) -> list[tuple[int, str]]:
    """Line and room of each import of another room, once a line.

    The package itself may be imported by all rooms: it runs before them in any case.
    """
    found = [
        (entry.line, _room_of(entry.target))
        for entry in module.imports
        if entry.target.split(".")[0] == "chomp"
    ]
    return [pair for pair in dict.fromkeys(found) if pair[1] not in (module.room, "__init__")]


def _shortest_circle(start: str, edges: dict[str, dict[str, int]]) -> list[str]:
    """Names along the shortest way from `start` back to itself; empty when there is none."""
    ways = deque([[start]])
    visited = set()
    while ways:
        way = ways.popleft()
        for after in sorted(edges[way[-1]]):
            if after == start:
                return way
            if after not in visited:
                visited.add(after)
                ways.append([*way, after])
    return []


# --- reading source -----------------------------------------------------------------------------

_IMPORTING = (ast.Import, ast.ImportFrom, ast.Call)


def _library(root: Path) -> list[Module]:
    return _modules(root, root / "src", root / "src" / "chomp")


def _modules(root: Path, import_root: Path, folder: Path) -> list[Module]:
    """Every Python file under `folder`, named as it is imported from `import_root`."""
    return [_module(root, import_root, path) for path in sorted(folder.rglob("*.py"))]


def _module(root: Path, import_root: Path, path: Path) -> Module:
    parts = path.relative_to(import_root).with_suffix("").parts
    package = parts[:-1]
    name = ".".join(package if parts[-1] == "__init__" else parts)
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    is_module = partial(_is_module, import_root)
    nodes = [node for node in ast.walk(tree) if isinstance(node, _IMPORTING)]
    found = [
        Import(target, node.lineno, is_relative)
        for node in sorted(nodes, key=lambda node: node.lineno)
        for target, is_relative in _targets(node, package, is_module)
    ]
    return Module(name, path.relative_to(root).as_posix(), tuple(found))


def _targets(
    node: ast.Import | ast.ImportFrom | ast.Call,
    package: tuple[str, ...],
    is_module: Callable[[str], bool],
) -> list[tuple[str, bool]]:
    """Absolute names of the modules one node imports, each with whether it was written relatively.

    In `from a import b`, b may be a module or a name inside a; the files decide.
    """
    if isinstance(node, ast.Import):
        return [(alias.name, False) for alias in node.names]
    if isinstance(node, ast.Call):
        return [(name, False) for name in _dynamic_target(node)]
    above = package[: len(package) - node.level + 1] if node.level else ()
    base = ".".join([*above, *([node.module] if node.module else [])])
    full_names = [f"{base}.{alias.name}" for alias in node.names]
    targets = [name if is_module(name) else base for name in full_names]
    return [(target, node.level > 0) for target in dict.fromkeys(targets)]


def _dynamic_target(call: ast.Call) -> list[str]:
    """The name in `import_module("name")`: an import statement in disguise."""
    function = getattr(call.func, "attr", getattr(call.func, "id", None))
    if function not in ("import_module", "__import__") or not call.args:
        return []
    name = getattr(call.args[0], "value", None)
    return [name] if isinstance(name, str) and not name.startswith(".") else []


def _is_module(import_root: Path, name: str) -> bool:
    path = import_root.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()
