"""The harness in two processes: the first runs the tasks, both compute, both have the results."""

import json

import datasets
import pytest

from chomp.config import config_to_mapping
from chomp.evaluation.harness import HarnessModel, run_tasks
from chomp.tokenize import ByteTokenizer
from chomp.tracking import latest_rows, read_metrics
from tests import tiny
from tests.evaluation.harness_model import model_on, scorer_on
from tests.evaluation.local_tasks import write_tasks
from tests.process_gang import Gang

PROGRAM = """
import json, sys
import jax
from chomp.errors import ChompError
import chomp.evaluation.harness.model as messages
from chomp.evaluation.harness import HarnessModel, run_tasks
from chomp.mesh import MeshConfig, create_mesh, join_processes
from chomp.tokenize import ByteTokenizer
from tests.evaluation.harness_model import model_on, scorer_on

assert join_processes()
messages.PIECE_CHARACTERS = 150  # so that words come in many pieces
mesh = create_mesh(MeshConfig(data=2))
asked = []

def generate(prompts, **how):
    asked.append([[list(prompt) for prompt in prompts], how["seed"]])
    return [list(b"one.") for _ in prompts]

model = HarnessModel(
    model_on(mesh), scorer_on(mesh), tokenizer=ByteTokenizer(), generate=generate
)
said = {}
try:
    run_tasks(model, ["colour"], include_path=sys.argv[1])
except ChompError as error:
    said["refused"] = f"{type(error).__name__}: {error}"
results = run_tasks(model, ["colours", "lines", "echo"], include_path=sys.argv[1])
print(json.dumps({**said, "metrics": results.metrics(), "asked": asked}))
"""


@pytest.mark.slow
def test_the_first_process_drives_and_the_other_serves(tmp_path, monkeypatch, one_device_mesh):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))  # of the two
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "own_cache")
    tasks = write_tasks(tmp_path)
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    imports = ("chomp.evaluation.harness", "tests.evaluation.harness_model")
    gang = Gang(file, str(tasks), count=2, folder=tmp_path / "said", imports=imports)
    assert gang.exit_codes() == [0, 0], gang.errors()
    first, other = (json.loads(text.splitlines()[-1]) for text in gang.outputs())
    assert first["metrics"] == other["metrics"]
    assert first["asked"] == other["asked"] != []
    assert first["refused"].startswith("ConfigError: the task colour (did you mean colours?)")
    assert other["refused"].startswith("LaunchError: the harness failed in process 0: ConfigError")
    alone = HarnessModel(
        model_on(one_device_mesh), scorer_on(one_device_mesh), tokenizer=ByteTokenizer()
    )
    metrics = run_tasks(alone, ["colours"], include_path=str(tasks)).metrics()
    assert metrics["lm_eval/colours/acc"] == first["metrics"]["lm_eval/colours/acc"]
    assert first["metrics"]["lm_eval/echo/exact_match"] == 0.25


LOOP = """
import json, sys
from dataclasses import replace
from pathlib import Path
from chomp.config import config_from_mapping
from chomp.data import LmDataConfig
from chomp.training import GrugEvalConfig, HarnessConfig
from chomp.mesh import MeshConfig
from experiments.grug.base.train import run_grug
from tests import tiny

data = config_from_mapping(LmDataConfig, json.loads(sys.argv[2]))
config = tiny.run_config(data, Path(sys.argv[1]), steps=4)
tasks = HarnessConfig(tasks=("colours", "echo"), include_path=sys.argv[3], batch_size=4)
run_grug(
    replace(
        config,
        model=replace(config.model, num_layers=1),
        mesh=MeshConfig(data=2),
        eval=GrugEvalConfig(eval_batch_size=4, max_eval_batches=2, harness=tasks),
    )
)
"""


@pytest.mark.slow
def test_a_loop_of_two_processes_finds_what_one_finds(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    tasks, file = write_tasks(tmp_path), tmp_path / "program.py"
    file.write_text(LOOP)
    texts = tmp_path / "texts"
    texts.mkdir()
    data = json.dumps(config_to_mapping(tiny.build_data(texts)))
    found = []
    for count in (2, 1):
        folder = tmp_path / f"run-{count}"
        gang = Gang(
            *(file, str(folder), data, str(tasks)),
            count=count,
            folder=tmp_path / f"said-{count}",
            num_devices=2 // count,
            imports=("tests.tiny", "chomp.evaluation.harness", "orbax.checkpoint"),
        )
        assert gang.exit_codes() == [0] * count, gang.errors()
        [row] = latest_rows(read_metrics(folder / "metrics.jsonl"))[-1:]
        found.append({name: value for name, value in row.items() if "_time" not in name})
    together, alone = ({k: v for k, v in row.items() if "eval/" in k} for row in found)
    assert together == pytest.approx(alone, rel=1e-6)
    assert {"lm_eval/colours/acc", "lm_eval/echo/exact_match", "eval/loss"} <= set(together)
