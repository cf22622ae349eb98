"""The folder of a template, by its name in a checkout or by its path."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from chomp.cli.run_template import require_equal_in_checkout
from chomp.errors import ConfigError, message
from chomp.tracking.run_files import template_sources

LAUNCH_FILE = "launch.py"
GRUG = "experiments/grug"  # in a checkout
# What a YAML file configures that names none: the first that there is.
DEFAULT_TEMPLATES = ("megalodon", "base")


def template_folder(named: str | None, *, beside: str | None = None) -> Path:
    """The folder that a name or a path means; None: the default template.

    A bare name is that of a folder under experiments/grug, in the checkout around the current
    folder or around the file `beside`; else, as anything with a slash or a leading dot, a path.
    Raises `ConfigError` where there is no launch file.
    """
    names = DEFAULT_TEMPLATES if named is None else (named,)
    roots = list(_checkouts(beside))
    for name in names:
        for folder in _places(name, roots, is_path_too=named is not None):
            if (folder / LAUNCH_FILE).is_file():
                return folder
    raise _no_template(named, roots)


def told_template(folder: Path, *, beside: str | None = None) -> str:
    """A template as a file names it: by its name in a checkout where it is in one, else its path.

    A path is of one machine, and a file is copied to others.
    """
    place = folder.resolve().parent
    is_named = any((root / GRUG).resolve() == place for root in _checkouts(beside))
    return folder.resolve().name if is_named else str(folder)


def known_template(
    given: str | None, *, in_file: str | None = None, beside: str | None = None
) -> Path:
    """The folder of a template that is to be run: given with --template, else named in a file.

    Whose code is run says who writes its path on the command line, or starts the command in a
    checkout of this user's. What a file names by a path, or what is found around a file, must equal
    a template of the checkout that chomp is run from; raises `ConfigError` for any other.
    """
    folder = template_folder(given or in_file, beside=beside)
    if given and folder == Path(given):
        return folder
    if any(folder.parent == root / GRUG for root in _checkouts(None)) and _is_mine(folder):
        return folder
    # Not theirs, though it be equal: what its files import would be found beside them.
    return require_equal_in_checkout(
        folder,
        template_sources(folder),
        fix=f"read those files, and pass --template {folder}",
    )


def _is_mine(folder: Path) -> bool:
    """Whether this user owns the folder, who then put every file there, and the files."""
    if not hasattr(os, "geteuid"):  # only POSIX tells
        return False
    # The effective user: that is who the code would run as.
    return all(path.stat().st_uid == os.geteuid() for path in [folder, *folder.glob("*.py")])


def _places(name: str, roots: list[Path], *, is_path_too: bool) -> Iterator[Path]:
    if "/" not in name and not name.startswith("."):
        for root in roots:
            yield root / GRUG / name
    if is_path_too:
        yield Path(name)


def _checkouts(beside: str | None) -> Iterator[Path]:
    """The current folder, and those above it and above a file, that hold experiments/grug."""
    starts = [Path(), *([] if beside is None else [Path(beside).parent])]
    for start in starts:
        # The current folder as it is: paths that are told stay short, and links stay links.
        for folder in (start, *start.resolve().parents):
            if (folder / GRUG).is_dir():
                yield folder
                break


def _no_template(named: str | None, roots: list[Path]) -> ConfigError:
    from chomp.config.messages import did_you_mean, nearest

    known = sorted({path.parent.name for root in roots for path in _launch_files(root)})
    near = None if named is None else nearest(named, known)
    if named is not None:
        given = f"template {named}: there is no {Path(named, LAUNCH_FILE)}{did_you_mean(near)}"
    elif roots:
        given = f"no template is named, and {roots[0] / GRUG} has no {DEFAULT_TEMPLATES[0]}"
    else:
        given = f"no template is named, and there is no {GRUG} here: this is no checkout"
    listed = f" ({', '.join(known)})" if known else ""
    return ConfigError(
        message(
            given=given,
            allowed=f"the name of a folder under {GRUG}{listed}, or the path of a folder with a "
            f"{LAUNCH_FILE}",
            fix="pass --template FOLDER, or write template: NAME into the file; or run the "
            "command in a checkout",
        )
    )


def _launch_files(root: Path) -> Iterator[Path]:
    return (root / GRUG).glob(f"*/{LAUNCH_FILE}")
