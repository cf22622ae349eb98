"""The harness in two processes: the first runs the tasks, both compute, both have the results."""

import json
from pathlib import Path

import datasets
import pytest

from chomp.evaluation.harness import HarnessModel, run_tasks
from chomp.tokenize import ByteTokenizer
from tests.evaluation.harness_model import model_on, scorer_on
from tests.process_gang import Gang

TASKS = Path(__file__).parent / "harness_tasks"
PROGRAM = """
import json, sys
import jax
from chomp.errors import ChompError
from chomp.evaluation.harness import HarnessModel, run_tasks, serving
from chomp.mesh import MeshConfig, create_mesh, join_processes
from chomp.tokenize import ByteTokenizer
from tests.evaluation.harness_model import model_on, scorer_on

assert join_processes()
serving.PIECE_CHARACTERS = 150  # so that words come in many pieces
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
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    for path in TASKS.glob("*.*"):
        (tasks / path.name).write_text(path.read_text().replace("FOLDER", str(tasks)))
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
