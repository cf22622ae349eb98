"""What a step asks of the machine it runs on. Never part of its identity: a result is the same.

A runner that can hand out machines reads this; one that runs steps in its own process takes what
that has.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from chomp.config import Config, setting
from chomp.errors import require


@dataclass(frozen=True, kw_only=True)
class Resources(Config):
    """What a step needs, by process; `processes` of them work on it together (a gang)."""

    processes: int = setting(default=1, ge=1, le=2**16)  # 1: an ordinary step
    # 0 is fine: a step that waits for another machine needs none.
    cpus: float = setting(default=1.0, ge=0, le=2**16)
    # None: whatever there is, which is all GPUs of one machine, for one such step at a time, and
    # none on a Ray cluster, where who asks for nothing gets nothing. 0: no GPU is shown to it.
    gpus: int | None = setting(default=None, ge=0, le=2**16)
    memory_gb: float | None = setting(default=None, gt=0, le=1e9)  # None: whatever there is
    # By the names that a cluster gives its resources, such as {"TPU": 4}.
    custom: Mapping[str, float] = setting(default_factory=dict, gt=0, le=1e9)
    # How often a gang, or a step on another machine, that was lost begins again.
    restarts: int = setting(default=3, ge=0, lt=2**31)

    def __post_init__(self) -> None:
        blank = [name for name in self.custom if not str(name).strip()]
        require(
            not blank,
            f"resources.custom with the name {blank}",
            allowed="the names that a cluster gives its resources",
            fix="correct custom in the resources of the step",
        )
