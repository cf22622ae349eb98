"""The compiled programs of a training step, one for each kind of batch."""

from collections.abc import Hashable
from typing import Any

import jax
from jax.sharding import Mesh

from chomp.data import GrugLmExample
from chomp.mesh import compiler_options
from chomp.training.check_run import check_step_memory
from chomp.training.clock import LoopClock


class StepPrograms:
    """A jitted step that is compiled when a new kind of batch comes, on the clock's own account.

    Called like the step. Compiled explicitly, not by the first call: that would count as a step's
    time, and a shape that changes by mistake would compile without a word. Raises `ConfigError` for
    a step that needs more memory than a device has.
    """

    def __init__(
        self, step: Any, mesh: Mesh, clock: LoopClock, *, is_reproducible: bool = False
    ) -> None:
        self._step, self._clock = step, clock
        self._options = compiler_options(mesh, is_reproducible=is_reproducible)
        self._compiled: dict[Hashable, Any] = {}

    def __call__(self, state: Any, batch: GrugLmExample) -> tuple[Any, dict[str, Any]]:
        """The state after the step, and its metrics."""
        # Its size, and the room that its documents need of attention.
        kind = (batch.tokens.shape, jax.tree.structure(batch))
        if kind not in self._compiled:
            with self._clock.phase("compile"):
                lowered = self._step.lower(state, batch)
                compiled = lowered.compile(compiler_options=self._options)
                check_step_memory(compiled, is_state_held=True)
                self._compiled[kind] = compiled
        found: tuple[Any, dict[str, Any]] = self._compiled[kind](state, batch)
        return found
