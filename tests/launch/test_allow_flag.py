"""`--allow` on a launch file: which earlier run it goes on with, and what keeps others safe."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from chomp.executor.status import read_info, read_status
from tests.launch.allowing_launch import LAUNCH_FILE

Run = Callable[..., subprocess.CompletedProcess[str]]
LONGER = ("-o", "train.steps=200", "--allow", "train.steps")


@pytest.fixture
def runs(launch_file: Path, launch: Run, tmp_path: Path) -> Path:
    """The folder of the runs, of which one is there: 100 steps, done."""
    launch_file.write_text(LAUNCH_FILE)
    first = launch()
    assert first.returncode == 0, first.stderr
    return tmp_path / "outputs/grug"


def test_the_nearest_run_that_differs_in_allowed_fields_alone_goes_on(launch: Run, runs: Path):
    [folder] = runs.iterdir()
    before = read_status(str(folder))
    assert launch("-o", "width=16").returncode == 0  # nearer in nothing, and not allowed
    done = launch(*LONGER)
    assert (done.returncode, done.stderr) == (0, "")
    old = folder.name.removeprefix("tiny-")
    assert f"(continues {old} with trainer.steps: 100 -> 200, which is allowed)" in done.stdout
    assert (folder / "runs").read_text() == "100 steps, allowed \n200 steps, allowed train.steps\n"
    assert len(list(runs.iterdir())) == 2
    # The folder now says what it is.
    status, info = read_status(str(folder)), read_info(str(folder))
    assert before is not None
    assert status is not None
    assert info is not None
    assert (status.state, status.attempt) == ("SUCCESS", 2)
    assert info.identity == status.identity != before.identity
    assert info.values["trainer.steps"] == 200
    again = launch(*LONGER)
    assert again.stdout == f"Already done: grug/tiny is at outputs/grug/{folder.name}\n"
    # The config that it was begun with does not move it aside, unless forced to.
    refused = launch()
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "holds another run (trainer.steps: 200 there, 100 here)" in refused.stderr
    assert "--allow trainer.steps continues it with the new values" in refused.stderr
    assert len(list(runs.iterdir())) == 2
    assert launch("--force", "tiny").returncode == 0
    assert len(list(runs.glob("*.replaced-*"))) == 1


def test_what_allow_does_not_name_makes_another_run(launch: Run, runs: Path):
    [folder] = runs.iterdir()
    before = {path: path.read_bytes() for path in folder.iterdir()}
    plan = launch("--plan", *LONGER, "-o", "width=16")
    assert plan.returncode == 0
    assert "changed since" in plan.stdout
    assert "width: 8 -> 16" in plan.stdout
    for name, fault in (
        ("train.stepz", "no field of the run's config"),
        ("steps", "no field of the run's config"),
        ("train.steps.0", "no field of the run's config"),
        ("width", "part of the run's identity"),
    ):
        told = launch("-o", "train.steps=200", "-o", "width=16", "--allow", name)
        assert (told.returncode, told.stdout) == (2, "")
        assert f"--allow {name}, which is {fault}" in told.stderr
    assert list(runs.iterdir()) == [folder]
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
