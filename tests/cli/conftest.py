"""Shared by the command's tests: a folder with texts and a launch file, and the command itself."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
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


@pytest.fixture(autouse=True)
def _markers_for_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let configs hold markers where their annotations promise what the executor puts there."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    monkeypatch.delenv("CHOMP_PREFIX", raising=False)


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
