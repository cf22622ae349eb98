"""A dry run tells what a run would take, refuses what the run would refuse, and leaves nothing."""

import io
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import pytest
from rich.console import Console

from chomp.checkpoint import CheckpointConfig, KeepPolicy
from chomp.data import (
    HuggingFaceSource,
    JsonlSource,
    LmComponentConfig,
    LmDataConfig,
    TextFormat,
    TokenizerConfig,
    source_documents,
)
from chomp.errors import ConfigError, DataError, StorageError
from chomp.mesh import MeshConfig, abstract_arrays
from chomp.training import dry_run
from chomp.training.dry_run import check_disk, disk_need
from experiments.grug.base.train import GrugRunConfig, fresh_state, train_step_of
from tests import tiny


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> LmDataConfig:
    return tiny.build_data(Path(tmp_path_factory.mktemp("data")))


def told(config: GrugRunConfig, *, is_data_ready: bool) -> str:
    console = Console(width=120, file=io.StringIO())
    dry_run(config, fresh_state, train_step_of, is_data_ready=is_data_ready, console=console)
    return console.file.getvalue()


def tree_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_dry_run_tells_all_of_the_run_and_leaves_nothing_behind(data, tmp_path):
    stores = Path(data.components["sums"].train_store).parent
    before, output = tree_of(stores), tmp_path / "run"
    text = told(tiny.run_config(data, output, ema_beta=0.9), is_data_ready=True)
    for words in (
        "averaged weights",  # bytes of the state
        "matrix     adamw       0.01",  # who updates what
        "tokens of the run     6,144 in 12 steps",
        "disk for checkpoints",
        "learning_rate",
        "epochs",  # of each component, from the stores
        "attention chunked (",  # tried on the first batch
        "The step compiles in",
    ):
        assert words in text, words
    # lr 1e-2 after a warmup of two steps: half of it at first.
    assert "0.005" in text
    assert not output.exists()
    assert tree_of(stores) == before


def test_without_data_the_step_is_compiled_all_the_same_and_it_is_said(data, tmp_path):
    nothing = {
        name: replace(component, train_store=None, validation_store=None)
        for name, component in data.components.items()
    }
    config = tiny.run_config(replace(data, components=nothing), tmp_path / "run")
    optimizer = replace(config.optimizer, schedule_start=6)
    trainer = replace(config.trainer, load_checkpoint_path="another/run")  # where it goes on from
    config = replace(config, optimizer=optimizer, trainer=trainer)
    text = told(config, is_data_ready=False)
    # The rates are those of the schedule, from its start to the end of the run.
    assert re.search(r"step\W+6\W.*\W11\W", text)
    assert "The first document of each component can be read." in text
    assert "The data is not built yet, so epochs are not known" in text
    assert "The step compiles in" in text


def test_the_disk_of_checkpoints_counts_what_is_kept_and_what_is_written(data, tmp_path):
    config = tiny.run_config(data, tmp_path / "run")  # 12 steps
    state = abstract_arrays(partial(fresh_state, config))
    one = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    policies = (KeepPolicy(every=1, until=4), KeepPolicy(every=8))
    saved = CheckpointConfig(keep=policies, keep_temporary=3)
    # Steps 1 to 4, 8 and the last for good; three temporary ones.
    assert disk_need(replace(config, checkpoint=saved), state) == (one, 9 * one)


def test_a_disk_without_room_for_one_checkpoint_is_refused_and_for_all_is_told(
    data, tmp_path, caplog, monkeypatch
):
    config = tiny.run_config(data, tmp_path / "run")
    config = replace(config, checkpoint=CheckpointConfig(every=1))
    state = abstract_arrays(partial(fresh_state, config))
    one, _ = disk_need(config, state)
    check_disk(config, state)
    assert caplog.records == []
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2 * one))
    check_disk(config, state)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=one - 1))
    with pytest.raises(StorageError):
        told(config, is_data_ready=False)


def of_records(text_key: str, folder: Path, tokenizer: TokenizerConfig) -> GrugRunConfig:
    """A run of records that have their texts under `body`, of which nothing is built."""
    path = folder / "records.jsonl"
    path.write_text("".join(f'{{"body": "text {number}"}}\n' for number in range(20)))
    component = LmComponentConfig(
        source=JsonlSource(paths=(str(path),)),
        format=TextFormat(text_key=text_key),
        train_store=str(folder / "nothing-yet"),
    )
    data = LmDataConfig(tokenizer=tokenizer, components={"mine": component})
    return tiny.run_config(data, folder / "run")


@pytest.mark.parametrize("kind", ["byte", "bpe"])
def test_a_record_that_cannot_be_read_is_refused_as_a_build_would_and_leaves_nothing(
    tmp_path: Path, kind: str
):
    tokenizer = TokenizerConfig(kind=kind)  # type: ignore[arg-type]
    assert "can be read" in told(of_records("body", tmp_path, tokenizer), is_data_ready=False)
    config = of_records("nokey", tmp_path, tokenizer)
    before = tree_of(tmp_path)
    with pytest.raises(DataError) as caught:
        told(config, is_data_ready=False)
    component = config.data.components["mine"]
    with pytest.raises(DataError) as by_build:
        list(source_documents(component.source, component.format))
    assert str(caught.value) == f"component 'mine': {by_build.value}"
    assert "nokey" in str(caught.value)
    assert tree_of(tmp_path) == before
    assert not (tmp_path / "run").exists()


def test_a_source_without_a_document_is_refused(tmp_path: Path):
    config = of_records("body", tmp_path, TokenizerConfig(kind="byte"))
    (tmp_path / "records.jsonl").write_text("")
    with pytest.raises(DataError, match=r"component 'mine': no document in "):
        told(config, is_data_ready=False)


def test_what_a_hub_has_is_not_fetched_and_that_is_said(tmp_path: Path):
    config = of_records("body", tmp_path, TokenizerConfig(kind="byte"))
    source = HuggingFaceSource(path="nobody/nothing", streaming=True)
    parts = {**config.data.components, "web": LmComponentConfig(source=source)}
    config = replace(config, data=replace(config.data, components=parts))
    text = told(config, is_data_ready=False)
    [line] = [each for each in text.splitlines() if each.startswith("Not tried")]
    assert "web" in line


def test_a_mesh_that_is_not_here_is_told_about_without_a_step(data, tmp_path):
    config = tiny.run_config(data, tmp_path / "run", batch_size=16)
    config = replace(config, mesh=MeshConfig(data=16))
    text = told(config, is_data_ready=True)
    assert "16 devices" in text
    assert "The step is not compiled: " in text


@pytest.mark.parametrize(
    ("mesh", "words"),
    [
        (MeshConfig(data=64), r"of shape \[.*mesh.data=64"),
        (MeshConfig(model=2), r"model.num_kv_heads=1 with mesh.model=2"),
    ],
)
def test_sizes_that_the_mesh_cannot_cut_are_refused(data, tmp_path, mesh, words):
    config = replace(tiny.run_config(data, tmp_path / "run"), mesh=mesh)
    with pytest.raises(ConfigError, match=words):
        told(config, is_data_ready=True)
