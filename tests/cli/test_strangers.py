"""A run folder that somebody else has made: what it holds is read, and its code is not run.

Every command that would run a run's own template asks for --trust first, and no other command runs
anything of a run. What only looks like data never becomes code either.
"""

import json
import os
import pickle
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import typer

from chomp.checkpoint import save_step_checkpoint
from chomp.cli.main import app
from chomp.config import config_to_mapping
from chomp.data import ArraysSource, HuggingFaceSource, Position
from chomp.errors import ChompError
from chomp.tokenize import ByteTokenizer, load_tokenizer, save_tokenizer
from chomp.tracking import JsonlTracker
from experiments.grug.base.launch import GrugBaseLaunchConfig, run_config
from tests.checkpoint.checkpoint_samples import about
from tests.cli.conftest import Chomp

ROOT = Path(__file__).parents[2]
NO_BYTECODE = shutil.ignore_patterns("__pycache__")
# What the commands that run a template are given; each takes --trust.
LOADING = {
    "eval": ["eval", "run"],
    "generate": ["generate", "run", "--prompt", "Once"],
    "harness": ["harness", "run", "--tasks", "any", "--with-defaults"],
    "config diff": ["config", "diff", "run", "run"],
}
# All others that a run folder or a part of it can be given to, with how they end.
READING = {
    "config show": (["config", "show", "run"], 0),
    "checkpoint list": (["checkpoint", "list", "run"], 0),
    "checkpoint verify": (["checkpoint", "verify", "run"], 0),
    "checkpoint diff": (["checkpoint", "diff", "run", "run"], 0),
    "checkpoint export": (["checkpoint", "export", "run", "--out", "exported"], 0),
    "metrics show": (["metrics", "show", "run"], 0),
    "data forecast": (["data", "forecast", "run"], 1),  # the stores are not there
    "train": (["train", "run"], 2),
    "verify-resume": (["verify-resume", "run"], 2),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, one_device_mesh: jax.sharding.Mesh) -> Path:
    """A run folder as training leaves it, but for its template."""
    run = tmp_path_factory.mktemp("theirs") / "run"
    run.mkdir()
    config = config_to_mapping(run_config(replace(GrugBaseLaunchConfig(), output_path="run")))
    (run / "config_resolved.json").write_text(json.dumps(config))
    (run / "config_original.yaml").write_text("template: run/template\n")
    save_tokenizer(ByteTokenizer(), str(run / "tokenizer"))
    tracker = JsonlTracker(run / "metrics.jsonl", attempt=1)
    tracker.log({"train/loss": 1.0}, step=0)
    tracker.finish()
    state = {"step": jnp.int32(6), "params/w": jnp.ones((4, 2))}
    with jax.set_mesh(one_device_mesh):
        save_step_checkpoint(str(run / "checkpoints"), state, about(step=6))
    return run


@pytest.fixture
def ran(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that their code leaves when it is run; the folder `run` beside it is theirs."""
    shutil.copytree(made, tmp_path / "run")
    (tmp_path / "run/template").mkdir()
    for name in ("__init__", "model", "train", "launch"):
        # With its own path in it: the same sources are not run twice.
        tells = f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n"
        (tmp_path / f"run/template/{name}.py").write_text(tells)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "ran"


def commands_with(option: str) -> set[str]:
    """The commands that take an option, in full."""
    group: Any = typer.main.get_command(app)

    def found(command: Any, name: str) -> Iterator[str]:
        for each, inner in getattr(command, "commands", {}).items():
            yield from found(inner, f"{name} {each}")
        if any(option in parameter.opts for parameter in command.params):
            yield name.strip()

    return set(found(group, ""))


def test_every_command_that_can_be_told_to_trust_a_run_is_tried_here():
    assert commands_with("--trust") == set(LOADING)


@pytest.mark.parametrize("name", LOADING)
def test_code_of_a_strangers_run_waits_for_trust(chomp: Chomp, ran: Path, name: str):
    told = chomp(*LOADING[name])
    assert (told.code, told.out) == (2, "")
    for words in ("run/template is Python code of unknown origin", "train.py", "pass --trust"):
        assert words in told.err
    assert not ran.exists()
    # With the word, it is run: so the file that was missing above would have been there.
    chomp(*LOADING[name], "--trust")
    assert ran.exists()


@pytest.mark.parametrize("name", READING)
def test_other_commands_run_nothing_of_a_strangers_run(chomp: Chomp, ran: Path, name: str):
    words, code = READING[name]
    told = chomp(*words)
    assert (told.code, "Traceback" in told.err) == (code, False), told.err
    assert not ran.exists()


@pytest.mark.parametrize("words", [["train"], ["config", "show"]])
def test_a_strangers_config_does_not_run_the_template_beside_it(
    chomp: Chomp, ran: Path, words: list[str]
):
    told = chomp(*words, "run/config_original.yaml")
    assert not ran.exists()
    assert (told.code, told.out) == (2, "")
    assert "--template" in told.err


@pytest.mark.parametrize("words", [["train"], ["config", "show"]])
def test_a_template_around_a_strangers_config_is_not_run(
    chomp: Chomp, ran: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
):
    theirs = ran.parent / "experiments/grug/fine"
    shutil.copytree(ran.parent / "run/template", theirs)
    (ran.parent / "theirs.yaml").write_text("template: fine\n")
    monkeypatch.chdir(ROOT)
    told = chomp(*words, str(ran.parent / "theirs.yaml"))
    assert (ran.exists(), told.code) == (False, 2)
    assert f"pass --template {theirs}" in told.err


@pytest.fixture
def as_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is here belongs to another user than the one who runs the command."""
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)


@pytest.mark.usefixtures("as_another_user")
@pytest.mark.parametrize("word", [[], ["--template", "base"]])
@pytest.mark.parametrize("words", [["train", "mine.yaml"], ["config", "schema"]])
def test_a_strangers_template_around_the_current_folder_waits_for_its_path(
    chomp: Chomp, ran: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], word: list[str]
):
    theirs = ran.parent / "experiments/grug/base"
    shutil.copytree(ran.parent / "run/template", theirs)
    (ran.parent / "here").mkdir()
    monkeypatch.chdir(ran.parent / "here")
    Path("mine.yaml").write_text("train: {steps: 1}\n")
    told = chomp(*words, *word)
    assert not ran.exists()
    assert (told.code, told.out) == (2, "")
    assert f"pass --template {theirs}" in told.err
    chomp(*words, "--template", str(theirs))
    assert ran.exists()


@pytest.mark.usefixtures("as_another_user")
def test_a_template_that_equals_ours_is_run_from_our_checkout(
    chomp: Chomp, ran: Path, monkeypatch: pytest.MonkeyPatch
):
    theirs = ran.parent / "experiments/grug/base"
    shutil.copytree(ROOT / "experiments/grug/base", theirs, ignore=NO_BYTECODE)
    (ran.parent / "here").mkdir()
    monkeypatch.chdir(ran.parent / "here")
    Path("mine.yaml").write_text("train: {seq_len: 512}\n")
    told = chomp("config", "show", "mine.yaml")
    assert told.code == 0, told.err
    assert f"template: {ROOT}/experiments/grug/base\n" in told.out


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a folder to another user")
def test_templates_that_a_stranger_put_into_the_current_folder_are_not_its_checkout(
    chomp: Chomp, ran: Path
):
    theirs = ran.parent / "experiments"
    shutil.copytree(ran.parent / "run/template", theirs / "grug/base")
    for path in (theirs, *theirs.rglob("*")):
        os.chown(path, 12345, -1)
    told = chomp("config", "schema")
    assert not ran.exists()
    assert "pass --template experiments/grug/base" in told.err


CODE = "eval: {harness: {tasks: [theirs], include_path: tasks, allow_code: true}}\n"


@pytest.mark.parametrize(
    ("text", "overrides", "code"),
    [
        (CODE, [], 2),
        # Neither a variable nor another field of the command line says it.
        (CODE.replace("true", "$variables.yes") + "variables: {yes: true}\n", [], 2),
        (CODE, ["eval.harness.tasks=[others]"], 2),
        (CODE, ["eval.harness.allow_code=true"], 0),
        (CODE, ["eval.harness.allow_code=false"], 0),
        (CODE, ["eval.harness=null"], 0),
        (CODE.replace("true", "false"), [], 0),
    ],
)
def test_a_file_lets_no_task_bring_code_by_itself(
    chomp: Chomp, tmp_path: Path, text: str, overrides: list[str], code: int
):
    (tmp_path / "theirs.yaml").write_text(text)
    more = [word for override in overrides for word in ("-o", override)]
    base = ["--template", str(ROOT / "experiments/grug/base")]
    told = chomp("config", "show", str(tmp_path / "theirs.yaml"), *base, *more)
    assert told.code == code, told.err
    if code:
        assert "-o eval.harness.allow_code=true" in told.err


@pytest.mark.slow  # it imports lm-eval as long as the tasks are loaded at all
def test_tasks_of_a_strangers_run_bring_no_code_unless_that_is_asked_for(
    chomp: Chomp, ran: Path, monkeypatch: pytest.MonkeyPatch
):
    run, tasks = ran.parent / "run", ran.parent / "tasks"
    # A template that the checkout has too is run without a word; what the config says is not.
    shutil.rmtree(run / "template")
    shutil.copytree(ROOT / "experiments/grug/base", run / "template", ignore=NO_BYTECODE)
    tasks.mkdir()
    (tasks / "theirs.py").write_text(f"open({str(ran)!r}, 'a').close()\ndef text(doc): pass\n")
    (tasks / "theirs.yaml").write_text("task: theirs\ndoc_to_text: !function theirs.text\n")
    config = json.loads((run / "config_resolved.json").read_text())
    harness = {"tasks": ["theirs"], "include_path": str(tasks), "allow_code": True}
    config["eval"] = {**config["eval"], "harness": harness}
    config["model"]["vocab_size"] = 512
    (run / "config_resolved.json").write_text(json.dumps(config))
    monkeypatch.chdir(ROOT)
    told = chomp("harness", str(run))
    assert not ran.exists()
    assert (told.code, told.out) == (2, "")
    assert "--allow-code" in told.err


class Touches:
    """An object whose pickle makes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_pickle_in_an_array_file_is_refused_and_not_read(tmp_path: Path):
    np.save(tmp_path / "ids.npy", np.array([Touches(tmp_path / "ran")], object), allow_pickle=True)
    source = ArraysSource(paths=(str(tmp_path / "ids.npy"),))
    with pytest.raises(ChompError, match="Python objects"):
        list(source.records(source.part_names(), Position(0, 0), ()))
    assert not (tmp_path / "ran").exists()
    np.load(tmp_path / "ids.npy", allow_pickle=True)  # it would have
    assert (tmp_path / "ran").exists()


@pytest.mark.slow  # it imports datasets
def test_a_pickle_given_as_a_dataset_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "table.pkl").write_bytes(pickle.dumps(Touches(tmp_path / "ran")))
    # The library's own name for files that pandas has pickled.
    source = HuggingFaceSource(path="pandas", data_files=(str(tmp_path / "table.pkl"),))
    with pytest.raises(ChompError, match="cannot be read"):
        list(source.records(source.part_names(), Position(0, 0), ("text",)))
    assert not (tmp_path / "ran").exists()


def test_code_and_pickles_beside_a_tokenizer_are_not_looked_at(ran: Path, tmp_path: Path):
    folder = tmp_path / "run/tokenizer"
    source = (tmp_path / "run/template/model.py").read_text()
    for name in ("tokenizer.py", "tokenization_theirs.py", "__init__.py"):
        (folder / name).write_text(source)
    (folder / "tokenizer.pkl").write_bytes(pickle.dumps(Touches(ran)))
    names = {"AutoTokenizer": ["tokenization_theirs.Theirs", None]}
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": names}))
    assert load_tokenizer(str(folder)).content_hash == ByteTokenizer().content_hash
    assert not ran.exists()


@pytest.mark.parametrize("tag", ["!!python/name:os.system", "!!python/object/apply:os.getcwd []"])
@pytest.mark.parametrize(
    "where", ["train: {{steps: {tag}}}", "template: {tag}", "variables: {tag}"]
)
def test_a_tag_in_a_yaml_file_is_no_code(chomp: Chomp, tmp_path: Path, tag: str, where: str):
    path = tmp_path / "theirs.yaml"
    path.write_text(where.format(tag=tag) + "\n")
    for command in (["train", str(path)], ["config", "show", str(path)]):
        told = chomp(*command)
        assert (told.code, told.out) == (2, "")
        assert f"{path} cannot be read as YAML" in told.err
