"""CONFIG: a launch file, a YAML file or a run folder, all three the same run to a command."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from chomp.cli.data import RunData, run_data
from chomp.cli.load_config import GivenConfig
from chomp.config import config_to_mapping
from chomp.errors import ConfigError
from chomp.tracking import JsonlTracker
from tests.cli.conftest import Chomp, assert_refused

ROOT = Path(__file__).parents[2]
TRAINER = {"steps": 40, "batch_size": [[0, 3], [10, 5]], "seq_len": 16, "grad_accum": 2, "seed": 4}


def facts(run: RunData) -> tuple[object, ...]:
    """What decides the rows of a run."""
    examples = [run.batches.examples_before(step) for step in range(20)]
    return run.data, run.seq_len, examples, run.total_steps, run.seed


def write_run_folder(run: RunData, folder: Path, **trainer: object) -> Path:
    """A run folder as a run on that data leaves it, with fields that only its template knows."""
    content = {
        "model": {"layers": "of its own"},
        "data": config_to_mapping(run.data),
        "trainer": {**TRAINER, "precision": "of its own", **trainer},
    }
    folder.mkdir()
    (folder / "config_resolved.json").write_text(json.dumps(content))
    return folder


def test_a_launch_file_is_planned_and_its_paths_are_those_of_the_plan(folder: Path):
    run = run_data(GivenConfig(path="launch.py", prefix="elsewhere"))
    assert run.total_steps == 40
    assert (run.seed, run.seq_len, run.completed_steps) == (4, 16, None)
    assert [run.batches.examples(step) for step in (0, 10)] == [6, 10]
    assert str(run.data.components["poems"].train_store).startswith("elsewhere/tokens/poems-train-")
    assert str(run.data.tokenizer.path).startswith("elsewhere/tokenizer/byte-")
    assert not (folder / "elsewhere").exists()


def test_all_three_kinds_of_config_give_the_same_run(folder: Path):
    launch = run_data(GivenConfig(path="launch.py"))
    (folder / "template").mkdir()
    (folder / "launch.py").rename(folder / "template" / "launch.py")
    (folder / "run.yaml").write_text(yaml.safe_dump({"template": "template", "train": TRAINER}))
    from_yaml = run_data(GivenConfig(path="run.yaml", template="./template"))
    path = write_run_folder(launch, folder / "run")
    from_run = run_data(GivenConfig(path=str(path)))
    assert facts(launch) == facts(from_yaml) == facts(from_run)
    assert (launch.completed_steps, from_run.completed_steps) == (None, 0)


def test_overrides_reach_the_launch_config_and_the_environment_names_the_prefix(
    folder: Path, chomp: Chomp, monkeypatch: pytest.MonkeyPatch
):
    run = run_data(GivenConfig(path="launch.py", overrides=("train.data_seed=9", "train.steps=7")))
    assert (run.seed, run.total_steps) == (9, 7)
    monkeypatch.setenv("CHOMP_PREFIX", "from env")
    assert "from env/tokens/poems-train" in chomp("data", "forecast", "launch.py").err
    told = chomp("data", "forecast", "launch.py", "--prefix", "from flag", "-o", "train.steps=9")
    assert "from flag/tokens/poems-train" in told.err
    # The command that is offered is the whole command.
    assert "`chomp data build launch.py -o train.steps=9 --prefix 'from flag'`" in told.err


def test_a_yaml_file_fills_in_the_config_of_the_template_of_this_checkout(folder: Path):
    train = {"steps": 50, "batch_size": 4, "seq_len": 32}
    data = {
        "tokenizer": {"kind": "byte"},
        "components": {"poems": {"source": {"kind": "text", "paths": ["poems/*.txt"]}}},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump({"data": data, "train": train}))
    template = str(ROOT / "experiments/grug/base")
    run = run_data(GivenConfig(path="run.yaml", template=template))
    assert run.total_steps == 50
    assert list(run.data.components) == ["poems"]
    (folder / "experiments").symlink_to(ROOT / "experiments")
    assert facts(run_data(GivenConfig(path="run.yaml", template="base"))) == facts(run)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_yaml_file_without_an_end_is_refused(folder: Path, chomp: Chomp, kind: str):
    path = folder / "odd.yaml"
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    told = chomp("config", "show", "odd.yaml", "--template", "base")
    assert told.code == 1
    assert "it is a pipe, a device or a socket" in told.err


def test_what_a_yaml_file_lacks_or_has_too_much_is_named(folder: Path, chomp: Chomp):
    (folder / "run.yaml").write_text("train: {step: 50}\n")
    told = chomp("data", "forecast", "run.yaml")
    assert_refused(told, "there is no experiments/grug here: this is no checkout")
    assert "pass --template FOLDER, or write template: NAME into the file" in told.err
    told = chomp("data", "forecast", "run.yaml", "--template", ".")
    assert_refused(told, "run.yaml", "did you mean steps?")


A, B = (f"import dataclasses\n@dataclasses.dataclass\nclass {x}LaunchConfig: pass\n" for x in "AB")
NO_STEPS = "def steps(launch): return []\n"
NO_DATA = """from chomp.executor import ExecutorStep
def steps(launch): return [ExecutorStep('a', print, {})]
"""


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("class AConfig: pass\n" + NO_STEPS, "named *LaunchConfig: none"),
        (A + B + NO_STEPS, "named *LaunchConfig: ALaunchConfig, BLaunchConfig"),
        (A, "without a function steps"),
        (A + NO_STEPS, "whose steps gives no step"),
        (A + NO_DATA, "whose last step 'a' has no data and trainer"),
    ],
    ids=["no class", "two classes", "no function", "no steps", "no data"],
)
def test_a_launch_file_without_what_is_looked_for_is_refused(folder: Path, source: str, fault: str):
    (folder / "other.py").write_text(source)
    with pytest.raises(ConfigError) as caught:
        run_data(GivenConfig(path="other.py"))
    assert fault in str(caught.value)
    assert "Fix: " in str(caught.value)


def test_a_launch_file_imports_what_lies_beside_it_and_leaves_the_search_path_alone(folder: Path):
    (folder / "beside.py").write_text("STEPS = 33\n")
    source = (folder / "launch.py").read_text()
    changed = source.replace("steps: int = 40", "steps: int = STEPS")
    changed = changed.replace("from dataclasses", "from beside import STEPS\nfrom dataclasses", 1)
    (folder / "launch.py").write_text(changed)
    before = list(sys.path)
    try:
        assert run_data(GivenConfig(path="launch.py")).total_steps == 33
    finally:
        sys.modules.pop("beside", None)
    assert sys.path == before


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("lauch.py", "there is no lauch.py (did you mean launch.py?)"),
        ("notes.jsonl", "neither Python nor YAML"),
        ("poems", "a folder without config_resolved.json"),
        (".", "Fix: pass ./launch.py"),
    ],
)
def test_what_is_no_config_is_refused_by_name(folder: Path, chomp: Chomp, path: str, fault: str):
    told = chomp("data", "forecast", path)
    assert told.code == 2
    assert fault in told.err


def test_a_run_folder_takes_no_overrides_and_runs_no_code(folder: Path, chomp: Chomp):
    path = write_run_folder(run_data(GivenConfig(path="launch.py")), folder / "run")
    (path / "template").mkdir()
    (path / "template" / "launch.py").write_text("raise AssertionError('code of a run was run')\n")
    assert run_data(GivenConfig(path="run")).total_steps == 40
    told = chomp("data", "forecast", "run", "-o", "train.steps=3")
    assert told.code == 2
    assert "-o train.steps=3 with run, a run folder" in told.err


@pytest.mark.parametrize("record", ["metrics.jsonl", "rows.jsonl"])
def test_a_run_folder_tells_how_far_its_run_has_come(folder: Path, record: str):
    path = write_run_folder(run_data(GivenConfig(path="launch.py")), folder / "run", data_seed=8)
    content = json.loads((path / "config_resolved.json").read_text())
    content["logging"] = {"metrics_file": record}
    (path / "config_resolved.json").write_text(json.dumps(content))
    tracker = JsonlTracker(path / record, attempt=1)
    for step in (0, 10, 20):
        tracker.log({"train/loss": 1.0}, step=step)
    tracker.log_summary({"run/tokens_per_second": 1.0})
    tracker.finish()
    run = run_data(GivenConfig(path="run"))
    assert (run.completed_steps, run.seed) == (21, 8)
    assert replace(run, completed_steps=None).completed_steps is None


def test_a_run_folder_of_a_broken_config_is_refused_with_the_place(folder: Path, chomp: Chomp):
    (folder / "run").mkdir()
    content = {"data": {"components": {"a": {"wieght": 1}}}, "trainer": TRAINER}
    (folder / "run" / "config_resolved.json").write_text(json.dumps(content))
    told = chomp("data", "forecast", "run")
    assert told.code == 2
    assert "components.a.wieght" in told.err
    assert "did you mean weight?" in told.err
