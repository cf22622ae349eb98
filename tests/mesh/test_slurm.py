"""Processes that SLURM's srun started find each other; others of its jobs stay alone."""

import json
import logging
import os
import socket

import jax
import pytest

from chomp.mesh import join_processes
from chomp.mesh.distributed import CoordinatorAddressTaken
from tests.launch.sent_steps import wait_for
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

    def note(address: str, **given: object) -> None:
        calls.append({"address": address, **given})

    monkeypatch.setattr(jax.distributed, "initialize", note)
    return calls


def test_a_process_of_srun_joins_by_what_srun_has_set(asked_for, caplog):
    caplog.set_level(logging.INFO)
    assert join_processes({**STEP, "CHOMP_HEARTBEAT_S": "30"})
    assert asked_for == [
        {
            "address": "gpu07:62041",
            "num_processes": 2,
            "process_id": 1,
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


@pytest.mark.parametrize(
    ("change", "address"),
    [
        ({"SLURM_STEP_NODELIST": "node001"}, "node001:62041"),
        ({"SLURM_STEP_NODELIST": "node001,host2"}, "node001:62041"),
        ({"SLURM_STEP_NODELIST": "node[001,007-015],host2"}, "node001:62041"),
        ({"SLURM_STEP_NODELIST": "rack[3-4]n[01-16]-ib,x"}, "rack3n01-ib:62041"),
        ({"JAX_COORDINATOR_PORT": "7777"}, "gpu07:7777"),
        ({"JAX_COORDINATOR_ADDRESS": "gpu08:8888"}, "gpu08:8888"),
    ],
)
def test_processes_meet_at_the_first_node_of_their_step_or_where_they_are_told(
    asked_for, change, address
):
    assert join_processes({**STEP, **change})
    assert asked_for[0]["address"] == address


def test_steps_that_may_run_at_once_meet_at_ports_of_their_own(asked_for):
    for job in range(77, 93):
        for step in range(8):
            join_processes({**STEP, "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)})
    ports = [int(str(given["address"]).rpartition(":")[2]) for given in asked_for]
    assert len(set(ports)) == len(ports) == 128
    assert all(61440 <= port < 65536 for port in ports)


def test_a_port_that_another_program_has_is_told_by_the_first_process(asked_for):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = str(listening.getsockname()[1])
        first = {**STEP, "SLURM_PROCID": "0", "JAX_COORDINATOR_PORT": port}
        with pytest.raises(CoordinatorAddressTaken, match=r"listens there.*JAX_COORDINATOR_PORT"):
            join_processes(first)
    assert asked_for == []


TALK = """
import json, os, sys, time
from pathlib import Path
from chomp.mesh import all_gather, join_processes

for name in ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES"):
    del os.environ[name]
os.environ["SLURM_PROCID"] = os.environ["SLURM_LOCALID"] = os.environ.pop("JAX_PROCESS_ID")
os.environ |= json.loads(sys.argv[1])
assert join_processes()
step, index = os.environ["SLURM_STEP_ID"], os.environ["SLURM_PROCID"]
print(json.dumps(all_gather("who", step + index)))
Path(f"met-{step}-{index}").touch()
while step == "0" and not Path("met-1-1").exists():  # it keeps its port until the other has met
    time.sleep(0.005)
"""


def test_real_processes_of_two_steps_of_a_job_meet_those_of_their_own(tmp_path, monkeypatch):
    variables = {
        "SLURM_JOB_ID": str(os.getpid()),  # another in every test process, and so are the ports
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "2",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2",
    }
    program = tmp_path / "program.py"
    program.write_text(TALK)
    monkeypatch.chdir(tmp_path)
    steps = []
    for step in "01":
        told = json.dumps({**variables, "SLURM_STEP_ID": step})
        steps.append(Gang(program, told, count=2, folder=tmp_path / step))
        wait_for(tmp_path / f"met-{step}-1")
    for step, both in zip("01", steps, strict=True):
        assert both.exit_codes() == [0, 0], both.errors()
        said = [text.splitlines()[-1] for text in both.outputs()]
        assert said == [f'["{step}0", "{step}1"]'] * 2
