"""Two processes that do not see the same: they restore the same checkpoint, or fail together."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from checkpoint_samples import state_at
from restore_samples import HARMS, change_metadata, save, snapshot

from chomp.launch.gang import free_port
from chomp.mesh import MeshConfig, create_mesh

HERE = Path(__file__).parent
CASES = (
    "whole",
    "harmed on the second",
    "harmed on the first",
    "all harmed",
    "of another run",
    "unproven on the second",
)


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> tuple[Path, Path]:
    """What each process finds: copies of steps 2 and 4, saved on two devices, harmed or not."""
    root = tmp_path_factory.mktemp("places")
    mesh = create_mesh(MeshConfig(data=2), devices=jax.devices()[:2])
    with jax.set_mesh(mesh):
        for step in (2, 4):
            save(root / "saved", step)
    first, second = root / "first", root / "second"
    for place in (first, second):
        for case in CASES:
            shutil.copytree(root / "saved", place / case)
    HARMS["cut a file"][0](second / "harmed on the second/step-4")
    HARMS["change a hash"][0](first / "harmed on the first/step-4")
    HARMS["lose a file"][0](first / "unproven on the second/step-4")
    for step in (2, 4):
        HARMS["lose a file"][0](second / f"all harmed/step-{step}")
    change_metadata(first / "of another run/step-4", data_fingerprint="other")
    return first, second


@pytest.fixture(scope="module")
def outcomes(places) -> list[dict[str, Any]]:
    """By process: what came of each case."""
    address = f"127.0.0.1:{free_port()}"
    program = str(HERE / "restoring_processes.py")
    processes = [
        subprocess.Popen(
            [sys.executable, program, address, str(number), *CASES],
            cwd=place,
            env=os.environ | {"PYTHONWARNINGS": "ignore"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number, place in enumerate(places)
    ]
    try:
        outputs = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], outputs
    return [json.loads(stdout.splitlines()[-1]) for stdout, _ in outputs]


@pytest.mark.parametrize(
    ("case", "step"), [("whole", 4), ("harmed on the second", 2), ("harmed on the first", 2)]
)
def test_both_restore_the_newest_that_is_whole_for_both(case, step, outcomes, one_device_mesh):
    with jax.set_mesh(one_device_mesh):
        halves = np.split(np.asarray(state_at(step).params["w"]), 2)
    assert [told[case] for told in outcomes] == [
        {"step": step, "rows": half.tobytes().hex()} for half in halves
    ]


def test_what_was_passed_over_is_moved_aside_by_the_first_process(outcomes, places):
    names = sorted(path.name for path in (places[0] / "harmed on the second").iterdir())
    assert names == ["step-2", "step-4.damaged-2"]


def test_what_only_one_cannot_read_is_refused_by_both_with_the_process_named(outcomes, places):
    for told in outcomes:
        assert "no checkpoint can be restored" in told["all harmed"]["error"]
        assert "step-4: process 1: " in told["all harmed"]["error"]
    assert sorted(path.name for path in (places[0] / "all harmed").iterdir()) == [
        "step-2", "step-4",
    ]  # fmt: skip


def test_a_checkpoint_of_another_run_is_refused_by_both(outcomes, places):
    for told in outcomes:
        assert "was saved by another run" in told["of another run"]["error"]
    assert len(snapshot(places[0] / "of another run")) == len(snapshot(places[0] / "whole"))


def test_what_one_cannot_prove_is_refused_by_both_and_nothing_is_moved(outcomes, places):
    for told in outcomes:
        assert "other batches after step 2" in told["unproven on the second"]["error"]
    names = sorted(path.name for path in (places[0] / "unproven on the second").iterdir())
    assert names == ["step-2", "step-4"]  # though step 4 is damaged
