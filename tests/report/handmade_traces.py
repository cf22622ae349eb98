"""Trace files with known content: a few events in the profiler's own format."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from chomp.report.trace_file import message_class

MS = 10**9  # picoseconds


class Made(NamedTuple):
    """An event, in milliseconds."""

    name: str
    start: float
    end: float
    stats: Mapping[str, Any] = {}


class TraceMaker:
    """Collects planes, and writes them where a run's profiler would."""

    def __init__(self) -> None:
        self.space = message_class("Space")()

    def plane(
        self, name: str, lines: Mapping[str, Sequence[Made]], stats: Mapping[str, Any] | None = None
    ) -> None:
        """A device or the host, with its lines of events."""
        plane = self.space.planes.add(name=name)
        names: dict[str, int] = {}
        for key, value in (stats or {}).items():
            _add_stat(plane, plane.stats.add(), key, value)
        for line_name, events in lines.items():
            line = plane.lines.add(name=line_name, timestamp_ns=1000)
            for event in events:
                key = names.setdefault(event.name, len(names) + 1)
                start, end = round(event.start * MS), round(event.end * MS)
                sent = line.events.add(metadata_id=key, offset_ps=start, duration_ps=end - start)
                for stat, value in event.stats.items():
                    _add_stat(plane, sent.stats.add(), stat, value)
        for event_name, key in names.items():
            plane.event_metadata.add(key=key).value.name = event_name

    def program(self, name: str, number: int, instructions: Sequence[Mapping[str, Any]]) -> None:
        """A compiled program: instructions with name, opcode, op_name, target, fuses."""
        plane = self._metadata_plane()
        hlo = message_class("Hlo")()
        main = hlo.hlo_module.computations.add(id=1)
        for index, given in enumerate(instructions, start=2):
            added = _add_instruction(main, given)
            if "fuses" in given:
                added.called_computation_ids.append(index)
                inner = hlo.hlo_module.computations.add(id=index)
                for part in given["fuses"]:
                    _add_instruction(inner, part)
        entry = plane.event_metadata.add(key=number + 1)
        entry.value.name = f"{name}({number})"
        entry.value.stats.add(bytes_value=hlo.SerializeToString())

    def write(self, run: Path, *, moment: str = "2026_11_16_08_45_36", host: str = "a") -> Path:
        """The finished file below the run folder."""
        if not any(plane.name == "Task Environment" for plane in self.space.planes):
            self.plane("Task Environment", {})
        path = run / "profiler" / "plugins" / "profile" / moment / f"{host}.xplane.pb"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.space.SerializeToString())
        return path

    def _metadata_plane(self) -> Any:
        for plane in self.space.planes:
            if plane.name == "/host:metadata":
                return plane
        return self.space.planes.add(name="/host:metadata")


def _add_stat(plane: Any, stat: Any, name: str, value: Any) -> None:
    ids = {entry.value.name: entry.key for entry in plane.stat_metadata}
    if name not in ids:
        ids[name] = len(ids) + 1
        plane.stat_metadata.add(key=ids[name]).value.name = name
    stat.metadata_id = ids[name]
    if isinstance(value, str):
        stat.str_value = value
    else:
        stat.int64_value = value


def _add_instruction(computation: Any, given: Mapping[str, Any]) -> Any:
    added = computation.instructions.add(name=given["name"], opcode=given["opcode"])
    added.metadata.op_name = given.get("op_name", "")
    added.custom_call_target = given.get("target", "")
    return added
