"""A growing file of JSON lines: only whole lines, each once, and a new file from its beginning."""

import json
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chomp.errors import StorageError
from chomp.report.record import RecordFile
from chomp.tracking import JsonlTracker

ROWS = st.dictionaries(st.sampled_from(["step", "x", "y", "kind"]), st.integers(0, 9))


def steps(file: RecordFile) -> list[int]:
    """The steps of all rows, in the order of the file."""
    lines = {int(n): int(s) for b in file.blocks() for n, s in zip(b.lines, b.steps, strict=True)}
    return [lines[line] for line in sorted(lines)]


def append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_each_row_comes_once_and_a_torn_line_waits_for_its_rest(path: Path):
    append(path, b'{"step":0}\n{"step":1}\n{"st')
    file = RecordFile(str(path))
    for _ in range(2):
        assert not file.append()
        assert (steps(file), file.is_torn) == ([0, 1], True)
    append(path, b'ep":2}\n')
    file.append()
    assert (steps(file), file.is_torn, file.unreadable) == ([0, 1, 2], False, [])


@pytest.mark.parametrize("max_bytes", [1, 40, float("inf")])
@given(rows=st.lists(ROWS, max_size=12), cuts=st.lists(st.integers(0, 300), max_size=6))
def test_however_a_file_grows_it_is_read_as_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory,
    max_bytes: float,
    rows: list[dict[str, int]],
    cuts: list[int],
):
    path = tmp_path_factory.mktemp("grows") / "metrics.jsonl"
    content = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    bounds = sorted({0, len(content), *(cut for cut in cuts if cut < len(content))})
    path.touch()
    grown = RecordFile(str(path))
    for begin, end in pairwise(bounds):
        append(path, content[begin:end])
        while grown.append(max_bytes):
            grown.blocks()
    whole = RecordFile(str(path))
    whole.append()
    assert (grown.num_lines, grown.others) == (whole.num_lines, whole.others)
    assert len(grown.blocks()) == len(whole.blocks())
    for found, expected in zip(grown.blocks(), whole.blocks(), strict=True):
        assert found.names == expected.names
        assert np.array_equal(found.values, expected.values)
        assert np.array_equal(found.lines, expected.lines)


def test_a_record_whose_torn_line_is_set_aside_by_a_resume_goes_on(path: Path):
    JsonlTracker(path, attempt=1).log({"train/loss": 3.0}, step=0)
    append(path, b'{"step":1,"glo')
    file = RecordFile(str(path))
    file.append()
    tracker = JsonlTracker(path, attempt=2)  # moves the torn line out of the record
    tracker.log({"train/loss": 2.0}, step=1)
    file.append()
    assert (steps(file), file.num_lines, file.is_torn) == ([0, 1], 2, False)


@pytest.mark.parametrize("is_replaced", [True, False])
@pytest.mark.parametrize("num_rows", [1, 50])
def test_a_file_that_is_another_one_now_is_read_from_its_beginning(
    path: Path, is_replaced: bool, num_rows: int
):
    append(path, b'{"step":0,"of":"old"}\n{"step":1,"of":"old"}\n{"kind":"summary"}\n')
    file = RecordFile(str(path))
    file.append()
    content = b'{"step":7,"of":"new"}\n' * num_rows
    if is_replaced:
        other = path.with_name("other")
        other.write_bytes(content)
        os.replace(other, path)
    else:
        path.write_bytes(content)  # cut, and longer than before when it is looked at again
    for _ in range(2):
        file.append()
        assert (steps(file), file.others) == ([7] * num_rows, {})


def test_a_line_that_is_no_object_is_left_out_with_its_number(path: Path):
    append(path, b'{"step":0}\nnot json\n[1]\n{"step":1,"x":NaN}\n{"step":2}\n')
    file = RecordFile(str(path))
    file.append()
    assert (steps(file), file.unreadable) == ([0, 2], [2, 3, 4])


def test_a_line_longer_than_a_block_is_read_in_the_end(path: Path):
    append(path, b'{"step":0}\n{"step":1,"text":"' + b"a" * (9 << 20) + b'"}\n{"step":2}\n')
    file = RecordFile(str(path))
    while file.append(1 << 20):
        pass
    assert steps(file) == [0, 1, 2]


def test_a_file_that_is_not_there_is_an_error_and_read_anew_when_it_is_back(path: Path):
    append(path, b'{"step":0}\n')
    file = RecordFile(str(path))
    file.append()
    path.unlink()
    with pytest.raises(StorageError):
        file.append()
    append(path, b'{"step":7}\n')
    file.append()
    assert steps(file) == [7]
