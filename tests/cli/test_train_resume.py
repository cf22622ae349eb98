"""`chomp train --resume` and `--max-steps`: where a run goes on, and how far."""

import ast
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from chomp.checkpoint.format import write_metadata
from chomp.cli.train import parsed_resume
from chomp.errors import ConfigError
from chomp.executor.status import read_status, write_status
from tests import tiny
from tests.checkpoint.checkpoint_samples import about
from tests.cli.conftest import Chomp, assert_refused
from tests.launch.allowing_launch import LAUNCH_FILE
from tests.process_gang import Gang

# It saves twice, and tells what it was given.
TRAINING = """
def train(config):
    trainer = config.trainer
    told = (trainer.load_checkpoint_path, trainer.load_checkpoint, trainer.max_steps)
    with open(config.output_path + "/runs", "a") as file:
        file.write(repr(told) + "\\\\n")
    for step in (5, trainer.steps):
        os.makedirs(f"{config.output_path}/checkpoints/step-{step}", exist_ok=True)


def dry_run(config, is_data_ready):
    print("dry run")
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a launch file that trains nothing."""
    begin, end = LAUNCH_FILE.index("def train("), LAUNCH_FILE.index("def steps(")
    text = LAUNCH_FILE[:begin] + TRAINING.replace("\\\\", "\\") + "\n\n" + LAUNCH_FILE[end:]
    text = text.replace("from dataclasses", "import os\nfrom dataclasses", 1)
    field = "    initialize_from: str | None"
    text = text.replace(
        field,
        f"{field.replace('initialize_from', 'load_checkpoint_path')} = "
        f'setting(default=None, mark="cosmetic", is_versioned=False)\n{field}',
        1,
    )
    (tmp_path / "launch.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def train(here: Path, chomp: Chomp) -> Chomp:
    """The command on that launch file, in the folder `run`."""

    def run(*arguments: str):
        return chomp("train", "launch.py", "--run-dir", "run", *arguments)

    return run


def given(here: Path) -> list[tuple[str | None, bool | None, int | None]]:
    """What each start was given: the place to load from, whether it must, steps at most."""
    return [ast.literal_eval(line) for line in (here / "run/runs").read_text().splitlines()]


def test_a_step_is_a_number_and_zero_is_one():
    texts = ("0", "12", "none", "latest", None)
    assert [parsed_resume(text) for text in texts] == [0, 12, "none", "latest", None]


@pytest.mark.parametrize("text", ["", "-1", "no", "Latest", "1.5", "1e3", "²", "true"])
def test_what_is_neither_a_word_nor_a_step_is_refused(text: str):
    with pytest.raises(ConfigError, match=r"--resume .*Allowed: none .*Fix: "):
        parsed_resume(text)


def test_none_starts_fresh_once_and_is_refused_where_checkpoints_are(here: Path, train: Chomp):
    assert train("--resume", "none").code == 0
    for more in ([], ["--dry-run"]):
        told = train("--resume", "none", *more)
        assert (told.code, told.out) == (1, "")
        assert "--resume none, but run/checkpoints has step-5, step-100. Allowed: " in told.err
        assert "--force '^grug/tiny$'" in told.err
    assert train("--resume", "none", "--force", "grug").code == 0
    assert len(given(here)) == 1
    assert len(list(here.glob("run.replaced-*"))) == 1


def test_a_checkpoint_that_is_asked_for_must_be_there(here: Path, train: Chomp):
    for wish in ("latest", "0", "7"):
        told = train("--resume", wish)
        assert (told.code, told.out) == (1, "")
        assert f"--resume {wish}, but run/checkpoints has no checkpoint. Allowed: " in told.err
        assert not (here / "run").exists()
    assert train().code == 0
    assert "has step-5, step-100. Allowed: one of those. Fix: " in train("--resume", "0").err


def test_latest_is_the_newest_complete_checkpoint(here: Path, train: Chomp):
    assert train().code == 0
    told = train("--resume", "latest")
    assert (told.code, told.out) == (1, "")
    assert "run/checkpoints has only incomplete checkpoints (step-5, step-100)" in told.err
    write_metadata(str(here / "run/checkpoints/step-5"), about(step=5))
    assert "--resume latest: from step 5\n" in train("--resume", "latest").out


def test_latest_of_a_run_that_is_done_says_so(here: Path, train: Chomp):
    assert train().code == 0
    write_metadata(str(here / "run/checkpoints/step-100"), about(step=100))
    for wish in ("latest", "100"):
        told = train("--resume", wish)
        assert (told.code, told.err) == (0, "")
        assert "Already done" in told.out
    assert len(given(here)) == 1


def test_a_run_that_is_done_without_its_checkpoints_says_so(here: Path, train: Chomp):
    assert train().code == 0
    (here / "run/config_resolved.json").write_text("{}")
    assert train().err == ""
    for name in ("step-100", "step-5"):  # without the last one, an earlier one is no result
        (here / "run/checkpoints" / name).rmdir()
        for more in ((), ("--dry-run",)):
            told = train(*more)
            assert told.code == 0
            assert "run/checkpoints has no step-100" in told.err
            assert "--force" in told.err
    assert train("--force", "grug").code == 0
    assert train().err == ""


def test_a_run_that_is_done_goes_back_to_a_step_and_tells_what_becomes_of_the_others(
    here: Path, train: Chomp
):
    assert train().code == 0
    planned = train("--resume", "5", "--dry-run")
    assert planned.code == 0
    status = read_status("run")
    assert status is not None
    assert status.state == "SUCCESS"  # a dry run changes nothing
    told = train("--resume", "5")
    assert (told.code, told.err) == (0, "")
    for words in (planned.out, told.out):
        assert "Newer ones are moved aside and kept: step-100" in words
    assert given(here)[1:] == [(str(here / "run/checkpoints/step-5"), None, None)]
    assert "Already done" in train().out


def went_back(to: str, state: str = "SUCCESS") -> None:
    """Let the newest checkpoint be of a line that began at a step, and the run have ended so."""
    newest = about(step=100, continues={"load_checkpoint_path": to})
    write_metadata("run/checkpoints/step-100", newest)
    status = read_status("run")
    assert status is not None
    write_status("run", replace(status, state=state))


def test_a_run_that_went_back_and_is_done_says_so_until_it_is_to_go_back_once_more(
    here: Path, train: Chomp
):
    assert train().code == 0
    went_back("step-5")
    told = train("--resume", "5", "--max-steps", "3")
    assert (told.code, told.err) == (0, "")
    assert "Already done" in told.out
    assert "moved aside" not in told.out
    assert len(given(here)) == 1
    again = train("--resume", "5", "-o", "trainer.load_checkpoint=true")
    assert again.code == 0
    assert "Newer ones are moved aside and kept: step-100" in again.out
    assert given(here)[1][:2] == (str(here / "run/checkpoints/step-5"), True)


@pytest.mark.parametrize("state", ["SUCCESS", "INTERRUPTED"])
def test_a_line_of_another_config_is_left_for_the_step_that_is_asked_for(
    here: Path, train: Chomp, state: str
):
    assert train().code == 0
    went_back("step-5", state)
    told = train("--resume", "5", "-o", "optim.lr=0.2", "--allow", "optim.lr")
    assert (told.code, told.err) == (0, "")
    assert "Newer ones are moved aside and kept: step-100" in told.out
    assert given(here)[1][:2] == (str(here / "run/checkpoints/step-5"), True)


@pytest.mark.parametrize("is_cleaned_up", [False, True])
def test_an_interrupted_line_goes_on_though_the_step_it_began_at_may_be_gone(
    here: Path, train: Chomp, is_cleaned_up: bool
):
    assert train().code == 0
    began = here / "run/checkpoints/step-5"
    went_back("step-5", "INTERRUPTED")
    if is_cleaned_up:
        began.rmdir()
    told = train("--resume", "5")
    assert (told.code, told.err) == (0, "")
    assert "continues the line begun at step-5: from step-100" in told.out
    assert "moved aside" not in told.out
    assert given(here)[1:] == [(str(began), None, None)]


def test_an_interrupted_run_that_began_elsewhere_has_no_step_that_is_gone(train: Chomp):
    assert train().code == 0
    went_back("step-3", "INTERRUPTED")
    assert "has step-5, step-100. Allowed: " in train("--resume", "4").err
    # The config itself may say that it goes back each time.
    told = train("--resume", "5", "-o", "trainer.load_checkpoint=true")
    assert "Newer ones are moved aside and kept: step-100" in told.out


# Each process is in a folder of its own, so that what it finds there is its own affair.
TOGETHER = """
import os, sys
from chomp.cli.main import exit_code

os.chdir(os.environ["JAX_PROCESS_ID"])
sys.exit(exit_code(["train", "launch.py", "--run-dir", "run", "--resume", sys.argv[1]]))
"""
BY_TWO = """
def by_two(config):
    from chomp.mesh import wait_for_all

    wait_for_all("training")
    train(config)


"""
RESOURCES = "=config, resources=__import__('chomp.executor').executor.Resources(processes=2))"


@pytest.mark.parametrize("wish", ["5", "7"])
def test_of_several_processes_one_decides_where_a_run_goes_on(here: Path, train: Chomp, wish: str):
    assert train().code == 0
    by_two = (here / "launch.py").read_text().replace("fn=train,", "fn=by_two,")
    by_two = by_two.replace("def steps(", BY_TWO + "def steps(").replace("=config)", RESOURCES)
    for name in ("0", "1"):
        (here / name).mkdir()
        shutil.copytree("run", here / name / "run")
        (here / name / "launch.py").write_text(by_two)
    # As the second process finds it where the first was quicker: no longer done, nor there.
    status = read_status("run")
    assert status is not None
    write_status("1/run", replace(status, state="INTERRUPTED"))
    (here / "1/run/checkpoints/step-5").rmdir()
    (here / "together.py").write_text(TOGETHER)
    both = Gang(here / "together.py", wish, count=2, folder=here / "said")
    codes, errors = both.exit_codes(), both.errors()
    if wish == "7":  # refused by the first, and so by both
        assert codes == [1, 1]
        assert all(
            "--resume 7, but run/checkpoints has step-5, step-100" in each for each in errors
        )
        return
    assert codes == [0, 0], errors
    told = [given(here / name)[-1] for name in ("0", "1")]
    assert told == [(str(here / "0/run/checkpoints/step-5"), None, None)] * 2


def test_a_changed_schedule_may_go_on_from_an_older_step(here: Path, train: Chomp):
    assert train().code == 0
    changed = ["--resume", "5", "-o", "optim.lr=0.2"]
    assert "optimizer.lr: 0.1 there, 0.2 here" in train(*changed).err
    assert train(*changed, "--allow", "optim.lr").code == 0
    assert given(here)[1][0] == str(here / "run/checkpoints/step-5")


def test_max_steps_is_told_to_the_run_and_forgotten_after_it(here: Path, train: Chomp):
    assert train("--max-steps", "3").code == 0
    assert train("--allow", "train.steps", "-o", "train.steps=200").code == 0
    assert [steps for _, _, steps in given(here)] == [3, None]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--max-steps", "0"], "--max-steps"),
        (["--resume", "latest", "--force", "grug"], "--resume latest with --force"),
        (["--resume", "none", "--restarts", "2"], "--restarts 2 with --resume none"),
        (["--resume", "maybe"], "--resume maybe"),
    ],
)
def test_options_that_cannot_go_together_are_refused(train: Chomp, arguments, fault: str):
    assert train().code == 0
    assert_refused(train(*arguments), fault)


@pytest.mark.slow
def test_a_run_in_pieces_is_the_run_and_an_older_step_gives_it_again(base_launches, tmp_path: Path):
    root = Path(__file__).parents[2]
    env = {**os.environ, "JAX_NUM_CPU_DEVICES": "1", "COLUMNS": "200"}
    env.pop("CHOMP_PREFIX", None)
    words = ["train", str(root / "configs/debug_smoke.yaml"), "-o", "checkpoint.every=5"]

    def run(folder: str, *more: str):
        command = [*words, "--run-dir", folder, *more]
        return base_launches.run(root / "src/chomp/__main__.py", *command, env=env, cwd=tmp_path)

    def final(folder: str) -> float:
        return tiny.losses(tmp_path / folder)[19]

    assert run("whole").returncode == 0
    for expected in ("step-8", "step-16"):
        piece = run("pieces", "--max-steps", "8")
        assert piece.returncode == 0, piece.stderr
        assert f"checkpoints/{expected}. The same command continues." in piece.stderr
    assert run("pieces", "--max-steps", "8").returncode == 0
    assert "Already done" in run("pieces", "--max-steps", "8").stdout

    assert final("pieces") == final("whole")
    back = run("whole", "--resume", "10")
    assert back.returncode == 0, back.stderr
    assert final("whole") == final("pieces")
    names = sorted(path.name for path in (tmp_path / "whole/checkpoints").iterdir())
    assert [name for name in names if "forked" in name] == ["step-15.forked-2", "step-20.forked-2"]
