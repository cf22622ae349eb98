"""Steps at the same time: what may, what must wait, and how a stop reaches all of them."""

import random
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from executor_samples import calling, run_here, step
from hypothesis import given, settings
from hypothesis import strategies as st

from chomp import storage
from chomp.errors import ConfigError, RunInterrupted
from chomp.executor import (
    ExecutorStep,
    PlannedStep,
    output_path_of,
    plan_steps,
    read_status,
    run_plan,
    this_output_path,
    versioned,
)
from chomp.storage import FileLock, lock_holder

Planned = Callable[..., list[PlannedStep]]

# A test that hangs fails after this; none waits for it.
LONG_S = 60.0


def state_of(item: PlannedStep) -> str | None:
    status = read_status(item.path)
    return None if status is None else status.state


def test_steps_that_need_not_wait_for_each_other_run_at_the_same_time(planned: Planned):
    meeting = threading.Barrier(3, timeout=LONG_S)  # broken unless all three come
    plan = planned(*(calling(name, lambda out: meeting.wait()) for name in "abc"))
    assert run_plan(plan, run_here, max_concurrent=3) == []


def test_no_more_run_at_once_than_may(planned: Planned):
    running: list[str] = []
    most: list[int] = []
    guard = threading.Lock()

    def work(out: str) -> None:
        with guard:
            running.append(out)
            most.append(len(running))
        storage.write_text_atomic(f"{out}/made", "")
        with guard:
            running.remove(out)

    plan = planned(*(calling(f"s{i}", work) for i in range(12)))
    assert run_plan(plan, run_here, max_concurrent=2) == []
    assert max(most) <= 2
    assert len(most) == 12


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(2, 12))
def test_every_step_runs_once_and_after_what_it_needs(seed: int, at_once: int, count: int):
    order = random.Random(seed)
    begun: list[str] = []
    done: set[str] = set()

    def work(config: dict[str, Any]) -> None:
        assert done.issuperset(config["needs"])
        begun.append(config["out"])
        done.add(config["out"])

    steps: list[ExecutorStep] = []
    for i in range(count):
        below = order.sample(steps, order.randint(0, min(3, i)))
        needs = [output_path_of(each) for each in below]
        steps.append(
            ExecutorStep(
                "own", work, {"n": versioned(i), "needs": needs, "out": this_output_path()}
            )
        )
    with tempfile.TemporaryDirectory() as prefix:
        plan = plan_steps(order.sample(steps, count), prefix=prefix)
        assert run_plan(plan, run_here, max_concurrent=at_once) == []
    assert sorted(begun) == sorted(item.path for item in plan)


def test_a_failure_stays_in_its_branch_while_others_run_beside_it(planned: Planned):
    failed = threading.Event()
    top = step("top", data=step("middle", data=step("bad", error="no") / "") / "")
    fine = calling("fine", lambda out: failed.wait(LONG_S))
    above = step("above", data=fine / "")
    told: list[str] = []

    def on_failure(failure: Any) -> None:
        told.append(failure.planned.step.name)
        failed.set()

    plan = planned(top, above)
    failures = run_plan(plan, run_here, max_concurrent=2, on_failure=on_failure)
    assert told == ["bad", "middle", "top"]
    assert [type(failure.error) for failure in failures] == [ValueError, type(None), type(None)]
    states = {item.step.name: state_of(item) for item in plan}
    assert states == {
        "bad": "FAILED",
        "middle": "DEP_FAILED",
        "top": "DEP_FAILED",
        "fine": "SUCCESS",
        "above": "SUCCESS",
    }


@pytest.mark.parametrize("stop", [RunInterrupted("saved", exit_code=75), KeyboardInterrupt()])
def test_an_interruption_is_told_to_the_others_and_waits_for_their_end(
    planned: Planned, stop: BaseException
):
    is_told, is_running = threading.Event(), threading.Event()

    def interrupted(out: str) -> None:
        is_running.wait(LONG_S)
        raise stop

    def other(out: str) -> None:
        is_running.set()
        assert is_told.wait(LONG_S)
        raise RunInterrupted("this one saved, too", exit_code=75)

    plan = planned(calling("first", interrupted), calling("other", other), step("later"))
    with pytest.raises(type(stop)) as raised:
        run_plan(plan, run_here, max_concurrent=2, ask_to_stop=is_told.set)
    assert raised.value is stop
    assert [state_of(item) for item in plan] == ["INTERRUPTED", "INTERRUPTED", None]


def test_who_waits_for_another_process_stops_when_the_run_is_interrupted(planned: Planned):
    waits = threading.Event()

    def interrupted(out: str) -> None:
        assert waits.wait(LONG_S)
        raise RunInterrupted("saved", exit_code=75)

    plan = planned(step("held"), calling("own", interrupted))
    storage.make_folder(plan[0].path)
    with (
        FileLock.acquire(f"{plan[0].path}/.executor_lock", timeout_s=0),
        pytest.raises(RunInterrupted, match="saved"),
    ):
        run_plan(plan, run_here, max_concurrent=2, on_wait=lambda item, holder: waits.set())
    assert state_of(plan[0]) is None


@pytest.mark.parametrize("at_once", [1, 2])
def test_what_another_process_runs_is_left_for_later_while_there_is_other_work(
    planned: Planned, at_once: int
):
    held, other = step("held"), calling("other", lambda out: lock.release())
    above = step("above", data=other / "")
    plan = planned(held, above)
    storage.make_folder(plan[0].path)
    lock = FileLock.acquire(f"{plan[0].path}/.executor_lock", timeout_s=0)
    begun: list[str] = []
    failures = run_plan(
        plan,
        run_here,
        max_concurrent=at_once,
        on_start=lambda item: begun.append(item.step.name),
    )
    assert failures == []
    assert begun[0] == "other"
    assert sorted(begun) == ["above", "held", "other"]


class Room:
    """Room for steps, whose coming and going is noted; `on_enter` is what entering it takes."""

    def __init__(self, on_enter: Callable[[], object] = lambda: None) -> None:
        self.notes: list[str] = []
        self._on_enter = on_enter

    @contextmanager
    def __call__(self, item: PlannedStep) -> Iterator[None]:
        """Room for one step."""
        assert lock_holder(f"{item.path}/.executor_lock") is None
        self._on_enter()
        self.notes.append("enters")
        yield
        assert lock_holder(f"{item.path}/.executor_lock") is None
        self.notes.append("leaves")

    def run(self, item: PlannedStep) -> None:
        """Run a step, which has to be in the room."""
        self.notes.append("runs")
        item.step.fn(item.config)


def test_who_waits_for_room_leaves_the_step_to_another_process(planned: Planned):
    others = planned(step("own"))
    room = Room(lambda: run_plan(others, run_here))
    [mine] = planned(step("own"))
    assert run_plan([mine], pytest.fail, room=room) == []
    assert room.notes == ["enters", "leaves"]
    assert storage.read_text(f"{mine.path}/runs") == "ran\n"


@pytest.mark.parametrize("is_done", [True, False])
def test_who_waits_for_another_process_takes_no_room(planned: Planned, is_done: bool):
    [other], [mine] = planned(step("own")), planned(step("own"))
    storage.make_folder(mine.path)
    lock = FileLock.acquire(f"{mine.path}/.executor_lock", timeout_s=0)
    room = Room()

    def on_wait(item: PlannedStep, holder: object) -> None:
        room.notes.append("waits")
        lock.release()
        if is_done:
            run_plan([other], run_here)

    assert run_plan([mine], room.run, room=room, on_wait=on_wait) == []
    assert room.notes == ["waits", *([] if is_done else ["enters", "runs", "leaves"])]
    assert state_of(mine) == "SUCCESS"


def test_room_that_cannot_be_had_is_the_failure_of_its_step(planned: Planned):
    def refuse() -> None:
        raise OSError("no such GPU")

    plan = planned(step("own"))
    [failure] = run_plan(plan, pytest.fail, room=Room(refuse))
    assert str(failure.error) == "no such GPU"
    assert state_of(plan[0]) is None


def test_what_gets_room_after_an_interruption_does_not_begin(planned: Planned):
    is_waiting, is_told = threading.Event(), threading.Event()

    def interrupted(out: str) -> None:
        assert is_waiting.wait(LONG_S)
        raise RunInterrupted("saved", exit_code=75)

    @contextmanager
    def room(item: PlannedStep) -> Iterator[None]:
        if item.step.name == "later":
            is_waiting.set()
            assert is_told.wait(LONG_S)
        yield

    plan = planned(calling("own", interrupted), step("later"))
    with pytest.raises(RunInterrupted, match="saved"):
        run_plan(plan, run_here, max_concurrent=2, room=room, ask_to_stop=is_told.set)
    assert [state_of(item) for item in plan] == ["INTERRUPTED", None]


def test_no_steps_at_once_are_refused(planned: Planned):
    with pytest.raises(ConfigError, match="max_concurrent=0"):
        run_plan(planned(step("own")), run_here, max_concurrent=0)
