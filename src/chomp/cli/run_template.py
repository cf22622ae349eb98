"""The template that a run was made with: its own copy, loaded under a name of its own.

What the run folder has in `template/` is code, so it is run only if a template of this checkout or
of an earlier run of this user holds the same, or if the user trusts it. Who owns the files says
nothing: whoever unpacks a folder does. The sources are read once, and what was judged is what is
run. Nothing is written beside them.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from chomp.cli.template_source import compiled, decoded, own_package
from chomp.errors import ChompError, ConfigError, message, require
from chomp.tracking.known_templates import is_remembered
from chomp.tracking.run_files import sources_hash, template_sources

_PACKAGE = "run_template_"
_TRAIN = "train"
# The templates of the checkout that chomp itself is run from. One around the current folder is no
# measure for others: a folder that was unpacked may hold a checkout beside its runs.
_OWN_TEMPLATES = Path(__file__).parents[3] / "experiments/grug"


@dataclass(frozen=True)
class RunTemplate:
    """A template whose `train.py` was run, as importing it does."""

    folder: Path
    digest: str  # of its sources: two templates with one digest are the same
    train: ModuleType

    def part(self, name: str) -> Any:
        """What `train.py` has under a name that the template contract promises."""
        found = getattr(self.train, name, None)
        if found is None:
            raise ConfigError(
                message(
                    given=f"{self.folder / 'train.py'} without {name}",
                    allowed="a template that has it, as experiments/grug/base does",
                    fix=f"add {name} to a copy of the template, and pass that with --template",
                )
            )
        return found


def loaded_template(folder: Path, *, is_trusted: bool = False) -> RunTemplate:
    """The template in a folder, under a package name that only these very sources have.

    Raises `ConfigError` for code that neither a template of this checkout nor one of this user's
    runs equals, unless it is trusted; for a folder that is no template; and for imports that cannot
    be found.
    """
    folder = folder.resolve()
    sources = _sources(folder)
    # By content: two versions of one template live side by side, as do jit caches of each.
    digest = sources_hash(sources)
    if not (is_trusted or is_remembered(digest)):
        require_equal_in_checkout(
            folder, sources, fix="read those files, and pass --trust to run them"
        )
    name = _PACKAGE + digest[:12]
    _Templates.add(name, folder, sources)
    try:
        return RunTemplate(folder, digest, importlib.import_module(f"{name}.{_TRAIN}"))
    except ImportError as error:
        raise ConfigError(
            message(
                given=f"the template {folder} cannot be imported: {error}",
                allowed="a template whose imports are its own files, chomp and installed packages",
                fix="run the command in the checkout that the run was started from, or install "
                "what is missing",
            )
        ) from error
    except ChompError:
        raise
    except Exception as error:  # as a flipped bit or an edit may raise anything
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if Path(frame.filename).parent == folder]
        at = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
        raise ConfigError(
            f"the template {folder} cannot be imported: {type(error).__name__}: {error}{at}",
            allowed="the files of a template as its run copied them",
            fix="bring back the file, or pass a whole copy with --template FOLDER",
        ) from error


def _sources(folder: Path) -> dict[str, bytes]:
    """The files of a template by module name, as they are now."""
    found = template_sources(folder)
    require(
        _TRAIN in found,
        given=f"{folder}, where there is no {_TRAIN}.py"
        if folder.is_dir()
        else f"there is no folder {folder}",
        allowed="the folder of a template, as every run folder has a copy of",
        fix="pass the run folder, or a template with --template FOLDER",
    )
    return found


def require_equal_in_checkout(folder: Path, sources: Mapping[str, bytes], *, fix: str) -> Path:
    """The template of this checkout that holds these sources.

    Raises `ConfigError` where none does, with what would be run.
    """
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


# A finder, since a template's functions may import its files when they are called.
class _Templates(importlib.abc.MetaPathFinder):
    """Finds the modules of loaded templates, now and when a function imports one later."""

    def __init__(self) -> None:
        self._loaders: dict[str, _TemplateLoader] = {}

    @staticmethod
    def add(name: str, folder: Path, sources: Mapping[str, bytes]) -> None:
        """Make a template importable; one with these sources that is there already stays."""
        if _templates not in sys.meta_path:
            # First: nobody else knows these names, and some finders ask slow places.
            sys.meta_path.insert(0, _templates)
        if name not in _templates._loaders:
            _templates._loaders[name] = _TemplateLoader(name, folder, sources)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a template's package or of a module in it; None for all other names."""
        package, _, module = fullname.partition(".")
        loader = self._loaders.get(package)
        if loader is None or (module and module not in loader.sources):
            return None
        location = loader.path_of(module or "__init__")
        spec = importlib.machinery.ModuleSpec(fullname, loader, origin=location)
        spec.has_location = True  # gives the module its __file__
        # An empty search path: files that came since are no part of what was judged.
        spec.submodule_search_locations = None if module else []
        return spec


class _TemplateLoader(importlib.abc.InspectLoader):
    """Runs the sources of one template; unlike Python's own it keeps no bytecode."""

    def __init__(self, name: str, folder: Path, sources: Mapping[str, bytes]) -> None:
        self._name, self._folder = name, folder
        self.sources = {
            module: decoded(raw, path=self.path_of(module)) for module, raw in sources.items()
        }
        self._package = own_package(self.sources, where=str(folder))

    def path_of(self, module: str) -> str:
        """The file of a module."""
        return str(self._folder / f"{module}.py")

    def get_source(self, fullname: str) -> str:
        """The text of a file, as it was read; a package without a file of its own is empty."""
        return self.sources.get(self._module(fullname), "")

    def get_code(self, fullname: str) -> CodeType:
        """The code of a file, its imports turned to this package."""
        path = self.path_of(self._module(fullname))
        source = self.get_source(fullname)
        return compiled(source, path=path, package=self._package, renamed=self._name)

    def _module(self, fullname: str) -> str:
        return fullname.partition(".")[2] or "__init__"


_templates = _Templates()
