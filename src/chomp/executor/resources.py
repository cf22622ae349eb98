"""What a step asks of the machine it runs on. Never part of its identity: a result is the same.

A runner that can hand out machines reads this; one that runs steps in its own process takes what
that has.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from chomp.config import Config
from chomp.errors import require


@dataclass(frozen=True, kw_only=True)
class Resources(Config):
    """What a step needs, by process; `processes` of them work on it together (a gang)."""

    processes: int = 1  # 1: an ordinary step
    cpus: float = 1.0
    # None: whatever there is, which is all GPUs of one machine, for one such step at a time, and
    # none on a Ray cluster, where who asks for nothing gets nothing. 0: no GPU is shown to it.
    gpus: int | None = None
    memory_gb: float | None = None  # None: whatever there is
    # By the names that a cluster gives its resources, such as {"TPU": 4}.
    custom: Mapping[str, float] = field(default_factory=dict)
    restarts: int = 3  # how often a gang, or a step on another machine, that was lost begins again

    def __post_init__(self) -> None:
        for name in ("processes", "restarts"):
            _require(_is_whole(getattr(self, name)), name, getattr(self, name), "a whole number")
        _require(isinstance(self.custom, Mapping), "custom", self.custom, "a mapping of amounts")
        _require(self.processes >= 1, "processes", self.processes, "a whole number above 0")
        # No CPU at all is fine: a step that waits for another machine needs none.
        _require(_is_amount(self.cpus), "cpus", self.cpus, "a number, at least 0")
        is_count = self.gpus is None or (_is_whole(self.gpus) and self.gpus >= 0)
        _require(is_count, "gpus", self.gpus, "a whole number, at least 0, or null")
        _require(
            self.memory_gb is None or (_is_amount(self.memory_gb) and self.memory_gb > 0),
            "memory_gb",
            self.memory_gb,
            "a number above 0, or null",
        )
        _require(self.restarts >= 0, "restarts", self.restarts, "a whole number, at least 0")
        for name, amount in self.custom.items():
            is_one = (
                isinstance(name, str) and bool(name.strip()) and _is_amount(amount) and amount > 0
            )
            _require(is_one, f"custom[{name!r}]", amount, "a name, and a number above 0")


def _is_whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def _is_amount(number: object) -> bool:
    return isinstance(number, int | float) and math.isfinite(number) and number >= 0


def _require(is_fine: bool, name: str, value: object, allowed: str) -> None:
    require(
        is_fine,
        f"resources.{name}={value}",
        allowed=allowed,
        fix=f"correct {name.partition('[')[0]} in the resources of the step",
    )
