"""Flipped bytes, full disks and SIGKILL: no wrong state is ever loaded, no good one lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from checkpoint_samples import about, state_at

from chomp.checkpoint import list_checkpoints, restore_latest_or_initialize

HERE = Path(__file__).parent
DEATHS = 5


def report_of(program: str, *arguments: str) -> object:
    """What a program beside this file prints, run as a process of its own."""
    done = subprocess.run(
        [sys.executable, str(HERE / program), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONWARNINGS": "ignore"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def harm(tmp_path_factory) -> dict:
    return report_of("harmed_checkpoints.py", str(tmp_path_factory.mktemp("harmed")))


def test_the_harmed_checkpoint_is_good_before_and_after(harm):
    assert (harm["before"], harm["after"], harm["steps"]) == ("intact", "intact", [1])


def test_a_flipped_byte_never_gives_a_wrong_state(harm):
    assert len(harm["flipped"]) >= 5
    for file, outcomes in harm["flipped"].items():
        assert all(told == "intact" or "is damaged: " in told for told in outcomes), (
            file,
            outcomes,
        )


def test_a_flipped_byte_in_any_array_file_is_found(harm):
    # The arrays of the sample are random and do not compress: their files are the large ones.
    arrays = {
        file: outcomes for file, outcomes in harm["flipped"].items() if int(file.split()[-1]) > 4000
    }
    assert arrays
    for file, outcomes in arrays.items():
        assert all("is damaged: " in told and "Fix: move " in told for told in outcomes), file


def test_a_full_disk_is_told_and_costs_no_earlier_checkpoint(harm):
    filled = harm["filled"]
    assert "step-2 could not be written: " in filled["save"]
    assert "Fix: free space" in filled["save"]
    assert filled["restore"] == "intact"
    assert filled["names_after_another_save"] == ["step-1", "step-3"]


@pytest.fixture(scope="module")
def killed_folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("killed")


@pytest.fixture(scope="module")
def lives(killed_folder) -> list:
    return report_of("killed_savers.py", str(killed_folder), str(DEATHS))


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
        state, _ = restore_latest_or_initialize(
            str(killed_folder),
            lambda: state_at(0),
            about=about(),
            mesh=eight_device_mesh,
            load_checkpoint=True,
        )
        expected = jax.jit(lambda: state_at(newest))()
        same = jax.tree.map(lambda a, b: bool((a == b).all()), state, expected)
    assert all(jax.tree.leaves(same))
