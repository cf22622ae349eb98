"""`--on process`: steps in real processes, which fail, are killed, interrupted, and left alone."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from chomp import storage
from chomp.errors import DataError, LaunchError, RunInterrupted
from chomp.executor import PlannedStep, Resources, StepFailure, plan_steps, read_status, run_plan
from chomp.launch.process_runner import process_runner, usual_concurrency
from chomp.launch.step_logs import log_path, opened_log
from tests.launch.sent_steps import step, wait_for

WISHES = ["", "data", "rare", "bug", "exit", "killed"]


class Ran:
    """A plan that was run in processes, two at a time."""

    def __init__(self, plan: list[PlannedStep], failures: list[StepFailure]) -> None:
        self.errors = {failure.planned.step.name: failure.error for failure in failures}
        self.folders = {item.step.name: Path(item.path) for item in plan}

    def log(self, name: str) -> str:
        return (self.folders[name] / ".executor_log").read_text()

    def state(self, name: str) -> str:
        status = read_status(str(self.folders[name]))
        assert status is not None
        return status.state


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One step for each way to end."""
    steps = [step(f"step-{wish}", wish) for wish in WISHES]
    plan = plan_steps(steps, prefix=str(tmp_path_factory.mktemp("out")))
    with process_runner(plan, max_concurrent=2) as runner:
        failures = run_plan(plan, runner, max_concurrent=2)
    return Ran(plan, failures)


def test_a_step_is_done_by_another_process_and_what_it_printed_is_kept(ran: Ran):
    assert ran.state("step-") == "SUCCESS"
    header, printed = ran.log("step-").splitlines()
    assert header.startswith("==== step--")
    assert ", attempt 1, started 20" in header
    assert int(printed.removeprefix("printed by ")) != os.getpid()


def test_an_error_of_the_program_comes_as_itself(ran: Ran):
    error = ran.errors["step-data"]
    assert type(error) is DataError
    assert str(error) == "no documents"
    assert "DataError: no documents" in ran.log("step-data")
    rare = ran.errors["step-rare"]
    assert type(rare) is DataError
    assert str(rare) == "RareError: something rare"
    assert rare.__notes__ == ["a note"]


def test_a_bug_keeps_the_traceback_of_its_own_process(ran: Ran):
    assert type(ran.errors["step-bug"]) is ZeroDivisionError
    assert 'raise ZeroDivisionError("a bug")' in ran.log("step-bug")
    assert (
        'raise ZeroDivisionError("a bug")'
        in (ran.folders["step-bug"] / ".executor_error").read_text()
    )
    assert isinstance(ran.errors["step-exit"], SystemExit)
    assert ran.state("step-exit") == "FAILED"


def test_a_process_that_was_killed_is_named_with_its_log(ran: Ran):
    error = ran.errors["step-killed"]
    assert type(error) is LaunchError
    assert "its process was ended by SIGKILL before it was done" in str(error)
    assert f"Its log: {ran.folders['step-killed']}/.executor_log" in str(error)
    assert ran.log("step-killed").splitlines()[-1].startswith("printed by ")
    assert ran.state("step-killed") == "FAILED"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_signal_is_handed_on_and_the_step_saves_before_the_command_ends(number, code, tmp_path):
    plan = plan_steps([step("own", "until asked"), step("never")], prefix=str(tmp_path))
    folder, before = Path(plan[0].path), signal.getsignal(number)

    def ask() -> None:
        wait_for(folder / "ready")
        os.kill(os.getpid(), number)

    asking = threading.Thread(target=ask)
    asking.start()
    with (
        process_runner(plan, max_concurrent=1) as runner,
        pytest.raises(RunInterrupted, match=r"^SIG[A-Z]+: the state is saved at step-5") as caught,
    ):
        run_plan(plan, runner)
    asking.join()
    assert caught.value.exit_code == code
    assert (folder / "saved").exists()
    status = read_status(str(folder))
    assert status is not None
    assert status.state == "INTERRUPTED"
    assert not Path(plan[1].path).exists()
    assert signal.getsignal(number) == before


def test_steps_at_the_same_time_are_all_asked_to_stop(tmp_path):
    plan = plan_steps([step("a", "until asked"), step("b", "until asked")], prefix=str(tmp_path))

    def ask() -> None:
        for item in plan:
            wait_for(Path(item.path) / "ready")
        os.kill(os.getpid(), signal.SIGINT)

    asking = threading.Thread(target=ask)
    asking.start()
    with process_runner(plan, max_concurrent=2) as runner, pytest.raises(RunInterrupted):
        run_plan(plan, runner, max_concurrent=2, ask_to_stop=runner.ask_to_stop)
    asking.join()
    assert all((Path(item.path) / "saved").exists() for item in plan)


LAUNCH = """
import sys
from chomp.executor import plan_steps, run_plan
from chomp.launch.process_runner import process_runner
from chomp.launch.step_logs import log_path, opened_log
from tests.launch.sent_steps import step

plan = plan_steps([step("own", "until asked")], prefix=sys.argv[1])
run_plan(plan, process_runner(plan, max_concurrent=1))
"""


def test_a_step_does_not_outlive_the_process_that_holds_its_lease(tmp_path):
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": root}
    parent = subprocess.Popen([sys.executable, "-c", LAUNCH, str(tmp_path)], env=env)
    deadline = time.monotonic() + 60
    while not (ready := list(tmp_path.glob("own-*/ready"))):
        assert time.monotonic() < deadline
        assert parent.poll() is None
        time.sleep(0.01)
    log = (ready[0].parent / ".executor_log").read_text()
    child = int(log.splitlines()[-1].removeprefix("printed by "))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    while Path(f"/proc/{child}").exists():
        assert time.monotonic() < deadline, "the step's process lives on"
        time.sleep(0.01)
    assert not (ready[0].parent / "saved").exists()


def test_each_process_of_a_gang_gets_gpus_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,6,7")
    gang = Resources(processes=2, gpus=2)
    plan = plan_steps([step("gang", resources=gang), step("plain")], prefix=str(tmp_path))
    with process_runner(plan, max_concurrent=1) as runner:
        assert run_plan(plan, runner) == []
    folder, plain = Path(plan[0].path), Path(plan[1].path)
    assert (folder / "seen-0").read_text() == "3,5"
    assert (folder / "seen-1").read_text() == "6,7"
    # Who asks for none is not kept from any: a step that says nothing may still train.
    assert (plain / "seen-0").read_text() == "3,5,6,7"
    assert ", member 1 of 2, " in (folder / ".executor_log.1").read_text()


@pytest.mark.parametrize(
    ("resources", "told"),
    [
        (Resources(gpus=3), "asks for 3 GPUs, and this machine shows 2"),
        (Resources(processes=2, gpus=2), "asks for 2 GPUs in each of 2 processes"),
        (Resources(memory_gb=1e6), r"asks for 1e\+06 GB in each of 1 processes"),
        (Resources(custom={"TPU": 4}), "asks for TPU"),
    ],
)
def test_more_than_this_machine_has_is_refused_before_anything_runs(
    resources, told, tmp_path, monkeypatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    steps = [step("good"), step("bad", resources=resources)]
    plan = plan_steps(steps, prefix=str(tmp_path / "out"))
    with pytest.raises(LaunchError, match=rf"step 'bad' {told}.*Allowed: .*Fix: "):
        process_runner(plan, max_concurrent=1)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_only_this_process_sees_is_refused():
    plan = plan_steps([step("own")], prefix="memory://out")
    with pytest.raises(LaunchError, match=r"memory://out.*a folder that other processes see"):
        process_runner(plan, max_concurrent=1)


def test_a_folder_that_no_process_can_print_into_gets_the_log_in_the_end():
    [planned] = plan_steps([step("own")], prefix="memory://logs")
    for text in ("one\n", "two\n"):
        with opened_log(planned, 0, 1) as log:
            subprocess.run(["echo", text.strip()], stdout=log, check=True)
    lines = storage.read_text(log_path(planned.path)).splitlines()
    assert [line.partition("-")[0] for line in lines] == ["==== own", "one", "==== own", "two"]


def test_steps_at_once_are_as_many_as_the_cores_can_take(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))

    def fitting(*resources: Resources | None) -> int:
        steps = [step(f"step-{i}", resources=each) for i, each in enumerate(resources)]
        return usual_concurrency(plan_steps(steps, prefix=str(tmp_path)))

    assert fitting(None, None) == 8
    assert fitting(None, Resources(cpus=3)) == 2
    assert fitting(Resources(processes=4, cpus=4), None) == 1
