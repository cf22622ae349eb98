"""Any file of a token store, harmed in any way: it is found and named, or no number changes."""

import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from number_stores import NUMBERS, number_identity

from chomp.data import (
    ConcatRows,
    EncodedBatch,
    PackedRows,
    PackingRule,
    StoreWriter,
    TokenStore,
    verify_store,
)
from chomp.errors import ChompError
from tests.harmed_files import BY_CHANCE, HARMS, harm

ARRAYS = ("tokens", "loss_weights", "document_ends", "document_marks", "locations")
PLAN = ("row_ends", "piece_starts", "piece_lengths")
FILES = [
    "manifest.json",
    "parts.json",
    *(f"{array}/{name}" for array in ARRAYS for name in ("zarr.json", "chunk_checksums", "c/0")),
    "tokens/c/1",
    "loss_weights/c/1",
    "packing/*/plan.json",
    *(f"packing/*/{array}/{name}" for array in PLAN for name in ("zarr.json", "c/0")),
]
TOKENS_PER_CHUNK = 64
RULE = PackingRule(row_len=32, max_documents=6, long_documents="split")
SEQ_LEN = 32


def write(path: Path, lengths: list[int], first: int) -> None:
    """A store with every array there can be, over several shards, and its plan of packed rows."""
    ids = first + np.arange(sum(lengths)) % 1000
    writer = StoreWriter(
        str(path), number_identity(), NUMBERS,
        has_loss_weights=True, shard_tokens=256, chunk_tokens=TOKENS_PER_CHUNK,
    )  # fmt: skip
    batch = EncodedBatch(
        ids=ids, lengths=np.asarray(lengths), loss_weights=(ids % 7).astype(np.float32)
    )
    writer.append(first + np.arange(len(lengths)) * 2, batch)
    writer.finish((f"numbers from {first}",), has_whole_parts=False)
    PackedRows(TokenStore.open(str(path)), RULE)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stores of the same sizes, with other numbers everywhere."""
    folder = tmp_path_factory.mktemp("stores")
    lengths = [1 + i % 7 for i in range(300)]
    write(folder / "store", lengths, 0)
    write(folder / "other", lengths[150:] + lengths[:150], 3)
    return folder


def numbers_of(path: Path, *, is_packed: bool) -> dict[str, np.ndarray]:
    """Every number that a run or a command can read of a store."""
    store = TokenStore.open(str(path))
    rows = PackedRows(store, RULE) if is_packed else ConcatRows(store, SEQ_LEN)
    found = rows.read(np.arange(rows.num_rows))
    assert found.loss_weights is not None
    pieces = [piece for row in range(rows.num_rows) for piece in rows.pieces(row)]
    return {
        "tokens": found.tokens,
        "segments": found.segment_ids,
        "weights": found.loss_weights,
        "ends": store.documents.ends(0, len(store.documents)),
        "pieces": np.asarray([(piece.start, piece.length, piece.column) for piece in pieces]),
        "ids": np.asarray([store.locations.document_id(i) for i in range(len(store.locations))]),
    }


def swap_two_chunks(file: Path) -> None:
    """Chunks lie one after the other, each with its own checksum."""
    content = bytearray(file.read_bytes())
    size = TOKENS_PER_CHUNK * (2 if "tokens" in file.parts else 4) + 4
    content[:size], content[size : 2 * size] = content[size : 2 * size], content[:size]
    file.write_bytes(content)


CASES = [
    (file, how, seed, is_packed)
    for file in FILES
    for how in (*HARMS, "swap two chunks")
    for seed in range(3 if how in BY_CHANCE else 1)
    for is_packed in (False, True)
    if is_packed or not file.startswith("packing")
    if how != "swap two chunks" or file in ("tokens/c/0", "tokens/c/1", "loss_weights/c/0")
]


@pytest.mark.parametrize(
    ("file", "how", "seed", "is_packed"),
    [
        pytest.param(*case, marks=() if number % 7 == 0 else pytest.mark.slow)
        for number, case in enumerate(CASES)
    ],
)
def test_a_harmed_file_is_found_and_named_or_changes_no_number(
    stores: Path, tmp_path: Path, file: str, how: str, seed: int, is_packed: bool
):
    expected = numbers_of(stores / "store", is_packed=is_packed)
    store = Path(shutil.copytree(stores / "store", tmp_path / "store"))
    [place], [other] = store.glob(file), (stores / "other").glob(file)
    if how == "swap two chunks":
        swap_two_chunks(place)
    else:
        harm(place, how, root=store, other=other, chance=random.Random(f"{file} {how} {seed}"))
    try:
        found = numbers_of(store, is_packed=is_packed)
    except ChompError as error:
        # Where another file took its place, the one that does not fit it may be named.
        told = str(error)
        assert str(store if "another" in how else place) in told or "is missing" in told
        assert verify_store(str(store)) != []
        return
    for name, numbers in expected.items():
        np.testing.assert_array_equal(found[name], numbers, err_msg=name)
    if file.startswith("packing"):
        assert verify_store(str(store)) == []  # it was made again in its place
