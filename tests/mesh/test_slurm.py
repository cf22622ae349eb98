"""Processes that SLURM's srun started find each other; others of its jobs stay alone."""

import json
import logging
import os
import socket

import jax
import pytest

from chomp.mesh import join_processes
from tests.process_gang import Gang

# As srun sets them for the second of two processes on two machines with four GPUs each.
STEP = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "CUDA_VISIBLE_DEVICES": "0,1,2,3",
}


@pytest.fixture
def asked_for(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """What JAX is asked to join, which is not done."""
    calls: list[dict[str, object]] = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda **given: calls.append(given))
    return calls


def test_a_process_of_srun_joins_by_what_jax_finds_out_itself(asked_for, caplog):
    caplog.set_level(logging.INFO)
    assert join_processes({**STEP, "CHOMP_HEARTBEAT_S": "30"})
    assert asked_for == [
        {
            "num_processes": 2,
            "cluster_detection_method": "slurm",
            "local_device_ids": [0, 1, 2, 3],
            "heartbeat_timeout_seconds": 30,
        }
    ]
    assert "process 1 of 2, by SLURM's srun" in caplog.text


@pytest.mark.parametrize(
    ("change", "devices"),
    [
        # Two processes on a machine see the same four: one each, which is what JAX does.
        ({"SLURM_STEP_TASKS_PER_NODE": "2"}, None),
        # Each sees its own, by --gpus-per-task.
        ({"SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_GPUS_PER_TASK": "4"}, [0, 1, 2, 3]),
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x3),2"}, None),
        ({"SLURM_STEP_TASKS_PER_NODE": "1"}, [0, 1, 2, 3]),
        ({"CUDA_VISIBLE_DEVICES": ""}, None),
        ({"JAX_LOCAL_DEVICE_IDS": "0,1"}, None),  # which JAX reads
    ],
)
def test_gpus_that_a_process_sees_alone_are_all_its_own(asked_for, change, devices):
    assert join_processes({**STEP, **change})
    assert asked_for[0]["local_device_ids"] == devices


def test_the_variables_of_jax_come_first(asked_for):
    own = {"JAX_COORDINATOR_ADDRESS": "here:1", "JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"}
    assert not join_processes({**STEP, **own})
    assert asked_for == []


@pytest.mark.parametrize("count", ["1", "", "many"])
def test_the_only_process_of_a_job_is_alone(asked_for, caplog, count):
    assert not join_processes({**STEP, "SLURM_NTASKS": count, "SLURM_STEP_NUM_TASKS": count})
    assert asked_for == []
    assert caplog.text == ""


@pytest.mark.parametrize(
    "change",
    [
        # A batch script: SLURM gives it the number of the job's processes, and calls it the first.
        {"SLURM_STEP_NODELIST": "", "SLURM_STEP_NUM_TASKS": "", "SLURM_PROCID": "0"},
        # A shell that `salloc` or `srun --pty` started: one process, in a job of several.
        {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
        {"SLURM_STEP_NODELIST": ""},
    ],
)
def test_a_script_of_a_larger_job_that_srun_did_not_start_is_alone_and_says_so(
    asked_for, caplog, change
):
    assert not join_processes({**STEP, **change})
    assert asked_for == []
    assert "SLURM_NTASKS=2, but this process is none of several that srun started" in caplog.text


TALK = """
import json, os, sys
from chomp.mesh import gathered, join_processes

for name in ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES"):
    del os.environ[name]
os.environ["SLURM_PROCID"] = os.environ["SLURM_LOCALID"] = os.environ.pop("JAX_PROCESS_ID")
os.environ |= json.loads(sys.argv[1])
assert join_processes()
print(json.dumps(gathered("who", os.environ["SLURM_PROCID"])))
"""


def test_two_real_processes_meet_by_the_variables_of_slurm_alone(tmp_path):
    # JAX makes the port of the number of the job, and one that is free here is wanted.
    variables = {
        "SLURM_JOB_ID": str(free_port(61440, 65535) - 61440),
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "2",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2",
    }
    program = tmp_path / "program.py"
    program.write_text(TALK)
    both = Gang(program, json.dumps(variables), count=2, folder=tmp_path / "said")
    assert both.exit_codes() == [0, 0], both.errors()
    assert [text.splitlines()[-1] for text in both.outputs()] == ['["0", "1"]'] * 2


def free_port(first: int, last: int) -> int:
    """A port in that range which nobody listens on; not the same one in every test process."""
    for port in range(first + os.getpid() % 2000, last + 1):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise AssertionError("no port is free")
