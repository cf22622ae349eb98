"""Packages that only some sources need, and that an extra of chomp installs."""

from importlib import import_module
from types import ModuleType

from chomp.errors import DataError


def optional_package(module: str, *, extra: str, purpose: str) -> ModuleType:
    """The module, imported now; a `DataError` that names the extra if it cannot be."""
    try:
        return import_module(module)
    except ImportError as error:
        raise DataError(
            f"{purpose} needs the package {module.partition('.')[0]}: {error}",
            allowed=f"an environment with chomp's extra {extra!r}",
            fix=f"run pip install 'chomp[{extra}]'",
        ) from error
