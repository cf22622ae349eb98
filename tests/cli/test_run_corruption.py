"""Any file of a run or its checkpoint, harmed in any way: it is named, or no number changes."""

import contextlib
import io
import json
import random
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
from safetensors.numpy import load_file

from chomp.checkpoint.export import MODEL_FILE
from chomp.cli.main import exit_code
from chomp.config import config_from_mapping
from chomp.errors import ChompError
from experiments.grug.base.train import GrugRunConfig, run_grug
from tests import tiny
from tests.harmed_files import BY_CHANCE, HARMS, harm

STATE = "checkpoints/step-12/state"
FILES = (
    "checkpoints/step-12/metadata.json",
    *(f"{STATE}/{name}" for name in ("_CHECKPOINT_METADATA", "_METADATA", "_sharding")),
    *(f"{STATE}/{name}" for name in ("array_metadatas/process_0", "commit_success.txt")),
    *(f"{STATE}/{name}" for name in ("manifest.ocdbt", "d/*")),
    *(f"{STATE}/ocdbt.process_0/{name}" for name in ("manifest.ocdbt", "d/*")),
    *("config_original.yaml", "config_resolved.json", "metrics.jsonl", "train.log"),
    *("report/index.html", "samples/step-12.txt", "tokenizer/chomp_tokenizer.json"),
    *(f"template/{name}.py" for name in ("__init__", "launch", "model", "train")),
)
Numbers = dict[str, Any]

# Orbax leaves work behind when it fails in the middle.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def other_run(trained_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the same sizes with other weights, another config, template and tokenizer."""
    folder = tmp_path_factory.mktemp("other") / "run"
    config = config_of(trained_once, folder)
    trainer = replace(config.trainer, seed=config.trainer.seed + 1)
    run_grug(replace(config, trainer=trainer, eval=replace(config.eval, max_eval_batches=1)))
    for source in (folder / "template").iterdir():
        source.write_text(source.read_text() + "\n# another\n")
    tokenizer = folder / "tokenizer/chomp_tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace("256", "255"))
    return folder


@pytest.fixture(scope="module")
def expected(trained_once: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Numbers]:
    """What each command gives of the unharmed run, and of its checkpoint before the last."""
    found = {"resume 12": dict(tiny.receipt(trained_once, 12))}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("expected"))
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        for step in (6, 12):
            run = Path(shutil.copytree(trained_once, f"at-{step}/run"))
            patch.chdir(run.parent)
            found[f"eval {step}"] = evaluated(f"run/checkpoints/step-{step}")
            assert json.loads(Path("eval.json").read_text())["differs_from_run"] == []
            found[f"export {step}"] = exported(f"run/checkpoints/step-{step}")
            patch.chdir(run.parents[1])
    return found


def config_of(run: Path, output: Path) -> GrugRunConfig:
    """The config of a run, for one in another folder."""
    content = json.loads((run / "config_resolved.json").read_text())
    del content["derived"]
    return config_from_mapping(GrugRunConfig, {**content, "output_path": str(output)})


def do(*arguments: str) -> None:
    """Do what a command says, and raise what it says of an error."""
    errors = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        code = exit_code(arguments)
    if code:
        raise ChompError(errors.getvalue())


def evaluated(place: str) -> Numbers:
    """Every number of an evaluation, without the time it took.

    A changed field that decides no number, such as where the train store is, is in the results'
    `differs_from_run`.
    """
    do("eval", place, "--weights", "params", "--out", "eval.json")
    content = json.loads(Path("eval.json").read_text())
    metrics = {key: value for key, value in content["metrics"].items() if "_time" not in key}
    return metrics | {name: content[name] for name in ("step", "receipt_hash", "template_hash")}


def exported(place: str) -> Numbers:
    """Every array of an export, and every file beside them."""
    do("checkpoint", "export", place, "--out", "exported")
    found = {name: array.tobytes() for name, array in load_file("exported/" + MODEL_FILE).items()}
    files = [path for path in Path("exported").rglob("*") if path.is_file()]
    # The header of safetensors has no order.
    return found | {str(path): path.read_bytes() for path in files if path.name != MODEL_FILE}


def resumed(run: Path, config: GrugRunConfig) -> Numbers:
    """The hash of every array that the run ends with."""
    run_grug(replace(config, output_path=str(run)))
    do("checkpoint", "verify", str(run))
    return dict(tiny.receipt(run, 12))


CASES = [
    (command, file, how, seed)
    for file in FILES
    for how in HARMS
    for seed in range(3 if how in BY_CHANCE else 1)
    for command in ("eval", "export", "resume")
    if command != "resume" or seed == 0  # it trains six steps again
]


@pytest.mark.parametrize(
    ("command", "file", "how", "seed"),
    [
        pytest.param(*case, marks=() if number % 71 == 0 else pytest.mark.slow)
        for number, case in enumerate(CASES)
    ],
)
def test_a_harmed_file_of_a_run_is_named_or_changes_no_number(
    trained_once: Path,
    trained: Path,
    other_run: Path,
    expected: dict[str, Numbers],
    caplog: pytest.LogCaptureFixture,
    command: str,
    file: str,
    how: str,
    seed: int,
):
    [place], [other] = trained.glob(file), other_run.glob(file)
    harmed = harm(place, how, root=trained, other=other, chance=random.Random(f"{file}{how}{seed}"))
    try:
        if command == "eval":
            found = evaluated("run")
        elif command == "export":
            found = exported("run")
        else:
            found = resumed(trained, config_of(trained_once, trained))
    except ChompError as error:
        told = str(error)
        assert "Traceback" not in told
        assert is_named(harmed, told, trained), told
        return
    if found != expected[f"{command} 12"]:
        # An older checkpoint was taken, and that was said.
        assert found == expected[f"{command} 6"]
        assert is_named(harmed, caplog.text, trained), caplog.text
    assert found == expected[f"{command} 12"] or command != "resume"


def is_named(places: Iterable[Path], text: str, run: Path) -> bool:
    """Whether a text names a harmed file, or the checkpoint or folder that it is a part of."""
    parts = [place.relative_to(run).parts for place in places]
    return any(
        "/".join(part[:2] if part[0] == "checkpoints" else part[:1]) in text for part in parts
    )
