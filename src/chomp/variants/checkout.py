"""Where the templates are: the checkout that a command is run in.

An installed library has no templates, and what is done to them is a change to a repository, so the
current folder decides and not the place of this file.
"""

from pathlib import Path

from chomp.errors import ConfigError

GRUG = "experiments/grug"
BASE = "base"


def checkout_root(start: Path) -> Path:
    """The nearest folder, from `start` upwards, that holds `experiments/grug/base`."""
    start = start.resolve()
    # Not a marker such as .git: a variant is needed to do anything, and base is always there.
    for folder in (start, *start.parents):
        if (folder / GRUG / BASE).is_dir():
            return folder
    raise ConfigError(
        f"{start} is not in a checkout: neither it nor a folder above it has {GRUG}/{BASE}",
        allowed="a folder inside a checkout of the repository",
        fix="clone the repository and run the command there",
    )


def variant_path(name: str) -> str:
    """Where a variant is, from the checkout's root."""
    return f"{GRUG}/{name}"
