"""`chomp train --allow`: a run goes on in its folder although its schedule has changed."""

import json
import math
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

from chomp.executor.status import read_info
from tests import tiny
from tests.cli.conftest import Chomp
from tests.forked_commands import ForkedCommands
from tests.launch.allowing_launch import LAUNCH_FILE
from tests.test_docs import commands

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/recipes/continue_training.md"


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
    assert "--allow optimizer.lr continues it with the new values" in told.err
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


@pytest.mark.slow  # six commands that train: 30 s
def test_the_page_on_continuing_is_what_its_commands_do(
    base_launches: ForkedCommands, tmp_path: Path
):
    for name in ("configs", "experiments"):
        (tmp_path / name).symlink_to(ROOT / name)
    inherited = {key: value for key, value in os.environ.items() if key != "CHOMP_PREFIX"}
    env = {**inherited, "JAX_NUM_CPU_DEVICES": "1"}
    program = ROOT / "src/chomp/__main__.py"
    first, *others = [shlex.split(command)[3:] for command in commands(PAGE)]
    assert len(others) == 2

    def done(*words: str) -> str:
        told = base_launches.run(program, *words, "-o", "train.log_every=1", env=env, cwd=tmp_path)
        assert told.returncode == 0, told.stderr
        return str(told.stdout)

    done(*first)
    middle = tmp_path / "runs/pieces"
    shutil.copytree(tmp_path / "runs/first", middle)
    for words in others:
        done(*words)
    # The rates are those that the page says, counted by hand.
    rates = [rates_of(tmp_path / "runs" / name) for name in ("first", "cooldown")]
    cosine = [3e-3 * (1 + math.cos(math.pi * n / 18)) / 2 for n in range(1, 19)]
    assert [rates[0][n] for n in range(20, 40)] == pytest.approx([1.5e-3, 3e-3, *cosine], abs=1e-9)
    line = [1e-2 * (1 - n / 10) for n in range(1, 11)]
    assert [rates[1][n] for n in range(20, 30)] == pytest.approx(line, abs=1e-9)
    # Stopped in the middle and given again: the same weights and moments.
    again = [str(middle) if word == "runs/first" else word for word in others[0]]
    for more in (["--max-steps", "7"], []):
        done(*again, *more)
    assert tiny.receipt(middle, 40) == tiny.receipt(tmp_path / "runs/first", 40)
    assert "Already done" in done(*others[0])


def rates_of(run: Path) -> dict[int, float]:
    """The learning rate of every step, the newest attempt's where there are several."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["lr"] for row in rows if "lr" in row}


def test_stages_may_change_together_with_the_stores_that_follow_from_them(
    folder: Path, chomp: Chomp
):
    text = (folder / "launch.py").read_text()
    text = text.replace(
        '    raise AssertionError("nothing here trains")',
        '    with open(config.output_path + "/runs", "a") as file:\n'
        '        file.write(f"{len(config.data.stages)} stages\\n")',
    )
    text = text.replace(
        "    data_seed: int | None = None",
        "    data_seed: int | None = None\n"
        '    allow_changes: tuple[str, ...] = setting(default=(), mark="cosmetic", '
        "is_versioned=False)",
    )
    (folder / "launch.py").write_text(text)
    first, second = "{start_step: 0, weights: {poems: 1, notes: 0}}", "{start_step: 10, weights: "
    before = ["train", "launch.py", "-o", f"data.stages=[{first}]"]
    after = ["train", "launch.py", "-o", f"data.stages=[{first}, {second}{{poems: 1, notes: 1}}}}]"]
    assert chomp(*before, "--run-dir", "run").code == 0
    told = chomp(*after, "--run-dir", "run")
    assert told.code == 1
    assert set(re.findall(r"--allow (\S+)", told.err)) == {"data.stages"}
    assert chomp(*after, "--run-dir", "run", "--allow", "data.stages").code == 0
    assert trained(folder / "run") == ["1 stages", "2 stages"]
    other = chomp(*after, "-o", "data.shuffle=false", "--run-dir", "run", "--allow", "data.stages")
    assert other.code == 1
