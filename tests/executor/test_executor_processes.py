"""Several processes at one prefix: nothing is done twice, and the dead are succeeded."""

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from chomp import storage
from chomp.executor import ExecutorStep, plan_steps, read_status, run_plan

Start = Callable[..., subprocess.Popen[str]]

# A diamond of steps. Each notes its start in one file that all processes share.
DIAMOND = """
import os, sys
from chomp import storage
from chomp.executor import (
    ExecutorStep, output_path_of, plan_steps, run_plan, this_output_path, versioned
)

log, prefix, go, *force = sys.argv[1:]

def work(config):
    storage.append_line(log, config["name"])
    for path in config["needs"]:
        assert storage.exists(path + "/made"), path
    storage.write_text_atomic(config["out"] + "/made", "")

def step(name, *needs):
    config = {"name": versioned(name), "out": this_output_path(),
              "needs": [output_path_of(need) for need in needs]}
    return ExecutorStep(name, work, config)

bottom = step("bottom")
sides = [step(name, bottom) for name in ("left", "right", "back")]
top = step("top", *sides)
plan = plan_steps([top], prefix=prefix, force=force)
print("ready", flush=True)
while not os.path.exists(go):
    pass
failures = run_plan(plan, lambda item: item.step.fn(item.config))
print([(failure.planned.title, str(failure.error)) for failure in failures], flush=True)
"""

# Begins a step, says so, and lives on until its input ends.
BLOCK = """
import sys
from chomp import storage
from chomp.executor import ExecutorStep, plan_steps, run_plan, this_output_path

def work(config):
    storage.append_line(config["out"] + "/runs", "first")
    print("running", flush=True)
    sys.stdin.read()

plan = plan_steps([ExecutorStep("own", work, {"out": this_output_path()})], prefix=sys.argv[1])
run_plan(plan, lambda item: item.step.fn(item.config))
"""


def line_from(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def race(start: Start, folder: Path, count: int, *force: str) -> Counter[str]:
    """How often each step was begun by `count` processes that were let loose at once."""
    log, go = folder / "log", folder / "go"
    log.write_text("")
    go.unlink(missing_ok=True)
    processes = [start(DIAMOND, log, folder / "outputs", go, *force) for _ in range(count)]
    for process in processes:
        assert line_from(process) == "ready"
    go.touch()
    assert [line_from(process) for process in processes] == ["[]"] * count
    return Counter(log.read_text().split())


def test_processes_at_once_run_each_step_once(tmp_path: Path, start: Start):
    once = dict.fromkeys(["bottom", "left", "right", "back", "top"], 1)
    assert race(start, tmp_path, 3) == once
    # Again from the start: the earlier results are in the way of all three.
    again = race(start, tmp_path, 3, ".")
    assert again == once
    asides = [name for name in os.listdir(tmp_path / "outputs") if ".replaced-" in name]
    assert len(asides) == 5


def test_a_step_whose_process_was_killed_is_continued(tmp_path: Path, start: Start):
    prefix = str(tmp_path)
    process = start(BLOCK, prefix)
    assert line_from(process) == "running"

    def work(config: dict[str, str]) -> None:
        storage.append_line(f"{config['out']}/runs", "second")

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
    assert run_plan(plan, lambda item: item.step.fn(item.config)) == []
    status = read_status(path)
    assert status is not None
    assert (status.state, status.attempt, status.pid) == ("SUCCESS", 2, os.getpid())
    assert storage.read_text(f"{path}/runs") == "first\nsecond\n"
    assert not storage.exists(f"{path}/.executor_lock")
