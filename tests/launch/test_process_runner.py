"""`--on process`: steps in real processes, which fail, are killed, interrupted, and left alone."""

import io
import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from chomp.errors import DataError, LaunchError, RunInterrupted
from chomp.executor import (
    ExecutorStep,
    PlannedStep,
    Resources,
    StepFailure,
    plan_steps,
    read_status,
    run_plan,
)
from chomp.launch.process import (
    GpuPool,
    ProcessRunner,
    gpus_each,
    hidden_gpus,
    usual_concurrency,
)
from chomp.launch.run import local_runner, run_planned
from tests.launch.sent_steps import step, wait_for, wait_until

WISHES = ["", "data", "rare", "bug", "exit", "killed", "leaves", "crashes"]


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
    with ProcessRunner(plan) as runner:
        failures = run_plan(plan, runner, room=runner.room, max_concurrent=2)
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


def test_a_process_that_ends_itself_without_a_word_has_not_done_its_part(ran: Ran):
    error = ran.errors["step-leaves"]
    assert type(error) is LaunchError
    assert "its process exited with code 3 before it was done" in str(error)
    assert "what ends it (os._exit" in str(error)


def test_a_crash_in_native_code_leaves_where_it_was_in_the_log(ran: Ran):
    assert "its process was ended by SIGABRT" in str(ran.errors["step-crashes"])
    assert "Fatal Python error: Aborted" in ran.log("step-crashes")
    assert "sent_steps.py" in ran.log("step-crashes")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_signal_is_handed_on_and_the_step_saves_before_the_command_ends(
    number, code, tmp_path, capfd
):
    plan = plan_steps([step("own", "until asked"), step("never")], prefix=str(tmp_path))
    folder, before = Path(plan[0].path), signal.getsignal(number)

    def ask() -> None:
        wait_for(folder / "ready")
        os.kill(os.getpid(), number)

    asking = threading.Thread(target=ask)
    asking.start()
    with (
        ProcessRunner(plan) as runner,
        pytest.raises(RunInterrupted, match=r"^SIG[A-Z]+: the state is saved at step-5") as caught,
    ):
        run_plan(plan, runner, room=runner.room)
    asking.join()
    assert "Asked to stop: waiting for the processes to save." in capfd.readouterr().err
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
    with ProcessRunner(plan) as runner, pytest.raises(RunInterrupted):
        run_plan(plan, runner, room=runner.room, max_concurrent=2, ask_to_stop=runner.ask_to_stop)
    asking.join()
    assert all((Path(item.path) / "saved").exists() for item in plan)


LAUNCH = """
import sys
from chomp.executor import plan_steps, run_plan
from chomp.launch.process import ProcessRunner
from tests.launch.sent_steps import step

plan = plan_steps([step("own", "until asked")], prefix=sys.argv[1])
runner = ProcessRunner(plan)
run_plan(plan, runner, room=runner.room)
"""


def test_a_step_does_not_outlive_the_process_that_holds_its_lock(tmp_path):
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": root}
    parent = subprocess.Popen([sys.executable, "-c", LAUNCH, str(tmp_path)], env=env)
    wait_until(lambda: list(tmp_path.glob("own-*/ready")) or parent.poll() is not None)
    [ready] = tmp_path.glob("own-*/ready")
    log = (ready.parent / ".executor_log").read_text()
    child = int(log.splitlines()[-1].removeprefix("printed by "))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    wait_until(lambda: not Path(f"/proc/{child}").exists(), "the step's process lives on")
    assert not (ready.parent / "saved").exists()


def test_each_process_of_a_gang_gets_gpus_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,6,7")
    gang = Resources(processes=2, gpus=2)
    plan = plan_steps([step("gang", resources=gang), step("plain")], prefix=str(tmp_path))
    with ProcessRunner(plan) as runner:
        assert run_plan(plan, runner, room=runner.room) == []
    folder, plain = Path(plan[0].path), Path(plan[1].path)
    assert (folder / "seen-0").read_text() == "3,5"
    assert (folder / "seen-1").read_text() == "6,7"
    assert (plain / "seen-0").read_text() == "3,5,6,7"  # whatever there is
    assert ", member 1 of 2, " in (folder / ".executor_log.1").read_text()


@pytest.mark.parametrize(("given", "told"), [(None, "cpu"), ("cuda", "cpu")])
def test_a_step_of_no_gpu_sees_none_and_jax_does_not_look_for_one(
    given, told, tmp_path, monkeypatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    if given is None:
        monkeypatch.delenv("JAX_PLATFORMS")
    else:
        monkeypatch.setenv("JAX_PLATFORMS", given)
    steps = [step("none", resources=Resources(gpus=0)), step("one", resources=Resources(gpus=1))]
    plan = plan_steps(steps, prefix=str(tmp_path))
    with ProcessRunner(plan) as runner:
        assert run_plan(plan, runner, room=runner.room) == []
    none, one = (Path(item.path) for item in plan)
    assert ((none / "seen-0").read_text(), (none / "platforms-0").read_text()) == ("", told)
    assert ((one / "seen-0").read_text(), (one / "platforms-0").read_text()) == (
        "0",
        given or "any",
    )


@pytest.mark.parametrize(
    ("platforms", "has_gpus", "left"),
    [
        ("cuda,cpu", True, "cpu"),
        ("cuda", False, "cpu"),  # told by a driver that has some
        ("tpu,cuda", True, "tpu"),
        ("tpu", False, None),
        ("cpu", True, None),
        ("", True, "cpu"),
        ("", False, None),  # there may be a TPU
    ],
)
def test_where_gpus_are_hidden_jax_is_not_told_to_use_one(platforms, has_gpus, left):
    hidden = hidden_gpus({"JAX_PLATFORMS": platforms}, has_gpus=has_gpus)
    assert hidden == {"CUDA_VISIBLE_DEVICES": "", **({"JAX_PLATFORMS": left} if left else {})}


def all_printed(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What is printed from now on. `capsys` loses what one thread prints while another looks."""
    monkeypatch.setattr(sys, "stdout", said := io.StringIO())
    return said


def test_a_step_that_waits_for_a_gpu_is_left_to_another_launch_that_has_one(tmp_path, monkeypatch):
    said = all_printed(monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    one = Resources(gpus=1)
    steps = [step(name, "until let go", resources=one) for name in "ab"]
    codes: list[int] = []

    def launch(*wanted: ExecutorStep) -> None:
        plan = plan_steps(wanted, prefix=str(tmp_path))
        options = {"prefix": str(tmp_path), "on": "process", "max_concurrent": 2}
        codes.append(run_planned(plan, **options))

    first = threading.Thread(target=launch, args=steps)
    first.start()
    folders = [Path(item.path) for item in plan_steps(steps, prefix=str(tmp_path))]
    wait_until(lambda: "Waiting for 1 GPU: " in said.getvalue() and begun(folders, "ready"))
    [busy] = begun(folders, "ready")  # whichever came first
    waits = 1 - folders.index(busy)
    free = folders[waits]
    free.mkdir(exist_ok=True)
    (free / "go").touch()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    launch(steps[waits])
    assert (free / "seen-0").read_text() == "1"
    (busy / "go").touch()
    first.join()
    assert codes == [0, 0]
    assert (free / "starts").read_text() == "0\n"  # and once alone


def test_steps_that_say_nothing_of_gpus_train_one_at_a_time(tmp_path, monkeypatch):
    said = all_printed(monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.delenv("JAX_PLATFORMS")
    steps = [step("a", "until asked"), step("b", "until asked")]
    aside = step("aside", resources=Resources(gpus=0))
    plan = plan_steps([*steps, aside], prefix=str(tmp_path))
    trains, third = [Path(item.path) for item in plan[:2]], Path(plan[2].path)

    def ask() -> None:
        wait_for(third / "starts")  # it needs no GPU, and so does not wait
        wait_until(lambda: "Waiting for 2 GPUs: " in said.getvalue() and begun(trains, "ready"))
        os.kill(os.getpid(), signal.SIGINT)

    asking = threading.Thread(target=ask)
    asking.start()
    with ProcessRunner(plan) as runner, pytest.raises(RunInterrupted):
        run_plan(plan, runner, max_concurrent=3, room=runner.room, ask_to_stop=runner.ask_to_stop)
    asking.join()
    assert begun(trains, "starts") == begun(trains, "saved")
    assert len(begun(trains, "starts")) == 1


def begun(folders: list[Path], trace: str) -> list[Path]:
    """The folders in which a step has left such a trace."""
    return [folder for folder in folders if (folder / trace).exists()]


def test_where_jax_is_told_to_use_the_cpu_nobody_waits_for_a_gpu(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert [gpus_each(Resources(gpus=given), 4) for given in (None, 0, 2)] == [0, 0, 2]
    monkeypatch.setenv("JAX_PLATFORMS", "cuda,cpu")
    assert [gpus_each(Resources(gpus=given), 4) for given in (None, 0, 2)] == [4, 0, 2]


def test_gpus_are_waited_for_until_there_are_enough_and_come_back():
    pool, waits, got = GpuPool(["3", "5"]), threading.Event(), []

    def take_all() -> None:
        with pool.lend(2, waits.set) as names:
            got.append(names)

    with pool.lend(1) as [name], pool.lend(0) as none:
        assert (name, none) == ("3", [])
        taking = threading.Thread(target=take_all)
        taking.start()
        assert waits.wait(60)
        assert got == []
    taking.join()
    assert got == [["3", "5"]]


def test_who_wants_all_gpus_has_them_before_those_who_came_later_and_want_one():
    pool, got = GpuPool(["3", "5"]), []
    takers: list[threading.Thread] = []

    def take(count: int, waits: threading.Event) -> None:
        with pool.lend(count, waits.set):
            got.append(count)

    with pool.lend(1):
        for count in (2, 1, 1):  # of which the last two could have the one that is left
            waits = threading.Event()
            takers.append(threading.Thread(target=take, args=(count, waits)))
            takers[-1].start()
            assert waits.wait(60)
        with pool.lend(0) as none:
            assert none == []
        assert got == []
    for taker in takers:
        taker.join()
    assert got == [2, 1, 1]


def test_a_step_that_waits_for_a_gpu_waits_no_more_once_all_are_to_stop(tmp_path, monkeypatch):
    said = all_printed(monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    one = Resources(gpus=1)
    plan = plan_steps([step(name, resources=one) for name in "ab"], prefix=str(tmp_path))
    runner = ProcessRunner(plan)
    raised: list[Exception] = []

    def run() -> None:
        try:
            with runner.room(plan[1]):
                pass
        except RunInterrupted as error:
            raised.append(error)

    with runner.room(plan[0]):
        waiting = threading.Thread(target=run)
        waiting.start()
        wait_until(lambda: f"Waiting for 1 GPU: {plan[1].title}" in said.getvalue())
        runner.ask_to_stop()
        waiting.join()  # though nobody has given a GPU back
    assert len(raised) == 1
    assert not list(tmp_path.glob("*/starts"))


@pytest.mark.parametrize(
    ("resources", "told"),
    [
        (Resources(gpus=3), "asks for 3 GPUs, and this machine shows 2"),
        (Resources(processes=2, gpus=2), "asks for 2 GPUs in each of 2 processes"),
        (
            Resources(processes=2),
            "has 2 processes and says nothing of GPUs, and this machine shows",
        ),
        (Resources(processes=3), ".*lower resources.processes, or resources.gpus=0"),
        (Resources(memory_gb=1e6), r"asks for 1e\+06 GB, "),
        (Resources(custom={"TPU": 4}), "asks for TPU"),
    ],
)
def test_more_than_this_machine_has_is_refused_before_anything_runs(
    resources, told, tmp_path, monkeypatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.delenv("JAX_PLATFORMS")
    steps = [step("good"), step("bad", resources=resources)]
    plan = plan_steps(steps, prefix=str(tmp_path / "out"))
    with pytest.raises(LaunchError, match=rf"step 'bad' {told}") as caught:
        ProcessRunner(plan)
    assert re.search("Allowed: .*Fix: ", str(caught.value))
    assert not (tmp_path / "out").exists()


def test_a_step_without_memory_left_in_this_process_is_told_without_a_traceback(tmp_path: Path):
    def fill(config: object) -> None:
        bytearray(2**60)

    plan = plan_steps([replace(step("own"), fn=fill)], prefix=str(tmp_path))
    [failure] = run_plan(plan, local_runner(plan))
    assert isinstance(failure.error, LaunchError)
    assert "memory" in failure.error.given
    assert "train.batch_size" in failure.error.fix


@pytest.mark.parametrize(("visible", "platforms"), [("", ""), ("0", ""), ("0,1", "cpu")])
def test_more_gpus_than_this_process_has_are_refused_where_steps_run_in_it(
    visible: str, platforms: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plan = plan_steps([step("own", resources=Resources(gpus=2))], prefix=str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    local_runner(plan)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    with pytest.raises(LaunchError) as caught:
        local_runner(plan)
    assert "asks for 2 GPUs" in caught.value.given
    assert "resources.gpus" in caught.value.fix


def test_steps_at_once_are_as_many_as_the_cores_can_take(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))

    def fitting(*resources: Resources | None) -> int:
        steps = [step(f"step-{i}", resources=each) for i, each in enumerate(resources)]
        return usual_concurrency(plan_steps(steps, prefix=str(tmp_path)))

    assert fitting(None, None) == 8
    assert fitting(None, Resources(cpus=3)) == 2
    assert fitting(Resources(processes=4, cpus=4), None) == 1


@pytest.mark.parametrize(("on", "is_here"), [("local", True), ("process", False)])
def test_the_checks_of_all_steps_come_before_the_first_step(tmp_path: Path, on: str, is_here: bool):
    checked: list[object] = []

    def check(config: dict[str, str], is_here: bool) -> None:
        checked.append((Path(config["out"]).name, is_here, sorted(tmp_path.iterdir())))
        if config["wish"] == "refused":
            raise DataError("no way")

    first, second = (replace(step(name), check=check) for name in ("first", "second"))
    wrong = replace(step("wrong", "refused"), check=check)
    with pytest.raises(DataError, match="no way"):
        run_planned(plan_steps([first, wrong], prefix=str(tmp_path)), prefix=str(tmp_path), on=on)
    assert not list(tmp_path.iterdir())
    checked.clear()
    plan = plan_steps([first], prefix=str(tmp_path))
    assert run_planned(plan, prefix=str(tmp_path), on=on) == 0
    assert checked == [(Path(plan[0].path).name, is_here, [])]
    checked.clear()
    plan = plan_steps([first, second], prefix=str(tmp_path))  # the first is there
    assert run_planned(plan, prefix=str(tmp_path), on=on) == 0
    assert [name for name, *_ in checked] == [Path(plan[1].path).name]
