"""What an operation of a trace is in its program: its opcode, its scope, what it calls.

XLA puts the compiled programs into the trace. They are read one by one, as operations ask for
them: a run has dozens, and most only ran before the trace.
"""

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from chomp.report.trace.wire import message_class

_NUMBERED = re.compile(r"(.*)\((\d+)\)")
# What tracing, loops and checkpoints put around the names that somebody gave.
_WRAPPERS = re.compile(
    r"(?:^|(?<=/))(?:jit\([^()]*\)|while|body|cond|closed_call|eval_jaxpr|checkpoint|shard_map|remat"
    r"|rematted_computation|core_call|scan|(?:transpose\()?jvp\(\)\)?|vmap\(\))/"
)


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
        self._read = cache(self._instructions)
        self._read_kernels = cache(self._by_kernel)

    @staticmethod
    def of_plane(plane: Any) -> "Programs":
        """Those of the plane `/host:metadata`, where each is an event's metadata."""
        contents = {}
        for entry in plane.event_metadata:
            numbered = _NUMBERED.fullmatch(entry.value.name)
            content = next((s.bytes_value for s in entry.value.stats if s.bytes_value), None)
            if numbered and content:
                contents[int(numbered[2])] = numbered[1], content
        return Programs(contents)

    def instruction(self, program_id: int, program: str, name: str) -> Instruction | None:
        """The instruction called `name`; None where the trace does not have it.

        `program` is the program's name, empty where an operation does not say it.
        """
        return self._read(program_id, program).get(name)

    def kernel(self, program_id: int, program: str, name: str) -> Instruction | None:
        """The instruction that a kernel is named after: `loop_add_fusion_2`, in a CUDA graph.

        Instructions that come to the same code share a kernel. So this tells what it does and not
        for whom: its scope is left out.
        """
        return self._read_kernels(program_id, program).get(name)

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

    def _by_kernel(self, program_id: int, program: str) -> dict[str, Instruction]:
        named = self._read(program_id, program)
        return {
            re.sub(r"[.-]", "_", name): replace(found, scope="") for name, found in named.items()
        }


def _instruction(found: Any, inside: dict[int, Any]) -> Instruction:
    parts = [found, *_fused(found, inside)]
    # A fusion takes the name of its last operation; the product in it says more.
    named = next((p for p in parts if p.opcode == "dot" and p.metadata.op_name), found)
    scopes = [part.metadata.op_name for part in (named, *parts) if part.metadata.op_name]
    return Instruction(
        name=found.name,
        opcode=found.opcode,
        scope=scopes[0] if scopes else "",
        opcodes=frozenset(part.opcode for part in parts),
        targets=frozenset(part.custom_call_target for part in parts) - {""},
        is_alone=_is_alone(found),
    )


def _is_alone(found: Any) -> bool:
    """Whether a collective is among groups of one device; without groups it is among all."""
    groups = [*found.replica_groups, *found.device_list.replica_groups]
    if found.device_list.iota.num_devices_per_group:
        return bool(found.device_list.iota.num_devices_per_group == 1)
    return bool(groups) and all(len(group.replica_ids) == 1 for group in groups)


def _fused(found: Any, inside: dict[int, Any]) -> list[Any]:
    """What is inside of a fusion or of an operation that was made asynchronous."""
    if found.opcode not in ("fusion", "async-start"):
        return []
    parts = [part for key in found.called_computation_ids for part in inside.get(key, [])]
    return parts + [deeper for part in parts for deeper in _fused(part, inside)]
