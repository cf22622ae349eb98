"""Running a plan: what the folders say afterwards, and how far a failure reaches."""

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from executor_samples import calling, run_here, status_of, step

from chomp import storage
from chomp.errors import RunInterrupted
from chomp.executor import (
    ExecutorStep,
    PlannedStep,
    StepFailure,
    output_path_of,
    plan_steps,
    read_status,
    run_plan,
    this_output_path,
)
from chomp.storage import FileLock, LockHolder

Planned = Callable[..., list[PlannedStep]]
Ran = Callable[..., list[StepFailure]]


def runs_in(path: str) -> int:
    """How often `work` was called for the step with this folder."""
    return len(storage.read_text(f"{path}/runs").splitlines())


def raising(error: BaseException) -> Callable[[str], None]:
    def fail(path: str) -> None:
        raise error

    return fail


def test_a_step_that_ran_leaves_status_and_info_and_no_lock(planned: Planned, ran: Ran):
    own = ExecutorStep("own", step("own").fn, step("own", lr=0.5).config, description="words")
    other = step("other")
    begun = time.time()
    assert ran(own, step("reader", data=other / "x")) == []
    assert ran(own) == []
    assert runs_in(planned(own)[0].path) == 1, "a done step is not run again"
    path = planned(own)[0].path
    record = storage.read_json(f"{path}/.executor_status")
    assert begun <= record.pop("started") <= record.pop("finished") <= time.time()
    assert record == {
        "state": "SUCCESS",
        "identity": planned(own)[0].identity.hash,
        "attempt": 1,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "error": None,
    }
    info = storage.read_json(f"{path}/.executor_info")
    assert info["config"] == {"out": path, "version": 1, "lr": 0.5}
    assert info["values"] == {"version": 1}
    assert info["fn"] == "executor_samples.work"
    assert info["output_path"] == path
    assert info["description"] == "words"
    assert "executor_samples.py" in info["sources"]
    [dependency] = storage.read_json(
        f"{planned(step('reader', data=other / 'x'))[-1].path}/.executor_info"
    )["dependencies"]
    assert dependency == planned(other)[0].path
    assert storage.list_folder(path) == [".executor_info", ".executor_status", "runs"]


def test_a_failure_stays_in_its_branch_and_is_recorded_with_its_traceback(
    planned: Planned, ran: Ran
):
    bad = step("bad", error="it broke [/here]")
    above = step("above", data=bad / "x")
    top = step("top", data=output_path_of(above))
    fine = step("fine")
    failures = ran(top, step("also", data=fine / "x"))
    paths = {item.step.name: item.path for item in planned(top, fine)}
    assert [failure.planned.step.name for failure in failures] == ["bad", "above", "top"]
    assert isinstance(failures[0].error, ValueError)
    assert [failure.error for failure in failures[1:]] == [None, None]
    assert status_of(paths["bad"]).state == "FAILED"
    assert status_of(paths["bad"]).error == "ValueError: it broke [/here]"
    assert status_of(paths["bad"]).finished is not None
    trace = storage.read_text(f"{paths['bad']}/.executor_error")
    assert trace.startswith("Traceback")
    assert "raise ValueError(config" in trace
    for name, below in (("above", "bad"), ("top", "above")):
        assert status_of(paths[name]).state == "DEP_FAILED"
        assert status_of(paths[name]).error == f"{paths[below]} failed"
        assert status_of(paths[name]).attempt == 0
    assert status_of(paths["fine"]).state == "SUCCESS"
    assert planned(step("also", data=fine / "x"))[0].action == "skip"


def test_what_failed_is_continued_and_what_waited_for_it_runs_first_time(
    planned: Planned, ran: Ran
):
    ran(step("top", data=step("bad", error="no") / ""))
    repaired = step("top", data=step("bad") / "")
    assert [item.reason for item in planned(repaired)] == [
        "attempt 1 ended as failed; it continues",
        "a step it depends on had failed",
    ]
    assert ran(repaired) == []
    bad, top = planned(step("bad"), repaired)
    assert status_of(bad.path).attempt == 2
    assert runs_in(bad.path) == 2, "in the same folder"
    assert status_of(top.path).attempt == 1


def test_a_dependant_of_an_equal_step_that_failed_does_not_run(planned: Planned, ran: Ran):
    failures = ran(step("bad", error="no"), step("top", data=step("bad", error="no") / "x"))
    assert [failure.planned.step.name for failure in failures] == ["bad", "top"]


def test_failures_are_told_as_they_happen(planned: Planned):
    told: list[str] = []
    run_plan(
        planned(step("bad", error="no"), step("fine")),
        run_here,
        on_start=lambda item: told.append(item.step.name),
        on_failure=lambda failure: told.append(f"{failure.planned.step.name} failed"),
    )
    assert told == ["bad", "bad failed", "fine"]


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (KeyboardInterrupt(), "interrupted"),
        (RunInterrupted("SIGTERM: saved", exit_code=75), "SIGTERM: saved"),
    ],
)
def test_an_interruption_ends_the_run_and_is_recorded_as_one(
    planned: Planned, ran: Ran, stop: BaseException, text: str
):
    own = calling("own", raising(stop))
    with pytest.raises(type(stop)):
        ran(own, step("later"))
    [item, later] = planned(own, step("later"))
    assert (status_of(item.path).state, status_of(item.path).error) == ("INTERRUPTED", text)
    assert item.reason == "attempt 1 ended as interrupted; it continues"
    assert later.reason == "new"
    assert not storage.exists(f"{item.path}/.executor_lock")
    assert not storage.exists(f"{item.path}/.executor_error")


def test_a_step_that_exits_has_failed_and_does_not_end_the_others(planned: Planned, ran: Ran):
    own = calling("own", raising(SystemExit(0)))
    [failure] = ran(own, step("later"))
    assert isinstance(failure.error, SystemExit)
    assert status_of(planned(own)[0].path).state == "FAILED"
    assert planned(step("later"))[0].action == "skip"


def test_a_forced_step_runs_from_nothing_and_the_old_result_is_kept(planned: Planned, ran: Ran):
    bottom = step("bottom")
    top = step("top", data=bottom / "x")
    ran(top)
    path = planned(bottom)[0].path
    first = status_of(path)
    assert ran(top, force=("bottom",)) == []
    assert status_of(path).started > first.started
    assert status_of(path).attempt == 1
    assert runs_in(path) == 1
    [aside] = list(Path(path).parent.glob("bottom-*.replaced-*"))
    assert status_of(str(aside)) == first
    assert runs_in(str(aside)) == 1
    assert sorted(os.listdir(aside)) == [".executor_info", ".executor_status", "runs"]
    assert runs_in(planned(top)[0].path) == 1, "only what matches is run again"


def test_a_result_that_was_to_be_replaced_survives_the_failure_of_its_dependency(
    planned: Planned, ran: Ran
):
    def top(**bottom: Any) -> ExecutorStep:
        return step("top", data=step("bottom", **bottom) / "x")

    ran(top())
    assert len(ran(top(error="no"), force=(".",))) == 2
    assert planned(top())[-1].action == "skip"


@pytest.mark.parametrize("force", [(), ("own",)])
def test_what_another_process_ran_since_the_plan_is_left_alone(
    planned: Planned, ran: Ran, force: tuple[str, ...]
):
    if force:
        ran(step("own"))
    plan = planned(step("own"), force=force)
    ran(step("own"), force=force)
    again = status_of(plan[0].path)
    assert run_plan(plan, pytest.fail, on_start=pytest.fail) == []
    assert status_of(plan[0].path) == again
    assert runs_in(plan[0].path) == 1


@pytest.mark.usefixtures("waited_clock")
def test_a_held_step_is_waited_for_and_the_holder_is_told_once(planned: Planned):
    plan = planned(step("own"))
    storage.make_folder(plan[0].path)
    lock = FileLock.acquire(f"{plan[0].path}/.executor_lock", timeout_s=0)
    told: list[LockHolder | None] = []

    def on_wait(item: PlannedStep, holder: LockHolder | None) -> None:
        told.append(holder)
        assert read_status(item.path) is None, "nothing is written without the lock"
        lock.release()

    assert run_plan(plan, run_here, on_wait=on_wait) == []
    [holder] = told
    assert holder is not None
    assert holder.pid == os.getpid()


def test_a_dependant_that_another_process_holds_keeps_its_status(planned: Planned, ran: Ran):
    bad = step("bad", error="no")
    ran(step("top", data=bad / "", error="at first"))
    plan = planned(step("top", data=bad / ""))
    with FileLock.acquire(f"{plan[1].path}/.executor_lock", timeout_s=0):
        before = status_of(plan[1].path)
        assert len(run_plan(plan, run_here)) == 2
        assert status_of(plan[1].path) == before


def test_trouble_with_recording_a_failure_does_not_hide_the_failure(planned: Planned, ran: Ran):
    def fail(path: str) -> None:
        storage.remove_tree(f"{path}/.executor_status")
        storage.make_folder(f"{path}/.executor_status/in the way")
        raise ValueError("the real one")

    [failure] = ran(calling("own", fail))
    assert str(failure.error) == "the real one"
    assert failure.error is not None
    assert "not recorded" in failure.error.__notes__[0]


def test_a_folder_that_cannot_be_made_fails_its_own_step_only(
    planned: Planned, ran: Ran, prefix: str
):
    storage.make_folder(prefix)
    Path(prefix, "file").write_text("")
    bad = calling("bad", pytest.fail, override_output_path=f"{prefix}/file/below")
    top = calling("top", pytest.fail, override_output_path=f"{prefix}/file/top")
    object.__setattr__(top, "config", {"data": bad / "x"})
    failures = ran(top, step("fine"))
    assert [failure.planned.step.name for failure in failures] == ["bad", "top"]
    assert "file is a file" in str(failures[0].error)
    assert planned(step("fine"))[0].action == "skip"


def test_a_step_is_done_only_after_its_outputs_are_on_disk(prefix: str, monkeypatch):
    """What the disk was told to keep, in order: every output, and only then the status."""
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def work(config: dict[str, str]) -> None:
        os.makedirs(f"{config['out']}/below")
        Path(config["out"], "below/made").write_text("not synced by the step")

    [plan] = plan_steps([ExecutorStep("own", work, {"out": this_output_path()})], prefix=prefix)
    monkeypatch.setattr(os, "fsync", noted)
    assert run_plan([plan], run_here) == []
    made = [index for index, path in enumerate(synced) if path.endswith("below/made")]
    status = [index for index, path in enumerate(synced) if ".executor_status" in path]
    assert made
    assert made[0] < status[-1]
