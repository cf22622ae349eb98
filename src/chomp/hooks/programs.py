"""The compiled programs of a training step, one for each size of batch."""

from typing import Any

from jax.sharding import Mesh

from chomp.data import GrugLmExample
from chomp.hooks.clock import LoopClock
from chomp.mesh import compiler_options


class StepPrograms:
    """A jitted step that is compiled when a new size of batch comes, on the clock's own account.

    Called like the step. Compiled explicitly, not by the first call: that would count as a step's
    time, and a shape that changes by mistake would compile without a word.
    """

    def __init__(self, step: Any, mesh: Mesh, clock: LoopClock) -> None:
        self._step, self._mesh, self._clock = step, mesh, clock
        self._compiled: dict[int, Any] = {}

    def __call__(self, state: Any, batch: GrugLmExample) -> tuple[Any, dict[str, Any]]:
        """The state after the step, and its metrics."""
        size = batch.tokens.shape[1]
        if size not in self._compiled:
            with self._clock.phase("compile"):
                lowered = self._step.lower(state, batch)
                self._compiled[size] = lowered.compile(
                    compiler_options=compiler_options(self._mesh)
                )
        found: tuple[Any, dict[str, Any]] = self._compiled[size](state, batch)
        return found
