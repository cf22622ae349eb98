"""Processes that train together under `jax.distributed`: all of them, or none.

Whatever they are (processes here, actors on a cluster), the first that fails ends the others. Where
one was lost (killed, preempted, its machine gone) and the program is not to blame, all are started
again: a training run then continues from its last checkpoint by itself.
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

from chomp.errors import LaunchError, RunInterrupted
from chomp.executor import PlannedStep, Resources
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
# What names a process of SLURM's own: ours are none, though they may run inside of its job.
_OF_OTHER_LAUNCHERS = ("SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID")
# Between a member's failure and the end of the others by us: a lost one shows by then as what it
# was, and not as the broken connection that the others raise about it.
_SETTLE_S = 2.0
# After an agreed stop the others are about to end by themselves, once they have saved.
_SETTLE_AFTER_STOP_S = 60.0
_GRACE_S = 10.0
_TIMES_TO_KILL = 3
# A port that is taken between its choice and its use is bad luck; four in a row are something else.
_MORE_PORTS = 3
_POLL_S = 0.05
# How the loss of another process is raised in those that are left, by Gloo, NCCL, JAX and chomp.
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
        """What it left behind, once it has ended; None: it could not say anything any more."""


# Takes the index of a member and the variables of its environment that make it one.
StartMember = Callable[[int, Mapping[str, str]], Member]


@dataclass(frozen=True, kw_only=True)
class GangEnd:
    """How a gang ended, by the member whose end made the others end."""

    member: int
    code: int  # 0: all of them ended well
    outcome: Outcome | None
    restarts: int  # how often all were started again before
    is_alone: bool = False  # whether it was a gang of one

    @property
    def is_lost(self) -> bool:
        """Whether another try may help: the program raised no error of its own.

        Alone, a process is lost by a signal, with its machine, or if it was told to make room; one
        that ends itself without a word (`os._exit`) would do so again. Of several, JAX ends those
        that miss another in the same way, so there silence is a loss.
        """
        if self.is_alone:
            is_killed = self.code < 0 and self.outcome is None
            return is_killed or self.code == PREEMPTED_EXIT_CODE
        return self.code != 0 and _is_loss(self.outcome)

    @property
    def is_address_taken(self) -> bool:
        """Whether the members could not meet where they were told to; nothing was begun."""
        # One that is alone was told of no place: whatever it met at is its own affair.
        return not self.is_alone and _is_taken(self.outcome)


def run_gang(
    start: StartMember,
    count: int,
    *,
    restarts: int = 0,
    stop: StopRequest | None = None,
    new_address: Callable[[], str] | None = None,
    on_restart: Callable[[GangEnd], None] = lambda end: None,
) -> GangEnd:
    """Start `count` members and wait for their end; again, up to `restarts` times, if one is lost.

    `new_address` gives host and port of member 0, a new one for each try. A wish to stop is handed
    on to all members, each time it is made; they are then waited for, however long they save. The
    third time they are killed.
    """
    stop = stop or StopRequest()
    restarted = moved = 0
    while True:
        # A new port each time: who is still about from the try before must not join this one.
        address = (new_address or free_local_address)() if count > 1 else ""
        with stop.watched():
            index, code, outcome = _tried(start, count, address, stop)
        end = GangEnd(
            member=index,
            code=code,
            outcome=outcome,
            restarts=restarted,
            is_alone=count == 1,
        )
        if stop.signal is None and end.is_address_taken and moved < _MORE_PORTS:
            # No restart: not one step of the work was done.
            moved += 1
            _log.warning("%s was taken by another program; trying another port", address)
        elif stop.signal is None and end.is_lost and restarted < restarts:
            on_restart(end)
            restarted += 1
        else:
            return end


def free_port(host: str = "127.0.0.1") -> int:
    """A port of `host`, an address of this machine, that nobody listens on now.

    Another program may take it before it is used: `run_gang` then tries again with another.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            raise LaunchError(
                f"{host}, where no program of this machine can listen ({error})",
                allowed="an address of this machine, on which processes of a gang can meet",
                fix="give one that `ip addr` shows; a node of Ray tells its own by "
                "ray start --node-ip-address",
            ) from error
        return int(probe.getsockname()[1])


def free_local_address() -> str:
    """An address on this machine alone, with a port that nobody listens on now."""
    return f"{_LOCAL}:{free_port(_LOCAL)}"


def member_environment(given: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a member: this process's, and what `run_gang` gave it."""
    left_out = {ADDRESS, COUNT, INDEX, _BIND_ADDRESS, *_OF_OTHER_LAUNCHERS}
    return {name: value for name, value in os.environ.items() if name not in left_out} | dict(given)


def resources_of(planned: PlannedStep) -> Resources:
    """What a step asks for; those of an ordinary step where it says nothing."""
    return planned.step.resources or Resources()


def raise_end(planned: PlannedStep, end: GangEnd, stop: StopRequest) -> None:
    """Raise what a step's processes ended with, unless all is well.

    An error of the program comes as itself; a process that was lost is a `LaunchError` that names
    the log; after a wish to stop, all but an error of the program is `RunInterrupted`.
    """
    outcome, log = end.outcome, log_path(planned.path, end.member)
    if end.code == 0 and outcome is not None and not outcome.kinds:
        return
    is_silent = outcome is None  # whatever it was about, it was not to fail
    if stop.signal is not None and (end.is_lost or is_silent or _is_interruption(outcome)):
        raise _interruption(outcome, stop)
    # Preempted for good is an interruption too: the same command goes on.
    if outcome is not None and outcome.kinds and (not end.is_lost or outcome.is_preempted):
        raise error_of(outcome, log)
    # What the member said of another's loss is shown, but is not the reason.
    echo = error_of(outcome, log) if outcome and outcome.kinds else RaisedElsewhere("", log)
    raise _lost(planned, end) from echo


def log_restart(planned: PlannedStep, end: GangEnd) -> None:
    """Say that a gang which lost a member begins again."""
    wanted = resources_of(planned)
    _log.warning(
        "%s: process %d of %d %s; starting all of them again, %d of %d times",
        planned.title,
        end.member,
        wanted.processes,
        describe_exit_code(end.code),
        end.restarts + 1,
        wanted.restarts,
    )


def describe_exit_code(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"ended with {code}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"


def _tried(
    start: StartMember, count: int, address: str, stop: StopRequest
) -> tuple[int, int, Outcome | None]:
    """One try, with nobody left of it: who decided it, the exit code and the outcome of that."""
    members: list[Member] = []
    try:
        for index in range(count):
            members.append(start(index, _variables(address, count, index)))
        codes = _until_over(members, stop)
    finally:
        _end_all(members)
    # Whoever says nothing of its end, not even that it is done, has not done its part.
    silent = [index for index, code in codes.items() if code == 0 and not members[index].outcome()]
    failed = [index for index, code in codes.items() if code != 0] or silent or [0]
    outcomes = {index: members[index].outcome() for index in failed}
    cause = failed[0]
    if not _is_killed(codes[cause], outcomes[cause]):
        # What a program raised by itself explains the rest; then who was lost; then who noticed.
        cause = min(failed, key=lambda index: _rank(outcomes[index]))
    return cause, codes[cause], outcomes[cause]


def _variables(address: str, count: int, index: int) -> dict[str, str]:
    if count == 1:
        return {}
    given = {ADDRESS: address, COUNT: str(count), INDEX: str(index)}
    # Else process 0 would listen to the whole network, where anybody could join.
    return given | {_BIND_ADDRESS: address} if address.startswith(_LOCAL) else given


def _until_over(members: Sequence[Member], stop: StopRequest) -> dict[int, int]:
    """The exit codes in the order in which members ended, until all have, or one failed."""
    codes: dict[int, int] = {}
    asked = 0
    deadline: float | None = None
    while len(codes) < len(members):
        for index, member in enumerate(members):
            code = None if index in codes else member.poll()
            if code is not None:
                codes[index] = code
                if code != 0 and deadline is None:
                    deadline = time.monotonic() + _settle_s(member, code)
        if deadline is not None and time.monotonic() > deadline:
            break
        if stop.times > asked:
            asked = stop.times
            for member in members:
                # One that hangs in native code never comes to the handler of a signal.
                member.terminate() if asked < _TIMES_TO_KILL else member.kill()
        time.sleep(_POLL_S)
    return codes


def _settle_s(failed: Member, code: int) -> float:
    """How long the others are left to end by themselves."""
    outcome = failed.outcome()
    if outcome is not None and "RunInterrupted" in outcome.kinds:
        return _SETTLE_AFTER_STOP_S
    is_clear = _is_killed(code, outcome) or _is_taken(outcome)
    return 0.0 if is_clear else _SETTLE_S


def _is_killed(code: int, outcome: Outcome | None) -> bool:
    """Whether a member was ended from outside, which explains itself."""
    # By SIGABRT JAX ends those that miss another.
    return outcome is None and code < 0 and code != -signal.SIGABRT


def _end_all(members: Sequence[Member]) -> None:
    """Return when no member runs any more."""
    running = [member for member in members if member.poll() is None]
    for member in running:
        member.terminate()
    deadline = time.monotonic() + _GRACE_S
    while any(member.poll() is None for member in running) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    for member in running:
        member.kill()
    while any(member.poll() is None for member in running):
        time.sleep(_POLL_S)


def _rank(outcome: Outcome | None) -> int:
    if not _is_loss(outcome):
        return 0
    return 1 if outcome is None or outcome.is_preempted else 2


def _is_loss(outcome: Outcome | None) -> bool:
    """Whether a member of several was lost, or only misses another."""
    return outcome is None or outcome.is_preempted or _is_echo(outcome)


def _is_echo(outcome: Outcome) -> bool:
    """Whether an error only says that another process is gone."""
    text = outcome.text.lower()
    is_kind = not _ECHO_KINDS.isdisjoint(outcome.kinds) and not _is_taken(outcome)
    return is_kind and any(echo in text for echo in _ECHOES)


def _is_taken(outcome: Outcome | None) -> bool:
    return outcome is not None and ADDRESS_TAKEN in outcome.kinds


def _interruption(outcome: Outcome | None, stop: StopRequest) -> RunInterrupted:
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
        f"{who} {describe_exit_code(end.code)} before it was done{again}. Its log: "
        f"{log_path(planned.path, end.member)}",
        allowed="processes that run until their step is done",
        fix=fix,
    )
