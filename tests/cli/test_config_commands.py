"""`chomp config`: a config shown in full, two compared, the schema, and the page made from it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from chomp.cli.load_config import GivenConfig, load_launch
from chomp.config import config_difference, config_to_mapping
from chomp.data import LmComponentConfig, TextSource
from experiments.grug.base.launch import GrugBaseLaunchConfig, run_config
from scripts.config_page import config_page
from tests.cli.conftest import Chomp, assert_refused

ROOT = Path(__file__).parents[2]
DEBUG = str(ROOT / "configs/debug_smoke.yaml")


def rows(table: str) -> dict[str, list[str]]:
    """The rows of a printed table by their first cell."""
    lines = [line.strip("│").split("│") for line in table.splitlines() if line.startswith("│")]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines}


def test_what_is_shown_is_a_config_again_and_has_every_field(chomp: Chomp, tmp_path: Path):
    told = chomp("config", "show", DEBUG, "-o", "train.steps=7")
    assert (told.code, told.err) == (0, "")
    shown = yaml.safe_load(told.out)
    assert (shown["trainer"]["steps"], shown["model"]["qk_norm"]) == (7, True)
    assert shown["template"] == "base"  # and no path, which another machine has not
    (tmp_path / "again.yaml").write_text(told.out)
    again = chomp("config", "show", str(tmp_path / "again.yaml"))
    assert again.out == told.out


def test_variables_and_other_names_are_gone_from_what_is_shown(chomp: Chomp, folder: Path):
    (folder / "mine.yaml").write_text(
        f"template: $variables.t\nvariables: {{n: 80, t: {ROOT}/experiments/grug/base}}\n"
        "train: {steps: $variables.n}\ndata: {seed: 6}\n"
    )
    shown = yaml.safe_load(chomp("config", "show", "mine.yaml").out)
    assert "variables" not in shown
    assert shown["template"] == f"{ROOT}/experiments/grug/base"  # in no checkout
    assert (shown["trainer"]["steps"], shown["trainer"]["data_seed"]) == (80, 6)


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("optim: {weight_decay: 0.2}", {"optimizer.weight_decay": 0.2}),
        ("optim: {name: muon}", {"optimizer.name": "muon"}),
        ("optim: {adam: {b1: 0.8}}", {"optimizer.adam.b1": 0.8}),
        ("model: {num_layers: 2}", {"model.num_layers": 2}),
        ("data: {validation_fraction: 0.1}", {"data.validation_fraction": 0.1}),
        ("data: {tokenizer: {kind: byte}}", {"data.tokenizer.kind": "byte"}),
        ("train: {eval_every: 50}", {"eval.steps_per_eval": 50}),
        ("checkpoint: {}", {}),
    ],
)
def test_a_file_changes_only_the_fields_that_it_names(text: str, changed: dict[str, Any], tmp_path):
    (tmp_path / "mine.yaml").write_text(f"template: base\n{text}\n")
    config = load_launch(GivenConfig(path=str(tmp_path / "mine.yaml"))).config
    found = config_difference(GrugBaseLaunchConfig(), config)
    assert {item.path: item.after for item in found} == changed


def test_a_file_has_exactly_the_components_that_it_names(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text(
        "template: base\ndata: {components: {code: {source: {kind: text, paths: [a]}}}}\n"
    )
    data = load_launch(GivenConfig(path=str(tmp_path / "mine.yaml"))).config.data
    assert data.components == {"code": LmComponentConfig(source=TextSource(paths=("a",)))}
    assert data.tokenizer == GrugBaseLaunchConfig().data.tokenizer


def test_a_secret_is_not_shown(chomp: Chomp, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    told = chomp("config", "show", DEBUG, "-o", "logging.wandb.tags=[x0123456789abcdef]")
    assert told.code == 0
    assert "0123456789abcdef" not in told.out


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("optim.warmup_steps=30", "optim.warmup_steps=30 in a run of 20 steps"),
        ("model.vocab_size=100", "data.tokenizer of 257 ids with model.vocab_size=100"),
        (
            "data.components={t: {source: {kind: memory, documents: [a]}}}",
            "eval with 1 document in the config, none of them held out",
        ),
    ],
)
def test_what_is_wrong_with_several_fields_together_names_the_file(
    chomp: Chomp, override: str, words: str
):
    assert_refused(chomp("config", "show", DEBUG, "-o", override), f"{DEBUG}: {words}")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.stps=3", "train.stps is not a known key (did you mean steps?)"),
        ("optim.lr=abc", "optim.lr='abc' (a string)"),
        ("optim.lr=-1", "overrides: optim.lr=-1.0"),
        ("train.log_every=0", "overrides: train.log_every=0"),
    ],
)
def test_what_is_wrong_with_an_override_is_told_by_the_name_that_was_typed(
    chomp: Chomp, override: str, words: str
):
    told = chomp("config", "show", DEBUG, "-o", override)
    assert (told.code, told.out) == (2, "")
    assert words in told.err
    assert "trainer" not in told.err
    assert "optimizer" not in told.err


def test_the_last_of_several_values_of_a_field_wins_by_either_name_of_the_option(chomp: Chomp):
    values = ("-o", "train.steps=7", "--override", "trainer.steps=8", "-o", "train.steps=7")
    told = chomp("config", "show", DEBUG, *values)
    assert yaml.safe_load(told.out)["trainer"]["steps"] == 7


def test_a_difference_has_the_mark_that_says_what_it_means_for_a_run(chomp: Chomp, folder: Path):
    for name, lines in (("a", ""), ("b", "optim: {lr: 1e-4}\n")):
        (folder / f"{name}.yaml").write_text(
            f"template: {ROOT}/experiments/grug/base\nrun_id: {name}\n{lines}"
            f"model: {{vocab_size: 2048, hidden_dim: {64 if name == 'a' else 128}}}\n"
        )
    told = chomp("config", "diff", "a.yaml", "b.yaml")
    assert (told.code, told.err) == (0, "")
    found = rows(told.out)
    assert found["model.hidden_dim"] == ["64", "128", "identity"]
    assert found["optimizer.lr"] == ["0.003", "0.0001", "schedule"]
    assert found["run_id"] == ["'a'", "'b'", "cosmetic"]
    assert "identity (another run)" in told.out
    assert "no field differs" in chomp("config", "diff", "a.yaml", "a.yaml").out


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder as training writes it at its start, in the current folder."""
    folder = tmp_path / "run"
    shutil.copytree(ROOT / "experiments/grug/base", folder / "template")
    launch = replace(GrugBaseLaunchConfig(), output_path="run")
    config = {**config_to_mapping(run_config(launch)), "derived": {"train": {}}}
    config["data"]["tokenizer"]["path"] = "outputs/tokenizer"
    (folder / "config_resolved.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    return folder


def test_a_run_is_compared_by_what_a_file_can_say(chomp: Chomp, run: Path, tmp_path: Path):
    shown = yaml.safe_load(chomp("config", "show", "run").out)
    assert "derived" not in shown
    # What the executor fills in is nothing that a file has.
    del shown["output_path"], shown["data"]["tokenizer"]["path"]
    shown |= {"template": str(ROOT / "experiments/grug/base"), "run_id": "other"}
    shown["trainer"]["log_every"] += 1
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(shown))
    told = chomp("config", "diff", "run", "mine.yaml")
    assert (told.code, told.err) == (0, "")
    assert list(rows(told.out)) == ["trainer.log_every", "run_id"]
    assert "no field differs" in chomp("config", "diff", "run", "run").out


def test_a_run_has_its_own_template_and_takes_no_other(chomp: Chomp, run: Path):
    told = chomp("config", "diff", "run", "run", "--template", "base")
    assert (told.code, told.out) == (2, "")
    assert "--template base with run, a run folder" in told.err


def test_beside_a_run_the_template_is_that_of_the_file(chomp: Chomp, run: Path, tmp_path: Path):
    (tmp_path / "mine.yaml").write_text("run_id: other\n")
    base = str(ROOT / "experiments/grug/base")
    told = chomp("config", "diff", "run", "mine.yaml", "--template", base)
    assert (told.code, told.err) == (0, "")
    assert list(rows(told.out)) == ["run_id"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "nothing.yaml"], "there is no nothing.yaml"),
        (["show", "mine.yaml", "--template", ".", "-o", "train.stepz=1"], "did you mean steps?"),
        (["schema", "--template", "nowhere"], "template nowhere"),
        (["diff", "mine.yaml"], "Missing argument"),
    ],
)
def test_what_is_wrong_is_told_in_three_parts(chomp: Chomp, folder: Path, arguments, words: str):
    (folder / "mine.yaml").write_text("template: .\n")
    assert_refused(chomp("config", *arguments), words)


def test_the_schema_is_that_of_the_templates_launch_config(chomp: Chomp):
    told = chomp("config", "schema", "--template", str(ROOT / "experiments/grug/moe"))
    schema = json.loads(told.out)
    assert schema["properties"]["trainer"]["aliases"] == ["train"]
    assert schema["additionalProperties"] is False
    described = schema["$defs"]["CheckpointConfig"]["properties"]["every"]["description"]
    assert described.startswith("Steps between permanent checkpoints")


@pytest.fixture(scope="module")
def page() -> str:
    return config_page(ROOT)


def test_the_page_is_what_the_classes_say_now(page: str):
    assert (ROOT / "docs/references/config.md").read_text() == page, (
        "run: python scripts/config_page.py > docs/references/config.md"
    )


def test_the_page_has_every_field_of_the_schema(page: str, chomp: Chomp):
    schema = json.loads(
        chomp("config", "schema", "--template", f"{ROOT}/experiments/grug/base").out
    )
    for name, part in schema["$defs"].items():
        for field, facts in part.get("properties", {}).items():
            names = [field, *facts.get("aliases", [])]
            # Or with its section, as another name of a field.
            told = [text for each in names for text in (f"| `{each}` |", f".{each}`")]
            assert any(text in page for text in told), f"{name}.{field}"
