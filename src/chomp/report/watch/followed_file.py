"""A growing file of JSON lines, read from where the last look at it ended.

Only whole lines are taken, so a line that is being written waits for its rest. What was read before
is never read again, unless the file is no longer the one that it was: then all of it is new.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from chomp.storage.files import open_regular
from chomp.tracking import Row
from chomp.tracking.record import row_of_line

# Taken in one look: some thousand rows, in about 50 ms, so that a long record can be seen to load.
_BLOCK_BYTES = 4 << 20


@dataclass(frozen=True)
class Look:
    """What one look at the file found."""

    rows: list[Row] = field(default_factory=list)
    is_anew: bool = False  # the rows begin a file again: what was known before is void
    has_more: bool = False  # another look will find more at once
    problem: str | None = None  # why nothing could be read


class FollowedFile:
    """A file that others append to. It need not be there yet, and may be cut or replaced."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.unreadable_lines = 0  # whole lines, but no JSON objects
        self.torn_bytes = 0  # after the last whole line, when last looked at
        self._offset = 0
        self._block_bytes = _BLOCK_BYTES
        # Where the last taken line still ends at the offset, the file is still the same.
        self._last_line = b""

    @property
    def has_begun(self) -> bool:
        """Whether a whole line was ever read from the file as it is now."""
        return self._offset > 0

    def look(self) -> Look:
        """The rows that were appended since the last look, at most a block of them."""
        try:
            with open(open_regular(str(self.path)), "rb") as file:
                is_anew = self.has_begun and not self._is_same(file)
                if is_anew:
                    self._forget()
                return self._taken(file, is_anew=is_anew)
        except FileNotFoundError:
            return Look(problem="it is gone" if self.has_begun else None)
        except OSError as error:  # a network drive may answer again at the next look
            return Look(problem=f"it cannot be read: {error.strerror or error}")

    def _is_same(self, file: BinaryIO) -> bool:
        file.seek(self._offset - len(self._last_line))
        return file.read(len(self._last_line)) == self._last_line

    def _forget(self) -> None:
        self._offset, self._last_line = 0, b""
        self.unreadable_lines = 0

    def _taken(self, file: BinaryIO, *, is_anew: bool) -> Look:
        file.seek(self._offset)
        block = file.read(self._block_bytes)
        size = os.fstat(file.fileno()).st_size
        whole = block.rfind(b"\n") + 1
        if not whole and len(block) == self._block_bytes:
            self._block_bytes *= 2  # a line longer than a block: the next look takes more
        # Not splitlines, which would also end a line at a lone carriage return.
        lines = [line + b"\n" for line in block[:whole].split(b"\n")[:-1]]
        self._offset += whole
        self._last_line = lines[-1] if lines else self._last_line
        found = [row for row in map(row_of_line, lines) if row is not None]
        self.unreadable_lines += len(lines) - len(found)
        has_more = self._offset + len(block) - whole < size
        self.torn_bytes = 0 if has_more else len(block) - whole
        return Look(rows=found, is_anew=is_anew, has_more=has_more)
