"""Atomic writes, under kill -9 and among processes, and where they may not go."""

import math
import random
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chomp import storage
from chomp.errors import StorageError
from chomp.launch.step_result import append_log
from chomp.report.page import write_run_page
from chomp.storage import join
from chomp.storage.files import parse_json
from chomp.tracking import JsonlTracker
from chomp.training import RunFolder

WRITE_FOREVER = """
import itertools, sys
from chomp import storage

for turn in itertools.count():
    content = bytes([65 + turn % 2]) * (2_000_000 + turn % 2)
    storage.write_bytes_atomic(sys.argv[1], content)
    if turn == 1:
        print("writing", flush=True)
"""


def test_a_file_is_whole_for_readers_and_after_every_kill(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
):
    path = tmp_path / "state"
    whole = {b"A" * 2_000_000, b"B" * 2_000_001}
    moments = random.Random(7)
    for _ in range(8):
        process = start(WRITE_FOREVER, path)
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        for _ in range(12):
            assert path.read_bytes() in whole
        # The kill must fall on an arbitrary point of the loop, so there is nothing to wait for.
        time.sleep(moments.uniform(0, 0.03))
        process.kill()
        process.wait()
        assert path.read_bytes() in whole
        assert storage.list_folder(tmp_path) == ["state"]
        assert storage.glob_files(tmp_path / "*") == [str(path)]


def test_a_write_replaces_all_of_the_old_content(tmp_path: Path):
    for content in (b"a long old content", b"new", b""):
        storage.write_bytes_atomic(tmp_path / "x", content)
        assert storage.read_bytes(tmp_path / "x") == content
    assert storage.list_folder(tmp_path) == ["x"]


def test_a_write_keeps_permissions_and_goes_through_no_link(tmp_path: Path):
    private = tmp_path / "private"
    private.write_text("old")
    private.chmod(0o600)
    storage.write_text_atomic(private, "mine")
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    (tmp_path / "link").symlink_to(private)
    storage.write_text_atomic(tmp_path / "link", "new")
    assert not (tmp_path / "link").is_symlink()
    assert ((tmp_path / "link").read_text(), private.read_text()) == ("new", "mine")
    # The folder may be reached by a link.
    (tmp_path / "inner").mkdir()
    (tmp_path / "way").symlink_to(tmp_path / "inner")
    storage.write_text_atomic(tmp_path / "way/file", "new")
    assert (tmp_path / "inner/file").read_text() == "new"


OF_A_RUN = (
    *("artifacts", "checkpoints", "profiler", "report", "samples", "template", "tokenizer"),
    *("tensorboard", "tensorboard/attempt-1", "checkpoints/step-8", "checkpoints/step-8/state"),
    *("profiler/plugins/profile", "train.log", "metrics.jsonl"),
)


@pytest.mark.parametrize("name", OF_A_RUN)
def test_a_run_is_not_begun_where_a_link_leads_out_of_its_folder(tmp_path: Path, name: str):
    (tmp_path / "outside").mkdir()
    link = tmp_path / "run" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "outside")
    # The run folder may be a link itself: that is how a run gets to another disk.
    (tmp_path / "way").symlink_to(tmp_path / "run")
    with (
        pytest.raises(StorageError, match="--run-dir"),
        RunFolder.open(str(tmp_path / "way")),
    ):
        pass
    assert list((tmp_path / "outside").iterdir()) == []
    link.unlink()
    with RunFolder.open(str(tmp_path / "way")):
        assert (tmp_path / "run/train.log").exists()


def test_links_that_stay_in_a_run_or_are_none_of_its_own_stop_nothing(tmp_path: Path):
    (tmp_path / "run/checkpoints/step-8").mkdir(parents=True)
    (tmp_path / "run/checkpoints/latest").symlink_to("step-8")
    (tmp_path / "run/data").symlink_to(tmp_path)
    with RunFolder.open(str(tmp_path / "run")) as run:
        assert run.attempt == 1


def test_a_link_made_while_a_run_goes_on_is_not_written_through(tmp_path: Path):
    (tmp_path / "outside").mkdir()
    with RunFolder.open(str(tmp_path / "run")) as run:
        (tmp_path / "run/samples").symlink_to(tmp_path / "outside")
        (tmp_path / "run/report").symlink_to(tmp_path / "outside")
        with pytest.raises(StorageError):
            run.write_sample(3, "text")
        with pytest.raises(StorageError):
            write_run_page(run.path)
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize(
    "write",
    [
        lambda path: append_log(str(path), "text").__enter__(),
        lambda path: JsonlTracker(path, attempt=1),
    ],
    ids=["log", "record"],
)
def test_what_is_appended_to_is_no_link(tmp_path: Path, write: Callable[[Path], object]):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "mine")
    with pytest.raises(StorageError):
        write(tmp_path / "link.jsonl")
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_new_file_is_like_any_other_and_may_have_the_longest_name(tmp_path: Path):
    (tmp_path / "plain").touch()
    for name in ("n" * 255, "ü" * 127):
        storage.write_text_atomic(tmp_path / name, "x")
        assert (tmp_path / name).stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_text_that_utf8_cannot_hold_changes_nothing(tmp_path: Path):
    path = join(tmp_path, "x")
    storage.write_text_atomic(path, "old")
    with pytest.raises(StorageError, match="character 3"):
        storage.write_text_atomic(path, "bad\udc80")
    assert storage.read_text(path) == "old"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(deadline=None)  # a busy machine is no bug
@given(json_values)
def test_json_reads_back_as_it_was(value: object):
    assert parse_json(storage.json_text(value, name="x")) == value


def test_json_is_indented_ends_with_a_line_end_and_sorts_when_asked(tmp_path: Path):
    path = join(tmp_path, "x.json")
    storage.write_json_atomic(path, {"b": 1, "a": (2,)})
    assert storage.read_text(path) == '{\n  "b": 1,\n  "a": [\n    2\n  ]\n}\n'
    storage.write_json_atomic(path, {"b": 1, "a": 2}, indent=None, sort_keys=True)
    assert storage.read_text(path) == '{"a": 2, "b": 1}\n'


itself: list[object] = []
itself.append(itself)


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"train": {"loss": [1.0, math.nan]}}, r"train\.loss\[1\] is nan"),
        ({"lr": -math.inf}, "lr is -inf"),
        (math.nan, "the value itself is nan"),
        ({"a": {1: "x"}}, "a is a dict with the key 1 of type int"),
        ({"a": [Path("x")]}, r"a\[0\] is of type pathlib\."),
        ({"a": itself}, r"a\[0\] is a container that holds itself"),
    ],
)
def test_json_that_is_not_strict_is_refused_by_its_key_path(
    tmp_path: Path, value: object, fault: str
):
    path = join(tmp_path, "x.json")
    storage.write_json_atomic(path, "old")
    with pytest.raises(StorageError, match=fault):
        storage.write_json_atomic(path, value)
    assert storage.read_json(path) == "old"


@pytest.mark.parametrize(
    "write",
    [
        lambda path: storage.write_bytes_atomic(path, b"x"),
        storage.make_folder,
        storage.remove_tree,
        storage.require_writable_folder,
        lambda path: storage.rename_folder(path, "/elsewhere"),
    ],
)
@pytest.mark.parametrize("path", ["memory://run/x", "s3://bucket/x"])
def test_an_address_is_not_written(write: Callable[[str], None], path: str):
    with pytest.raises(StorageError) as raised:
        write(path)
    assert path in raised.value.given
    assert "local" in raised.value.allowed
