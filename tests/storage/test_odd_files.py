"""Files that a folder of somebody else's may hold: pipes, devices, bombs. All are told at once."""

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chomp import storage
from chomp.checkpoint import CheckpointMetadata, StepFolder, list_checkpoints
from chomp.checkpoint.format import open_checkpoint, problem_with_files
from chomp.data import read_manifest
from chomp.errors import StorageError
from chomp.executor import read_status
from chomp.executor.identity import read_pins
from chomp.executor.status import read_info
from chomp.launch.step_result import append_log, read_outcome
from chomp.report.record import read_record
from chomp.report.run_payload import samples
from chomp.report.watch import WatchedRun
from chomp.storage.files import MAX_DEPTH, MAX_TEXT_BYTES, parse_json
from chomp.tokenize import load_tokenizer
from chomp.tracking import JsonlTracker, last_attempt, read_metrics
from chomp.tracking.run_files import resolved_config, template_sources

HUGE = 1 << 40  # as a sparse file, which takes no disk


def _put_huge(path: Path) -> None:
    path.touch()
    os.truncate(path, HUGE)


def _put_socket(path: Path) -> None:
    # By a short name: a path of a socket may have 107 bytes.
    before = os.open(".", os.O_RDONLY)
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path.name)
    os.fchdir(before)
    os.close(before)


ODD: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/ptmx"),
    "socket": _put_socket,
    "folder": Path.mkdir,
    "huge": _put_huge,
}
# What reads a file of a run, a store, a checkpoint or the executor, with the name of that file.
READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "json": ("any.json", storage.read_json),
    "text": ("any.txt", lambda path: storage.read_text(path, max_bytes=MAX_TEXT_BYTES)),
    "lock": (".executor_lock", storage.lock_holder),
    "lock taken": (".executor_lock", storage.FileLock.try_acquire),
    "status": (".executor_status", lambda path: read_status(str(path.parent))),
    "info": (".executor_info", lambda path: read_info(str(path.parent))),
    "pins": (".executor_pins.json", lambda path: read_pins(str(path.parent))),
    "outcome": ("outcome", lambda path: read_outcome(str(path))),
    "config": ("config_resolved.json", lambda path: resolved_config(path.parent)),
    "tokenizer": ("tokenizer.json", lambda path: _tokenizer_in(path)),
    "tokenizer's description": (
        "chomp_tokenizer.json",
        lambda path: load_tokenizer(str(path.parent)),
    ),
    "manifest": ("manifest.json", lambda path: read_manifest(str(path.parent))),
}
# The same for files that may have any size.
APPENDED: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "stream": ("any.jsonl", storage.open_stream),
    "size": ("any.jsonl", storage.file_info),
    "log": ("log", lambda path: append_log(str(path), "text").__enter__()),
    "rows": ("metrics.jsonl", read_metrics),
    "attempt": ("metrics.jsonl", last_attempt),
    "rows written": ("metrics.jsonl", lambda path: JsonlTracker(path, attempt=1)),
    "late rows": ("metrics.jsonl", lambda path: JsonlTracker(path, attempt=1, is_shared=True)),
    "page": ("metrics.jsonl", lambda path: read_record(str(path))),
}


@pytest.fixture(autouse=True)
def _at_once() -> Iterator[None]:
    """What waits for a pipe fails instead of standing still."""

    def fail(*_: object) -> None:
        raise AssertionError("it waits")

    signal.signal(signal.SIGALRM, fail)
    signal.alarm(20)
    yield
    signal.alarm(0)


def _tokenizer_in(path: Path) -> None:
    about = {"kind": "json", "vocab_size": 9, "eos_id": 0, "content_hash": "0"}
    (path.parent / "chomp_tokenizer.json").write_text(json.dumps(about))
    load_tokenizer(str(path.parent))


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_of_its_kind_is_refused_at_once(tmp_path: Path, reader: str, odd: str):
    name, read = READERS[reader]
    ODD[odd](tmp_path / name)
    with pytest.raises(StorageError, match=name):
        read(tmp_path / name)


@pytest.mark.parametrize("odd", sorted(ODD.keys() - {"huge", "folder"}))
@pytest.mark.parametrize("reader", APPENDED)
def test_a_record_that_is_no_file_is_refused_at_once(tmp_path: Path, reader: str, odd: str):
    name, read = APPENDED[reader]
    ODD[odd](tmp_path / name)
    with pytest.raises(StorageError, match=name):
        read(tmp_path / name)


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_file_of_a_checkpoint_makes_that_one_unreadable(tmp_path: Path, odd: str):
    step = tmp_path / "step-4"
    (step / "state").mkdir(parents=True)
    ODD[odd](step / "metadata.json")
    assert list_checkpoints(str(tmp_path)) == []
    assert open_checkpoint(str(step)).reason  # type: ignore[union-attr]
    ODD[odd](step / "state/d")
    about = {"run_id": "a", "attempt": 1, "config_hash": "", "config": {}, "data_fingerprint": ""}
    metadata = CheckpointMetadata(
        step=4, data_offset=0, tokens_seen=0, state_files={"d": 0}, **about
    )
    assert problem_with_files(StepFolder(str(step), metadata)) is not None


def test_a_template_is_its_files_of_a_size_that_people_write(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "model.py").write_text("pass")
    assert template_sources(tmp_path) == {"model": b"pass"}
    _put_huge(tmp_path / "train.py")
    with pytest.raises(StorageError, match=r"train\.py"):
        template_sources(tmp_path)


@pytest.mark.parametrize("odd", ["pipe", "device", "socket", "huge"])
def test_an_odd_sample_is_left_out_and_said(tmp_path: Path, odd: str):
    (tmp_path / "samples").mkdir()
    ODD[odd](tmp_path / "samples/step-3.txt")
    found, problems = samples(str(tmp_path))
    assert (found, len(problems)) == ([], 1)


@pytest.mark.parametrize("odd", ["pipe", "device", "socket"])
def test_watching_a_record_that_is_no_file_says_so(tmp_path: Path, odd: str):
    ODD[odd](tmp_path / "metrics.jsonl")
    run = WatchedRun(str(tmp_path))
    run.look()
    assert "metrics.jsonl" in run.problems(0.0)[0]


def test_what_a_user_names_may_be_a_pipe(tmp_path: Path):
    reading, writing = os.pipe()
    os.write(writing, b"a prompt")
    os.close(writing)
    assert storage.read_text(f"/dev/fd/{reading}") == "a prompt"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("NaN", "bare word"),
        ('{"a": -Infinity}', "bare word"),
        ('{"a": [1, 1e999]}', "finite"),
        ('{"a": {"b": 1, "c": 2, "b": 1}}', "'b' twice"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "nested"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "nested"),
        ("[" * 1_000_000, "nested"),
        ("9" * 5000, "digits"),
        ("", "Expecting value"),
    ],
)
def test_json_that_is_not_strict_is_an_error_of_one_kind(tmp_path: Path, text: str, fault: str):
    with pytest.raises(ValueError, match=fault):
        parse_json(text)
    (tmp_path / "any.json").write_text(text)
    with pytest.raises(StorageError, match=fault):
        storage.read_json(tmp_path / "any.json")


def test_json_as_deep_as_allowed_is_read():
    text = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert json.dumps(parse_json(text)) == text
