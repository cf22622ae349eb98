"""Templates: the folder that a name means, whether its code may be run, and that code as a module.

What a run folder has in `template/` is code. It is run only if a template of this checkout or of an
earlier run of this user has the same content, or if the user trusts it. Who owns the files says
nothing: whoever unpacks a folder does. Sources are read once: what was checked is what is run.
Nothing is written beside them.
"""

import ast
import importlib
import importlib.abc
import logging
import os
import re
import sys
import traceback
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from chomp.config.messages import did_you_mean, nearest
from chomp.errors import ChompError, ConfigError, require
from chomp.tracking.run_files import is_remembered, sources_hash, template_sources

LAUNCH_FILE = "launch.py"
GRUG = "experiments/grug"  # in a checkout
# What a YAML file configures that names no template: the first that there is.
DEFAULT_TEMPLATES = ("megalodon", "base")

_PACKAGE = "run_template_"
_HASH_CHARACTERS = 12  # of a digest, where it is shown or part of a name
_TRAIN = "train"
# The templates of the checkout that chomp itself is run from. One around the current folder is no
# measure for others: a folder that was unpacked may hold a checkout beside its runs.
_OWN_TEMPLATES = Path(__file__).parents[3] / GRUG
# Packages that a template imports and is never in.
_NEVER_OWN = frozenset({"chomp", *sys.stdlib_module_names})
_finders: "dict[str, _TemplateFinder]" = {}  # of the templates that were loaded, by package
_log = logging.getLogger(__name__)


def template_folder(named: str | None, *, beside: str | None = None) -> Path:
    """The folder that a name or a path means; None: the default template.

    A bare name is that of a folder under experiments/grug, in the checkout around the current
    folder or around the file `beside`; else, as anything with a slash or a leading dot, a path.
    Raises `ConfigError` where there is no launch file.
    """
    roots = list(_checkouts(beside))
    for name in DEFAULT_TEMPLATES if named is None else (named,):
        is_bare = "/" not in name and not name.startswith(".")
        places = [root / GRUG / name for root in roots] if is_bare else []
        places += [] if named is None else [Path(name)]
        for folder in places:
            if (folder / LAUNCH_FILE).is_file():
                return folder
    files = [path for root in roots for path in (root / GRUG).glob(f"*/{LAUNCH_FILE}")]
    known = sorted({path.parent.name for path in files})
    given = f"no template is named, and there is no {GRUG} here: this is no checkout"
    if named is not None:
        near = did_you_mean(nearest(named, known))
        given = f"template {named}: there is no {Path(named, LAUNCH_FILE)}{near}"
    elif roots:
        given = f"no template is named, and {roots[0] / GRUG} has no {DEFAULT_TEMPLATES[0]}"
    raise ConfigError(
        given,
        allowed=f"the name of a folder under {GRUG} ({', '.join(known) or 'there is none'}), or "
        f"the path of a folder with a {LAUNCH_FILE}",
        fix="pass --template FOLDER, or write template: NAME into the file; or run the command in "
        "a checkout",
    )


def template_name(folder: Path, *, beside: str | None = None) -> str:
    """A template as a config file names it: by name if it is in a checkout, else by path.

    A path is of one machine, and a file is copied to others.
    """
    place = folder.resolve().parent
    is_named = any((root / GRUG).resolve() == place for root in _checkouts(beside))
    return folder.resolve().name if is_named else str(folder)


def known_template(
    given: str | None, *, in_file: str | None = None, beside: str | None = None
) -> Path:
    """The folder of a template that is to be run: given with --template, else named in a file.

    The user decides whose code is run, by a path on the command line or by starting the command in
    a checkout of their own. What a file names by a path, or what is found around a file, must equal
    a template of the checkout that chomp is run from; raises `ConfigError` for any other.
    """
    folder = template_folder(given or in_file, beside=beside)
    if given and folder == Path(given):
        return folder
    is_here = any(folder.parent == root / GRUG for root in _checkouts(None))
    # Who owns a folder put every file there. The effective user: that is who the code would run as.
    files = [folder, *folder.glob("*.py")]
    has_owners = hasattr(os, "geteuid")  # on POSIX alone
    if is_here and has_owners and all(path.stat().st_uid == os.geteuid() for path in files):
        return folder
    # Not the given folder, though it be equal: what its files import would be found beside them.
    fix = f"read those files, and pass --template {folder}"
    return _equal_in_checkout(folder, template_sources(folder), fix=fix)


@dataclass(frozen=True)
class LoadedTemplate:
    """A template whose `train.py` has been imported."""

    folder: Path
    digest: str  # of its sources: two templates with one digest are the same
    train: ModuleType

    def part(self, name: str) -> Any:
        """What `train.py` has under a name that the template contract promises."""
        found = getattr(self.train, name, None)
        if found is None:
            raise ConfigError(
                f"{self.folder / 'train.py'} without {name}",
                allowed="a template that has it, as experiments/grug/base does",
                fix=f"add {name} to a copy of the template, and pass that with --template",
            )
        return found


def load_template(folder: Path, *, is_trusted: bool = False) -> LoadedTemplate:
    """Import the template in a folder, under a package name that only these very sources have.

    Raises `ConfigError` for code that neither a template of this checkout nor one of this user's
    runs equals, unless it is trusted; for a folder that is no template; and for a template that
    cannot be imported.
    """
    folder = folder.resolve()
    sources = template_sources(folder)
    require(
        _TRAIN in sources,
        f"{folder}, where there is no {_TRAIN}.py"
        if folder.is_dir()
        else f"there is no folder {folder}",
        allowed="the folder of a template, as every run folder has a copy of",
        fix="pass the run folder, or a template with --template FOLDER",
    )
    # By content: two versions of one template live side by side, as do jit caches of each.
    digest = sources_hash(sources)
    if not (is_trusted or is_remembered(digest)):
        _equal_in_checkout(folder, sources, fix="read those files, and pass --trust to run them")
    name = _PACKAGE + digest[:_HASH_CHARACTERS]
    if name not in _finders:
        _finders[name] = _TemplateFinder(name, folder, sources)
        # First: the name is ours alone, and some finders look in slow places.
        sys.meta_path.insert(0, _finders[name])
    try:
        return LoadedTemplate(folder, digest, importlib.import_module(f"{name}.{_TRAIN}"))
    except ChompError:
        raise
    except ImportError as error:
        raise ConfigError(
            f"the template {folder} cannot be imported: {error}",
            allowed="a template whose imports are its own files, chomp and installed packages",
            fix="install what is missing, run the command with the version of chomp that made the "
            "run, or use a template of today: --template experiments/grug/NAME --allow-changed",
        ) from error
    except Exception as error:  # a flipped bit or an edit may raise anything
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if Path(frame.filename).parent == folder]
        at = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
        raise ConfigError(
            f"the template {folder} cannot be imported: {type(error).__name__}: {error}{at}",
            allowed="the files of a template as its run copied them",
            fix="bring back the file, or pass a whole copy with --template FOLDER",
        ) from error


def require_same_template(
    digest: str, folder: Path, *, saved: str, checkpoint: str, allows_changed: bool
) -> None:
    """Raise `ConfigError` for a template other than a checkpoint was saved with, by its digest.

    A checkpoint of an earlier version of chomp does not say (`saved` is empty): that is logged.
    """
    if not saved:
        _log.warning(
            "%s was saved without a hash of its template: whether %s is the one it was trained "
            "with cannot be checked",
            *(checkpoint, folder),
        )
    elif saved != digest and not allows_changed:
        raise ConfigError(
            f"{folder} has the hash {digest[:_HASH_CHARACTERS]}: it was edited, is damaged, or is "
            f"of a later attempt than {checkpoint}",
            allowed=f"the one the checkpoint was saved with, {saved[:_HASH_CHARACTERS]}",
            fix="bring back its files, or pass --allow-changed to use them as they are",
        )


# --- which folder -------------------------------------------------------------------------------


def _checkouts(beside: str | None) -> Iterator[Path]:
    """The folders around the current one, and around a file, that hold experiments/grug."""
    for start in [Path(), *([] if beside is None else [Path(beside).parent])]:
        # The current folder as it is: paths that are printed stay short, and links stay links.
        for folder in (start, *start.resolve().parents):
            if (folder / GRUG).is_dir():
                yield folder
                break


def _equal_in_checkout(folder: Path, sources: Mapping[str, bytes], *, fix: str) -> Path:
    """The template of this checkout with these sources; `ConfigError` if there is none."""
    for train in _OWN_TEMPLATES.glob(f"*/{_TRAIN}.py"):
        if template_sources(train.parent) == sources:
            return train.parent
    # Shown as Python would write it: a name may hold what a terminal would obey.
    names = ", ".join(ascii(f"{name}.py")[1:-1] for name in sources)
    raise ConfigError(
        f"{folder} is Python code of unknown origin, and this command would run it: {names} "
        f"(hash {sources_hash(sources)})",
        allowed="code that a template of this checkout equals, or the template of a run that this "
        "user has trained",
        fix=fix,
    )


# --- its code as a module -----------------------------------------------------------------------


# A finder, since a template's functions may import its files when they are called.
class _TemplateFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds and runs the modules of one template, from the sources that were checked.

    A copy in a run folder still says `from experiments.grug.base.model import ...`, which would
    import the checkout's file: that package is given this one's name. Lines stay where they were,
    so tracebacks point into the copy. Unlike Python's own loader it writes no bytecode.
    """

    def __init__(self, name: str, folder: Path, sources: Mapping[str, bytes]) -> None:
        self._name, self._folder = name, folder
        self._texts: dict[str, str] = {}
        trees = []
        for module, raw in sources.items():
            with self._python_errors(module):
                self._texts[module] = raw.decode("utf-8")
                trees.append(ast.parse(self._texts[module]))
        package = _own_package(trees, set(sources), folder)
        if package is not None:
            pattern = re.compile(rf"(?<![\w.]){re.escape(package)}(?!\w)")
            self._texts = {module: pattern.sub(name, text) for module, text in self._texts.items()}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of the template's package or of a module in it; None for all other names."""
        package, _, module = fullname.partition(".")
        if package != self._name or (module and module not in self._texts):
            return None
        origin = str(self._folder / f"{module or '__init__'}.py")
        # A package has an empty search path: files that came since are not what was checked.
        spec = ModuleSpec(fullname, self, origin=origin, is_package=not module)
        spec.has_location = True  # gives the module its __file__
        return spec

    def exec_module(self, module: ModuleType) -> None:
        """Run a file as it was read; a package without a file of its own is empty."""
        name = module.__name__.partition(".")[2] or "__init__"
        with self._python_errors(name):
            # Without the flags of this very file.
            path, text = str(self._folder / f"{name}.py"), self._texts.get(name, "")
            code = compile(text, path, "exec", dont_inherit=True)
        exec(code, vars(module))

    @contextmanager
    def _python_errors(self, module: str) -> Iterator[None]:
        try:
            yield
        # NUL and bytes that are no UTF-8 are a ValueError, and deep nesting is one of the last two.
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None)
            what = getattr(error, "msg", None) or str(error) or type(error).__name__
            raise ConfigError(
                f"{self._folder / module}.py{'' if line is None else f', line {line},'} is no "
                f"Python: {what}",
                allowed="the files of a template as its run copied them",
                fix="bring back the file, or pass a whole copy with --template FOLDER",
            ) from error


def _own_package(trees: Sequence[ast.AST], modules: set[str], folder: Path) -> str | None:
    """The package under which these files import each other; None if they do not.

    The files alone decide: the checkout they were copied from may be gone. If several packages
    would do (`jax.sharding`, beside a file of that name), it is the one with most of the files.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for node in (node for tree in trees for node in ast.walk(tree)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for package, _, module in (name.rpartition(".") for name in names):
            if package and module in modules and package.split(".")[0] not in _NEVER_OWN:
                found[package].add(module)
    # A package of somebody else has few of these names by chance; the template's own has most.
    most = max(map(len, found.values()), default=0)
    best = sorted(package for package, inside in found.items() if len(inside) == most)
    if len(best) > 1:
        raise ConfigError(
            f"{folder}, whose files seem to import each other under {' and '.join(best)}",
            allowed="a template whose files import each other under one package",
            fix=f"rename the file {min(found[best[0]])}.py in a copy of the template, and pass "
            "that with --template",
        )
    return best[0] if best else None
