"""Hashes of source files are remembered: nothing is read twice, and no change is missed."""

import json
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import datasets
import fsspec
import jaxtyping
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from chomp.data import (
    HuggingFaceSource,
    JsonlSource,
    LmComponentConfig,
    LmDataConfig,
    TextSource,
    TokenizerConfig,
    source_files,
    source_fingerprint,
    with_data_steps,
)
from chomp.errors import DataError
from chomp.executor import ExecutorStep, PlannedStep, plan_steps, planning_only, run_plan
from chomp.storage import file_hashes
from chomp.storage.file_hashes import CLOCK_RESOLUTION_S, read_files_again

LONG_AGO = 1_000_000_000


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "chomp" / "file_hashes.sqlite"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are opened to be hashed."""
    opened: list[str] = []
    real = source_files.open_stream

    def noted(path: str) -> object:
        opened.append(os.path.basename(path))
        return real(path)

    monkeypatch.setattr(source_files, "open_stream", noted)
    return opened


@pytest.fixture
def source(tmp_path: Path) -> TextSource:
    """Two files that were written long ago."""
    for name in ("a", "b"):
        write(tmp_path / f"{name}.txt", f"text of {name}")
    return TextSource(paths=(str(tmp_path / "*.txt"),))


def write(path: Path, text: str, mtime: float = LONG_AGO) -> None:
    path.write_text(text)
    os.utime(path, (mtime, mtime))


def test_files_that_did_not_change_are_not_read_again(source, read):
    first = source_fingerprint(source)
    assert sorted(read) == ["a.txt", "b.txt"]
    read.clear()
    assert source_fingerprint(source) == first
    assert read == []


@pytest.mark.parametrize(
    "change",
    [
        lambda path: write(path, "longer than it was"),
        lambda path: write(path, "text of B", LONG_AGO + 1),
        lambda path: write(path, "text of B"),  # size and mtime as before: ctime is not
        lambda path: (path.unlink(), write(path, "text of B")),
    ],
    ids=["size", "mtime", "mtime set back", "another file"],
)
def test_a_file_that_changed_is_read_again_and_no_other(
    source, read, tmp_path, change: Callable[[Path], object]
):
    first = source_fingerprint(source)
    read.clear()
    time.sleep(0.02)  # more than a tick of the clock of ctime
    change(tmp_path / "b.txt")
    assert source_fingerprint(source) != first
    assert read == ["b.txt"]


@pytest.mark.parametrize(("age_s", "is_trusted"), [(0.0, False), (-60.0, False), (60.0, True)])
def test_a_file_that_was_written_just_before_it_was_read_is_not_trusted(
    source, read, tmp_path, age_s: float, is_trusted: bool
):
    assert CLOCK_RESOLUTION_S >= 2
    write(tmp_path / "a.txt", "new", time.time() - age_s)
    first = source_fingerprint(source)
    read.clear()
    assert source_fingerprint(source) == first
    assert read == ([] if is_trusted else ["a.txt"])


def test_a_file_that_changes_while_it_is_read_is_not_trusted(source, read, tmp_path, monkeypatch):
    real = source_files.open_stream

    def changed(path: str) -> object:
        stream = real(path)
        if path.endswith("a.txt"):
            write(tmp_path / "a.txt", "text of A", LONG_AGO + 5)
        return stream

    with monkeypatch.context() as patch:
        patch.setattr(source_files, "open_stream", changed)
        source_fingerprint(source)
    read.clear()
    source_fingerprint(source)
    assert read == ["a.txt"]


def test_every_file_is_read_once_more_where_that_is_asked_for(source, read, state, caplog):
    first = source_fingerprint(source)
    read.clear()
    with read_files_again():
        assert source_fingerprint(source) == first
        assert sorted(read) == ["a.txt", "b.txt"]
        assert source_fingerprint(source) == first  # what this process has read it knows
        assert len(read) == 2
    assert caplog.text == ""
    with sqlite3.connect(state) as database:
        database.execute(
            "UPDATE hashes SET sha256 = ? WHERE CAST(path AS TEXT) LIKE '%a.txt'", (bytes(32),)
        )
    database.close()
    assert source_fingerprint(source) != first  # what is remembered is believed
    with read_files_again():
        assert source_fingerprint(source) == first
    assert "a.txt CHANGED WITHOUT A TRACE" in caplog.text
    assert "b.txt" not in caplog.text
    assert source_fingerprint(source) == first


def test_without_a_place_to_remember_files_are_read_and_one_warning_says_so(
    source, read, state, caplog, monkeypatch
):
    monkeypatch.setattr(file_hashes, "_mode", type(file_hashes._mode)())  # that has not warned
    state.parent.mkdir(parents=True)
    state.write_bytes(b"no database " * 100)
    first = source_fingerprint(source)
    assert source_fingerprint(source) == first
    assert len(read) == 4
    assert caplog.text.count("CANNOT BE REMEMBERED") == 1


def test_a_plan_downloads_no_file(read):
    MemoryFileSystem().pipe_file("/bucket/a.txt", b"text")
    source = TextSource(paths=("memory://bucket/a.txt",))
    with planning_only(), pytest.raises(DataError) as caught:
        source_fingerprint(source)
    assert "memory://bucket/a.txt is not on this machine" in caught.value.given
    assert "--plan" in caught.value.fix
    assert read == []
    assert source_fingerprint(source)
    fsspec.filesystem("memory").rm("/bucket", recursive=True)


@pytest.mark.parametrize("is_downloaded", [False, True])
def test_a_plan_downloads_no_dataset(tmp_path, monkeypatch, is_downloaded: bool):
    asked = []

    def load_dataset(*names: object, **options: object) -> datasets.Dataset:
        asked.append(names)
        return datasets.Dataset.from_dict({"text": ["a"]})

    def load_dataset_builder(*names: object, **options: object) -> SimpleNamespace:
        assert "streaming" not in options
        return SimpleNamespace(cache_dir=str(tmp_path / ("" if is_downloaded else "not there")))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(datasets, "load_dataset_builder", load_dataset_builder)
    source = HuggingFaceSource(path="some/set", name="en")
    if is_downloaded:
        expected = source_fingerprint(source)
        with planning_only():
            assert source_fingerprint(source) == expected
        return
    with planning_only(), pytest.raises(DataError) as caught:
        source_fingerprint(source)
    assert "some/set/en/train is not on this machine" in caught.value.given
    assert asked == []


def test_a_first_build_reads_a_source_three_times_and_a_later_plan_never(
    read, tmp_path, monkeypatch
):
    # To name the steps, to train the tokenizer, and to write the stores of both splits.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # configs with markers
    lines = [json.dumps({"text": f"document {i} of a corpus"}) + "\n" for i in range(60)]
    write(tmp_path / "corpus.jsonl", "".join(lines))
    source = JsonlSource(paths=(str(tmp_path / "corpus.jsonl"),))
    data = LmDataConfig(
        tokenizer=TokenizerConfig(vocab_size=300),
        components={"corpus": LmComponentConfig(source=source)},
        validation_fraction=0.3,
    )

    def plan() -> list[PlannedStep]:
        run = ExecutorStep(name="run", fn=print, config=with_data_steps(data))
        planned = plan_steps([run], prefix=str(tmp_path / "outputs"))
        return [each for each in planned if each.step.name != "run"]

    steps = plan()
    assert len(steps) == 3
    assert not run_plan(steps, lambda planned: planned.step.fn(planned.config))
    assert read == ["corpus.jsonl"] * 3
    assert {each.action for each in plan()} == {"skip"}
    assert len(read) == 3
