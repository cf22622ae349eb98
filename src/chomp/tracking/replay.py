"""A record sent to a sink again: after an outage, or to a service that was not on at the time."""

import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from chomp.tracking.jsonl import read_metrics
from chomp.tracking.lines import NONFINITE_SUFFIX, Row
from chomp.tracking.protocol import Tracker

_logger = logging.getLogger(__name__)

# The line's own keys. A step's row keeps `attempt` and `time`, which tell a repeated step apart.
_ROW_KEYS = ("step", "kind")
_SUMMARY_KEYS = ("kind", "attempt", "time")


def replay(metrics_path: str | os.PathLike[str], sink: Tracker) -> int:
    """Hand every line of a record to the sink, in order, and finish it; gives the count of lines.

    Rows come as they were logged, with `attempt` and `time` besides, and with NaN and infinity
    where the record has null. A file that is gone is passed over with a warning.
    """
    rows = read_metrics(metrics_path)
    replay_rows(rows, sink, folder=Path(metrics_path).parent)
    return len(rows)


def replay_rows(rows: Iterable[Row], sink: Tracker, *, folder: Path) -> None:
    """The same for rows that were read already, of a record in `folder`."""
    try:
        for row in rows:
            _replay_row(row, sink, folder)
    finally:
        sink.finish()


def with_nonfinite(row: Row) -> Row:
    """The row as it was logged: `<key>/nonfinite` turned back into the value of `<key>`."""
    values = dict(row)
    for key in row:
        name = key.removesuffix(NONFINITE_SUFFIX)
        if name != key and name in row and row[name] is None:
            with suppress(ValueError, TypeError):  # somebody's own metric of that name
                values[name] = float(row[key])
                del values[key]
    return values


def _replay_row(row: Row, sink: Tracker, folder: Path) -> None:
    values = with_nonfinite(row)
    kind = row.get("kind")
    if kind == "summary":
        sink.log_summary({key: values[key] for key in values if key not in _SUMMARY_KEYS})
    elif kind == "artifact":
        path = _found(str(row.get("path")), folder)
        if path is None:
            _logger.warning("%s is not there any more and was passed over", row.get("path"))
        else:
            name, artifact_kind = str(row.get("name")), str(row.get("artifact_kind"))
            sink.log_artifact(path, name=name, kind=artifact_kind)
    elif kind is None and "step" in row:
        sink.log({key: values[key] for key in values if key not in _ROW_KEYS}, step=row["step"])


def _found(path: str, folder: Path) -> Path | None:
    """Where an artifact is now: where it was, or at the same place in a folder that was moved."""
    given = Path(path)
    below = (folder / Path(*given.parts[start:]) for start in range(1, len(given.parts)))
    return next((found for found in [given, *below] if found.is_file()), None)
