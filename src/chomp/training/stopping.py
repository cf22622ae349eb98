"""When a run saves and stops: by clock, by step, by signal, in all processes alike.

Ctrl-C and SIGTERM are noted and honoured after the step. A start that may take only so many steps
(`train.max_steps`) ends in the same way, without a signal.
"""

import itertools
import logging
import signal
import threading
import time
from dataclasses import dataclass
from enum import Enum
from types import FrameType, TracebackType
from typing import Any

import jax
from jax.experimental import multihost_utils

from chomp.checkpoint import Checkpointer
from chomp.errors import RunInterrupted
from chomp.mesh import broadcast, post, read_posts

# Ctrl-C as shells report it; for SIGTERM, the code that means "preempted, run me again".
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 75}
# A terminal or a scheduler may signal a group and each of its members: that is one request.
_SAME_REQUEST_S = 1.0
_SYNC_EVERY_S = 1.0
_MAX_STEPS_BETWEEN_SYNCS = 1000
_syncs = itertools.count()

_log = logging.getLogger(__name__)


class PlannedStop(Enum):
    """A stop that was asked for by an option, not by a signal."""

    MAX_STEPS = "--max-steps"


StopCause = signal.Signals | PlannedStop


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore_handlers()

    def raise_if_received(self, saved_at: str | None = None) -> None:
        """Raise `RunInterrupted` if a signal came outside of the steps.

        With several processes the run goes on to the next step, where all of them decide.
        """
        if self.received is not None and jax.process_count() == 1:
            raise self.interruption(saved_at)

    def interruption(
        self, saved_at: str | None, *, agreed: StopCause | None = None
    ) -> RunInterrupted:
        """The exception that ends the run; `saved_at` is None if no step was taken.

        `agreed` is what all processes stop for: another one may have received the signal.
        """
        cause = agreed or self.received
        assert cause is not None, "only a run that was asked to stop is interrupted"
        state = "no step was taken yet" if saved_at is None else f"the state is saved at {saved_at}"
        if isinstance(cause, PlannedStop):
            who, code = cause.value, 0
        else:
            who = cause.name if self.received else f"{cause.name} in another process"
            code = EXIT_CODES[cause]
        return RunInterrupted(f"{who}: {state}. The same command continues.", exit_code=code)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received, self._received_at = signal.Signals(number), time.monotonic()
            _log.warning("%s: saving after this step; once more stops at once", self.received.name)
        elif number == self.received and time.monotonic() - self._received_at >= _SAME_REQUEST_S:
            self._restore_handlers()
            signal.raise_signal(number)

    def _restore_handlers(self) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        self._previous_handlers = {}


@dataclass(frozen=True)
class Decision:
    """What all processes do after a step."""

    is_save_due: bool  # always true where they stop
    stop: StopCause | None


class SaveStopSync:
    """Gives all processes the same decision after each step: save, stop, or go on.

    Saving takes all of them at the same step, but clocks differ and a signal reaches one process.
    So process 0's clock counts, a signal anywhere counts, and all act at a step that process 0
    names. They talk about once a second, over the key-value store: no device waits.
    """

    def __init__(self, *, max_steps: int | None = None, sync_every_s: float = _SYNC_EVERY_S):
        """`max_steps`: steps this start may take; None for no bound."""
        self._steps_left = max_steps
        self._sync_every_s = sync_every_s
        self._name = f"save-stop-{next(_syncs)}"
        self._has_posted = False
        self._next_sync = 0
        self._span = 1
        self._last_sync = (0, time.monotonic())  # of process 0: step and time

    def after(self, step: int, checkpointer: Checkpointer, signals: StopSignal) -> Decision:
        """The decision after `step` completed steps. Ask once after every step."""
        decision = self.decide(
            step,
            wants_save=checkpointer.is_due(step),
            must_save=checkpointer.is_permanent(step),
            stop=signals.received,
        )
        if self._steps_left is not None:
            self._steps_left -= 1  # all processes count alike
            if self._steps_left <= 0 and decision.stop is None:
                return Decision(True, PlannedStop.MAX_STEPS)
        return decision

    def decide(
        self,
        step: int,
        *,
        wants_save: bool,
        stop: signal.Signals | None,
        must_save: bool = False,
    ) -> Decision:
        """The decision from this process's `wants_save` (by the clock; only process 0's counts),
        `must_save` (by the step, alike in all) and `stop` (a signal this process received).
        """
        # `jax.distributed.initialize` takes SIGTERM over until `StopSignal` is entered. JAX then
        # names a step that no process has reached yet, and has to be asked after each one.
        preempted = signal.SIGTERM if _is_preempted(step) else None
        if jax.process_count() == 1:
            cause = stop or preempted
            return Decision(wants_save or must_save or cause is not None, cause)
        if stop is not None and not self._has_posted:
            post(self._name, int(stop))
            self._has_posted = True
        if step < self._next_sync:
            return Decision(must_save or preempted is not None, preempted)
        told = self._sync(step, wants_save)
        self._next_sync = told["next_sync"]
        cause = preempted if told["stop"] is None else signal.Signals(told["stop"])
        return Decision(must_save or told["save"] or cause is not None, cause)

    def _sync(self, step: int, wants_save: bool) -> Any:
        decision: dict[str, Any] = {}
        if jax.process_index() == 0:
            signals = read_posts(self._name)
            stop = signals[min(signals)] if signals else None
            next_sync = step + self._steps_until_sync(step)
            decision = {"save": wants_save, "stop": stop, "next_sync": next_sync}
        return broadcast(self._name, decision)

    def _steps_until_sync(self, step: int) -> int:
        last_step, last_time = self._last_sync
        now = time.monotonic()
        self._last_sync = (step, now)
        seconds_per_step = max(now - last_time, 1e-6) / max(step - last_step, 1)
        fitting = int(min(self._sync_every_s / seconds_per_step, _MAX_STEPS_BETWEEN_SYNCS))
        # At most doubled: the steps so far may be unlike those to come.
        self._span = max(1, min(fitting, 2 * self._span))
        return self._span


def _is_preempted(step: int) -> bool:
    # Without jax.distributed or its preemption service there is no notice, and asking is an error.
    if not jax.distributed.is_initialized():
        return False
    is_service_on: bool = jax.config.jax_enable_preemption_service  # type: ignore[attr-defined]
    return is_service_on and bool(multihost_utils.reached_preemption_sync_point(step))
