"""SIGKILL at random instants of saving in a tight loop: the newest checkpoint is always whole."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from checkpoint_samples import about, state_at

from chomp.checkpoint import LoadOptions, list_checkpoints, restore_latest_or_initialize

# `test_crashes` kills at chosen instants, always; these are others, inside of TensorStore too.
pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).parent / "killed_savers.py"
DEATHS = 5


@pytest.fixture(scope="module")
def killed_folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("killed")


@pytest.fixture(scope="module")
def lives(killed_folder) -> list:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(killed_folder), str(DEATHS)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONWARNINGS": "ignore"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_killed_run_always_goes_on_from_the_newest_checkpoint(lives):
    assert all(life["was_killed"] and life["restored"] for life in lives), lives
    newest = 0
    for life in lives:
        assert int(life["restored"]) == newest
        newest = max(life["steps"], default=newest)
    assert newest > DEATHS
    # Otherwise every kill fell between two saves, and nothing was tried.
    assert any("." in name for life in lives for name in life["names"])


def test_kills_leave_one_temporary_checkpoint_or_two_beside_the_permanent_ones(lives):
    for life in lives:
        temporary = [step for step in life["steps"] if step % 5]
        assert len(temporary) <= 2, life


def test_the_last_death_left_a_state_that_another_mesh_restores(
    lives, killed_folder, eight_device_mesh
):
    newest = list_checkpoints(str(killed_folder))[-1].metadata.step
    with jax.set_mesh(eight_device_mesh):
        begun = restore_latest_or_initialize(
            str(killed_folder),
            lambda: state_at(0),
            about=about(),
            mesh=eight_device_mesh,
            options=LoadOptions(load_checkpoint=True),
        )
        expected = jax.jit(lambda: state_at(newest))()
        same = jax.tree.map(lambda a, b: bool((a == b).all()), begun.state, expected)
    assert all(jax.tree.leaves(same))
