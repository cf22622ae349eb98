"""Token stores: what went in comes out, however often writing was stopped; damage is an error."""

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from number_stores import (
    CHUNK_TOKENS,
    EOS,
    NUMBERS,
    SHARD_TOKENS,
    NumberTokenizer,
    counted_documents,
    line_of,
    number_identity,
    number_writer,
    rehash_manifest,
    whole_line,
    write_store,
)

from chomp.data import EncodedBatch, StoreIdentity, StoreWriter, TokenStore, verify_store
from chomp.data.store import build as store_writer
from chomp.errors import DataError, StorageError

# 189 tokens: two whole shards and most of a third.
DOCUMENTS = counted_documents([10, 1, 40, 7, 80, 45])
FIRST_SHARD = "tokens/c/0"
ARRAYS = ("tokens", "loss_weights", "document_ends", "document_marks", "locations")
# Documents are records 0, 3, 6, ...: between them are records that gave none.
STRIDE = 3


@pytest.fixture(scope="module")
def any_store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    """A store to look at."""
    return write_store(tmp_path_factory.mktemp("stores") / "store", DOCUMENTS)


@pytest.fixture
def path(any_store: TokenStore, tmp_path: Path) -> Path:
    """The same store, to be damaged."""
    shutil.copytree(any_store.path, tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def small_shards_of_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the arrays with one number per document have several shards too."""
    shrink_document_shards(monkeypatch)


def shrink_document_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_writer, "SHARD_DOCUMENTS", 4)
    monkeypatch.setattr(store_writer, "CHUNK_DOCUMENTS", 2)


def opened(path: Path) -> TokenStore:
    return TokenStore.open(str(path), tokenizer_hash=NUMBERS.content_hash)


def change_manifest(path: Path, **changes: object) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, **changes}))


def files_of(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def weights_of(documents: list[list[int]]) -> list[np.ndarray]:
    """A weight for each token and end, no two alike; 1 for all of every third document."""
    random = np.random.default_rng(7)
    weights = [random.random(len(ids) + 1, np.float32) for ids in documents]
    return [each if i % 3 else np.ones_like(each) for i, each in enumerate(weights)]


def weighted_writer(path: Path, identity: StoreIdentity | None = None) -> StoreWriter:
    return StoreWriter(
        str(path),
        identity or number_identity(),
        NUMBERS,
        has_loss_weights=True,
        shard_tokens=SHARD_TOKENS,
        chunk_tokens=CHUNK_TOKENS,
    )


def append(writer: StoreWriter, documents: list[list[int]], first: int, last: int) -> None:
    """Append documents first..last-1; weights that all are 1 are left out."""
    some = documents[first:last]
    weights = np.concatenate(weights_of(documents)[first:last])
    batch = EncodedBatch(
        ids=np.asarray(line_of(some), np.uint16),
        lengths=np.asarray([len(ids) + 1 for ids in some], np.int64),
        loss_weights=None if np.all(weights == 1) else weights,
    )
    writer.append(STRIDE * np.arange(first, first + len(some)), batch)


def write_in_pieces(path: Path, documents: list[list[int]], *, batch: int, cuts: list[int]) -> int:
    """Write a store with a writer that is abandoned after so many appends, then another, ...

    The number of writers that went on from the progress of one before.
    """
    resumed = 0
    for appends in [*cuts, len(documents) + 1]:
        writer = weighted_writer(path)
        resumed += writer.is_resumed
        begin = -(-writer.next_position.record // STRIDE)
        firsts = range(begin, len(documents), batch)
        for first in firsts[:appends]:
            append(writer, documents, first, first + batch)
            assert not (path / "manifest.json").exists()
        if appends > len(firsts):
            break
    writer.finish(("numbers",), has_whole_parts=False)
    return resumed


around_edges = st.sampled_from(
    [
        edge + offset
        for edge in (CHUNK_TOKENS, SHARD_TOKENS, 2 * SHARD_TOKENS)
        for offset in (-2, -1, 0, 1)
    ]
)
document_lengths = st.lists(
    st.integers(0, 20) | around_edges | st.just(5 * SHARD_TOKENS), min_size=1, max_size=8
)


@settings(max_examples=20, deadline=None)
@given(document_lengths, st.integers(1, 4))
def test_documents_of_any_length_come_back(lengths: list[int], batch: int):
    documents = counted_documents(lengths)
    with tempfile.TemporaryDirectory() as folder:
        store = write_store(Path(folder) / "store", documents, batch=batch)
        assert whole_line(store) == line_of(documents)
        ends = store.documents.ends(0, len(documents))
        np.testing.assert_array_equal(ends, np.cumsum([n + 1 for n in lengths]))
        assert store.manifest.num_documents == len(store.documents) == len(documents)
        assert store.num_tokens == sum(lengths) + len(lengths)
        names = [store.locations.document_id(i) for i in range(len(documents))]
        assert names == [f"numbers:{i}" for i in range(len(documents))]


@settings(max_examples=12, deadline=None)
@given(document_lengths, st.integers(1, 3), st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_abandoned_writers_and_one_that_ends_make_the_store_of_an_unbroken_one(
    lengths: list[int], batch: int, cuts: list[int]
):
    documents = counted_documents(lengths)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        shrink_document_shards(patch)
        unbroken, broken = Path(folder) / "unbroken", Path(folder) / "broken"
        write_in_pieces(unbroken, documents, batch=1, cuts=[])
        write_in_pieces(broken, documents, batch=batch, cuts=cuts)
        assert whole_line(opened(broken)) == line_of(documents)
        assert files_of(broken) == files_of(unbroken)


@pytest.mark.usefixtures("small_shards_of_documents")
@pytest.mark.parametrize("batch", [1, 3])
def test_writing_goes_on_wherever_it_was_cut(tmp_path: Path, batch: int):
    # The third document fills shards 1 to 5, and every cut behind it lies in the middle of one.
    documents = counted_documents([70, 3, 5 * SHARD_TOKENS, 0, 1, 30, 9, 2 * SHARD_TOKENS, 2, 5])
    write_in_pieces(tmp_path / "unbroken", documents, batch=1, cuts=[])
    for cut in range(1, len(documents) // batch + 1):
        # One at a time, so that a writer continues where the one before it did not come far.
        path = tmp_path / f"cut after {cut}"
        assert write_in_pieces(path, documents, batch=batch, cuts=[cut, 1, 0]) == 3
        assert files_of(path) == files_of(tmp_path / "unbroken")


def test_a_document_longer_than_shards_is_not_begun_anew(tmp_path: Path):
    documents = counted_documents([5, 6 * SHARD_TOKENS + 9, 1])
    writer = weighted_writer(tmp_path / "store")
    append(writer, documents, 0, 2)
    first_shards = {
        file.name: file.stat().st_mtime_ns for file in (tmp_path / "store/tokens/c").iterdir()
    }
    writer = weighted_writer(tmp_path / "store")
    assert (writer.num_documents, writer.next_position.record) == (1, STRIDE)
    append(writer, documents, 1, 3)
    writer.finish(("numbers",), has_whole_parts=False)
    assert whole_line(opened(tmp_path / "store")) == line_of(documents)
    assert sorted(first_shards) == ["0", "1", "2", "3", "4", "5"]
    for name, time in first_shards.items():
        assert (tmp_path / "store/tokens/c" / name).stat().st_mtime_ns == time


def test_a_store_without_loss_weights_says_so(any_store: TokenStore):
    assert any_store.read_loss_weights(np.asarray([0]), np.asarray([5])) is None
    assert not (Path(any_store.path) / "loss_weights").exists()


@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [
        (2, "uint8"),
        (256, "uint8"),
        (257, "uint16"),
        (65_536, "uint16"),
        (65_537, "uint32"),
        (1 << 32, "uint32"),
    ],
)
def test_tokens_take_the_smallest_type_that_holds_the_vocabulary(tmp_path, vocab_size, dtype):
    tokenizer = NumberTokenizer(vocab_size)
    store = write_store(tmp_path / "store", [[1, vocab_size - 1]], tokenizer=tokenizer)
    tokens = store.read(np.asarray([0]), np.asarray([3]))
    assert store.manifest.dtype == tokens.dtype.name == dtype
    assert tokens.tolist() == [1, vocab_size - 1, EOS]


@pytest.mark.usefixtures("small_shards_of_documents")
def test_the_checksums_of_the_manifest_are_those_of_the_numbers_in_each_shard(tmp_path: Path):
    documents = DOCUMENTS
    write_in_pieces(tmp_path / "store", documents, batch=2, cuts=[2, 1])
    manifest = json.loads((tmp_path / "store/manifest.json").read_text())
    ends = np.cumsum([len(ids) + 1 for ids in documents])
    of_chunks = {f"{name}/chunk_checksums" for name in ARRAYS}
    assert manifest["checksums"].keys() == {*ARRAYS, *of_chunks, "parts.json"}
    numbers = {
        "tokens": (np.asarray(line_of(documents), np.uint16), SHARD_TOKENS),
        "loss_weights": (np.concatenate(weights_of(documents)), SHARD_TOKENS),
        "document_ends": (ends.astype(np.int64), 4),
        "locations": (STRIDE * np.arange(len(documents)), 4),
    }
    for name, (values, shard) in numbers.items():
        shards = [values[a : a + shard].tobytes() for a in range(0, len(values), shard)]
        expected = [hashlib.blake2b(content, digest_size=16).hexdigest() for content in shards]
        assert manifest["checksums"][name] == expected


def test_the_manifest_says_what_the_store_was_made_from(path: Path):
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["checksums"]
    assert len(manifest.pop("own_hash")) == 64
    assert manifest == {
        "format_version": 2,
        "identity": {
            "name": "numbers",
            "split": "train",
            "validation_fraction": 0.1,
            "source_fingerprint": "as written",
            "format_fingerprint": "numbers",
            "tokenizer_hash": NUMBERS.content_hash,
            "max_documents": None,
        },
        "eos_id": 0,
        "num_tokens": 189,
        "num_documents": 6,
        "dtype": "uint16",
        "has_loss_weights": False,
    }
    assert asdict(opened(path).manifest.identity) == manifest["identity"]


def test_progress_says_how_far_the_store_is_good_and_goes_with_the_end(tmp_path: Path):
    writer = weighted_writer(tmp_path / "store")
    assert not writer.is_resumed
    append(writer, DOCUMENTS, 0, 3)
    assert not (tmp_path / "store/progress.json").exists()  # 54 tokens: no shard is full
    append(writer, DOCUMENTS, 3, 5)
    progress = json.loads((tmp_path / "store/progress.json").read_text())
    # 143 tokens: of the last document, which begins at token 62, all of shard 1 is on disk.
    assert (progress["num_tokens"], progress["num_documents"]) == (2 * SHARD_TOKENS, 4)
    assert progress["next"] == 4 * STRIDE
    writer = weighted_writer(tmp_path / "store")
    assert writer.is_resumed
    append(writer, DOCUMENTS, 4, 6)
    writer.finish(("numbers",), has_whole_parts=False)
    assert not (tmp_path / "store/progress.json").exists()


OTHER_IDENTITIES = {
    "name": "letters",
    "split": "validation",
    "validation_fraction": 0.2,
    "source_fingerprint": "as changed",
    "format_fingerprint": "letters",
    "tokenizer_hash": "another",
    "max_documents": 3,
}


@pytest.mark.parametrize("field", [field.name for field in fields(StoreIdentity)])
def test_progress_of_another_store_is_not_continued(tmp_path: Path, field: str):
    identity = replace(number_identity(), **{field: OTHER_IDENTITIES[field]})
    append(weighted_writer(tmp_path / "store", identity), DOCUMENTS, 0, 6)
    assert weighted_writer(tmp_path / "store", identity).is_resumed
    writer = weighted_writer(tmp_path / "store")
    assert not writer.is_resumed
    assert (writer.num_documents, writer.next_position) == (0, (0, 0))
    assert not (tmp_path / "store/progress.json").exists()


def test_writing_over_an_unfinished_store_leaves_no_trace_of_it(tmp_path: Path):
    other = replace(number_identity(), source_fingerprint="with weights")
    writer = weighted_writer(tmp_path / "store", other)
    append(writer, DOCUMENTS, 0, 6)
    (tmp_path / "store/executor notes").write_text("not the store's")
    write_store(tmp_path / "store", [[7, 8]])
    write_store(tmp_path / "alone", [[7, 8]])
    notes = {"executor notes": b"not the store's"}
    assert files_of(tmp_path / "store") == {**files_of(tmp_path / "alone"), **notes}


def test_a_writer_in_the_place_of_a_finished_store_takes_its_manifest_first(path: Path):
    number_writer(path)
    with pytest.raises(DataError) as caught:
        opened(path)
    assert "no finished token store" in caught.value.given


def test_a_store_built_anew_is_read_anew(path: Path):
    assert whole_line(opened(path))[0] == 1
    shutil.rmtree(path)
    write_store(path, [[ids + 1000 for ids in document] for document in DOCUMENTS])
    assert whole_line(opened(path))[0] == 1001


def first_use(path: Path, array: str) -> object:
    """What reads an array for the first time."""
    store = opened(path)
    start, length = np.asarray([0]), np.asarray([5])
    if array == "tokens":
        return store.read(start, length)
    if array == "loss_weights":
        return store.read_loss_weights(start, length)
    return store.locations[0] if array == "locations" else store.documents.span(0)


def as_of_an_earlier_version(path: Path) -> None:
    """Take the checksums of chunks out of a store."""
    for array in ARRAYS:
        (path / array / "chunk_checksums").unlink(missing_ok=True)
    sums = json.loads((path / "manifest.json").read_text())["checksums"]
    rehash_manifest(path, checksums={name: sums[name] for name in sums if "/" not in name})


def swap(one: Path, other: Path) -> None:
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def test_a_store_without_checksums_of_chunks_is_read_with_one_warning(
    path: Path, caplog: pytest.LogCaptureFixture
):
    content = opened(path).manifest.fingerprint()
    assert str(path) not in caplog.text
    as_of_an_earlier_version(path)
    for _ in range(2):
        store = opened(path)
        assert whole_line(store) == line_of(DOCUMENTS)
    assert caplog.text.count(str(path)) == 1
    assert "chomp data verify" in caplog.text
    assert store.manifest.fingerprint() == content  # runs that were trained on it go on
    assert verify_store(str(path)) == []
    swap(path / "tokens/c/0", path / "tokens/c/1")
    assert whole_line(opened(path)) != line_of(DOCUMENTS)
    assert len(verify_store(str(path))) == 2


def test_an_empty_store_is_not_taken_for_one_of_an_earlier_version(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    assert write_store(tmp_path / "store", []).num_tokens == 0
    assert caplog.text == ""


def test_a_store_whose_shards_are_in_each_others_place_is_found_where_it_is_read(path: Path):
    swap(path / "tokens/c/0", path / "tokens/c/1")
    store = opened(path)
    assert (
        store.read(np.asarray([2 * SHARD_TOKENS]), np.asarray([9])).tolist()
        == (line_of(DOCUMENTS)[2 * SHARD_TOKENS :][:9])
    )
    with pytest.raises(DataError) as found:
        store.read(np.asarray([3]), np.asarray([9]))
    assert found.value.given.startswith(f"{path}/tokens/c/0 is damaged")
    assert "delete" in found.value.fix


@pytest.mark.parametrize("harm", ["swapped shards", "edited progress"])
def test_an_unfinished_store_is_not_gone_on_with_if_it_was_changed(tmp_path: Path, harm: str):
    path = tmp_path / "store"
    append(weighted_writer(path), DOCUMENTS, 0, 5)
    if harm == "swapped shards":
        swap(path / "loss_weights/c/0", path / "loss_weights/c/1")
    else:
        progress = json.loads((path / "progress.json").read_text())
        (path / "progress.json").write_text(json.dumps({**progress, "next": progress["next"] + 1}))
    with pytest.raises(DataError) as caught:
        weighted_writer(path)
    assert re.search(f"{path}/.* is damaged", caught.value.given)


def test_a_store_of_another_tokenizer_is_refused(path: Path):
    with pytest.raises(DataError) as caught:
        TokenStore.open(str(path), tokenizer_hash="otherwise")
    assert "tokenizer numbers belo" in caught.value.given
    assert whole_line(TokenStore.open(str(path))) == line_of(DOCUMENTS)


@pytest.mark.parametrize("sizes", [(128, 16), (64, 32)])
def test_progress_in_shards_of_another_size_is_not_continued(tmp_path: Path, sizes):
    append(weighted_writer(tmp_path / "store"), DOCUMENTS, 0, 6)
    shard, chunk = sizes
    writer = StoreWriter(
        *(str(tmp_path / "store"), number_identity(), NUMBERS),
        shard_tokens=shard,
        chunk_tokens=chunk,
    )
    assert not writer.is_resumed


@pytest.mark.parametrize("array", ARRAYS)
def test_damage_is_found_at_the_first_use_of_any_array(tmp_path: Path, array: str):
    # Enough documents for a mark, which is what opening a store reads.
    documents = counted_documents([1] * 300)
    write_in_pieces(tmp_path / "store", documents, batch=300, cuts=[])

    def use() -> object:
        store = opened(tmp_path / "store")
        start, length = np.asarray([0]), np.asarray([5])
        if array == "tokens":
            return store.read(start, length)
        if array == "loss_weights":
            return store.read_loss_weights(start, length)
        return store.locations[0] if array == "locations" else store.documents.span(0)

    use()
    shard = tmp_path / "store" / array / "c/0"
    whole = shard.read_bytes()
    for content in (bytes([whole[0] ^ 1]) + whole[1:], whole[:9], None):
        shard.unlink() if content is None else shard.write_bytes(content)
        is_flipped = content is not None and len(content) > 9
        with pytest.raises(DataError if is_flipped else StorageError) as caught:
            use()
        assert f"/{array}/c/0" in caught.value.given


DAMAGED, NOT_ONE = "manifest.json is damaged", "manifest.json, which is not the manifest"


@pytest.mark.parametrize(
    ("change", "given"),
    [
        (lambda path: rehash_manifest(path, num_tokens=999), "tokens/zarr.json is damaged"),
        (lambda path: rehash_manifest(path, num_documents=999), "_ends/zarr.json is damaged"),
        (lambda path: change_manifest(path, num_tokens=188), DAMAGED),
        (lambda path: change_manifest(path, eos_id=1), DAMAGED),
        (lambda path: change_manifest(path, dtype="uint32"), DAMAGED),
        (lambda path: change_manifest(path, checksums={}), DAMAGED),
        (lambda path: change_manifest(path, identity=3), NOT_ONE),
        (lambda path: change_manifest(path, identity={"name": "x"}), NOT_ONE),
        (lambda path: change_manifest(path, another=3), NOT_ONE),
        (lambda path: (path / "manifest.json").write_text("[]"), "has format None"),
        (lambda path: (path / "manifest.json").unlink(), "manifest.json is missing"),
        *(
            (partial(change_manifest, format_version=version), f"has format {version}")
            for version in (0, 1, 3, None)
        ),
        (
            lambda path: (path / "parts.json").write_text('{"names": [], "has_whole_parts": true}'),
            "parts.json is damaged",
        ),
    ],
)
def test_a_store_that_is_not_as_it_was_written_is_refused(
    path: Path, change: Callable[[Path], object], given: str
):
    change(path)
    with pytest.raises(DataError) as caught:
        _ = opened(path).locations
    assert str(path) in caught.value.given
    assert given in caught.value.given
    # Else the path may be wrong, and the folder another's.
    assert ("delete" in caught.value.fix) == ("damaged" in given)
