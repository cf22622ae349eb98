"""Where a document came from: its name and its number in the store lead to each other."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chomp.data import Position
from chomp.data.store.array import FlatArray, FlatArrayWriter
from chomp.data.store.store import DocumentLocations, location_of, position_of

MOST_RECORDS = 1 << 40

positions = st.builds(
    Position,
    part=st.integers(0, 3) | st.integers(0, (1 << 23) - 1),
    record=st.integers(0, 3) | st.integers(0, MOST_RECORDS - 1),
)


def locations_of(
    folder: Path, found: list[Position], parts: list[str], *, has_whole_parts: bool = False
) -> DocumentLocations:
    writer = FlatArrayWriter(str(folder / "l"), "int64", shard_len=64, chunk_len=4, is_new=True)
    writer.write(0, np.asarray([location_of(position) for position in found], np.int64))
    numbers = FlatArray.open(str(folder / "l"))
    return DocumentLocations(numbers, parts, has_whole_parts=has_whole_parts)


@pytest.fixture
def some(tmp_path: Path) -> DocumentLocations:
    """Six documents of three parts; records without a document are left out."""
    found = [Position(*pair) for pair in [(0, 0), (0, 2), (0, 3), (2, 0), (2, 1), (2, 40)]]
    parts = ["s3://bucket/a:b.jsonl", "empty.jsonl", "c:7"]
    return locations_of(tmp_path, found, parts)


@given(positions)
def test_a_number_stands_for_one_position(position: Position):
    assert position_of(location_of(position)) == position


@given(positions, positions)
def test_numbers_are_in_the_order_of_positions_and_fit_a_store(one: Position, other: Position):
    assert (location_of(one) < location_of(other)) == (one < other)
    assert location_of(one) < 1 << 63


@settings(max_examples=30, deadline=None)
@given(
    st.sets(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1),
    st.lists(st.text(st.sampled_from("a:1/ "), max_size=3), min_size=4, max_size=4, unique=True),
)
def test_every_document_is_found_by_its_name_and_no_other(pairs, parts):
    found = [Position(*pair) for pair in sorted(pairs)]
    with tempfile.TemporaryDirectory() as folder:
        locations = locations_of(Path(folder), found, parts)
        names = {f"{name}:{n}": Position(i, n) for i, name in enumerate(parts) for n in range(11)}
        for name, position in names.items():
            expected = found.index(position) if position in found else None
            assert locations.find(name) == expected
        assert [names[locations.document_id(i)] for i in range(len(locations))] == found


def test_names_with_colons_lead_both_ways(some: DocumentLocations):
    names = [some.document_id(number) for number in range(len(some))]
    assert names[:3] == [f"s3://bucket/a:b.jsonl:{record}" for record in (0, 2, 3)]
    assert names[3:] == ["c:7:0", "c:7:1", "c:7:40"]
    assert [some.find(name) for name in names] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "name",
    [
        "",
        ":",
        ":0",
        "0",
        "c:7",  # a part, not a document
        "c:7:",
        "c:7:2",  # a record that gave no document
        "c:7:41",
        "c:7:-1",
        "c:7:x",
        "c:7:1 ",
        "c:7:01",  # not how it is written
        "c:7:\u0661",  # a one, in another script
        "c:7:1.0",
        f"empty.jsonl:{MOST_RECORDS}",  # by its number this would be the first of the next part
        "c:7:" + "9" * 5000,
        "d.jsonl:0",
        "bucket/a:b.jsonl:0",
    ],
)
def test_a_name_that_is_none_is_not_found(some: DocumentLocations, name: str):
    assert some.find(name) is None


def test_where_each_part_is_a_document_it_has_the_name_of_the_part(tmp_path: Path):
    parts = ["a:1.txt", "left out.txt", "b"]
    locations = locations_of(tmp_path, [Position(0), Position(2)], parts, has_whole_parts=True)
    assert [locations.document_id(number) for number in range(2)] == ["a:1.txt", "b"]
    assert [locations.find(name) for name in ("a:1.txt", "b")] == [0, 1]
    for name in ("left out.txt", "b:0", "a", "", "c"):
        assert locations.find(name) is None
