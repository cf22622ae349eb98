"""Token stores: what went in comes out, and damage is an error, never other tokens."""

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from number_stores import (
    CHUNK_TOKENS,
    NUMBERS,
    SHARD_TOKENS,
    NumberTokenizer,
    counted_documents,
    line_of,
    whole_line,
    write_store,
)

from chomp.data import TokenStore
from chomp.errors import DataError, StorageError

# 189 tokens: two whole shards and most of a third.
DOCUMENTS = counted_documents([10, 1, 40, 7, 80, 45])
FIRST_SHARD = "tokens/c/0"


@pytest.fixture(scope="module")
def any_store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    """A store to look at."""
    return write_store(tmp_path_factory.mktemp("stores") / "store", DOCUMENTS)


@pytest.fixture
def path(any_store: TokenStore, tmp_path: Path) -> Path:
    """The same store, to be damaged."""
    shutil.copytree(any_store.path, tmp_path / "store")
    return tmp_path / "store"


def opened(path: Path) -> TokenStore:
    return TokenStore.open(str(path), tokenizer_hash=NUMBERS.content_hash)


def change_manifest(path: Path, **changes: object) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, **changes}))


around_edges = st.sampled_from(
    [
        edge + offset
        for edge in (CHUNK_TOKENS, SHARD_TOKENS, 2 * SHARD_TOKENS)
        for offset in (-2, -1, 0, 1)
    ]
)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 20) | around_edges, min_size=1, max_size=8), st.integers(1, 4))
def test_documents_of_any_length_come_back(lengths: list[int], batch: int):
    documents = counted_documents(lengths)
    with tempfile.TemporaryDirectory() as folder:
        store = write_store(Path(folder) / "store", documents, batch=batch)
        assert whole_line(store) == line_of(documents)
        np.testing.assert_array_equal(store.document_ends, np.cumsum([n + 1 for n in lengths]))
        assert store.manifest.num_documents == len(documents)
        assert store.num_tokens == sum(lengths) + len(lengths)


@pytest.mark.parametrize("missing", [-1, 0, 1])
def test_a_store_that_ends_around_a_shard_comes_back(tmp_path: Path, missing: int):
    documents = counted_documents([2 * SHARD_TOKENS - 1 + missing])
    assert whole_line(write_store(tmp_path / "store", documents)) == line_of(documents)
    shards = sorted(file.name for file in (tmp_path / "store/tokens/c").iterdir())
    assert shards == ["0", "1", "2"][: 3 if missing == 1 else 2]


def test_a_shard_of_zeros_is_stored_like_any_other(tmp_path: Path):
    # Zarr leaves out chunks that equal the fill value, and a left out chunk reads as a lost one.
    documents = [[0] * (3 * SHARD_TOKENS), [5]]
    assert whole_line(write_store(tmp_path / "store", documents)) == line_of(documents)


@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [(256, "uint16"), (65_536, "uint16"), (65_537, "uint32"), (200_000, "uint32")],
)
def test_tokens_take_the_smallest_type_that_holds_the_vocabulary(tmp_path, vocab_size, dtype):
    tokenizer = NumberTokenizer(vocab_size)
    store = write_store(tmp_path / "store", [[1, vocab_size - 1]], tokenizer=tokenizer)
    (window,) = store.read_windows(np.asarray([0]), 9)
    assert store.manifest.dtype == window.dtype.name == dtype
    assert window.tolist() == [1, vocab_size - 1, 0]


@given(st.lists(st.integers(0, 187), max_size=6), st.integers(1, 200))
def test_windows_are_pieces_of_the_line_cut_at_its_end(any_store, starts, length):
    windows = any_store.read_windows(np.asarray(starts, np.int64), length)
    line = line_of(DOCUMENTS)
    assert [window.tolist() for window in windows] == [line[a : a + length] for a in starts]


def test_the_manifest_says_what_the_store_was_made_from(path: Path):
    assert json.loads((path / "manifest.json").read_text()) == {
        "format_version": 1,
        "name": "numbers",
        "split": "train",
        "validation_fraction": 0.1,
        "source_fingerprint": "as written",
        "tokenizer_hash": NUMBERS.content_hash,
        "eos_id": 0,
        "num_tokens": 189,
        "num_documents": 6,
        "dtype": "uint16",
    }


def test_a_store_opens_by_a_relative_path(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(path.parent)
    assert whole_line(TokenStore.open("store", tokenizer_hash=NUMBERS.content_hash))[:2] == [1, 2]


def test_a_store_built_anew_is_read_anew(path: Path):
    assert whole_line(opened(path))[0] == 1
    shutil.rmtree(path)
    write_store(path, [[ids + 1000 for ids in document] for document in DOCUMENTS])
    assert whole_line(opened(path))[0] == 1001


def test_writing_over_an_unfinished_store_leaves_no_trace_of_it(path: Path, tmp_path: Path):
    (path / "manifest.json").unlink()
    (path / "executor notes").write_text("not the store's")
    write_store(path, [[7, 8]])
    assert whole_line(opened(path)) == [7, 8, 0]
    assert sorted(file.name for file in (path / "tokens/c").iterdir()) == ["0"]
    assert (path / "executor notes").exists()


def test_any_flipped_byte_of_a_shard_is_found(path: Path):
    shard = (path / FIRST_SHARD).read_bytes()
    for offset in range(0, len(shard), 3):
        damaged = path.with_name(f"flipped-{offset}")
        shutil.copytree(path, damaged)
        flipped = bytes([shard[offset] ^ 1])
        (damaged / FIRST_SHARD).write_bytes(shard[:offset] + flipped + shard[offset + 1 :])
        with pytest.raises(DataError, match=r"flipped-\d+ is damaged: "):
            whole_line(opened(damaged))


def test_damage_is_no_trouble_for_what_lies_elsewhere(path: Path):
    shard = bytearray((path / FIRST_SHARD).read_bytes())
    shard[0] ^= 1
    (path / FIRST_SHARD).write_bytes(shard)
    (window,) = opened(path).read_windows(np.asarray([CHUNK_TOKENS]), 5)
    assert window.tolist() == line_of(DOCUMENTS)[CHUNK_TOKENS : CHUNK_TOKENS + 5]


def test_a_deleted_shard_is_found(path: Path):
    (path / "tokens/c/1").unlink()
    store = opened(path)
    with pytest.raises(DataError, match="is damaged: NOT_FOUND") as caught:
        whole_line(store)
    assert f"delete {path}: the same command then builds it again" in str(caught.value)


@pytest.mark.parametrize("keep", [0, 1, 100])
def test_a_truncated_shard_is_found(path: Path, keep: int):
    shard = (path / FIRST_SHARD).read_bytes()
    (path / FIRST_SHARD).write_bytes(shard[:keep])
    with pytest.raises(DataError, match="is damaged"):
        whole_line(opened(path))


@pytest.mark.parametrize("content", [None, "", "{}", '{"zarr_format": 2}'])
@pytest.mark.parametrize("array", ["tokens", "document_ends"])
def test_damaged_array_metadata_is_found_on_opening(path: Path, array: str, content: str | None):
    metadata = path / array / "zarr.json"
    metadata.unlink() if content is None else metadata.write_text(content)
    with pytest.raises(DataError, match="is damaged"):
        opened(path)


def test_damaged_document_ends_are_found_on_opening(path: Path):
    ends = path / "document_ends/c/0"
    ends.write_bytes(ends.read_bytes()[:-1] + b"?")
    with pytest.raises(DataError, match="is damaged"):
        opened(path)


def test_arrays_that_contradict_the_manifest_are_found_on_opening(path: Path):
    change_manifest(path, num_tokens=999)
    with pytest.raises(DataError, match="the arrays hold 189 tokens and 6 documents"):
        opened(path)


def test_a_store_without_a_manifest_is_unfinished(path: Path):
    (path / "manifest.json").unlink()
    with pytest.raises(DataError, match=r"no finished token store at .*manifest\.json is missing"):
        opened(path)


@pytest.mark.parametrize("version", [0, 2, None])
def test_a_store_of_another_format_is_refused(path: Path, version: int | None):
    change_manifest(path, format_version=version)
    with pytest.raises(DataError, match=rf"of format {version}\. Allowed: format 1\. Fix: build"):
        opened(path)


@pytest.mark.parametrize("content", ["[]", "3", '{"format_version": 1, "name": "x"}'])
def test_a_manifest_with_other_fields_is_refused(path: Path, content: str):
    (path / "manifest.json").write_text(content)
    with pytest.raises(DataError, match=r"\. Allowed: .+\. Fix: "):
        opened(path)


def test_a_manifest_that_is_no_json_is_named(path: Path):
    (path / "manifest.json").write_text("{")
    with pytest.raises(StorageError, match=r"manifest\.json .* is not JSON"):
        opened(path)


def test_a_store_of_another_tokenizer_is_refused(path: Path):
    with pytest.raises(
        DataError, match=r"made with tokenizer numbers belo\. Allowed: .*, otherwise"
    ):
        TokenStore.open(str(path), tokenizer_hash="otherwise")
