"""Seats for all processes of a step on a cluster: room for every one of them, or for none.

Several are held by one placement group, so that two gangs which each got half of a cluster do not
wait for each other for ever.
"""

import logging
import time
from collections.abc import Mapping
from typing import Any

from chomp.errors import LaunchError
from chomp.launch.outcome import Outcome, outcome_of
from chomp.launch.ray_connection import imported_ray
from chomp.launch.ray_seat import Seat, SentProcess
from chomp.launch.stop_wish import StopWish

_log = logging.getLogger(__name__)

# One for the process, one for the word to end it, one for questions.
_THREADS = 3
_POLL_S = 0.2
# After so long it is worth a word that the cluster is full.
_PATIENCE_S = 10.0
# A node that is lost while it gets its seat costs a try; a cluster that loses three in a row, more.
_TRIES_FOR_AN_ADDRESS = 3
# How a process ended whose node is gone: nobody knows, and it does not go on.
_LOST_CODE = -9
# A node that can be reached has ended a process by then.
_KILL_S = 3.0


class RayMember:
    """A process of a step in its seat; a `Member` of a gang."""

    def __init__(self, seat: Any, sent: SentProcess) -> None:
        self._seat = seat
        self._is_seated = seat.free_address.remote()
        self._run = seat.run.remote(sent)
        self._end: tuple[int, Outcome | None] | None = None
        self._is_killed = False

    def poll(self) -> int | None:
        """Its exit code, below 0 for a signal that ended it or a node that is gone."""
        if self._end is None and _is_ready(self._run):
            self._end = _ended(self._run, is_expected=self._is_killed)
        return None if self._end is None else self._end[0]

    def terminate(self) -> None:
        """Ask it to save and end; one that waits for room on the cluster has nothing to save."""
        if _is_ready(self._is_seated):
            self._seat.terminate.remote()
        else:
            self.kill()

    def kill(self) -> None:
        """End it now, with its seat."""
        self._is_killed = True
        if _is_ready(self._is_seated):
            # By its seat: an end of the seat takes the process along, but not what that started.
            _is_ready(self._seat.kill.remote(), timeout_s=_KILL_S)
        _free(self._seat)

    def outcome(self) -> Outcome | None:
        """How the step ended; None if nobody could say so any more."""
        return None if self._end is None else self._end[1]


class Seats:
    """The seats of one step, taken anew for each try; to be freed in the end.

    Used by the one thread that waits for the step.
    """

    def __init__(self, title: str, demand: Mapping[str, float], count: int, stop: StopWish) -> None:
        self._title, self._demand, self._count, self._stop = title, demand, count, stop
        self._seats: list[Any] = []
        self._group: Any = None

    def new_address(self) -> str:
        """Take seats for all, free the earlier ones; host and port at the first of them."""
        lost = imported_ray().exceptions.RayActorError
        for tries_left in reversed(range(_TRIES_FOR_AN_ADDRESS)):
            self._take()
            try:
                return str(self._awaited(self._seats[0].free_address.remote()))
            except lost as error:
                if error.actor_init_failed or not tries_left:
                    raise _unseated(self._title, error) from error
        raise AssertionError("the last try returns or raises")

    def member(self, index: int, sent: SentProcess) -> RayMember:
        """The process that was sent, in the seat of that index."""
        if self._count == 1:
            self._take()  # nobody asked for an address
        return RayMember(self._seats[index], sent)

    def free(self) -> None:
        """Give all seats back to the cluster. What still runs in them is ended."""
        for seat in self._seats:
            _free(seat)
        self._seats = []
        if self._group is not None:
            imported_ray().util.remove_placement_group(self._group)
            self._group = None

    def _take(self) -> None:
        self.free()
        options = [_options(self._demand)] * self._count
        if self._count > 1:
            options = self._reserved()
        for each in options:
            self._seats.append(imported_ray().remote(Seat).options(**each).remote())

    def _reserved(self) -> list[dict[str, Any]]:
        """Options of seats inside of a placement group that has room for all of them."""
        strategy = imported_ray().util.scheduling_strategies.PlacementGroupSchedulingStrategy
        # On as few nodes as will do: they are to talk to each other.
        bundles = [dict(self._demand)] * self._count
        self._group = imported_ray().util.placement_group(bundles, strategy="PACK")
        self._awaited(self._group.ready())
        return [
            _options(self._demand)
            | {"scheduling_strategy": strategy(self._group, placement_group_bundle_index=index)}
            for index in range(self._count)
        ]

    def _awaited(self, answer: Any) -> Any:
        """What the cluster answers, however long that takes, unless nobody wants it any more."""
        began, is_told = time.monotonic(), False
        while not _is_ready(answer, timeout_s=_POLL_S):
            self._stop.raise_if_made()
            if not is_told and time.monotonic() - began > _PATIENCE_S:
                _log.warning(
                    "%s waits for room on the cluster: %d x %s",
                    self._title,
                    self._count,
                    dict(self._demand),
                )
                is_told = True
        return imported_ray().get(answer)


def _options(demand: Mapping[str, float]) -> dict[str, Any]:
    """A demand by Ray's names of resources, as options of an actor."""
    named = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    options: dict[str, Any] = {
        # Not by Ray's own restarts: the others of a gang have to begin again, too.
        "max_restarts": 0,
        "max_task_retries": 0,
        "max_concurrency": _THREADS,
        "num_cpus": 0,
    }
    options |= {named[name]: amount for name, amount in demand.items() if name in named}
    return options | {
        "resources": {name: amount for name, amount in demand.items() if name not in named}
    }


def _is_ready(answer: Any, timeout_s: float = 0.0) -> bool:
    return bool(imported_ray().wait([answer], timeout=timeout_s)[0])


def _ended(run: Any, *, is_expected: bool) -> tuple[int, Outcome | None]:
    ray = imported_ray()
    try:
        code, outcome = ray.get(run)
        return code, outcome
    except ray.exceptions.RayActorError as error:
        if error.actor_init_failed:
            return 1, outcome_of(_unseated("a step", error))
        if not is_expected:
            # With Ray's reason, which knows of nodes and of memory what no log of the step says.
            _log.warning("a process on the cluster is lost: %s", _first_lines(error))
        return _LOST_CODE, None
    except ray.exceptions.RayError as error:
        # There is no seat to be had: its environment, say, fails to be made.
        return 1, outcome_of(_unseated("a step", error))


def _unseated(who: str, error: Exception) -> LaunchError:
    return LaunchError(
        f"{who} got no process on the cluster: {_first_lines(error)}",
        allowed="nodes that have chomp and what the step imports, of the driver's versions",
        fix="install the same environment on all nodes, or send it along: "
        "python -m chomp.launch.ray_run --extra ...",
    )


def _first_lines(error: Exception, most: int = 6) -> str:
    return " / ".join(line.strip() for line in str(error).splitlines()[:most] if line.strip())


def _free(seat: Any) -> None:
    imported_ray().kill(seat, no_restart=True)
