"""The source of a template, made importable under another package name.

A copy in a run folder still says `from experiments.grug.base.model import ...`, which would fetch
the checkout's file. Here those statements, and no others, are turned to the copy's own package.
Every line stays where it was, so tracebacks point into the copy.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType

from chomp.errors import ConfigError, message

# Packages that a template imports and is never in.
_NEVER_OWN = frozenset({"chomp", *sys.stdlib_module_names})


def own_package(sources: Mapping[str, str], *, where: str) -> str | None:
    """The package under which these files import each other; None if they do not.

    `sources` is by module name. The package is told by the files alone: the checkout they were
    copied from may be gone. Of several that would do (`jax.sharding`, beside a file of that name)
    it is the one with most of the files in it.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for name, text in sources.items():
        with _python_errors(f"{where}/{name}.py") as path:
            imports = list(_absolute_imports(ast.parse(text, filename=path)))
        for package, module in imports:
            if module in sources and package.split(".")[0] not in _NEVER_OWN:
                found[package].add(module)
    # A package of somebody else has few of these names by chance; the template's own has most.
    most = max(map(len, found.values()), default=0)
    best = sorted(package for package, modules in found.items() if len(modules) == most)
    if len(best) > 1:
        raise ConfigError(
            message(
                given=f"{where}, whose files import each other under {' and '.join(best)}, "
                "or so it seems",
                allowed="a template whose files import each other under one package",
                fix=f"rename the file {min(found[best[0]])}.py in a copy of the template, and pass "
                "that with --template",
            )
        )
    return best[0] if best else None


def compiled(text: str, *, path: str, package: str | None, renamed: str) -> CodeType:
    """The code of one file in which imports of `package` are imports of `renamed`."""
    with _python_errors(path):
        tree = ast.parse(text, filename=path)
        if package is not None:
            tree = ast.fix_missing_locations(_Renaming(package, renamed).visit(tree))
        # Without the flags of this very file, such as `from __future__ import annotations`.
        code: CodeType = compile(tree, path, "exec", dont_inherit=True)
    return code


def decoded(raw: bytes, *, path: str) -> str:
    """The text of one file, in UTF-8: what Python takes a file for that says nothing else."""
    with _python_errors(path):
        return raw.decode("utf-8")


@contextmanager
def _python_errors(path: str) -> Iterator[str]:
    """What is wrong with the text of a file, as a `ConfigError`."""
    try:
        yield path
    # NUL and bytes that are no UTF-8 are a ValueError, and deep nesting is one of the last two.
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        what = getattr(error, "msg", None) or str(error) or type(error).__name__
        raise ConfigError(
            f"{path}{'' if line is None else f', line {line},'} is no Python: {what}",
            allowed="the files of a template as its run copied them",
            fix="bring back the file, or pass a whole copy with --template FOLDER",
        ) from error


def _absolute_imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Each import as (package, module in it); for `from a import b`, b may be one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from _split(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            # `from a.b import c`: b may be the file, or c.
            yield from _split([node.module])
            yield from ((node.module, alias.name) for alias in node.names)


def _split(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        package, dot, module = name.rpartition(".")
        if dot:
            yield package, module


class _Renaming(ast.NodeTransformer):
    """Turns imports of a package, and names written out in full, to the package's other name."""

    def __init__(self, package: str, renamed: str) -> None:
        self._package, self._renamed = package, renamed

    def visit_Import(self, node: ast.Import) -> ast.Import:
        for alias in node.names:
            alias.name = self._new(alias.name)
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        # Relative ones find their own package as they are.
        if node.level == 0 and node.module:
            node.module = self._new(node.module)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        # What `import a.b.model` binds is `a`, and the file then says `a.b.model.Thing`.
        if ast.unparse(node) == self._package:
            return ast.copy_location(ast.Name(self._renamed, node.ctx), node)
        self.generic_visit(node)
        return node

    def _new(self, name: str) -> str:
        is_inside = name == self._package or name.startswith(f"{self._package}.")
        return self._renamed + name[len(self._package) :] if is_inside else name
