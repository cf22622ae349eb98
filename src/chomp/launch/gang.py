"""Processes that train together under `jax.distributed`: all of them, or none.

Whatever they are (processes here, actors on a cluster), the first that fails ends the others. If
one was lost and the program is not to blame, all start again, a run from its last checkpoint.
"""

import logging
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from chomp.errors import LaunchError
from chomp.executor import PlannedStep
from chomp.launch.signals import StopRequest
from chomp.launch.step_result import (
    PREEMPTED_EXIT_CODE,
    Outcome,
    RaisedElsewhere,
    error_of,
    log_path,
)

ADDRESS = "JAX_COORDINATOR_ADDRESS"
COUNT = "JAX_NUM_PROCESSES"
INDEX = "JAX_PROCESS_ID"
_BIND_ADDRESS = "JAX_COORDINATOR_BIND_ADDRESS"
_LOCAL = "127.0.0.1"
# Variables of a process that SLURM started. Ours are not, though they may run inside its job.
_OF_OTHER_LAUNCHERS = ("SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID")
# How long the others may go on after a failure: if one was lost, that shows by then as what it
# was, and not only as the broken connection that the others report.
_SETTLE_S = 2.0
# After an agreed stop the others end by themselves, once they have saved.
_SETTLE_AFTER_STOP_S = 60.0
_GRACE_S = 10.0  # between SIGTERM and SIGKILL
_REQUESTS_TO_KILL = 3
# A port that is taken between its choice and its use is bad luck; four in a row are not.
_MORE_PORTS = 3
_POLL_S = 0.05
# What the remaining processes report when one is lost: Gloo, NCCL, JAX and chomp.
_ECHOES = ("gloo", "nccl", "unavailable", "coordination", "lost touch with", "failed elsewhere")
_ECHO_KINDS = {"JaxRuntimeError", "XlaRuntimeError", "LaunchError"}
# By name: the class lives beside JAX, which is not imported here.
ADDRESS_TAKEN = "CoordinatorAddressTaken"
_log = logging.getLogger(__name__)


class Member(Protocol):
    """One process of a gang, as whoever started it can see it."""

    def poll(self) -> int | None:
        """Its exit code, below 0 for a signal that ended it; None while it runs."""

    def terminate(self) -> None:
        """Ask it to save and end; does nothing to one that has ended."""

    def kill(self) -> None:
        """End it now; does nothing to one that has ended."""

    def outcome(self) -> Outcome | None:
        """What it left behind, once it has ended; None if it could not leave anything."""


# Takes the index of a member and the variables of its environment that make it one.
StartMember = Callable[[int, Mapping[str, str]], Member]


@dataclass(frozen=True, kw_only=True)
class GangEnd:
    """How a gang ended, by the member whose end made the others end."""

    member: int
    code: int  # 0: all of them ended well
    outcome: Outcome | None
    restarts: int  # how often all were started again before
    is_alone: bool  # whether it was a gang of one

    @property
    def is_lost(self) -> bool:
        """Whether another try may help: the program raised no error of its own.

        A single process is lost by a signal, with its machine, or if it was preempted; one that
        exits without a word (`os._exit`) would do so again. In a gang silence is a loss: JAX ends
        processes like that when they miss another one.
        """
        if self.is_alone:
            is_killed = self.code < 0 and self.outcome is None
            return is_killed or self.code == PREEMPTED_EXIT_CODE
        return self.code != 0 and _is_loss(self.outcome)


def run_gang(
    start: StartMember,
    count: int,
    *,
    name: str = "",
    restarts: int = 0,
    stop: StopRequest | None = None,
    new_address: Callable[[], str] = lambda: f"{_LOCAL}:{free_port()}",
) -> GangEnd:
    """Start `count` members and wait for their end; again, up to `restarts` times, if one is lost.

    `name` is what the log calls them. `new_address` gives host and port of member 0, a new one for
    each try. A request to stop is passed on to all members, each time it is made; they are then
    waited for, however long they save. The third request kills them.
    """
    stop = stop or StopRequest()
    restarted = moved = 0
    while True:
        # A new port each time: a process left over from the last try must not join this one.
        address = new_address() if count > 1 else ""
        with stop.watched():
            end = _run_once(start, count, address, stop, restarted)
        if stop.signal is not None:
            return end
        # A single process was given no address: whatever it could not listen at is its own affair.
        if _is_address_taken(end.outcome) and count > 1 and moved < _MORE_PORTS:
            moved += 1  # no restart: not one step of the work was done
            _log.warning("%s was taken by another program; trying another port", address)
        elif end.is_lost and restarted < restarts:
            restarted += 1
            _log.warning(
                "%s%s %s; starting %s again (restart %d of %d)",
                f"{name}: " if name else "",
                _member_name(end.member, count),
                describe_exit_code(end.code),
                "it" if count == 1 else "all of them",
                restarted,
                restarts,
            )
        else:
            return end


def free_port(host: str = _LOCAL) -> int:
    """A port of `host`, an address of this machine, that nobody listens on now.

    Another program may take it before it is used: `run_gang` then tries again with another.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            raise LaunchError(
                f"{host}, where no program of this machine can listen ({error})",
                allowed="an address of this machine, at which processes of a gang can meet",
                fix="use one that `ip addr` shows; a node of Ray gets its own by "
                "ray start --node-ip-address",
            ) from error
        return int(probe.getsockname()[1])


def member_environment(given: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a member: this process's, and what `run_gang` gave it."""
    left_out = {ADDRESS, COUNT, INDEX, _BIND_ADDRESS, *_OF_OTHER_LAUNCHERS}
    return {name: value for name, value in os.environ.items() if name not in left_out} | dict(given)


def describe_exit_code(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exited with code {code}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"


def raise_end(planned: PlannedStep, end: GangEnd, stop: StopRequest) -> None:
    """Raise what a step's processes ended with, unless all is well.

    An error of the program is raised as itself; a process that was lost is a `LaunchError` that
    names the log; after a request to stop, all but an error of the program is `RunInterrupted`.
    """
    outcome, log = end.outcome, log_path(planned.path, end.member)
    kinds = () if outcome is None else outcome.kinds
    if end.code == 0 and outcome is not None and not kinds:
        return
    if stop.signal is not None and outcome is not None and "RunInterrupted" in kinds:
        # The step was asked by SIGTERM and says so; the signal that came here may be another.
        raise stop.interruption(re.sub(r"^SIG[A-Z]+( in another process)?: ", "", outcome.text))
    if stop.signal is not None and (end.is_lost or outcome is None or "KeyboardInterrupt" in kinds):
        raise stop.interruption()
    # Preempted for good is an interruption too: the same command continues.
    if outcome is not None and kinds and (not end.is_lost or outcome.is_preempted):
        raise error_of(outcome, log)
    wanted = planned.resources
    if end.is_alone and end.code >= 0 and outcome is None:
        # No signal: something in the process ended it, past everything Python does at exit.
        fix = "find in the log what ends it (os._exit, a fatal error of a library), and correct it"
    else:
        # SIGKILL that nobody asked for is most often the kernel, for want of memory.
        guess = " (out of memory?)" if end.code == -signal.SIGKILL else ""
        fix = f"look for the reason in the log{guess}; the same command continues"
        if not end.is_alone and end.restarts == wanted.restarts:
            fix += f", or set resources.restarts above {wanted.restarts} to try more often"
    again = f", on try {end.restarts + 1}" if end.restarts else ""
    raise LaunchError(
        f"{_member_name(end.member, wanted.processes)} {describe_exit_code(end.code)} before it "
        f"was done{again}. Its log: {log}",
        allowed="processes that run until their step is done",
        fix=fix,
        # What the member said of another's loss is shown, but is not the reason.
    ) from (error_of(outcome, log) if outcome and kinds else RaisedElsewhere("", log))


def _run_once(
    start: StartMember, count: int, address: str, stop: StopRequest, restarts: int
) -> GangEnd:
    """One try. When it returns, no member runs any more."""
    members: list[Member] = []
    try:
        for index in range(count):
            given = {ADDRESS: address, COUNT: str(count), INDEX: str(index)} if count > 1 else {}
            if address.startswith(_LOCAL):
                # Otherwise process 0 would listen to the whole network, where anybody could join.
                given[_BIND_ADDRESS] = address
            members.append(start(index, given))
        codes = _wait_for_all(members, stop)
    finally:
        _end_all(members)
    outcomes = [member.outcome() for member in members]
    # A member that leaves no outcome has not done its part, even with exit code 0.
    silent = [index for index, code in codes.items() if code == 0 and outcomes[index] is None]
    failed = [index for index, code in codes.items() if code != 0] or silent or [0]
    cause = failed[0]
    if not _is_killed(codes[cause], outcomes[cause]):
        # An error of the program explains the rest; then a loss; then whoever noticed a loss.
        cause = min(failed, key=lambda index: _rank(outcomes[index]))
    return GangEnd(
        member=cause,
        code=codes[cause],
        outcome=outcomes[cause],
        restarts=restarts,
        is_alone=count == 1,
    )


def _wait_for_all(members: Sequence[Member], stop: StopRequest) -> dict[int, int]:
    """The exit codes in the order in which members ended, until all have, or one failed."""
    codes: dict[int, int] = {}
    passed_on = 0
    deadline: float | None = None
    while len(codes) < len(members) and (deadline is None or time.monotonic() <= deadline):
        for index, member in enumerate(members):
            code = None if index in codes else member.poll()
            if code is not None:
                codes[index] = code
                if code != 0 and deadline is None:
                    # How long the others are left to end by themselves.
                    outcome, settle_s = member.outcome(), _SETTLE_S
                    if outcome is not None and "RunInterrupted" in outcome.kinds:
                        settle_s = _SETTLE_AFTER_STOP_S
                    elif _is_killed(code, outcome) or _is_address_taken(outcome):
                        settle_s = 0.0
                    deadline = time.monotonic() + settle_s
        if stop.times > passed_on:
            passed_on = stop.times
            for member in members:
                # A process that hangs in native code never runs its signal handler.
                member.terminate() if passed_on < _REQUESTS_TO_KILL else member.kill()
        time.sleep(_POLL_S)
    return codes


def _end_all(members: Sequence[Member]) -> None:
    """Return when no member runs any more."""
    running = [member for member in members if member.poll() is None]
    for member in running:
        member.terminate()
    deadline = time.monotonic() + _GRACE_S
    while running := [member for member in running if member.poll() is None]:
        if time.monotonic() > deadline:
            deadline = float("inf")  # once is enough
            for member in running:
                member.kill()
        time.sleep(_POLL_S)


def _is_killed(code: int, outcome: Outcome | None) -> bool:
    """Whether a member was ended from outside, which explains itself."""
    # JAX ends processes that miss another one by SIGABRT.
    return outcome is None and code < 0 and code != -signal.SIGABRT


def _rank(outcome: Outcome | None) -> int:
    if not _is_loss(outcome):
        return 0
    return 1 if outcome is None or outcome.is_preempted else 2


def _is_loss(outcome: Outcome | None) -> bool:
    """Whether a member of several was lost, or only reports that another one is gone."""
    if outcome is None or outcome.is_preempted:
        return True
    is_kind = not _ECHO_KINDS.isdisjoint(outcome.kinds) and not _is_address_taken(outcome)
    return is_kind and any(echo in outcome.text.lower() for echo in _ECHOES)


def _is_address_taken(outcome: Outcome | None) -> bool:
    """Whether the members could not meet where they were told to; nothing was begun."""
    return outcome is not None and ADDRESS_TAKEN in outcome.kinds


def _member_name(index: int, count: int) -> str:
    return "its process" if count == 1 else f"process {index} of {count}"
