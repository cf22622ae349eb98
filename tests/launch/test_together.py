"""A launch file started once for each of several processes: real processes, forks of one."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from chomp.executor import read_status
from chomp.launch.multi_process import is_lead_process
from tests.process_gang import Gang

# Two steps, of which the second is run by all. It runs the launches it is given one by one; each
# is told by its trouble.
PROGRAM = """
import json, os, signal, sys, time
from dataclasses import dataclass
from pathlib import Path

from chomp.errors import ConfigError, DataError
from chomp.executor import ExecutorStep, Resources, output_path_of, this_output_path, versioned
from chomp.launch import executor_main


@dataclass(frozen=True, kw_only=True)
class Launch:
    trouble: str = ""
    processes: int = 1


def tokens(config):
    note(config, "tokens")
    if config["trouble"] == "tokens":
        raise DataError("no documents")
    if config["trouble"] == "ctrl-c":
        signal.raise_signal(signal.SIGINT)


def train(config):
    from chomp.mesh import all_gather

    everyone = all_gather("training", os.environ["JAX_PROCESS_ID"])
    note(config, f"train by {os.environ['JAX_PROCESS_ID']} of {everyone}")
    if config["trouble"] == "train":
        raise ConfigError("a config of all")


def dry_run(config, is_data_ready):
    from chomp.mesh import all_gather, prepare_devices

    prepare_devices()
    print("tried out by", all_gather("dry run", os.environ["JAX_PROCESS_ID"]))


def note(config, what):
    with open(log, "a") as file:
        file.write(f"{config['trouble']}: {what}\\n")


def steps(launch):
    trouble = launch.trouble
    different = os.environ["JAX_PROCESS_ID"] if trouble == "different" else ""
    made = ExecutorStep(
        "tokens", tokens, {"trouble": versioned(trouble), "out": this_output_path()}
    )
    config = {
        "trouble": versioned(trouble + different),
        "data": output_path_of(made),
        "out": this_output_path(),
    }
    resources = Resources(processes=launch.processes)
    return [ExecutorStep("train", train, config, resources=resources)]


prefix, log, launches, *others = sys.argv[1:]
if others:  # two launches begin at the same moment
    mine, theirs = map(Path, others)
    mine.touch()
    while not theirs.exists():
        time.sleep(0.005)
codes = []
for launch in json.loads(launches):
    sys.argv = ["launch.py", "--prefix", prefix, *launch]
    try:
        report = lambda path: print("report:", path)
        executor_main(steps, Launch(), report=report, dry_run=dry_run)
    except SystemExit as end:
        codes.append(end.code)
print(json.dumps(codes), flush=True)
"""
LAUNCHES = {
    "plan": ["-o", "trouble=plan", "--plan"],
    "dry run": ["-o", "trouble=plan", "--dry-run"],
    "done": [],
    "done again": [],
    "all of them": ["-o", "processes=2"],
    "tokens": ["-o", "trouble=tokens"],
    "ctrl-c": ["-o", "trouble=ctrl-c"],
    "different": ["-o", "trouble=different"],
    "other number": ["-o", "trouble=other", "-o", "processes=3"],
    "other runner": ["-o", "trouble=runner", "--on", "process"],
    "train": ["-o", "trouble=train"],
}


def gang(folder: Path, name: str, launches: list[list[str]], *others: str) -> Gang:
    program = folder / "program.py"
    program.write_text(PROGRAM)
    (folder / "log").touch()
    arguments = (str(folder / "out"), str(folder / "log"), json.dumps(launches), *others)
    imports = ("chomp.mesh", "chomp.launch")
    return Gang(program, *arguments, count=2, folder=folder / name, imports=imports)


class Launched:
    """Two processes that went through all launches."""

    def __init__(self, folder: Path) -> None:
        both = gang(folder, "said", list(LAUNCHES.values()))
        self.exit_codes = both.exit_codes()
        self.outputs, self.errors = both.outputs(), both.errors()
        assert -14 not in self.exit_codes, self.errors
        told = [json.loads(text.splitlines()[-1]) for text in self.outputs]
        self.codes = {name: pair for name, *pair in zip(LAUNCHES, *told, strict=True)}
        self.log = Counter((folder / "log").read_text().splitlines())
        self.out = folder / "out"


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Launched:
    """What became of the launches, each done by two processes."""
    return Launched(tmp_path_factory.mktemp("together"))


def test_process_0_makes_the_data_and_both_train(launched: Launched):
    assert launched.codes["done"] == [0, 0]
    for index in (0, 1):
        assert launched.log[f": train by {index} of ['0', '1']"] == 1
    assert launched.log[": tokens"] == 1
    [folder] = [
        folder
        for folder in launched.out.glob("train-*")
        if (status := read_status(str(folder))) and status.state == "SUCCESS"
    ]
    assert launched.outputs[0].count(f"report: {folder}") == 3
    assert launched.outputs[0].count("Already done: train is at") == 2
    # One of them speaks.
    assert [line for line in launched.outputs[1].splitlines() if "train" in line] == []


def test_a_plan_and_a_dry_run_are_told_by_one_and_end_alike(launched: Launched):
    assert launched.codes["plan"] == launched.codes["dry run"] == [0, 0]
    assert launched.outputs[0].count("run   train ") == 2
    assert launched.outputs[0].count("tried out by ['0', '1']") == 1
    assert launched.outputs[0].count("nothing was run.") == 2
    # It has nothing to say but what this test has it print in the end.
    assert [line[0] for line in launched.outputs[1].splitlines()] == ["["]
    assert not any(line.startswith("plan: ") for line in launched.log)


def test_what_is_there_is_done_for_both_whatever_its_resources_say(launched: Launched):
    assert launched.codes["done again"] == [0, 0]
    assert launched.codes["all of them"] == [0, 0]


def test_a_failure_of_process_0_alone_ends_both_with_its_code(launched: Launched):
    assert launched.codes["tokens"] == [1, 1]
    assert "no documents" in launched.errors[0]
    assert "no documents" not in launched.errors[1]
    assert launched.log["tokens: tokens"] == 1
    assert launched.codes["ctrl-c"] == [130, 130]


def test_an_error_of_all_is_raised_in_all(launched: Launched):
    assert launched.codes["train"] == [2, 2]
    assert all("a config of all" in error for error in launched.errors)
    assert launched.exit_codes == [2, 2]  # the last one, and no process waited for the other


@pytest.mark.parametrize(
    ("name", "code", "told"),
    [
        ("different", 1, "the processes of this launch have different plans"),
        ("other number", 1, "resources.processes=3, in a launch of 2 processes"),
        ("other runner", 2, "steps that are to run by 'process'"),
    ],
)
def test_what_cannot_be_is_refused_in_both_before_anything_runs(
    launched: Launched, name: str, code: int, told: str
):
    assert launched.codes[name] == [code, code]
    assert told in launched.errors[0]
    trouble = LAUNCHES[name][1].removeprefix("trouble=")
    assert not any(line.startswith(f"{trouble}: ") for line in launched.log)


def test_two_launches_of_two_processes_at_once_run_no_step_twice(tmp_path: Path):
    here, there = str(tmp_path / "a-here"), str(tmp_path / "b-here")
    both = [gang(tmp_path, "a", [[]], here, there), gang(tmp_path, "b", [[]], there, here)]
    for one in both:
        assert one.exit_codes() == [0, 0], one.errors()
    log = Counter((tmp_path / "log").read_text().splitlines())
    assert log == {
        ": tokens": 1,
        ": train by 0 of ['0', '1']": 1,
        ": train by 1 of ['0', '1']": 1,
    }


def test_half_an_invitation_ends_a_launch_before_it_waits_for_anybody(tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    arguments = [str(tmp_path / "out"), str(tmp_path / "log"), "[[]]"]
    done = subprocess.run(
        [sys.executable, str(program), *arguments],
        env={**os.environ, "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stdout == "[2]\n"
    assert "JAX_NUM_PROCESSES=2" in done.stderr
    assert "Fix: set all three in every process" in done.stderr
    assert not (tmp_path / "out").exists()


# What srun tells all of its two processes.
SRUN = {"SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "gpu[07-08]"}


@pytest.mark.parametrize(
    ("variables", "is_one"),
    [
        ({}, True),
        ({"JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"}, True),
        ({"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"}, True),
        ({"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}, False),
        ({**SRUN, "SLURM_PROCID": "1"}, False),
        ({**SRUN, "SLURM_PROCID": "0"}, True),
        # Inside of a process of srun, a launch of its own.
        ({**SRUN, "SLURM_PROCID": "1", "JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"}, True),
        # A shell in a job of several, and a process of a batch script: srun started none of them.
        ({**SRUN, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "1"}, True),
        ({"SLURM_NTASKS": "2", "SLURM_PROCID": "1"}, True),
    ],
)
def test_one_process_tells_of_a_launch(variables, is_one, monkeypatch):
    for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID", *SRUN, "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert is_lead_process() == is_one
