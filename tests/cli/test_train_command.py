"""`chomp train`: what it trains, where that goes, what it leaves alone, and what it refuses."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from chomp.cli.load_config import GivenConfig, load_launch
from chomp.executor import plan_steps
from chomp.executor.status import LOCK, read_info, read_status
from chomp.storage import FileLock
from tests import tiny
from tests.cli.conftest import Chomp, assert_refused
from tests.cli.small_launch import LAUNCH_FILE
from tests.forked_commands import ForkedCommands

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
TEMPLATE = str(ROOT / "experiments/grug/base")

# The launch file of the other tests with something to do: it writes a line, or is interrupted.
TRAINING = """
def train(config):
    with open(config.output_path + "/runs", "a") as file:
        file.write("ran\\n")
    if config.is_stopped:
        raise RunInterrupted("SIGTERM: the state is saved.", exit_code=75)


def dry_run(config, is_data_ready):
    print("dry run:", config.output_path, config.data.tokenizer.path, is_data_ready)
"""


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every path below a folder with when it was changed and what it holds."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in [folder, *folder.rglob("*")]
    }


@pytest.fixture
def training(folder: Path) -> Path:
    """The current folder, with a launch file that trains nothing and says that it did."""
    nothing = LAUNCH_FILE[LAUNCH_FILE.index("def train(") : LAUNCH_FILE.index("def steps(")]
    text = LAUNCH_FILE.replace(nothing, TRAINING.lstrip() + "\n\n")
    text = text.replace(
        'output_path: str = ""', 'output_path: str = ""\n    is_stopped: bool = False'
    )
    text = text.replace("launch, data=", "launch, trainer=versioned(launch.trainer), data=")
    text = text.replace(
        "from chomp.executor", "from chomp.errors import RunInterrupted\nfrom chomp.executor", 1
    )
    (folder / "launch.py").write_text(text)
    return folder


# ---- Where a run goes -----------------------------------------------------------------------


def test_a_launch_file_is_trained_in_a_folder_of_its_own_and_its_data_under_the_prefix(
    training: Path, chomp: Chomp
):
    told = chomp("train", "launch.py", "--prefix", "made")
    assert (told.code, told.err) == (0, "")
    [run] = (training / "runs").iterdir()
    # Every launch file is called launch.py; the folder tells more.
    assert re.fullmatch(rf"{training.name}-[0-9a-f]{{12}}", run.name)
    assert (run / "runs").read_text() == "ran\n"
    assert sorted(path.name for path in (training / "made").iterdir()) == ["tokenizer", "tokens"]


def test_the_folder_is_that_of_the_config_and_another_config_has_another(
    training: Path, chomp: Chomp
):
    (training / "mine.yaml").write_text("train: {steps: 8}\n")
    for more in ([], ["-o", "train.steps=9"]):
        assert chomp("train", "mine.yaml", "--template", ".", *more).code == 0
    assert len(list((training / "runs").glob("mine-*"))) == 2
    assert len(list((training / "outputs/tokens").iterdir())) == 4  # data is made once


def test_the_project_names_the_folder_of_its_runs(training: Path, chomp: Chomp):
    text = (training / "launch.py").read_text()
    text = text.replace(
        "from chomp.errors", "from chomp.tracking import LoggingConfig\nfrom chomp.errors"
    )
    text = text.replace(
        "    is_stopped",
        "    logging: LoggingConfig = field(default_factory=LoggingConfig)\n    is_stopped",
    )
    (training / "launch.py").write_text(text)
    assert chomp("train", "launch.py", "-o", "logging.project=poetry").code == 0
    assert len(list((training / "runs/poetry").iterdir())) == 1
    wrong = chomp("train", "launch.py", "-o", "logging.project=../..")
    assert wrong.code == 2
    assert "logging.project='../..', which is to name a folder" in wrong.err


# ---- A second time --------------------------------------------------------------------------


def test_what_was_interrupted_is_continued_and_what_is_done_is_said_to_be(
    training: Path, chomp: Chomp
):
    command = ["train", "launch.py", "--run-dir", "run"]
    stopped = chomp(*command, "-o", "is_stopped=true")
    assert stopped.code == 75
    assert "Stopped. SIGTERM: the state is saved." in stopped.err
    continued = chomp(*command)
    assert continued.code == 0
    assert "small (attempt 1 ended as interrupted; it continues)" in continued.out
    again = chomp(*command)
    assert again.code == 0
    assert "Already done: small is at run\n" in again.out
    assert (training / "run/runs").read_text() == "ran\nran\n"


def test_another_config_is_refused_in_the_folder_of_a_run_and_the_field_is_named(
    training: Path, chomp: Chomp
):
    assert chomp("train", "launch.py", "--run-dir", "run").code == 0
    before = contents(training)
    command = ["train", "launch.py", "--run-dir", "run", "-o", "train.steps=41"]
    for more in ([], ["--dry-run"]):
        told = chomp(*command, *more)
        assert (told.code, told.out) == (1, "")
        assert "run holds another run (trainer.steps: 40 there, 41 here). Allowed: " in told.err
        assert "Fix: choose another --run-dir" in told.err
    assert contents(training) == before
    assert chomp(*command, "--force", "small").code == 0
    assert len(list(training.glob("run.replaced-*"))) == 1


def test_a_run_that_never_began_for_its_data_does_not_keep_the_folder(training: Path, chomp: Chomp):
    notes = (training / "notes.jsonl").read_text()
    (training / "notes.jsonl").write_text('{"txt": "no text"}\n')
    told = chomp("train", "launch.py", "--run-dir", "run")
    assert told.code == 1
    assert "since a step it depends on failed" in told.err
    (training / "notes.jsonl").write_text(notes)
    assert chomp("train", "launch.py", "--run-dir", "run").code == 0
    assert (training / "run/runs").read_text() == "ran\n"


def test_a_run_that_ended_before_its_first_checkpoint_does_not_keep_the_folder(
    training: Path, chomp: Chomp
):
    command = ["train", "launch.py", "--run-dir", "run"]
    assert chomp(*command, "-o", "is_stopped=true").code == 75
    other = [*command, "-o", "train.steps=41"]
    with FileLock.acquire(
        f"run/{LOCK}", timeout_s=1
    ):  # as long as it runs, it may save at any time
        assert "run holds another run" in chomp(*other).err
    (training / "run/checkpoints/step-3").mkdir(parents=True)
    assert "run holds another run" in chomp(*other).err
    (training / "run/checkpoints/step-3").rmdir()
    assert chomp(*other).code == 0
    assert (training / "run/runs").read_text() == "ran\n"
    info = read_info("run")
    assert info is not None
    assert info.config["trainer"]["steps"] == 41


def test_a_folder_with_things_of_somebody_else_is_refused(training: Path, chomp: Chomp):
    told = chomp("train", "launch.py", "--run-dir", "poems")
    assert_refused(told, "poems holds 00.txt and no run. Allowed: ", code=1)
    (training / "empty").mkdir()
    assert chomp("train", "launch.py", "--run-dir", "empty").code == 0


@pytest.mark.parametrize("screen", ["| head -c 1", ">&- 2>&-"])  # more: tests/test_screen.py
def test_a_run_outlives_its_screen(training: Path, screen: str):
    file = training / "launch.py"
    noise = 'print("\\u2192 " * 99999, flush=True)\n    '
    begin = "def train(config):\n    "
    file.write_text(file.read_text().replace(begin, begin + noise))
    command = f"set -o pipefail; {sys.executable} -m chomp train launch.py --run-dir run {screen}"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(
        ["bash", "-c", command], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert read_status(str(training / "run")).state == "SUCCESS"


def test_two_spellings_of_a_prefix_are_one_place(folder: Path, chomp: Chomp):
    built = chomp("data", "build", "launch.py", "--prefix", "made/../other/../made")
    assert (built.code, built.err) == (0, "")
    for spelling in ("made", "other/../made", str(folder / "x" / ".." / "made")):
        told = chomp("data", "verify", "launch.py", "--prefix", spelling)
        assert (told.code, told.err) == (0, "")
    [store] = [path.parent for path in (folder / "made").rglob("manifest.json")][:1]
    assert chomp("data", "verify", f"made/../{store.relative_to(folder)}").code == 0


@pytest.mark.parametrize("name", ["run[1]", "a*", "what?", "back\\slash", "notes.jsonl/run"])
@pytest.mark.parametrize("option", ["--run-dir", "--prefix"])
def test_a_path_that_cannot_be_a_folder_is_refused_before_anything_is_made(
    training: Path, chomp: Chomp, option: str, name: str
):
    """One that reads as a pattern, or that lies below a file."""
    told = chomp("train", "launch.py", option, name)
    assert_refused(told, name.partition("/")[0], code=None)
    assert not (training / name).exists()
    assert not (training / "outputs/tokens").exists()


# ---- Dry runs -------------------------------------------------------------------------------


def test_a_dry_run_gets_every_path_and_whether_the_data_is_there_and_leaves_nothing(
    training: Path, chomp: Chomp
):
    before = contents(training)
    told = chomp("train", "launch.py", "--dry-run", "--run-dir", "run")
    assert (told.code, told.err) == (0, "")
    [said] = [line for line in told.out.splitlines() if line.startswith("dry run:")]
    assert re.fullmatch(r"dry run: run outputs/tokenizer/byte-\w{12} False", said)
    assert told.out.endswith("This is a dry run; nothing was run.\n")
    assert contents(training) == before
    assert chomp("data", "build", "launch.py").code == 0
    before = contents(training)
    told = chomp("train", "launch.py", "--dry-run")
    assert told.out.splitlines()[-2].endswith(" True")
    assert contents(training) == before


def test_a_launch_file_without_a_dry_run_says_what_it_lacks(folder: Path, chomp: Chomp):
    told = chomp("train", "launch.py", "--dry-run")
    assert told.code == 2
    assert "a function dry_run(config, is_data_ready)" in told.err


# ---- What is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "faults"),
    [
        (
            ["mine.yaml", "--template", ".", "-o", "train.stepz=5"],
            ["train.stepz", "did you mean steps?"],
        ),
        (["wrong.yaml", "--template", "."], ["wrong.yaml", "trian", "did you mean train"]),
        (["mine.yaml", "--template", "nowhere"], ["no nowhere/launch.py", "--template FOLDER"]),
        (["nothing.yaml"], ["there is no nothing.yaml"]),
        (["old"], ["old, a run folder", "that continues the run"]),
        (["mine.yaml", "--template", ".", "--force", "grug"], ["--force 'grug'", "no step's name"]),
        ([], ["Missing argument"]),
    ],
    ids=["key", "section", "template", "path", "run folder", "force", "nothing"],
)
def test_a_wrong_command_is_told_in_three_parts_and_makes_nothing(
    training: Path, chomp: Chomp, arguments: list[str], faults: list[str]
):
    (training / "mine.yaml").write_text("template: .\ntrain: {steps: 8}\n")
    (training / "wrong.yaml").write_text("template: .\ntrian: {steps: 8}\n")
    (training / "old").mkdir()
    (training / "old/config_resolved.json").write_text("{}")
    assert_refused(chomp("train", *arguments), *faults)
    assert not (training / "outputs").exists()
    assert not (training / "runs").exists()


# ---- The configs that come along ------------------------------------------------------------

Train = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def train(base_launches: ForkedCommands, tmp_path: Path) -> Train:
    """Runs `chomp train` on a config that comes along, as a command in the test's own folder."""
    inherited = {key: value for key, value in os.environ.items() if key != "CHOMP_PREFIX"}
    env = {**inherited, "JAX_NUM_CPU_DEVICES": "1", "COLUMNS": "200"}

    def run(config: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        words = ["train", str(ROOT / "configs" / config), "--template", TEMPLATE, *arguments]
        return base_launches.run(ROOT / "src/chomp/__main__.py", *words, env=env, cwd=tmp_path)

    return run


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_a_config_is_a_recipe_card_and_a_run_of_its_template(path: Path):
    text = path.read_text()
    for heading in ("command", "needs", "takes", "expect"):
        assert re.search(rf"^#   {heading} ", text, re.MULTILINE)
    assert re.search(rf"uv run (--extra \w+ )*chomp train configs/{path.name}\n", text)
    [step] = load_launch(GivenConfig(path=str(path))).steps()
    assert step.name == f"grug/{path.stem}"
    assert plan_steps([step], prefix="nowhere")[-1].config.trainer.steps >= 20


def test_base_smoke_shows_every_section():
    sections = "model data train optim eval samples checkpoint logging"
    assert {*sections.split()} <= set(
        yaml.safe_load((ROOT / "configs/base_smoke.yaml").read_text())
    )


def test_debug_smoke_trains_once_and_then_says_that_it_is_done(train: Train, tmp_path: Path):
    first = train("debug_smoke.yaml")
    assert first.returncode == 0, first.stderr
    [folder] = re.findall(r"run folder +(runs/chomp/debug_smoke-[0-9a-f]{12})\s", first.stdout)
    losses = tiny.losses(tmp_path / folder)
    assert losses[4] - losses[19] > 0.5
    before = contents(tmp_path)
    again = train("debug_smoke.yaml")
    assert (again.returncode, again.stderr) == (0, "")
    assert f"Already done: grug/debug_smoke is at {folder}" in again.stdout
    assert "bits per byte" in again.stdout
    assert contents(tmp_path) == before


def test_a_dry_run_of_debug_smoke_leaves_nothing_behind(train: Train, tmp_path: Path):
    before = contents(tmp_path)
    shown = train("debug_smoke.yaml", "--dry-run")
    assert shown.returncode == 0, shown.stderr
    for word in ("grug/debug_smoke", "runs/chomp/debug_smoke-", "parameters", "nothing was run"):
        assert word in shown.stdout
    assert contents(tmp_path) == before


@pytest.mark.slow
def test_base_smoke_learns_in_its_few_steps(train: Train, tmp_path: Path):
    done = train("base_smoke.yaml")
    assert done.returncode == 0, done.stderr
    [folder] = (tmp_path / "runs/smoke").iterdir()
    losses = tiny.losses(folder)
    assert losses[4] - losses[19] > 0.5
    assert "sample" in done.stdout
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == [
        "step-10",
        "step-20",
    ]


@pytest.mark.slow
def test_megalodon_smoke_learns_resumes_and_writes(base_launches: ForkedCommands, tmp_path: Path):
    env = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
    env.pop("CHOMP_PREFIX", None)

    def chomp(*words: str) -> subprocess.CompletedProcess[str]:
        file = ROOT / "src/chomp/__main__.py"
        done = base_launches.run(file, *words, env=env, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done

    config = str(ROOT / "configs/megalodon_smoke.yaml")
    assert "The same command continues." in chomp("train", config, "--max-steps", "15").stderr
    assert "sample" in chomp("train", config, "--resume", "latest").stdout
    [folder] = (tmp_path / "runs/smoke").iterdir()
    losses = tiny.losses(folder)
    assert losses[4] - losses[39] > 1.0
    words = ("generate", str(folder), "--prompt", "def ", "--max-tokens", "40", "--seed")
    first, again, other = (chomp(*words, seed).stdout for seed in ("1", "1", "2"))
    assert first == again != other


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--on", "moon"], "--on moon. Allowed: one of local, process, ray"),
        (["--max-concurrent", "0"], "--max-concurrent 0. Allowed: 1 or more"),
        (["--on", "local", "--max-concurrent", "2"], "Fix: use --on process"),
    ],
)
def test_options_that_nothing_can_obey_are_refused_before_the_launch_file_is_loaded(
    chomp: Chomp, folder: Path, options: list[str], words: str
):
    (folder / "launch.py").write_text("raise AssertionError('it was loaded')\n")
    told = chomp("train", "launch.py", *options)
    assert (told.code, told.out) == (2, "")
    assert words in told.err
