"""Processes that train together: all of them or none, and again when one was lost."""

import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chomp.checkpoint import CheckpointConfig
from chomp.config import config_to_mapping
from chomp.errors import DataError, LaunchError, RunInterrupted
from chomp.executor import ExecutorStep, PlannedStep, Resources, plan_steps, read_status, run_plan
from chomp.launch.gang import GangEnd, Member, free_port, member_environment, run_gang
from chomp.launch.process import ProcessRunner
from chomp.launch.signals import StopRequest
from chomp.launch.step_result import Outcome, outcome_of
from chomp.mesh import join_processes
from chomp.mesh.distributed import CoordinatorAddressTaken
from tests import tiny
from tests.launch.sent_steps import step, wait_until

STEPS = 40


class Pretended:
    """A member whose end is written down: after so many looks, with that code and outcome."""

    def __init__(self, looks: int, code: int, outcome: Outcome | None) -> None:
        self.looks, self.code, self.left = looks, code, outcome
        self.asked: list[str] = []

    def poll(self) -> int | None:
        self.looks -= 1
        return self.code if self.looks < 0 else None

    def terminate(self) -> None:
        if self.looks >= 0:
            self.asked.append("terminate")
            self.looks, self.code, self.left = 0, -signal.SIGTERM, None

    def kill(self) -> None:
        if self.looks >= 0:
            self.asked.append("kill")

    def outcome(self) -> Outcome | None:
        return self.left


class JaxRuntimeError(RuntimeError):
    """As JAX raises it."""


DONE = (0, Outcome())
KILLED = (-9, None)
MACHINE_GONE = (-1, None)
BAD_DATA = (1, outcome_of(DataError("no documents")))
PREEMPTED = (75, outcome_of(RunInterrupted("SIGTERM: saved.", exit_code=75)))
CTRL_C = (130, outcome_of(RunInterrupted("SIGINT: saved.", exit_code=130)))
BROKEN_PIPE = (1, outcome_of(JaxRuntimeError("UNKNOWN: [gloo/transport] Connection closed")))
OTHERS_FAILED = (1, outcome_of(LaunchError("opening the run folder failed elsewhere:\n  1: x")))
NO_MEMORY = (1, outcome_of(JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")))
SILENT = (3, None)  # as os._exit does it, and JAX to those that miss another
TAKEN = (98, outcome_of(CoordinatorAddressTaken("gloo:1 is taken")))
HANGS = (10**6, None)

Ends = tuple[tuple[int, Outcome | None], ...]


def ended(*tries: Ends, restarts: int = 0, stop: StopRequest | None = None) -> GangEnd:
    """How a gang ends whose members end so, try by try, one look after the other."""
    left = iter(tries)
    members: list[Pretended] = []

    def start(index: int, given: Any) -> Member:
        if index == 0:
            members[:] = [
                Pretended(10**6 if code == HANGS[0] else look, code, outcome)
                for look, (code, outcome) in enumerate(next(left))
            ]
        return members[index]

    return run_gang(start, len(tries[0]), restarts=restarts, stop=stop)


@pytest.mark.parametrize(
    ("ends", "member", "is_lost"),
    [
        ((DONE, KILLED), 1, True),
        ((KILLED, BAD_DATA), 0, True),  # what came later may well come of it
        ((BROKEN_PIPE, KILLED), 1, True),
        ((BROKEN_PIPE, MACHINE_GONE), 1, True),
        # The machine is gone, and nobody can say so yet.
        ((DONE, BROKEN_PIPE), 1, True),
        ((PREEMPTED, PREEMPTED), 0, True),
        ((BROKEN_PIPE, BAD_DATA), 1, False),
        ((OTHERS_FAILED, BAD_DATA), 1, False),
        ((BAD_DATA, KILLED), 0, False),
        ((NO_MEMORY, BROKEN_PIPE), 0, False),
        ((CTRL_C, CTRL_C), 0, False),
        ((DONE, SILENT), 1, True),
        ((SILENT, BAD_DATA), 1, False),
        ((DONE, (0, None)), 1, False),  # without a word, it has not done its part
    ],
)
def test_the_cause_is_the_program_then_who_was_lost_then_who_noticed(ends, member, is_lost):
    end = ended(ends)
    assert (end.member, end.is_lost) == (member, is_lost)
    assert (end.code, end.outcome) == ends[member]


def test_a_loss_is_tried_again_as_often_as_allowed_and_an_error_is_not():
    lost, done, failed = (DONE, KILLED), (DONE, DONE), (BROKEN_PIPE, BAD_DATA)
    end = ended(lost, lost, done, restarts=2)
    assert (end.code, end.restarts) == (0, 2)
    end = ended(lost, lost, restarts=1)
    assert (end.code, end.restarts) == (-9, 1)
    end = ended(lost, failed, restarts=5)
    assert (end.outcome, end.restarts) == (BAD_DATA[1], 1)


@pytest.mark.parametrize(
    ("end", "times"),
    [
        (KILLED, 1),
        (MACHINE_GONE, 1),
        (PREEMPTED, 1),
        ((75, None), 1),
        (SILENT, 0),
        (BROKEN_PIPE, 0),
        (TAKEN, 0),  # an address of its own
    ],
)
def test_one_process_alone_is_tried_again_only_if_it_was_ended_from_outside(end, times):
    tried = ended((end,), (DONE,), restarts=3)
    assert (tried.restarts, tried.code) == (times, 0 if times else end[0])


def test_a_taken_address_is_left_for_another_and_costs_no_restart(caplog):
    taken, lost, done = (TAKEN, HANGS), (DONE, KILLED), (DONE, DONE)
    end = ended(taken, lost, taken, done, restarts=1)
    assert (end.code, end.restarts) == (0, 1)
    assert caplog.text.count("was taken by another program; trying another port") == 2
    end = ended(*[taken] * 4, restarts=5)  # four times is no accident
    assert (end.outcome, end.restarts, end.is_lost) == (TAKEN[1], 0, False)


def test_nothing_is_started_again_after_a_wish_to_stop():
    stop = StopRequest()
    stop.ask()
    stop.ask()  # is one wish, and not a second that means: at once
    assert stop.times == 1
    end = ended((PREEMPTED, PREEMPTED), restarts=3, stop=stop)
    assert (end.code, end.restarts) == (75, 0)


def test_members_that_do_not_end_by_themselves_are_asked_and_nobody_is_left():
    members = [Pretended(10**6, 0, None), Pretended(0, *KILLED), Pretended(10**6, 0, None)]
    end = run_gang(lambda index, given: members[index], 3)
    assert (end.member, end.code) == (1, -9)
    assert [member.asked for member in members] == [["terminate"], [], ["terminate"]]


def test_each_try_has_an_address_of_its_own_and_every_member_its_number():
    seen: list[dict[str, str]] = []

    def start(index: int, given: Any) -> Member:
        seen.append(dict(given))
        return Pretended(0, *(KILLED if len(seen) <= 2 else DONE))

    run_gang(start, 2, restarts=1)
    assert [given["JAX_PROCESS_ID"] for given in seen] == ["0", "1", "0", "1"]
    assert {given["JAX_NUM_PROCESSES"] for given in seen} == {"2"}
    addresses = [given["JAX_COORDINATOR_ADDRESS"] for given in seen]
    assert addresses[0] == addresses[1] != addresses[2] == addresses[3]
    # On this machine alone, and not for the whole network.
    assert [given["JAX_COORDINATOR_BIND_ADDRESS"] for given in seen] == addresses
    assert run_gang(lambda index, given: Pretended(0, len(given), Outcome()), 1).code == 0


def test_a_member_is_none_of_another_launcher_that_this_one_runs_under(monkeypatch):
    theirs = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS")
    for name in (*theirs, "JAX_PROCESS_ID"):
        monkeypatch.setenv(name, "7")
    found = member_environment({"JAX_PROCESS_ID": "1"})
    assert found["JAX_PROCESS_ID"] == "1"
    assert not set(theirs) & set(found)
    assert found["PATH"] == os.environ["PATH"]


def ran(plan: list[PlannedStep]) -> BaseException | None:
    with ProcessRunner(plan) as runner:
        failures = run_plan(plan, runner, room=runner.room)
    return failures[0].error if failures else None


def gang_plan(prefix: Path, wish: str, restarts: int) -> tuple[list[PlannedStep], Path]:
    """A plan of one gang of two real processes, and its folder."""
    wanted = Resources(processes=2, restarts=restarts)
    plan = plan_steps([step("own", wish, resources=wanted)], prefix=str(prefix))
    return plan, Path(plan[0].path)


def test_real_processes_begin_again_when_one_was_killed(tmp_path, caplog):
    plan, folder = gang_plan(tmp_path, "one is lost once", restarts=2)
    assert ran(plan) is None
    assert sorted((folder / "starts").read_text().split()) == ["0", "0", "1", "1"]
    told = "process 1 of 2 was ended by SIGKILL; starting all of them again (restart 1 of 2)"
    assert told in caplog.text


def test_when_the_restarts_are_spent_the_error_names_the_log(tmp_path):
    plan, folder = gang_plan(tmp_path, "one is always lost", restarts=1)
    error = ran(plan)
    assert type(error) is LaunchError
    assert "process 1 of 2 was ended by SIGKILL before it was done" in error.given
    assert f"Its log: {folder}/.executor_log.1" in error.given
    assert "resources.restarts above 1" in error.fix
    assert (folder / ".executor_log.1").read_text().count("member 1 of 2") == 2


def test_an_error_in_one_process_is_the_error_of_all(tmp_path):
    plan, folder = gang_plan(tmp_path, "one fails", restarts=3)
    error = ran(plan)
    assert (type(error), str(error)) == (DataError, "no documents")
    assert (folder / "starts").read_text().split().count("1") == 1


# ---- Ports at which they are to meet ----------------------------------------------------------


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens at."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_free_port_can_be_listened_on(host):
    if ":" in host and not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listening:
        listening.bind((host, free_port(host)))
        listening.listen()
    with pytest.raises(LaunchError) as raised:
        free_port("192.0.2.1")  # kept for documentation: nobody has it
    assert "192.0.2.1" in raised.value.given
    assert "ip addr" in raised.value.fix


@pytest.mark.parametrize("is_bound", [True, False])
def test_process_0_says_that_its_address_is_taken_before_jax_falls_over_it(taken, is_bound):
    address = f"127.0.0.1:{taken}"
    given = {
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": "0",
        # Without, JAX would listen to all addresses of the machine.
        **({"JAX_COORDINATOR_BIND_ADDRESS": address} if is_bound else {}),
    }
    with pytest.raises(CoordinatorAddressTaken, match=rf":{taken}, and another program listens"):
        join_processes(given)


# ---- Base, trained by real processes of two devices each -------------------------------------


def train_tiny(config: dict[str, Any]) -> None:
    """The training step: base, small, in the step's own folder."""
    from chomp.config import config_from_mapping
    from chomp.data import LmDataConfig
    from chomp.mesh import MeshConfig
    from experiments.grug.base.train import run_grug

    data = config_from_mapping(LmDataConfig, config["data"])
    run = tiny.run_config(data, Path(config["out"]), steps=STEPS)
    run = replace(
        run,
        model=replace(run.model, num_layers=2),
        mesh=MeshConfig(data=4),
        eval=None,
        checkpoint=CheckpointConfig(save_interval_s=None, every=5),
    )
    run_grug(run)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., PlannedStep]:
    """Plans the training step in a folder, by as many processes as asked for."""
    place = tmp_path_factory.mktemp("data")
    data = config_to_mapping(tiny.build_data(place))

    def plan(folder: Path, processes: int, restarts: int = 1) -> PlannedStep:
        wanted = Resources(processes=processes, restarts=restarts)
        config = {"data": data, "out": str(folder)}
        own = ExecutorStep(
            "tiny", train_tiny, config, resources=wanted, override_output_path=str(folder)
        )
        [planned] = plan_steps([own], prefix=str(folder.parent))
        return planned

    return plan


def trained(planned: PlannedStep, devices: int) -> Path:
    """Run a training step in processes of so many devices each; its folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_NUM_CPU_DEVICES", str(devices))
        assert ran([planned]) is None
    return Path(planned.path)


@pytest.fixture(scope="module")
def unbroken(training, tmp_path_factory):
    """The run of two processes with two devices each that nothing happens to."""
    return trained(training(tmp_path_factory.mktemp("unbroken") / "run", processes=2), 2)


@pytest.mark.slow
def test_two_processes_of_two_devices_train_as_one_of_four(training, unbroken, tmp_path):
    alone = trained(training(tmp_path / "run", processes=1), 4)
    ours, theirs = tiny.losses(unbroken), tiny.losses(alone)
    assert len(ours) == STEPS
    # Not to the bit: between processes Gloo adds up the gradients of devices in an order of its
    # own. The largest difference in 40 steps was 1.6e-7 of the loss.
    assert ours == pytest.approx(theirs, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("member", [0, 1])
def test_a_gang_that_loses_a_process_in_the_middle_ends_as_if_nothing_had_been(
    training, unbroken, tmp_path, monkeypatch, member
):
    monkeypatch.setenv("CHOMP_HEARTBEAT_S", "10")
    folder = tmp_path / "run"
    planned = training(folder, processes=2)
    killed: list[int] = []

    def kill_one() -> None:
        record = folder / "metrics.jsonl"
        wait_until(lambda: record.exists() and len(tiny.losses(folder)) >= 12)
        killed.append(process_of(member))
        os.kill(killed[0], signal.SIGKILL)

    killing = threading.Thread(target=kill_one)
    killing.start()
    trained(planned, 2)
    killing.join()
    assert killed
    assert tiny.losses(folder) == tiny.losses(unbroken)  # to the bit
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert {row["attempt"] for row in rows} == {1, 2}
    assert all(
        tiny.receipt(folder, step) == tiny.receipt(unbroken, step) for step in (STEPS - 5, STEPS)
    )
    status = read_status(str(folder))
    assert status is not None
    assert (status.state, status.attempt) == ("SUCCESS", 1)


def process_of(member: int) -> int:
    """The process of this test that is that member of a gang, as the operating system lists it."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
            variables = (place / "environ").read_bytes().split(b"\0")
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        is_step = any(b"chomp.launch.process" in word for word in words)
        is_step &= parent == os.getpid()
        if is_step and f"JAX_PROCESS_ID={member}".encode() in variables:
            return int(place.name)
    raise AssertionError(f"no process is member {member}")


def test_a_third_wish_to_stop_kills_what_hangs():
    stop = StopRequest()

    class Stuck(Pretended):
        """In native code: a signal that Python would handle does nothing."""

        def poll(self) -> int | None:
            stop.times = min(stop.times + 1, 3)  # asked again at each look
            return super().poll()

        def terminate(self) -> None:
            self.asked.append("terminate")

        def kill(self) -> None:
            super().kill()
            self.looks, self.code = 0, -signal.SIGKILL

    stuck = Stuck(10**6, 0, None)
    assert run_gang(lambda index, given: stuck, 1, stop=stop).code == -9
    assert stuck.asked == ["terminate", "terminate", "kill"]
