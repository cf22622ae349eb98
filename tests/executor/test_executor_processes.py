"""Several processes at one prefix: nothing is done twice, and the dead are succeeded."""

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from executor_samples import run_here, status_of

from chomp import storage
from chomp.executor import ExecutorStep, plan_steps, run_plan

Start = Callable[..., subprocess.Popen[str]]

# Twenty steps that need up to three others each. Each notes its start in one file of all processes.
TWENTY = """
import os, sys
from chomp import storage
from chomp.executor import (
    ExecutorStep, output_path_of, plan_steps, run_plan, this_output_path, versioned
)

log, prefix, go, at_once, *force = sys.argv[1:]

def work(config):
    with open(log, "a") as started:  # one write, so that lines of several processes never mix
        print(config["name"], file=started)
    for path in config["needs"]:
        assert storage.exists(path + "/made"), path
    storage.write_text_atomic(config["out"] + "/made", "")

steps = []
for i in range(20):
    needs = [output_path_of(steps[j]) for j in {i // 2, i // 3, i - 1} if 0 <= j < i]
    config = {"name": versioned(f"s{i}"), "out": this_output_path(), "needs": needs[: i % 4]}
    steps.append(ExecutorStep(f"s{i}", work, config))
plan = plan_steps(steps, prefix=prefix, force=force)
print("ready", flush=True)
while not os.path.exists(go):
    pass
failures = run_plan(plan, lambda item: item.step.fn(item.config), max_concurrent=int(at_once))
print([(failure.planned.title, str(failure.error)) for failure in failures], flush=True)
"""

# Begins a step, says so, and lives on until its input ends.
BLOCK = """
import sys
from chomp.executor import ExecutorStep, plan_steps, run_plan, this_output_path

def work(config):
    with open(config["out"] + "/runs", "a") as runs:
        print("first", file=runs)
    print("running", flush=True)
    sys.stdin.readline()

def tell_wait(item, holder):
    print("waiting for", holder.pid, flush=True)

plan = plan_steps([ExecutorStep("own", work, {"out": this_output_path()})], prefix=sys.argv[1])
print(run_plan(plan, lambda item: item.step.fn(item.config), on_wait=tell_wait), flush=True)
"""


def line_from(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def race(start: Start, folder: Path, *force: str) -> Counter[str]:
    """How often each step was begun by processes let loose at once: by one, two, four at a time."""
    log, go = folder / "log", folder / "go"
    log.write_text("")
    go.unlink(missing_ok=True)
    processes = [start(TWENTY, log, folder / "outputs", go, most, *force) for most in (1, 2, 4)]
    for process in processes:
        assert line_from(process) == "ready"
    go.touch()
    assert [line_from(process) for process in processes] == ["[]"] * 3
    return Counter(log.read_text().split())


def test_processes_at_once_run_each_step_once(tmp_path: Path, start: Start):
    once = {f"s{i}": 1 for i in range(20)}
    assert race(start, tmp_path) == once
    # Again from the start: the earlier results are in the way of all three.
    assert race(start, tmp_path, ".") == once
    asides = [name for name in os.listdir(tmp_path / "outputs") if ".replaced-" in name]
    assert len(asides) == 20


def test_who_waits_for_a_step_succeeds_its_killed_holder(tmp_path: Path, start: Start):
    holder = start(BLOCK, tmp_path)
    assert line_from(holder) == "running"
    waiter = start(BLOCK, tmp_path)
    assert line_from(waiter) == f"waiting for {holder.pid}"
    holder.send_signal(signal.SIGKILL)
    assert line_from(waiter) == "running"
    assert waiter.stdin is not None
    waiter.stdin.write("end\n")
    waiter.stdin.flush()
    assert line_from(waiter) == "[]"
    [path] = tmp_path.glob("own-*")
    status = status_of(path)
    assert (status.state, status.attempt, status.pid) == ("SUCCESS", 2, waiter.pid)
    assert storage.read_text(path / "runs") == "first\nfirst\n"


def test_a_step_whose_process_was_killed_is_continued(tmp_path: Path, start: Start):
    prefix = str(tmp_path)
    process = start(BLOCK, prefix)
    assert line_from(process) == "running"

    def work(config: dict[str, str]) -> None:
        with open(f"{config['out']}/runs", "a") as runs:
            print("second", file=runs)

    [path] = [str(each) for each in tmp_path.glob("own-*")]
    own = ExecutorStep("own", work, {"out": path})
    [alive] = plan_steps([own], prefix=prefix)
    assert alive.action == "wait"
    assert alive.reason.startswith(f"being run by process {process.pid} on ")
    process.send_signal(signal.SIGKILL)
    process.wait()
    plan = plan_steps([own], prefix=prefix)
    assert (plan[0].path, plan[0].action) == (path, "run")
    assert plan[0].reason == "attempt 1 was killed; it continues"
    assert run_plan(plan, run_here) == []
    status = status_of(path)
    assert (status.state, status.attempt, status.pid) == ("SUCCESS", 2, os.getpid())
    assert storage.read_text(f"{path}/runs") == "first\nsecond\n"
    assert not storage.exists(f"{path}/.executor_lock")
