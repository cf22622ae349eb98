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


def test_an_error_of_the_program_comes_as_itself_with_its_traceback_in_the_log(ran: Ran):
    assert (type(ran.errors["step-data"]), str(ran.errors["step-data"])) == (
        DataError,
        "no documents",
    )
    assert "DataError: no documents" in ran.log("step-data")
    rare = ran.errors["step-rare"]
    assert (type(rare), str(rare)) == (DataError, "RareError: something rare")
    assert rare.__notes__ == ["a note"]
    assert type(ran.errors["step-bug"]) is ZeroDivisionError
    for name in (".executor_log", ".executor_error"):
        text = (ran.folders["step-bug"] / name).read_text()
        assert 'raise ZeroDivisionError("a bug")' in text
    assert isinstance(ran.errors["step-exit"], SystemExit)
    assert ran.state("step-exit") == "FAILED"


@pytest.mark.parametrize(
    ("wish", "told", "fix"),
    [
        ("killed", "its process was ended by SIGKILL before it was done", "out of memory?"),
        # Without a word, it has not done its part.
        ("leaves", "its process exited with code 3 before it was done", "what ends it (os._exit"),
        ("crashes", "its process was ended by SIGABRT", "reason in the log"),
    ],
)
def test_a_process_that_was_lost_is_named_with_its_log(ran: Ran, wish: str, told: str, fix: str):
    error = ran.errors[f"step-{wish}"]
    assert type(error) is LaunchError
    assert told in error.given
    assert f"Its log: {ran.folders[f'step-{wish}']}/.executor_log" in error.given
    assert fix in error.fix
    assert ran.state(f"step-{wish}") == "FAILED"
    printed = ran.log(f"step-{wish}")
    if wish == "crashes":  # in native code: where it was
        assert "Fatal Python error: Aborted" in printed
        assert "sent_steps.py" in printed
    else:
        assert printed.splitlines()[-1].startswith("printed by ")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_signal_is_passed_on_and_all_steps_save_before_the_command_ends(
    number, code, tmp_path, capfd
):
    steps = [step("a", "until asked"), step("b", "until asked"), step("never")]
    plan = plan_steps(steps, prefix=str(tmp_path))
    before = signal.getsignal(number)

    def ask() -> None:
        for item in plan[:2]:
            wait_for(Path(item.path) / "ready")
        os.kill(os.getpid(), number)

    asking = threading.Thread(target=ask)
    asking.start()
    with (
        ProcessRunner(plan) as runner,
        pytest.raises(RunInterrupted, match=r"^SIG[A-Z]+: the state is saved at step-5") as caught,
    ):
        run_plan(plan, runner, room=runner.room, max_concurrent=2, ask_to_stop=runner.ask_to_stop)
    asking.join()
    assert "Asked to stop: waiting for the processes to save." in capfd.readouterr().err
    assert caught.value.exit_code == code
    for item in plan[:2]:
        assert (Path(item.path) / "saved").exists()
        status = read_status(item.path)
        assert status is not None
        assert status.state == "INTERRUPTED"
    assert not Path(plan[2].path).exists()
    assert signal.getsignal(number) == before


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


def test_each_process_gets_gpus_of_its_own_and_one_that_asks_for_none_sees_none(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,6,7")
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    gang = step("gang", resources=Resources(processes=2, gpus=2))
    plan = plan_steps(
        [gang, step("plain"), step("none", resources=Resources(gpus=0))], prefix=str(tmp_path)
    )
    with ProcessRunner(plan) as runner:
        assert run_plan(plan, runner, room=runner.room) == []
    folder, plain, none = (Path(item.path) for item in plan)
    assert [(folder / f"seen-{index}").read_text() for index in (0, 1)] == ["3,5", "6,7"]
    assert (folder / "platforms-0").read_text() == "cuda"
    assert (plain / "seen-0").read_text() == "3,5,6,7"  # whatever there is
    # JAX would fail if it were told to use a GPU and found none.
    assert [(none / f"{what}-0").read_text() for what in ("seen", "platforms")] == ["", "cpu"]
    assert ", member 1 of 2, " in (folder / ".executor_log.1").read_text()


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


def test_who_wants_all_gpus_has_them_before_those_who_came_later_and_want_one():
    pool, got = GpuPool(["3", "5"]), []  # and who wants two waits until both came back
    takers: list[threading.Thread] = []

    def take(count: int, waits: threading.Event) -> None:
        with pool.lend(count, waits.set) as names:
            got.append(count)
            assert (sorted(names) == ["3", "5"]) == (count == 2)

    with pool.lend(1) as [name]:
        assert name == "3"
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


@pytest.mark.parametrize(
    ("wanted", "visible", "platforms", "told", "fix"),
    [
        (Resources(gpus=2), "", "", "asks for 2 GPUs", "resources.gpus"),
        (Resources(gpus=2), "0", "", "asks for 2 GPUs", "resources.gpus"),
        (Resources(gpus=2), "0,1", "cpu", "asks for 2 GPUs", "resources.gpus"),
        (Resources(processes=2), "0,1", "cuda", "asks for 2 processes", "--on process"),
        (Resources(custom={"TPU": 4}), "0,1", "cuda", "asks for {'TPU': 4", "--on ray"),
    ],
)
def test_what_this_process_cannot_give_is_refused_where_steps_run_in_it(
    wanted, visible, platforms, told, fix, tmp_path, monkeypatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    local_runner(plan_steps([step("own", resources=Resources(gpus=2))], prefix=str(tmp_path)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    with pytest.raises(LaunchError) as caught:
        local_runner(plan_steps([step("own", resources=wanted)], prefix=str(tmp_path)))
    assert told in caught.value.given
    assert fix in caught.value.fix


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
