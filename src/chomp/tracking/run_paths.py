"""Where the relative paths in a run's config lead, for whoever reads it from wherever.

They were meant from the folder the run was started in, which no run records. But its outputs
usually lie below that folder, and the run is one of them.
"""

import os

from chomp.storage import StrPath, exists, is_local, join, normalise


def reached_path(path: str, run_folder: StrPath) -> str:
    """A relative path as it is found from here, else from the nearest folder above the run.

    As it is where it is found from neither, or is not relative.
    """
    if not is_relative(path) or exists(path):
        return path
    return path_above(path, run_folder) or path


def path_above(path: str, run_folder: StrPath) -> str | None:
    """A relative path in the nearest folder above the run that has it; None where none has."""
    if not is_local(run_folder):
        return None
    folder = os.path.abspath(normalise(run_folder))
    while (parent := os.path.dirname(folder)) != folder:
        if exists(join(parent, path)):
            return join(parent, path)
        folder = parent
    return None


def is_relative(path: str) -> bool:
    """Whether where the path leads depends on where it is asked from."""
    return is_local(path) and not os.path.isabs(normalise(path))
