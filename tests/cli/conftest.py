"""Shared by the command's tests: a folder with texts and a launch file, and the command itself."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import jaxtyping
import pytest

from chomp.cli.main import exit_code
from tests.cli.small_launch import LAUNCH_FILE, write_sources


@dataclass(frozen=True)
class Told:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str


Chomp = Callable[..., Told]


def assert_refused(told: Told, *words: str, code: int | None = 2, out: str | None = "") -> None:
    """The command ended with that code, printed nothing else, and said all there is to say."""
    assert told.code == code if code else told.code, told.err
    assert out is None or told.out == out
    assert "Error: " in told.err
    assert "Traceback" not in told.err
    for word in (*words, "Allowed: ", "Fix: "):
        assert word in told.err


@pytest.fixture(autouse=True)
def _markers_for_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let configs hold markers where their annotations promise what the executor puts there."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    for name in ("CHOMP_PREFIX", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def chomp(capsys: pytest.CaptureFixture[str]) -> Chomp:
    """The command, run in this process."""

    def run(*arguments: str) -> Told:
        capsys.readouterr()
        code = exit_code(arguments)
        told = capsys.readouterr()
        return Told(code, told.out, told.err)

    return run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with texts and a launch file, nothing built."""
    write_sources(tmp_path)
    (tmp_path / "launch.py").write_text(LAUNCH_FILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def built_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything built, for tests that only read it."""
    path = tmp_path_factory.mktemp("built")
    write_sources(path)
    (path / "launch.py").write_text(LAUNCH_FILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        patch.delenv("CHOMP_PREFIX", raising=False)
        assert exit_code(["data", "build", "launch.py"]) == 0
    return path


@pytest.fixture
def built(built_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same with everything built: a copy, so that a test may damage it."""
    path = tmp_path / "built"
    shutil.copytree(built_once, path)
    monkeypatch.chdir(path)
    return path


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 steps with averaged weights, its checkpoints at 6 and 12, evaluated at both."""
    from chomp.checkpoint import CheckpointConfig
    from chomp.training import GrugEvalConfig, SamplesConfig
    from experiments.grug.base.train import run_grug
    from tests import tiny

    folder = tmp_path_factory.mktemp("trained")
    data = tiny.build_data(tmp_path_factory.mktemp("trained-data"))
    # The programs of tests/test_training.py: what one of the two has compiled, the other loads.
    config = replace(
        tiny.run_config(data, folder / "run", ema_beta=0.9),
        eval=GrugEvalConfig(steps_per_eval=6, eval_batch_size=8, max_eval_batches=2),
        samples=SamplesConfig(every=6, max_tokens=16),
        checkpoint=CheckpointConfig(save_interval_s=None, every=6),
    )
    run_grug(config)
    return folder / "run"


@pytest.fixture
def trained(trained_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, so that a test may damage it and have its results; in the current folder."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(trained_once, tmp_path / "run"))
