"""The tasks of `harness_tasks/`, told where they are, with no hub and no cache but their own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import datasets
import pytest

TASKS = Path(__file__).parent / "harness_tasks"


def write_tasks(folder: Path) -> Path:
    """A folder of tasks below `folder`, each with the path of its data filled in."""
    tasks = folder / "tasks"
    tasks.mkdir()
    for path in TASKS.glob("*.*"):
        (tasks / path.name).write_text(path.read_text().replace("FOLDER", str(tasks)))
    return tasks


@contextmanager
def local_tasks(folder: Path) -> Iterator[Path]:
    """The same, while `datasets` keeps its own files below `folder` too and asks no hub."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
        # Otherwise it would ask a hub five times, with a pause after each.
        patched.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        patched.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        yield write_tasks(folder)
