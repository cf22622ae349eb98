"""A trace file (`*.xplane.pb`), read: its planes, lines and events, and the programs in it.

The messages are written down here field by field: XLA's own definitions come with no package that
chomp needs, and `jax.profiler.ProfileData` leaves out the programs, which say what an operation is.
Fields that are not named here are skipped, so a newer XLA can add its own. Times are picoseconds on
one clock for the whole file. Only what is asked for is decoded: a stat costs as much as an event,
an event has up to a dozen, and most programs of a trace ran before it.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from chomp.errors import StorageError
from chomp.storage import read_bytes

# Message: {field: (number, type)}, with "*" before the type of a repeated field. From XLA's
# xplane.proto and hlo.proto; a field's number never changes.
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "Space": {"planes": (1, "*Plane"), "errors": (2, "*string"), "warnings": (3, "*string")},
    "Plane": {
        "name": (2, "string"),
        "lines": (3, "*Line"),
        "event_metadata": (4, "*EventEntry"),
        "stat_metadata": (5, "*StatEntry"),
        "stats": (6, "*Stat"),
    },
    # A map is sent as a list of keys with values.
    "EventEntry": {"key": (1, "int64"), "value": (2, "EventMetadata")},
    "StatEntry": {"key": (1, "int64"), "value": (2, "StatMetadata")},
    "EventMetadata": {"name": (2, "string"), "stats": (5, "*Stat")},
    "StatMetadata": {"name": (2, "string")},
    "Line": {"name": (2, "string"), "timestamp_ns": (3, "int64"), "events": (4, "*Event")},
    "Event": {
        "metadata_id": (1, "int64"),
        "offset_ps": (2, "int64"),
        "duration_ps": (3, "int64"),
        "stats": (4, "*Stat"),
    },
    "Stat": {
        "metadata_id": (1, "int64"),
        "uint64_value": (3, "uint64"),
        "int64_value": (4, "int64"),
        "str_value": (5, "string"),
        "bytes_value": (6, "bytes"),
        "ref_value": (7, "uint64"),
    },
    "Hlo": {"hlo_module": (1, "Module")},
    "Module": {"name": (1, "string"), "computations": (3, "*Computation")},
    "Computation": {"id": (5, "int64"), "instructions": (2, "*Instruction")},
    "Instruction": {
        "name": (1, "string"),
        "opcode": (2, "string"),
        "metadata": (7, "OpMetadata"),
        "custom_call_target": (28, "string"),
        "called_computation_ids": (38, "*int64"),
        "replica_groups": (49, "*ReplicaGroup"),  # until 2025
        "device_list": (87, "DeviceList"),
    },
    "ReplicaGroup": {"replica_ids": (1, "*int64")},
    "DeviceList": {"replica_groups": (1, "*ReplicaGroup"), "iota": (2, "IotaGroups")},
    "IotaGroups": {"num_groups": (1, "int64"), "num_devices_per_group": (2, "int64")},
    "OpMetadata": {"op_name": (2, "string")},
}
_TYPES = {"int64": 3, "uint64": 4, "string": 9, "bytes": 12}  # as descriptor.proto numbers them
_MESSAGE_TYPE, _OPTIONAL, _REPEATED = 11, 1, 3
_NUMBERED = re.compile(r"(.*)\((\d+)\)")
# What tracing, loops and checkpoints put around the names that somebody gave.
_WRAPPERS = re.compile(
    r"(?:^|(?<=/))(?:jit\([^()]*\)|while|body|cond|closed_call|eval_jaxpr|checkpoint|shard_map|remat"
    r"|rematted_computation|core_call|scan|(?:transpose\()?jvp\(\)\)?|vmap\(\))/"
)
_PS_PER_NS = 1000
_PROGRAMS = "/host:metadata"  # the plane that has them


@cache
def message_class(name: str) -> Any:
    """The protobuf class of the message called `name` in the table above."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"trace.{name}"))


@cache
def _pool() -> Any:
    """A pool of our own: another library may have registered XLA's messages in the common one."""
    file = descriptor_pb2.FileDescriptorProto(name="trace.proto", package="trace", syntax="proto3")
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for name, (number, kind) in fields.items():
            plain = kind.removeprefix("*")
            field = described.field.add(
                name=name,
                number=number,
                label=_OPTIONAL if plain == kind else _REPEATED,
                type=_TYPES.get(plain, _MESSAGE_TYPE),
            )
            if plain not in _TYPES:
                field.type_name = f".trace.{plain}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


@dataclass(frozen=True)
class Instruction:
    """One operation of a compiled program, with what is fused into it."""

    name: str
    opcode: str
    scope: str  # named scopes and the primitive: "jit(train_step)/jvp(attention)/dot_general"
    opcodes: frozenset[str]  # its own, and those inside of it
    targets: frozenset[str]  # of custom calls: "__cublas$lt$matmul"
    is_alone: bool = False  # a collective of one device by itself: nothing is sent

    @property
    def place(self) -> str:
        """The scope without what only tracing put there."""
        return _WRAPPERS.sub("", self.scope)


class Programs:
    """The compiled programs of a trace, by the id and the name that operations have them under.

    The id alone would not do: a program that JAX loaded from its compilation cache keeps that of
    the process which compiled it, where another program of this one may have the same.
    """

    def __init__(self, contents: dict[int, tuple[str, bytes]]) -> None:
        """`contents` are names and serialized `HloProto`s."""
        self._contents = contents
        self._of = cache(self._instructions)
        self._by_kernel = cache(self._kernels)

    def instruction(self, program_id: int, program: str, name: str) -> Instruction | None:
        """The instruction called `name`; None where the trace does not have it.

        `program` is the program's name, empty where an operation does not say it.
        """
        return self._of(program_id, program).get(name)

    def kernel(self, program_id: int, program: str, name: str) -> Instruction | None:
        """The instruction that a kernel is named after: `loop_add_fusion_2`, in a CUDA graph.

        Instructions that come to the same code share a kernel. So this tells what it does and not
        for whom: its scope is left out.
        """
        return self._by_kernel(program_id, program).get(name)

    def _instructions(self, program_id: int, program: str) -> dict[str, Instruction]:
        known, content = self._contents.get(program_id, ("", b""))
        if not content or program not in ("", known):
            return {}
        computations = message_class("Hlo").FromString(content).hlo_module.computations
        inside = {computation.id: computation.instructions for computation in computations}
        return {
            found.name: _instruction(found, inside)
            for computation in computations
            for found in computation.instructions
        }

    def _kernels(self, program_id: int, program: str) -> dict[str, Instruction]:
        named = self._of(program_id, program)
        return {
            re.sub(r"[.-]", "_", name): replace(found, scope="") for name, found in named.items()
        }


def _instruction(found: Any, inside: dict[int, Any]) -> Instruction:
    parts = [found, *_fused(found, inside)]
    # A fusion takes the name of its last operation; the product in it says more.
    named = next((p for p in parts if p.opcode == "dot" and p.metadata.op_name), found)
    scopes = [part.metadata.op_name for part in (named, *parts) if part.metadata.op_name]
    # A collective among groups of one device sends nothing; without groups it is among all.
    sizes = [len(g.replica_ids) for g in (*found.replica_groups, *found.device_list.replica_groups)]
    if found.device_list.iota.num_devices_per_group:
        sizes = [found.device_list.iota.num_devices_per_group]
    return Instruction(
        name=found.name,
        opcode=found.opcode,
        scope=scopes[0] if scopes else "",
        opcodes=frozenset(part.opcode for part in parts),
        targets=frozenset(part.custom_call_target for part in parts) - {""},
        is_alone=set(sizes) == {1},
    )


def _fused(found: Any, inside: dict[int, Any]) -> list[Any]:
    """What is inside of a fusion or of an operation that was made asynchronous."""
    if found.opcode not in ("fusion", "async-start"):
        return []
    parts = [part for key in found.called_computation_ids for part in inside.get(key, [])]
    return parts + [deeper for part in parts for deeper in _fused(part, inside)]


@dataclass(frozen=True)
class Event:
    """Something that ran on a line, from `start` to `end`."""

    name: str
    start: int
    end: int
    stats: dict[str, str | int]


class Plane:
    """What one device or the host did: events on lines, which are its streams and threads."""

    def __init__(self, plane: Any) -> None:
        """A message as it was sent, with names apart from what they name."""
        self.name: str = plane.name
        self.lines: list[Any] = list(plane.lines)  # messages; each has a name
        self._event_names = {entry.key: entry.value.name for entry in plane.event_metadata}
        self._stat_names = {entry.key: entry.value.name for entry in plane.stat_metadata}
        # Of some devices, what all runs of an operation have in common stands beside its name.
        self._common = {entry.key: self._read(entry.value.stats) for entry in plane.event_metadata}
        self.stats = self._read(plane.stats)  # of the device itself: its name, its clock rate

    def events(self, line: Any, named: Collection[str] | None = None) -> Iterator[Event]:
        """The events of a line in the order of the file: all, or those with one of these names."""
        base = line.timestamp_ns * _PS_PER_NS
        for event in line.events:
            name, start = self._event_names.get(event.metadata_id, ""), base + event.offset_ps
            if named is None or name in named:
                common = self._common.get(event.metadata_id, {})
                stats = {**common, **self._read(event.stats)}
                yield Event(name, start, start + event.duration_ps, stats)

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
    programs: Programs
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
    contents = {}  # each program is the metadata of an event
    for entry in (e for p in space.planes if p.name == _PROGRAMS for e in p.event_metadata):
        numbered = _NUMBERED.fullmatch(entry.value.name)
        content = next((s.bytes_value for s in entry.value.stats if s.bytes_value), None)
        if numbered and content:
            contents[int(numbered[2])] = numbered[1], content
    planes = tuple(map(Plane, space.planes))
    return Space(planes, Programs(contents), (*space.errors, *space.warnings))
