"""Rows for the record of a run from a process that is not the run: results that come afterwards."""

import os
import time
from os import PathLike
from pathlib import Path

from chomp.storage.files import open_regular
from chomp.tracking.jsonl import JsonlTracker

# A line is one write, so it is whole within microseconds; what is torn for longer is left for good.
_PATIENCE_S = 0.5
_LOOK_EVERY_S = 0.05


class LateRows(JsonlTracker):
    """Appends to a record that its run may be writing to at this moment.

    Every line is one write to the end of the file, and so is the run's: neither can land in the
    other. What differs from the run's own tracker: a last line without its end may be one that is
    being written, so it is waited for and cut off only when nobody goes on with it.
    """

    def __init__(self, path: str | PathLike[str], *, attempt: int) -> None:
        """`attempt` is the one whose rows these belong to: the last in the record."""
        super().__init__(path, attempt=attempt)

    def _open(self) -> int:
        try:
            if not _is_settled(self._path):
                return super()._open()  # which moves the fragment of a killed process aside
            flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW
            self._descriptor = open_regular(str(self._path), flags)
        except OSError as error:
            raise self._unwritable(error) from error
        return self._descriptor


def _is_settled(path: Path) -> bool:
    """Whether the file ends in a whole line, at once or within the time that a write may take."""
    deadline = time.monotonic() + _PATIENCE_S
    while not _ends_in_a_line(path):
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_EVERY_S)
    return True


def _ends_in_a_line(path: Path) -> bool:
    with open(open_regular(str(path)), "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 1, 0))
        return file.read() in (b"", b"\n")
