"""The function of a step as source: its name, and what the files of its template hold.

A template is edited in place, so its files tell two runs apart where no version does.
"""

import functools
import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chomp.storage import read_bytes

_LIBRARY = Path(__file__).resolve().parents[1]


def function_name(fn: Callable[[Any], Any]) -> str:
    """Module and name of a step's function."""
    named = _named(fn)
    return f"{named.__module__}.{named.__qualname__}"


def template_folder(fn: Callable[[Any], Any]) -> Path | None:
    """The folder of the template that holds a step's function; None if that is no template.

    The library's own functions are none: chomp's version names them, and nobody edits a copy.
    """
    try:
        found = inspect.getsourcefile(_named(fn))
    except TypeError:  # built into the interpreter
        return None
    if found is None:
        return None
    folder = Path(found).resolve().parent
    return None if _LIBRARY in [folder, *folder.parents] else folder


def source_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of each Python file in a folder, by file name."""
    return {
        path.name: hashlib.sha256(read_bytes(path)).hexdigest()
        for path in sorted(folder.glob("*.py"))
        if path.is_file()
    }


def _named(fn: Callable[[Any], Any]) -> Any:
    """The function or class behind partials, decorators and callable objects."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    return fn if hasattr(fn, "__qualname__") else type(fn)
