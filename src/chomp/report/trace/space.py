"""A trace file, read: its planes, their lines, and events with their names and their stats.

Times are picoseconds on one clock for the whole file. Only what is asked for is decoded: a stat
costs as much as an event, and an event has up to a dozen.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from chomp.errors import StorageError
from chomp.report.trace.wire import message_class
from chomp.storage import read_bytes

_PS_PER_NS = 1000


@dataclass(frozen=True)
class Event:
    """Something that ran on a line, from `start` to `end`."""

    name: str
    start: int
    end: int
    stats: dict[str, str | int]


class Line:
    """A stream or a thread, with the events on it."""

    def __init__(self, line: Any, plane: "Plane") -> None:
        """A message of `plane`, which has the names."""
        self.name: str = line.name
        self._line, self._plane = line, plane

    def events(self, named: Collection[str] | None = None) -> Iterator[Event]:
        """Its events in the order of the file: all, or those with one of these names."""
        names, base = self._plane.event_names, self._line.timestamp_ns * _PS_PER_NS
        for event in self._line.events:
            name, start = names.get(event.metadata_id, ""), base + event.offset_ps
            if named is None or name in named:
                stats = self._plane.stats_of(event)
                yield Event(name, start, start + event.duration_ps, stats)


class Plane:
    """What one device or the host did."""

    def __init__(self, plane: Any) -> None:
        """A message as it was sent, with names apart from what they name."""
        self.name: str = plane.name
        self.message = plane
        self.event_names = {entry.key: entry.value.name for entry in plane.event_metadata}
        self._stat_names = {entry.key: entry.value.name for entry in plane.stat_metadata}
        # Of some devices, what all runs of an operation have in common stands beside its name.
        self._common = {entry.key: self._read(entry.value.stats) for entry in plane.event_metadata}

    @property
    def lines(self) -> list[Line]:
        """Its streams and threads."""
        return [Line(line, self) for line in self.message.lines]

    @property
    def stats(self) -> dict[str, str | int]:
        """What is known of the device itself: its name, its clock rate."""
        return self._read(self.message.stats)

    def stats_of(self, event: Any) -> dict[str, str | int]:
        """An event's own stats, over those of its name."""
        common = self._common.get(event.metadata_id, {})
        return {**common, **self._read(event.stats)}

    def _read(self, stats: Any) -> dict[str, str | int]:
        names = self._stat_names
        return {
            names.get(stat.metadata_id, ""): stat.str_value
            or names.get(stat.ref_value, "")  # a text that many have is kept once, among the names
            or stat.uint64_value
            or stat.int64_value
            for stat in stats
        }


@dataclass(frozen=True)
class Space:
    """A whole trace: what every device and the host did, and what the profiler has to say."""

    planes: tuple[Plane, ...]
    complaints: tuple[str, ...]  # events were lost, a device could not be traced, …

    def plane(self, name: str) -> Plane | None:
        """The plane called so."""
        return next((plane for plane in self.planes if plane.name == name), None)


def read_space(path: str) -> Space:
    """The trace in a file; a `StorageError` where it is not one, or only the beginning of one."""
    try:
        space = message_class("Space").FromString(read_bytes(path))
    except DecodeError as error:
        raise StorageError(
            f"{path} is not a whole trace ({error})",
            allowed="an .xplane.pb file as the profiler writes it at the end of its steps",
            fix="wait until the run has written it, or trace again; a run killed while writing "
            "leaves half a file",
        ) from error
    planes = tuple(Plane(plane) for plane in space.planes)
    return Space(planes, (*space.errors, *space.warnings))
