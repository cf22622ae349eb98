"""What all processes of a run decide together between two steps: to save, to stop.

Saving takes all of them, at the same step. But a clock runs differently in each, and a signal
reaches one. So process 0's clock counts, a signal anywhere counts, and all act at a step that
process 0 names. They talk about once a second, at steps known to all; at other steps nobody
asks and nothing waits. Not over devices: a step in flight is not held up.

JAX has a notice of its own (`reached_preemption_sync_point`): from `jax.distributed.initialize` on
its handler takes SIGTERM, silently, until `StopSignal` takes it over for the loop. It is asked here
too, so a SIGTERM that came while the run was set up is not lost.
"""

import itertools
import signal
import time
from dataclasses import dataclass
from typing import Any

import jax
from jax.experimental import multihost_utils

from chomp.checkpoint import Checkpointer
from chomp.mesh import post, posted, told_by_first
from chomp.training.interruption import PlannedStop, StopCause, StopSignal
from chomp.training.stop_after import steps_of_this_start

LOOK_EVERY_S = 1.0
# However short the steps are.
_MOST_STEPS = 1000
_agreements = itertools.count()


@dataclass(frozen=True)
class Decision:
    """What all processes do after a step."""

    is_save_due: bool  # always, where they are to stop
    stop_signal: StopCause | None  # that one of them received, or a stop that was planned


class Agreement:
    """One for each loop. Every process asks after every step and gets the same answer.

    A look costs process 0 two calls of the key-value store and the others one. A run of one process
    decides by itself, at once.
    """

    def __init__(self, *, look_every_s: float = LOOK_EVERY_S) -> None:
        self._look_every_s = look_every_s
        self._name = f"agreement-{next(_agreements)}"
        self._has_posted = False
        self._next_look = 0
        self._span = 1
        self._last = (0, time.monotonic())  # look of process 0: step and time
        self._steps_left = steps_of_this_start()

    def after(self, step: int, checkpointer: Checkpointer, stop: StopSignal) -> Decision:
        """What is done after `step` completed steps, the same in all processes.

        To be asked after every step, once: a start that may take only so many counts them here.
        """
        decided = self.decided(
            step,
            wants_save=checkpointer.is_due(step),
            must_save=checkpointer.is_permanent(step),
            stop=stop.received,
        )
        if self._steps_left is not None:
            self._steps_left -= 1
            # All processes count alike, so nobody has to be asked.
            if self._steps_left <= 0 and decided.stop_signal is None:
                return _decision(True, PlannedStop.MAX_STEPS)
        return decided

    def decided(
        self,
        step: int,
        *,
        wants_save: bool,
        stop: signal.Signals | None,
        must_save: bool = False,
    ) -> Decision:
        """The decision after `step` completed steps, the same in all processes.

        `wants_save` is this process's wish, by its clock: only that of process 0 counts.
        `must_save` follows from the step, so all say the same. `stop` is a signal this process
        received; all save and stop within about `look_every_s` of it.
        """
        # To be asked of every step: JAX names one that none of the processes has reached.
        stopped = signal.SIGTERM if _is_preempted(step) else None
        if jax.process_count() == 1:
            return _decision(wants_save or must_save, stop or stopped)
        if stop is not None and not self._has_posted:
            post(self._name, int(stop))
            self._has_posted = True
        if step < self._next_look:
            return _decision(must_save, stopped)
        told = self._look(step, wants_save)
        self._next_look = told["next_look"]
        if told["stop"] is not None:
            stopped = signal.Signals(told["stop"])
        return _decision(must_save or told["save"], stopped)

    def _look(self, step: int, wants_save: bool) -> Any:
        """What process 0 tells at `step`, from what is known there."""
        found: dict[str, Any] = {}
        if jax.process_index() == 0:
            asked = posted(self._name)
            stop = asked[min(asked)] if asked else None
            found = {"save": wants_save, "stop": stop, "next_look": step + self._steps_ahead(step)}
        return told_by_first(self._name, found)

    def _steps_ahead(self, step: int) -> int:
        """How many steps fit between two looks, as steps went until now."""
        before, at = self._last
        now = time.monotonic()
        self._last = (step, now)
        seconds_a_step = max(now - at, 1e-6) / max(step - before, 1)
        fitting = int(min(self._look_every_s / seconds_a_step, _MOST_STEPS))
        # At most doubled: the steps before may have been unlike those to come.
        self._span = max(1, min(fitting, 2 * self._span))
        return self._span


def _decision(is_save_due: bool, stop: StopCause | None) -> Decision:
    return Decision(is_save_due or stop is not None, stop)


def _is_preempted(step: int) -> bool:
    # Without jax.distributed or its preemption service there is no notice, and asking is an error.
    if not jax.distributed.is_initialized():
        return False
    is_service_on: bool = jax.config.jax_enable_preemption_service  # type: ignore[attr-defined]
    return is_service_on and bool(multihost_utils.reached_preemption_sync_point(step))
