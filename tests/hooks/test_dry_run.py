"""A dry run tells what a run would take, refuses what the run would refuse, and leaves nothing."""

import io
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from chomp.data import LmDataConfig
from chomp.errors import ConfigError
from chomp.hooks import dry_run
from chomp.mesh import MeshConfig
from experiments.grug.base.train import GrugRunConfig, fresh_state, train_step_of
from tests import tiny


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> LmDataConfig:
    return tiny.build_data(Path(tmp_path_factory.mktemp("data")))


def told(config: GrugRunConfig, *, is_data_ready: bool) -> str:
    console = Console(width=120, file=io.StringIO())
    state, step = partial(fresh_state, config), partial(train_step_of, config)
    dry_run(config, state, step, is_data_ready=is_data_ready, console=console)
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
    text = told(config, is_data_ready=False)
    assert "The data is not built yet, so epochs are not known" in text
    assert "The step compiles in" in text


def test_a_mesh_that_is_not_here_is_told_about_without_a_step(data, tmp_path):
    config = replace(tiny.run_config(data, tmp_path / "run"), mesh=MeshConfig(data=16))
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
