"""Strict JSON lines: one flat object a line, and what to do with a line that was cut short.

A line counts once its newline is on disk. A process killed inside a write can leave one fragment,
at the end; `set_aside_torn_line` moves it out of the way before anything is appended after it.
"""

import json
import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeAlias, cast

from chomp.errors import ConfigError
from chomp.storage.files import open_regular
from chomp.tracking.protocol import PlainValue

# A row as read from a file. Its values are flat, but only the file knows of which type each is.
Row: TypeAlias = dict[str, Any]

NONFINITE_SUFFIX = "/nonfinite"
# As far as a page's 32 bits count; beyond that lies no run, nor as many attempts at one.
MAX_STEP = 1 << 31

_BLOCK_BYTES = 1 << 16
_logger = logging.getLogger(__name__)


def json_line(row: Mapping[str, PlainValue]) -> bytes:
    """The row as one line of strict JSON, newline included.

    JSON has no NaN or infinity: such a value becomes null, and `<key>/nonfinite` says which it was.
    """
    encoded: dict[str, PlainValue] = {}
    for key, value in row.items():
        if isinstance(value, float) and not math.isfinite(value):
            if key + NONFINITE_SUFFIX in row:
                raise ConfigError(
                    f"the metric {key!r} is {value}, and the row also has "
                    f"{key + NONFINITE_SUFFIX!r}",
                    allowed=f"no name ending in {NONFINITE_SUFFIX!r} beside a non-finite value",
                    fix="rename the second metric",
                )
            encoded[key] = None
            encoded[key + NONFINITE_SUFFIX] = str(value)
        else:
            encoded[key] = value
    # ASCII escapes keep a line one line (U+2028) and carry a lone surrogate, which UTF-8 cannot.
    return json.dumps(encoded, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


def strict_json(value: Any) -> Any:
    """A nested value with null for NaN and infinity, and `<key>/nonfinite` beside it as above."""
    if isinstance(value, Mapping):
        bad = {k: v for k, v in value.items() if isinstance(v, float) and not math.isfinite(v)}
        told = {f"{key}{NONFINITE_SUFFIX}": str(number) for key, number in bad.items()}
        return {key: strict_json(item) for key, item in value.items()} | told
    if isinstance(value, list | tuple):
        return [strict_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def row_of_line(line: bytes) -> Row | None:
    """The row of a line, or None if it is not a whole line of strict JSON with one flat object.

    Its step and its attempt, where it has them, are whole numbers that a run can reach.
    """
    if not line.endswith(b"\n"):
        return None
    try:
        row = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or any(type(value) in (dict, list) for value in row.values()):
        return None
    counts = [row[key] for key in ("step", "attempt") if key in row]
    is_row = all(type(count) is int and abs(count) < MAX_STEP for count in counts)
    return cast(Row, row) if is_row else None


def set_aside_torn_line(path: Path) -> None:
    """Leave `path` ending in a whole line; a torn last line is appended to `<path>.torn`."""
    with open(open_regular(str(path), os.O_RDWR), "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        start = _last_line_start(file, size)
        file.seek(start)
        fragment = file.read(size - start)
        if not fragment or row_of_line(fragment) is not None:
            return
        torn = path.with_name(path.name + ".torn")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        with open(open_regular(str(torn), flags, 0o644), "ab") as aside:
            aside.write(fragment.removesuffix(b"\n") + b"\n")
            aside.flush()
            # Only then cut: a kill between the two leaves the fragment twice, never nowhere.
            os.fsync(aside.fileno())
        file.truncate(start)
    _logger.warning(
        "%s ended in a torn line (%d bytes), as a killed process leaves it; moved to %s",
        path,
        len(fragment),
        torn,
    )


def _last_line_start(file: BinaryIO, size: int) -> int:
    """Offset of the last line, read backwards in blocks: the file may be very long."""
    end = size - 1  # the last byte may be the last line's own newline
    while end > 0:
        start = max(0, end - _BLOCK_BYTES)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
