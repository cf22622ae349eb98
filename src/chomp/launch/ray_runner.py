"""Steps on a Ray cluster: `--on ray`.

The driver is the process of the launch file: it plans, holds the locks, and says what became of
each step. A step is a process on some node, or a gang of them, which `resources` places. The code
and the output prefix are to be the same for all nodes; see docs/tutorials/cluster.md.
"""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType

from chomp.executor import PlannedStep
from chomp.launch.gang import member_environment, run_gang
from chomp.launch.job_start import NAMES
from chomp.launch.ray_connection import RayConnection
from chomp.launch.ray_resources import demand_of, require_room, tell_idle_gpus
from chomp.launch.ray_seat import SentProcess
from chomp.launch.ray_seats import RayMember, Seats
from chomp.launch.step_end import raise_end, resources_of, tell_restart_of
from chomp.launch.step_logs import log_header, log_path
from chomp.launch.step_payload import payload_of
from chomp.launch.stop_wish import StopWish

# What of the driver's environment says how a step runs, and so holds on every node.
_FORWARDED = (
    *("CHOMP_", "GRUG_", "FERRY_", "LEVANTER_", "WANDB_", "HF_", "TOKENIZERS_"),
    *("JAX_", "XLA_", "NCCL_", "LIBTPU_", "NPROC"),
)


class RayRunner:
    """Runs steps on a cluster; may be called from several threads at once.

    From when it is made until `close` (it is a context, too) Ctrl-C and SIGTERM are handed on to
    the processes, which save and end; the calls then raise `RunInterrupted`.
    """

    def __init__(self, plan: Sequence[PlannedStep]) -> None:
        to_do = [item for item in plan if item.action != "skip"]
        self._payloads = {item.path: payload_of(item) for item in to_do}
        self._cluster = RayConnection()
        try:
            nodes = self._cluster.nodes()
            require_room(to_do, nodes)
        except BaseException:
            self._cluster.close()
            raise
        tell_idle_gpus(to_do, nodes)
        self._stop = StopWish()
        # After the connection, which sets handlers of its own.
        self._stop.__enter__()

    def __call__(self, planned: PlannedStep) -> None:
        """Run one step of the plan; returns when it is done, raises what it raised."""
        self._stop.raise_if_made()
        wanted = resources_of(planned)
        seats = Seats(planned.title, demand_of(wanted), wanted.processes, self._stop)
        try:
            end = run_gang(
                partial(self._started, planned, seats),
                wanted.processes,
                # One process too: the node that it was on may be gone for good.
                restarts=wanted.restarts,
                stop=self._stop,
                new_address=seats.new_address,
                on_restart=partial(tell_restart_of, planned),
            )
        finally:
            seats.free()
        raise_end(planned, end, self._stop)

    def ask_to_stop(self) -> None:
        """Let all steps that run now save and end, and no other begin."""
        self._stop.ask()

    def close(self) -> None:
        """Leave the cluster, and signals to whoever had them before."""
        self._stop.__exit__(None, None, None)
        self._cluster.close()

    def __enter__(self) -> "RayRunner":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _started(
        self, planned: PlannedStep, seats: Seats, index: int, given: Mapping[str, str]
    ) -> RayMember:
        wanted = resources_of(planned)
        sent = SentProcess(
            payload=self._payloads[planned.path],
            # As an argument and not by Ray's runtime_env, which its dashboard shows to everybody.
            environment={**forwarded_environment(), **given},
            gpus=wanted.gpus or 0,
            folder=planned.path,
            working_folder=os.getcwd(),
            log=log_path(planned.path, index),
            log_header=log_header(planned, index, wanted.processes),
        )
        return seats.member(index, sent)


def ray_runner(plan: Sequence[PlannedStep]) -> RayRunner:
    """A runner for the steps of `plan` on the cluster of RAY_ADDRESS, or the one on this machine.

    Raises `LaunchError` if there is none, for a step that cannot be sent, and for one that asks for
    what no node has. To be made in the main thread.
    """
    return RayRunner(plan)


def forwarded_environment() -> dict[str, str]:
    """Variables of this process that a step is to find on its node, too."""
    environment = member_environment({})
    # Keys that `ray_run` sent to this process alone.
    keys = environment.get(NAMES, "").split()
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_FORWARDED) or name in keys
    }
