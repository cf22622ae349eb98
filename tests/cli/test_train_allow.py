"""`chomp train --allow`: a run goes on in its folder although its schedule has changed."""

import re
from pathlib import Path

import pytest

from chomp.executor.status import read_info
from tests.cli.conftest import Chomp
from tests.launch.allowing_launch import LAUNCH_FILE


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the launch file."""
    (tmp_path / "launch.py").write_text(LAUNCH_FILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained(folder: Path) -> list[str]:
    """What was trained in a folder, a line for each time."""
    return (folder / "runs").read_text().splitlines()


@pytest.mark.parametrize(
    ("override", "name"),
    [
        ("train.steps=200", "train.steps"),
        ("train.steps=200", "trainer.steps"),
        ("optim.lr=0.2", "optim.lr"),
        ("optim.lr=0.2", "optimizer.lr"),
        ("train.batch_size=[[0, 8], [50, 16]]", "train.batch_size"),
    ],
)
def test_a_changed_field_that_is_allowed_by_any_of_its_names_goes_on_in_the_folder(
    here: Path, chomp: Chomp, override: str, name: str
):
    command = ["train", "launch.py", "--run-dir", "run"]
    assert chomp(*command).code == 0
    assert chomp(*command, "-o", override).code == 1
    done = chomp(*command, "-o", override, "--allow", name)
    assert (done.code, done.err) == (0, "")
    assert "which is allowed" in done.out
    assert [line.partition("allowed ")[2] for line in trained(here / "run")] == ["", name]
    assert not list(here.glob("run.*"))  # nothing was moved aside
    assert "Already done" in chomp(*command, "-o", override).out


def test_every_change_must_be_allowed_and_the_flags_that_are_missing_are_told(
    here: Path, chomp: Chomp
):
    command = ["train", "launch.py", "--run-dir", "run"]
    assert chomp(*command).code == 0
    changed = [*command, "-o", "train.steps=200", "-o", "optim.lr=0.2", "--allow", "train.steps"]
    told = chomp(*changed)
    assert (told.code, told.out) == (1, "")
    assert "run holds another run (optimizer.lr: 0.1 there, 0.2 here)" in told.err
    assert "--allow optimizer.lr goes on with it as it is now" in told.err
    assert trained(here / "run") == ["100 steps, allowed "]
    assert chomp(*changed, "--allow", "optim.lr").code == 0
    assert trained(here / "run")[1:] == ["200 steps, allowed train.steps,optim.lr"]


def test_a_list_that_has_become_shorter_is_offered_by_a_name_that_allow_takes(
    here: Path, chomp: Chomp
):
    command = ["train", "launch.py", "--run-dir", "run"]
    assert chomp(*command, "-o", "train.batch_size=[[0, 8], [50, 16]]").code == 0
    told = chomp(*command).err
    [offered] = set(re.findall(r"--allow (\S+)", told))
    assert chomp(*command, "--allow", offered).code == 0


def test_a_changed_field_that_makes_another_run_is_never_offered_to_allow(here: Path, chomp: Chomp):
    command = ["train", "launch.py", "--run-dir", "run"]
    assert chomp(*command).code == 0
    for more in ([], ["-o", "train.steps=200"]):
        told = chomp(*command, "-o", "width=9", *more)
        assert (told.code, told.out) == (1, "")
        assert "width: 8 there, 9 here" in told.err
        assert "Fix: choose another --run-dir to start a new run, or set width back" in told.err
        assert "--allow width" not in told.err
        assert "--allow trainer.steps" not in told.err  # which alone would not do
    assert trained(here / "run") == ["100 steps, allowed "]


def test_without_a_folder_the_nearest_run_that_may_go_on_is_found(here: Path, chomp: Chomp):
    assert chomp("train", "launch.py").code == 0
    [folder] = (here / "runs").iterdir()
    longer = ["train", "launch.py", "-o", "train.steps=200", "--allow", "train.steps"]
    assert chomp(*longer, "--dry-run").code == 2  # this launch file has none
    assert chomp(*longer).code == 0
    assert list((here / "runs").iterdir()) == [folder]
    assert len(trained(folder)) == 2
    assert "Already done" in chomp(*longer).out
    # The folder has the name of the run it was; that run's command must leave it alone.
    assert (
        "holds another run (trainer.steps: 200 there, 100 here)" in chomp("train", "launch.py").err
    )
    assert len(trained(folder)) == 2


def test_a_new_run_may_be_started_with_allowed_fields(here: Path, chomp: Chomp):
    assert chomp("train", "launch.py", "--allow", "train.steps").code == 0
    [folder] = (here / "runs").iterdir()
    assert trained(folder) == ["100 steps, allowed train.steps"]


@pytest.mark.parametrize(
    "override",
    ["train.load_checkpoint=true", "train.allow_changes=[a]"],
)
def test_how_a_run_is_to_start_does_not_make_it_another_run(
    here: Path, chomp: Chomp, override: str
):
    assert chomp("train", "launch.py").code == 0
    [folder] = (here / "runs").iterdir()
    info = read_info(str(folder))
    assert info is not None
    told = chomp("train", "launch.py", "-o", override)
    assert told.code == 0
    assert "Already done" in told.out
    # It is done, so it does not start; that the wish came to nothing must not go unsaid.
    assert override.replace("train.", "trainer.").partition("=")[0] in told.err
    assert list((here / "runs").iterdir()) == [folder]


def test_other_first_weights_make_another_run(here: Path, chomp: Chomp):
    override = ["-o", "train.initialize_from=other"]
    assert chomp("train", "launch.py").code == 0
    assert chomp("train", "launch.py", *override).code == 0
    assert len(list((here / "runs").iterdir())) == 2
    # In a folder that is named, the run that is there is left alone, finished or not.
    named = ["train", "launch.py", "--run-dir", "run"]
    assert chomp(*named).code == 0
    told = chomp(*named, *override)
    assert (told.code, told.out) == (1, "")
    assert "trainer.initialize_from: None there, 'other' here" in told.err
