"""How a step's processes ended, as the exception that a runner raises for it, and in words."""

import logging
import re
import signal
from contextlib import suppress

from chomp.errors import LaunchError, RunInterrupted
from chomp.executor import PlannedStep, Resources
from chomp.launch.gang import GangEnd
from chomp.launch.outcome import Outcome, error_of
from chomp.launch.step_logs import log_path
from chomp.launch.stop_wish import StopWish

_log = logging.getLogger(__name__)


def resources_of(planned: PlannedStep) -> Resources:
    """What a step asks for; those of an ordinary step where it says nothing."""
    return planned.step.resources or Resources()


def raise_end(planned: PlannedStep, end: GangEnd, stop: StopWish) -> None:
    """Raise what a step's processes ended with, unless all is well.

    An error of the program comes as itself; a process that was lost is a `LaunchError` that names
    the log; after a wish to stop, all but an error of the program is `RunInterrupted`.
    """
    outcome = end.outcome
    if end.code == 0 and outcome is not None and not outcome.kinds:
        return
    is_silent = outcome is None  # whatever it was about, it was not to fail
    if stop.signal is not None and (end.is_lost or is_silent or _is_interruption(outcome)):
        raise _interruption(outcome, stop)
    # Preempted for good is an interruption too: the same command goes on.
    if outcome is not None and outcome.kinds and (not end.is_lost or outcome.is_preempted):
        raise error_of(outcome)
    # What the member said of another's loss is shown, but is not the reason.
    echo = error_of(outcome) if outcome is not None and outcome.kinds else None
    raise _lost(planned, end) from echo


def tell_restart_of(planned: PlannedStep, end: GangEnd) -> None:
    """Say that a gang which lost a member begins again."""
    wanted = resources_of(planned)
    _log.warning(
        "%s: process %d of %d %s; starting all of them again, %d of %d times",
        planned.title,
        end.member,
        wanted.processes,
        told_code(end.code),
        end.restarts + 1,
        wanted.restarts,
    )


def told_code(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"ended with {code}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"


def _interruption(outcome: Outcome | None, stop: StopWish) -> RunInterrupted:
    """What was asked of this process, with what the step says of its state."""
    if outcome is None or "RunInterrupted" not in outcome.kinds:
        return stop.interruption()
    # The step was asked by SIGTERM, and names that; here it may have been another.
    return stop.interruption(re.sub(r"^SIG[A-Z]+( in another process)?: ", "", outcome.text))


def _is_interruption(outcome: Outcome | None) -> bool:
    interruptions = {"RunInterrupted", "KeyboardInterrupt"}
    return outcome is not None and not interruptions.isdisjoint(outcome.kinds)


def _lost(planned: PlannedStep, end: GangEnd) -> LaunchError:
    count, most = resources_of(planned).processes, resources_of(planned).restarts
    who = "its process" if count == 1 else f"process {end.member} of {count}"
    again = f" and so did the {end.restarts} before it" if end.restarts else ""
    # What kills without being asked is most often the kernel, for want of memory.
    guess = " (a lack of memory?)" if end.code == -signal.SIGKILL else ""
    fix = f"look for the reason there{guess}; the same command continues"
    if count == 1 and end.code >= 0 and end.outcome is None:
        # No signal: something in it has ended the process, past all that Python does then.
        fix = "look there for what ends it (os._exit, a fatal error of a library), and correct that"
    if count > 1 and end.restarts == most:
        fix += f", with resources.restarts above {most} more often by itself"
    return LaunchError(
        f"{who} {told_code(end.code)} before it was done{again}. Its log: "
        f"{log_path(planned.path, end.member)}",
        allowed="processes that run until their step is done",
        fix=fix,
    )
