"""A growing file of JSON lines: only whole lines, each once, and a new file from its beginning."""

import json
import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chomp.report.watch.watched_run import FollowedFile
from chomp.tracking import JsonlTracker, Row, read_metrics


def all_rows(file: FollowedFile) -> list[Row]:
    """Everything that is there now."""
    rows, has_more = [], True
    while has_more:
        look = file.look()
        rows, has_more = rows + look.rows, look.has_more
    return rows


def append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_each_row_comes_once_and_a_torn_line_waits_for_its_rest(path: Path):
    file = FollowedFile(path)
    assert file.look().rows == []
    assert file.look().problem is None
    append(path, b'{"step":0}\n{"step":1}\n{"st')
    assert [row["step"] for row in file.look().rows] == [0, 1]
    assert file.torn_bytes == 4
    assert file.look().rows == []
    append(path, b'ep":2}\n')
    assert file.look().rows == [{"step": 2}]
    assert file.torn_bytes == 0
    assert file.unreadable_lines == 0


@given(
    rows=st.lists(st.dictionaries(st.text(max_size=3), st.integers() | st.text()), max_size=8),
    cuts=st.lists(st.integers(0, 200), max_size=6),
)
def test_however_a_file_grows_the_rows_are_those_of_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], cuts: list[int]
):
    path = tmp_path_factory.mktemp("grows") / "metrics.jsonl"
    content = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    bounds = sorted({0, len(content), *(cut for cut in cuts if cut < len(content))})
    file, seen = FollowedFile(path), []
    for begin, end in pairwise(bounds):
        append(path, content[begin:end])
        seen += all_rows(file)
    assert seen == rows


def test_a_record_whose_torn_line_is_set_aside_by_a_resume_goes_on(path: Path):
    JsonlTracker(path, attempt=1).log({"train/loss": 3.0}, step=0)
    append(path, b'{"step":1,"glo')
    file = FollowedFile(path)
    seen = file.look().rows
    tracker = JsonlTracker(path, attempt=2)  # moves the torn line out of the record
    tracker.log({"train/loss": 2.0}, step=1)
    look = file.look()
    assert not look.is_anew
    assert [*seen, *look.rows] == read_metrics(path)


@pytest.mark.parametrize("is_replaced", [True, False])
@pytest.mark.parametrize("num_rows", [1, 50])
def test_a_file_that_is_another_one_now_is_read_from_its_beginning(
    path: Path, is_replaced: bool, num_rows: int
):
    append(path, b'{"step":0,"of":"old"}\n{"step":1,"of":"old"}\n')
    file = FollowedFile(path)
    all_rows(file)
    content = b'{"step":0,"of":"new"}\n' * num_rows
    if is_replaced:
        other = path.with_name("other")
        other.write_bytes(content)
        os.replace(other, path)
    else:
        path.write_bytes(content)  # cut, and longer than before when it is looked at again
    look = file.look()
    assert look.is_anew
    assert look.rows == [{"step": 0, "of": "new"}] * num_rows
    assert not file.look().is_anew


def test_a_line_that_is_no_object_is_left_out_and_counted(path: Path):
    append(path, b'{"step":0}\nnot json\n[1]\n{"step":1,"x":NaN}\n{"step":2}\n')
    file = FollowedFile(path)
    assert [row["step"] for row in file.look().rows] == [0, 2]
    assert file.unreadable_lines == 3


def test_a_line_longer_than_a_block_is_read_in_the_end(path: Path):
    append(path, b'{"step":0}\n{"step":1,"text":"' + b"a" * (9 << 20) + b'"}\n{"step":2}\n')
    assert [row["step"] for row in all_rows(FollowedFile(path))] == [0, 1, 2]


def test_a_file_that_vanishes_is_said_to_be_gone_and_read_anew_when_it_is_back(path: Path):
    append(path, b'{"step":0}\n')
    file = FollowedFile(path)
    file.look()
    path.unlink()
    assert file.look().problem == "it is gone"
    append(path, b'{"step":7}\n')
    look = file.look()
    assert look.is_anew
    assert look.rows == [{"step": 7}]
