"""When a run saves and stops: by clock, by step, by signal, or at a step that is not finite.

On the device a step without a finite loss and gradient leaves weights, optimizer and average as
they were, whatever the policy. The host learns of it a step later, and decides.
"""

import itertools
import logging
import math
import signal
import threading
import time
from collections.abc import Mapping
from types import FrameType
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils
from jaxtyping import Array, Bool, Float

from chomp.errors import NonFiniteError, RunInterrupted
from chomp.mesh import broadcast, post, read_posts
from chomp.tracking import metrics

# raise: the run ends with an error. skip: it goes on with the next batch. stop: it saves the last
# good state, then ends with the error.
NonFinitePolicy = Literal["raise", "skip", "stop"]

# A spike passes in a few steps. After this many in a row the weights themselves are wrong.
MAX_SKIPS_IN_A_ROW = 50
# Ctrl-C as shells report it; for SIGTERM, the code that means "preempted, run me again".
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 75}
# A terminal or a scheduler may signal a group and each of its members: that is one request.
_SAME_REQUEST_S = 1.0
_SYNC_EVERY_S = 1.0
_MAX_STEPS_BETWEEN_SYNCS = 1000
_syncs = itertools.count()

_log = logging.getLogger(__name__)

Tree = TypeVar("Tree")


# ---- Steps that are not finite ---------------------------------------------------------------


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
            raise _non_finite(bad, "; no checkpoint holds that step")
        if self._in_a_row >= MAX_SKIPS_IN_A_ROW:
            raise _non_finite(f"{bad}, as did the {MAX_SKIPS_IN_A_ROW - 1} steps before it")
        if self._policy == "stop":
            self.stopped_by = self.stopped_by or bad
        _log.warning("%s: the update was skipped (%d so far)", bad, self.skipped_steps)
        return False

    def raise_if_stopped(self, saved_at: str) -> None:
        """Raise `NonFiniteError` after a bad step under `stop`; the last good state is saved."""
        if self.stopped_by is not None:
            saved = f"; the state without that step is saved at {saved_at}"
            raise _non_finite(self.stopped_by, saved)


def _non_finite(given: str, saved: str = "") -> NonFiniteError:
    return NonFiniteError(
        given,
        allowed="a finite loss and gradient, or train.nonfinite_policy=skip to skip such steps",
        fix=f"lower optim.lr or raise optim.warmup_steps{saved}",
    )


# ---- Signals ---------------------------------------------------------------------------------


class StopSignal:
    """While entered, notes the first SIGINT or SIGTERM instead of ending the process.

    The same signal a second later ends it at once. The other one does nothing more, so that it
    cannot cut short the save that the first one asked for.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._received_at = 0.0
        self._previous_handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is not threading.main_thread():
            _log.warning("not in the main thread: Ctrl-C and SIGTERM will not save before stopping")
            return self
        for number in EXIT_CODES:
            # None: a handler that was set outside of Python and cannot be put back.
            self._previous_handlers[number] = signal.signal(number, self._note) or signal.SIG_DFL
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        self._previous_handlers = {}

    def raise_if_received(self, saved_at: str | None = None) -> None:
        """Raise `RunInterrupted` if a signal came outside of the steps.

        With several processes the run goes on to the next step, where all of them decide.
        """
        if self.received is not None and jax.process_count() == 1:
            raise self.interruption(saved_at, self.received)

    def interruption(self, saved_at: str | None, cause: signal.Signals | None) -> RunInterrupted:
        """The exception that ends the run; `saved_at` is None if no step was taken.

        `cause` is what all processes stop for: another one may have received the signal. None: the
        steps that `train.max_steps` allows are done.
        """
        who, code = "--max-steps", 0
        if cause is not None:
            who = cause.name if self.received else f"{cause.name} in another process"
            code = EXIT_CODES[cause]
        state = "no step was taken yet" if saved_at is None else f"the state is saved at {saved_at}"
        return RunInterrupted(f"{who}: {state}. The same command continues.", exit_code=code)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received, self._received_at = signal.Signals(number), time.monotonic()
            _log.warning("%s: saving after this step; once more stops at once", self.received.name)
        elif number == self.received and time.monotonic() - self._received_at >= _SAME_REQUEST_S:
            self.__exit__()
            signal.raise_signal(number)


# ---- All processes alike ---------------------------------------------------------------------


class Decision(NamedTuple):
    """What all processes do after a step."""

    is_save_due: bool  # always true where they stop
    stop: signal.Signals | None


class SaveStopSync:
    """Gives all processes the same decision after each step: save, stop, or go on.

    Saving takes all of them at the same step, but clocks differ and a signal reaches one process.
    So process 0's clock counts, a signal anywhere counts, and all act at a step that process 0
    names. They talk about once a second, over the key-value store: no device waits.
    """

    def __init__(self) -> None:
        self._name = f"save-stop-{next(_syncs)}"
        self._has_posted = False
        self._next_sync = 0
        self._span = 1  # steps between the last sync and the next
        self._last_sync = (0, time.monotonic())  # of process 0: step and time

    def decide(
        self, step: int, *, wants_save: bool, stop: signal.Signals | None, must_save: bool = False
    ) -> Decision:
        """The decision after `step` completed steps; ask once after every step.

        From this process's `wants_save` (by the clock; only process 0's counts), `must_save` (by
        the step, alike in all) and `stop` (a signal this process received).
        """
        # `jax.distributed` takes SIGTERM over until `StopSignal` is entered, names a step to save
        # at that no process has reached yet, and has to be asked after each one. Without its
        # service, asking is an error.
        preempted = None
        if jax.distributed.is_initialized():
            is_on: bool = jax.config.jax_enable_preemption_service  # type: ignore[attr-defined]
            if is_on and multihost_utils.reached_preemption_sync_point(step):
                preempted = signal.SIGTERM
        if jax.process_count() == 1:
            cause = stop or preempted
            return Decision(wants_save or must_save or cause is not None, cause)
        if stop is not None and not self._has_posted:
            post(self._name, int(stop))
            self._has_posted = True
        if step < self._next_sync:
            return Decision(must_save or preempted is not None, preempted)
        agreed: dict[str, Any] = {}
        if jax.process_index() == 0:
            signals = read_posts(self._name)
            (last_step, last_time), now = self._last_sync, time.monotonic()
            self._last_sync = (step, now)
            seconds_per_step = max(now - last_time, 1e-6) / max(step - last_step, 1)
            fitting = int(min(_SYNC_EVERY_S / seconds_per_step, _MAX_STEPS_BETWEEN_SYNCS))
            # At most doubled: the steps so far may be unlike those to come.
            self._span = max(1, min(fitting, 2 * self._span))
            agreed = {
                "save": wants_save,
                "stop": signals[min(signals)] if signals else None,
                "next_sync": step + self._span,
            }
        agreed = broadcast(self._name, agreed)
        self._next_sync = agreed["next_sync"]
        cause = preempted if agreed["stop"] is None else signal.Signals(agreed["stop"])
        return Decision(must_save or agreed["save"] or cause is not None, cause)
