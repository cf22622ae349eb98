"""One long line of numbers on disk: any pieces of it come back, and no damage goes unnoticed."""

import contextlib
import gc
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tensorstore as ts
from hypothesis import given, settings
from hypothesis import strategies as st

from chomp.data.store import array
from chomp.data.store.array import FlatArray, FlatArrayWriter, chunk_checksums
from chomp.errors import DataError, StorageError

SHARD, CHUNK = 64, 16
# Two whole shards and most of a third, which ends inside a chunk.
VALUES = np.random.default_rng(0).integers(0, 1 << 16, 187).astype(np.uint16)
SHARD_CHUNKS_BYTES = 4 * (CHUNK * 2 + 4)  # each chunk has its checksum behind it
FIRST_SHARD = "c/0"


def new_writer(path: Path, dtype: str = "uint16", *, is_new: bool = True) -> FlatArrayWriter:
    return FlatArrayWriter(str(path), dtype, shard_len=SHARD, chunk_len=CHUNK, is_new=is_new)


def write_plain(path: Path, values: np.ndarray) -> None:
    """As stores are written: chunks lie in their files as they do in memory."""
    new_writer(path, values.dtype.name).write(0, values)


def write_compressed(path: Path, values: np.ndarray) -> None:
    """As somebody else might write it. Its bytes mean nothing unless TensorStore decodes them."""
    little_endian = {"name": "bytes", "configuration": {"endian": "little"}}
    gzip = {"name": "gzip", "configuration": {"level": 1}}
    sharding = {
        "chunk_shape": [CHUNK],
        "codecs": [little_endian, gzip, {"name": "crc32c"}],
        "index_codecs": [little_endian, {"name": "crc32c"}],
    }
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": f"{path}/"},
        "metadata": {
            "data_type": values.dtype.name,
            "shape": [len(values)],
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [SHARD]}},
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        },
    }
    ts.open(spec, create=True).result().write(values).result()


WRITE = {"plain": write_plain, "compressed": write_compressed}


@pytest.fixture(scope="module", params=WRITE)
def any_array(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> FlatArray:
    """The values, read straight from the files or through TensorStore."""
    path = tmp_path_factory.mktemp(request.param) / "array"
    WRITE[request.param](path, VALUES)
    return FlatArray.open(str(path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The values in the format of stores, to be damaged."""
    write_plain(tmp_path / "array", VALUES)
    return tmp_path / "array"


def pieces_of(array: FlatArray, pieces: list[tuple[int, int]]) -> list[float]:
    starts, lengths = np.asarray(pieces, np.int64).reshape(-1, 2).T
    return array.read(starts, lengths).tolist()


def read_all(path: Path) -> list[float]:
    return FlatArray.open(str(path)).read_all().tolist()


def flip(file: Path, offset: int) -> None:
    """Change one bit of a file where it lies."""
    with open(file, "r+b") as opened:
        opened.seek(offset)
        (byte,) = opened.read(1)
        opened.seek(offset)
        opened.write(bytes([byte ^ 1]))


def open_files_below(folder: Path) -> int:
    """How many files of a folder this process has open."""
    targets = []
    for link in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            targets.append(os.readlink(f"/proc/self/fd/{link}"))
    return sum(target.startswith(f"{folder}/") for target in targets)


def kept_open_below(folder: Path, at_most: int) -> int:
    """How many files stay open: TensorStore closes its own in threads, after it has answered."""
    deadline = time.monotonic() + 30
    while open_files_below(folder) > at_most and time.monotonic() < deadline:
        time.sleep(0.01)
    return open_files_below(folder)


edges = st.sampled_from([e + o for e in (CHUNK, SHARD, 2 * SHARD, 187) for o in (-1, 0, 1)])
places = (st.integers(0, 187) | edges).map(lambda place: min(place, 187))


@settings(deadline=None)
@given(st.lists(st.tuples(places, places), max_size=8), st.integers(1, 3))
def test_any_pieces_are_slices_of_the_line(any_array, ends, repeats):
    pieces = [(min(pair), abs(pair[0] - pair[1])) for pair in ends] * repeats
    expected = np.concatenate([VALUES[:0], *(VALUES[a : a + n] for a, n in pieces)])
    assert pieces_of(any_array, pieces) == expected.tolist()


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "int64", "float32"])
def test_numbers_of_every_type_come_back(tmp_path: Path, dtype: str):
    values = (VALUES % 251).astype(dtype) + np.asarray(0.25 if dtype == "float32" else 0, dtype)
    write_plain(tmp_path / "array", values)
    array = FlatArray.open(str(tmp_path / "array"))
    read = array.read_all()
    assert array.dtype == read.dtype == dtype
    np.testing.assert_array_equal(read, values)


def test_the_bytes_of_a_plain_chunk_lie_in_its_file_as_in_memory(path: Path):
    shard = (path / FIRST_SHARD).read_bytes()
    assert VALUES[:CHUNK].tobytes() in shard
    assert len(shard) == SHARD_CHUNKS_BYTES + 4 * 16 + 4


def test_a_flipped_byte_anywhere_in_a_shard_is_found(path: Path):
    shard = path / FIRST_SHARD
    for offset in range(shard.stat().st_size):
        flip(shard, offset)
        with pytest.raises(DataError) as caught:
            read_all(path)
        assert "array is damaged: " in caught.value.given
        flip(shard, offset)
    assert read_all(path) == VALUES.tolist()


def test_a_flipped_byte_is_found_after_other_chunks_of_its_shard_were_read(path: Path):
    shard = path / FIRST_SHARD
    chunk_begin = shard.read_bytes().index(VALUES[:CHUNK].tobytes())
    assert chunk_begin == 0
    for offset in range(CHUNK * 2 + 4, shard.stat().st_size):
        array = FlatArray.open(str(path))
        assert pieces_of(array, [(3, 9)]) == VALUES[3:12].tolist()
        flip(shard, offset)
        with pytest.raises(DataError) as caught:
            pieces_of(array, [(CHUNK, SHARD - CHUNK)])
        assert "array is damaged: " in caught.value.given
        flip(shard, offset)


def test_damage_is_no_trouble_for_what_lies_elsewhere(path: Path):
    flip(path / FIRST_SHARD, 0)
    (path / "c/1").unlink()
    elsewhere = [(CHUNK, SHARD - CHUNK), (2 * SHARD, 5)]
    expected = [*VALUES[CHUNK:SHARD], *VALUES[2 * SHARD : 2 * SHARD + 5]]
    assert pieces_of(FlatArray.open(str(path)), elsewhere) == expected


@pytest.mark.parametrize("kind", WRITE)
def test_a_flipped_byte_and_a_lost_shard_are_found_through_tensorstore_too(tmp_path, kind):
    WRITE[kind](tmp_path / "array", VALUES)
    flip(tmp_path / "array/c/1", 5)
    (tmp_path / "array/c/2").unlink()
    array = FlatArray.open(str(tmp_path / "array"))
    assert pieces_of(array, [(0, SHARD)]) == VALUES[:SHARD].tolist()
    for shard, kind in ((1, DataError), (2, StorageError)):
        with pytest.raises(kind) as caught:
            pieces_of(array, [(shard * SHARD, 59)])
        assert f"c/{shard}" in caught.value.given


def test_only_a_checksum_that_fails_is_damage_and_a_reason_to_delete(path: Path):
    shard = path / "c/1"
    whole = shard.read_bytes()
    flip(shard, 3)
    with pytest.raises(DataError) as found:
        read_all(path)
    assert "is damaged" in found.value.given
    assert "delete" in found.value.fix
    shard.unlink()
    for content in (None, b"", whole[:9]):
        if content is not None:
            shard.write_bytes(content)
        with pytest.raises(StorageError) as other:
            read_all(path)
        assert str(shard) in other.value.given
        assert "delete" not in str(other.value)
        assert "damaged" not in str(other.value)


@pytest.mark.parametrize("kind", WRITE)
def test_a_whole_chunk_of_another_place_is_found_by_the_checksums_of_chunks(tmp_path, kind):
    WRITE[kind](tmp_path / "array", VALUES)
    shards = tmp_path / "array/c"
    (shards / "0").rename(shards / "other")
    (shards / "1").rename(shards / "0")
    (shards / "other").rename(shards / "1")
    array = FlatArray.open(str(tmp_path / "array"), chunk_checksums(VALUES, CHUNK))
    assert pieces_of(array, [(2 * SHARD, 59)]) == VALUES[2 * SHARD :].tolist()
    for _ in range(2):
        with pytest.raises(DataError) as caught:
            pieces_of(array, [(SHARD + 3, 1)])
        assert "c/1 is damaged" in caught.value.given


def test_a_shard_cut_short_anywhere_is_found(path: Path):
    shard = (path / FIRST_SHARD).read_bytes()
    for kept in range(0, len(shard), 5):
        (path / FIRST_SHARD).write_bytes(shard[:kept])
        with pytest.raises((DataError, StorageError)) as caught:
            read_all(path)
        assert "c/0" in caught.value.given


def test_a_shard_that_is_cut_short_after_it_was_read_is_found(path: Path):
    array = FlatArray.open(str(path))
    assert pieces_of(array, [(0, 187)]) == VALUES.tolist()
    os.truncate(path / FIRST_SHARD, 40)
    with pytest.raises(StorageError) as caught:
        pieces_of(array, [(0, SHARD)])
    assert "shard 0" in caught.value.given


def test_zeros_are_stored_like_any_other_numbers(tmp_path: Path):
    # Zarr leaves out chunks that equal the fill value, and a left out chunk reads as a lost one.
    write_plain(tmp_path / "array", np.zeros(3 * SHARD + 1, np.uint16))
    assert read_all(tmp_path / "array") == [0] * (3 * SHARD + 1)
    (tmp_path / "array/c/1").unlink()
    with pytest.raises(StorageError) as caught:
        read_all(tmp_path / "array")
    assert "c/1" in caught.value.given


@pytest.fixture
def many_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FlatArray:
    """Fifty shards, of which three stay open."""
    monkeypatch.setattr(array, "_OPEN_FILES", 3)
    write_plain(tmp_path / "array", np.arange(50 * SHARD, dtype=np.uint32))
    return FlatArray.open(str(tmp_path / "array"))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files cannot be counted here")
def test_more_shards_than_files_kept_open_are_no_trouble(many_shards, tmp_path: Path):
    assert many_shards.read_all().tolist() == list(range(50 * SHARD))
    starts = np.random.default_rng(1).integers(0, 50 * SHARD, 500)
    assert many_shards.read(starts, np.ones_like(starts)).tolist() == starts.tolist()
    assert 0 < kept_open_below(tmp_path, at_most=3) <= 3


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files cannot be counted here")
def test_files_are_closed_with_their_array(path: Path):
    array = FlatArray.open(str(path))
    assert pieces_of(array, [(0, 187)]) == VALUES.tolist()
    assert kept_open_below(path, at_most=3) == 3
    del array
    gc.collect()
    assert kept_open_below(path, at_most=0) == 0


def test_many_threads_at_once_read_what_is_there(many_shards):
    # Files are opened, shared and closed under each other's hands all the time.
    def right_values(seed: int) -> bool:
        random = np.random.default_rng(seed)
        for _ in range(20):
            starts = random.integers(0, 48 * SHARD, 16)
            lengths = random.integers(0, 2 * SHARD, 16)
            expected = np.concatenate(
                [np.arange(a, a + n) for a, n in zip(starts, lengths, strict=True)]
            )
            if not np.array_equal(many_shards.read(starts, lengths), expected):
                return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(right_values, range(16))) == [True] * 16


lengths_around_edges = st.integers(0, 20) | st.sampled_from([15, 16, 17, 63, 64, 65, 130])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 300), lengths_around_edges, st.booleans()), max_size=6))
def test_a_write_replaces_everything_from_its_start_on(writes):
    expected: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "array"
        writer = new_writer(path)
        for number, (start, length, is_continued) in enumerate(writes):
            start = min(start, len(expected))
            values = np.arange(length) + 200 * number
            if is_continued:
                writer = new_writer(path, is_new=False)
            writer.write(start, values.astype(np.uint16))
            expected = expected[:start] + values.tolist()
            assert read_all(path) == expected


def test_shards_behind_a_new_end_are_gone(path: Path):
    new_writer(path, is_new=False).write(CHUNK, np.arange(3, dtype=np.uint16))
    assert read_all(path) == [*VALUES[:CHUNK], 0, 1, 2]
    assert [file.name for file in (path / "c").iterdir()] == ["0"]


def test_a_new_array_leaves_nothing_of_the_old_one(path: Path):
    new_writer(path, "uint32").write(0, np.asarray([1 << 31], np.uint32))
    assert read_all(path) == [1 << 31]
    assert [file.name for file in (path / "c").iterdir()] == ["0"]


@pytest.mark.parametrize("is_new", [False, True])
def test_what_a_killed_writer_left_half_written_gets_into_nothing(path: Path, is_new: bool):
    for name in ("zarr.json.__lock", "c/0.__lock", "c/2.__lock"):
        (path / name).write_bytes(b"x" * 5000)
    new_writer(path, is_new=is_new).write(0, VALUES[:70])
    np.testing.assert_array_equal(FlatArray.open(str(path)).read_all(), VALUES[:70])
    assert not list(path.rglob("*.__lock"))


@pytest.mark.parametrize("content", [None, "", "{}", '{"zarr_format": 2}'])
def test_damaged_metadata_is_found_on_opening(path: Path, content: str | None):
    metadata = path / "zarr.json"
    metadata.unlink() if content is None else metadata.write_text(content)
    with pytest.raises(StorageError) as caught:
        FlatArray.open(str(path))
    assert "zarr.json" in caught.value.given


def test_a_place_that_cannot_be_written_is_a_storage_error(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError) as caught:
        new_writer(tmp_path / "file" / "array")
    assert "file/array" in caught.value.given
    assert "free space" in caught.value.fix
    with pytest.raises(StorageError) as caught:
        new_writer(tmp_path / "not there", is_new=False)
    assert "could not be written" in caught.value.given


def test_an_array_opens_by_a_relative_path(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(path.parent)
    assert read_all(Path("array")) == VALUES.tolist()


FEW_FILES = """
import resource, sys
import numpy as np
from chomp.data.store.array import FlatArray
from chomp.errors import StorageError

array = FlatArray.open(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))
try:
    array.read(np.asarray([0]), np.asarray([160]))
except StorageError as error:
    print(error)
"""


def test_a_lack_of_file_descriptors_is_not_called_damage(tmp_path: Path):
    writer = FlatArrayWriter(
        str(tmp_path / "array"), "uint16", shard_len=16, chunk_len=4, is_new=True
    )
    writer.write(0, np.arange(160, dtype=np.uint16))
    done = subprocess.run(
        [sys.executable, "-c", FEW_FILES, str(tmp_path / "array")], capture_output=True, text=True
    )
    assert "could not be read: " in done.stdout, done.stderr
    assert "Too many open files" in done.stdout
    assert "delete" not in done.stdout
