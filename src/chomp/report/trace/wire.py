"""The parts of XLA's trace file (`*.xplane.pb`) that a summary needs, as protobuf messages.

Written down here field by field: XLA's own definitions come with no package that chomp needs, and
`jax.profiler.ProfileData` leaves out the programs, which say what an operation is. Fields that are
not named here are skipped, so a newer XLA can add its own. The other file that JAX writes, for
browsers, ends at a million events and has no programs.
"""

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

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


@cache
def message_class(name: str) -> Any:
    """The protobuf class of the message called `name` in the table above."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"trace.{name}"))


@cache
def _pool() -> Any:
    """A pool of our own: another library may have registered XLA's messages in the common one."""
    file = descriptor_pb2.FileDescriptorProto(name="trace.proto", package="trace", syntax="proto3")
    for name, fields in _MESSAGES.items():
        described = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            _add_field(described, field, number, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def _add_field(described: Any, name: str, number: int, kind: str) -> None:
    plain = kind.removeprefix("*")
    field = described.field.add(
        name=name,
        number=number,
        label=_OPTIONAL if plain == kind else _REPEATED,
        type=_TYPES.get(plain, _MESSAGE_TYPE),
    )
    if plain not in _TYPES:
        field.type_name = f".trace.{plain}"
