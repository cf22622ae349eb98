"""A step whose loss or gradient is not finite: what it leaves behind, and what the run does then.

On the device such a step leaves weights, optimizer and average as they were, whatever the policy.
The host learns of it a step later and decides. (A save looks at every number of the state.)
"""

import logging
import math
from collections.abc import Mapping
from typing import Literal, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from chomp.errors import NonFiniteError
from chomp.tracking import metrics

# raise: the run ends with an error. skip: it goes on with the next batch. stop: it saves the last
# good state, then ends with the error.
NonFinitePolicy = Literal["raise", "skip", "stop"]

# A spike passes in a few steps. After this many in a row the weights themselves are wrong.
MAX_SKIPS_IN_A_ROW = 50

log = logging.getLogger(__name__)

Tree = TypeVar("Tree")


def are_finite(*numbers: Float[Array, ""]) -> Bool[Array, ""]:
    """Whether none of them is NaN or infinite."""
    return jnp.isfinite(jnp.stack(numbers)).all()


def new_if_finite(is_finite: Bool[Array, ""], new: Tree, old: Tree) -> Tree:
    """`new` after a good step, `old` after a bad one; to be called inside the step's jit.

    Costs nothing measurable: whoever writes the new number has just read the old one.
    """
    kept: Tree = jax.tree.map(lambda n, o: jnp.where(is_finite, n, o), new, old)
    return kept


class NonFiniteGuard:
    """The host's side: counts bad steps, and raises or asks to stop as the policy says."""

    def __init__(self, policy: NonFinitePolicy, skipped_steps: int = 0) -> None:
        self.skipped_steps = skipped_steps  # of the whole run, earlier attempts included
        self.stopped_by: str | None = None  # the bad step that ends the run under `stop`
        self._policy = policy
        self._in_a_row = 0

    def is_good(self, step: int, values: Mapping[str, float]) -> bool:
        """Whether a step was applied; raises `NonFiniteError` where the run is to end.

        Judges the loss and the gradient norm, as the device does, and no other metric.
        """
        judged = {k: values[k] for k in (metrics.TRAIN_LOSS, metrics.GRAD_NORM) if k in values}
        if all(map(math.isfinite, judged.values())):
            self._in_a_row = 0
            return True
        self.skipped_steps += 1
        self._in_a_row += 1
        bad = f"step {step} gave {', '.join(f'{name}={value}' for name, value in judged.items())}"
        if self._policy == "raise":
            raise _error(bad, "; no checkpoint holds that step")
        if self._in_a_row >= MAX_SKIPS_IN_A_ROW:
            raise _error(f"{bad}, as did the {MAX_SKIPS_IN_A_ROW - 1} steps before it")
        if self._policy == "stop":
            self.stopped_by = self.stopped_by or bad
        log.warning("%s: the update was skipped (%d so far)", bad, self.skipped_steps)
        return False

    def raise_if_stopped(self, saved_at: str) -> None:
        """Raise `NonFiniteError` after a bad step under `stop`; the last good state is saved."""
        if self.stopped_by is not None:
            raise _error(self.stopped_by, f"; the state without that step is saved at {saved_at}")


def _error(given: str, saved: str = "") -> NonFiniteError:
    return NonFiniteError(
        given,
        allowed="a finite loss and gradient, or train.nonfinite_policy=skip to skip such steps",
        fix=f"lower optim.lr or raise optim.warmup_steps{saved}",
    )
