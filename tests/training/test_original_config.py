"""A run folder keeps the file that its run was started with, and loses none that it had."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chomp.config import Config
from chomp.errors import ConfigError
from chomp.tokenize import ByteTokenizer
from chomp.training.original_config import VARIABLE, handed_on, original_config, write_original
from chomp.training.run_folder import RunFolder

FILE = "# mine\r\nlr: 3e-4 # ½ of before\n\n\nlast: |\n  no line end"


@dataclass(frozen=True, kw_only=True)
class Knobs(Config):
    lr: float = 0.1


@pytest.fixture(autouse=True)
def _started_without_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_a_text_comes_back_as_it_was_and_is_forgotten_afterwards(text: str):
    with handed_on(text):
        assert os.environ[VARIABLE].isascii()
        assert original_config() == text
        with handed_on(None):
            assert original_config() is None
        assert original_config() == text
    assert VARIABLE not in os.environ


@pytest.mark.parametrize("text", [FILE, ""])
def test_the_folder_has_the_file_byte_for_byte(tmp_path: Path, text: str):
    with handed_on(text), RunFolder.open(str(tmp_path / "run")) as folder:
        folder.describe(Knobs(), template=tmp_path, tokenizer=ByteTokenizer())
    assert (tmp_path / "run/config_original.yaml").read_bytes() == text.encode()


@pytest.mark.parametrize("packed", ["what?", "aGVsbG8=", "é"])
def test_what_nobody_has_packed_is_refused(monkeypatch: pytest.MonkeyPatch, packed: str):
    monkeypatch.setenv(VARIABLE, packed)
    with pytest.raises(ConfigError, match=rf"{VARIABLE}, which .*Allowed: .*Fix: unset "):
        original_config()


def test_a_file_too_long_for_the_environment_is_told_and_processes_still_start(
    caplog: pytest.LogCaptureFixture,
):
    noise = os.urandom(100_000).hex()  # which no packing makes short
    with caplog.at_level("WARNING", logger="chomp"), handed_on(noise):
        assert original_config() is None
        subprocess.run([sys.executable, "-S", "-c", ""], check=True)
    assert "too long" in caplog.text


def test_the_longest_that_is_handed_on_lets_processes_start():
    with handed_on(os.urandom(44_500).hex()):
        assert original_config() is not None
        subprocess.run([sys.executable, "-S", "-c", ""], check=True)


def originals(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


def test_another_start_with_the_same_file_leaves_one(tmp_path: Path):
    for attempt in (1, 2, 3):
        write_original(str(tmp_path), "a: 1\n", attempt=attempt)
    assert originals(tmp_path) == {"config_original.yaml": "a: 1\n"}


def test_another_file_is_the_original_and_those_that_trained_before_are_kept(tmp_path: Path):
    # The first start of attempt 3 left no row, so the next has its number.
    for attempt, text in [(1, "a"), (2, "b"), (3, "c"), (3, "d")]:
        write_original(str(tmp_path), text, attempt=attempt)
    assert originals(tmp_path) == {
        "config_original.before-2.yaml": "a",
        "config_original.before-3.yaml": "b",
        "config_original.yaml": "d",
    }
