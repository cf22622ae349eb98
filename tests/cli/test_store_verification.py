"""Verifying stores: whatever is changed is found, and named by its file."""

import json
import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chomp.data import (
    EncodedBatch,
    PackedRows,
    PackingRule,
    StoreWriter,
    TokenStore,
    read_manifest,
    verify_store,
)
from chomp.data.store.array import FlatArrayWriter, checksum
from tests.cli.conftest import Chomp
from tests.cli.small_launch import store_folder
from tests.data.number_stores import NUMBERS, number_identity

ARRAYS = ("tokens", "loss_weights", "document_ends", "locations", "document_marks")
LENGTHS = [1 + i % 7 for i in range(300)]


def write_weighted_store(path: Path) -> Path:
    """A store with every array there can be, over many shards, and with marks."""
    ids = np.arange(sum(LENGTHS)) % 1000
    writer = StoreWriter(
        str(path), number_identity(), NUMBERS,
        has_loss_weights=True, shard_tokens=256, chunk_tokens=64,
    )  # fmt: skip
    weights = (ids % 3).astype(np.float32)
    batch = EncodedBatch(ids=ids, lengths=np.asarray(LENGTHS), loss_weights=weights)
    writer.append(np.arange(len(LENGTHS)) * 2, batch)
    writer.finish(("numbers",), has_whole_parts=False)
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read by every test; what a test changes it puts back, or changes in a copy."""
    return write_weighted_store(tmp_path_factory.mktemp("verified") / "store")


@pytest.fixture
def copy(store: Path, tmp_path: Path) -> Path:
    """A store that a test may damage."""
    return Path(shutil.copytree(store, tmp_path / "store"))


def array_files(store: Path) -> list[Path]:
    return sorted(file for name in ARRAYS for file in (store / name).rglob("*") if file.is_file())


def flip(file: Path, at: int) -> None:
    """Change a bit of a file."""
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def test_a_store_as_it_was_written_has_no_problems(store: Path, built: Path):
    assert verify_store(str(store)) == []
    assert verify_store(str(store_folder(built, "poems", "train"))) == []


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_flipped_bit_anywhere_in_the_arrays_is_found_in_its_file(
    store: Path, data: st.DataObject
):
    # By file and not by byte: most bytes are the empty rest of the chunks of a few large files.
    file = data.draw(st.sampled_from(array_files(store)))
    whole = file.read_bytes()
    changed = bytearray(whole)
    changed[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(changed)
    try:
        problems = verify_store(str(store))
    finally:
        file.write_bytes(whole)
    array = file.relative_to(store).parts[0]
    assert problems
    assert any(problem.startswith(f"{store / array}") for problem in problems)
    if file.name != "zarr.json":
        assert all(problem.startswith(f"{file}: ") for problem in problems)


@pytest.mark.parametrize("array", ["tokens", "loss_weights", "document_ends", "locations"])
def test_numbers_with_good_chunk_checksums_that_were_not_written_are_found(copy: Path, array: str):
    dtype = {"tokens": "uint16", "loss_weights": "float32"}.get(array, "int64")
    length = len(LENGTHS) if dtype == "int64" else sum(LENGTHS)
    shard, chunk = (1 << 18, 1 << 12) if dtype == "int64" else (256, 64)
    # Numbers that are in order by themselves: only the checksums can tell.
    numbers = np.arange(length) + 1000
    numbers[-1] += {"document_ends": sum(LENGTHS) - numbers[-1]}.get(array, 0)
    shutil.rmtree(copy / array)
    writer = FlatArrayWriter(
        str(copy / array), dtype, shard_len=shard, chunk_len=chunk, is_new=True
    )
    writer.write(0, numbers.astype(dtype))
    problems = verify_store(str(copy))
    assert f"{copy / array}/c/0: other numbers than the manifest has the checksum of" in problems


@pytest.mark.parametrize("array", ["tokens", "loss_weights", "document_ends", "locations"])
def test_a_removed_a_truncated_and_a_lengthened_shard_are_each_named(copy: Path, array: str):
    shard = copy / array / "c" / "0"
    whole = shard.read_bytes()
    shard.unlink()
    assert verify_store(str(copy)) == [f"{shard}: is missing"]
    for content in (b"", whole[:10], whole[:-1], whole + b"\0"):
        shard.write_bytes(content)
        [problem] = verify_store(str(copy))
        assert problem.startswith(f"{shard}: ")


def test_every_damaged_shard_is_named_in_one_reading(copy: Path):
    damaged = [copy / "tokens/c/1", copy / "tokens/c/3", copy / "loss_weights/c/2"]
    for shard in damaged:
        flip(shard, 5)
    gone = copy / "locations/c/0"
    gone.unlink()
    problems = verify_store(str(copy))
    assert [problem.split(": ")[0] for problem in problems] == [*map(str, damaged), str(gone)]


EMPTY = {"tokens": [], "loss_weights": [], "document_ends": [], "locations": []}
COUNTS = {"num_tokens": sum(LENGTHS), "num_documents": len(LENGTHS)}
EDITS: list[tuple[str, object]] = [
    *((name, count + by) for name, count in COUNTS.items() for by in (-1, 1, 256, -256)),
    *(("num_tokens", "many"), ("num_documents", -1), ("dtype", "uint8"), ("dtype", "float17")),
    *(("has_loss_weights", False), ("checksums", {}), ("checksums", None), ("checksums", EMPTY)),
    ("format_version", 1),
]


@pytest.mark.parametrize(("field", "value"), EDITS)
def test_an_edited_manifest_is_found(copy: Path, field: str, value: object):
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps({**manifest, field: value}))
    problems = verify_store(str(copy))
    assert problems
    if isinstance(value, int) and field in COUNTS:
        assert [problem.split(": ")[0] for problem in problems] == [f"{copy}/manifest.json"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("manifest.json", '{"format_version": 2, "ident'),
        *(("parts.json", text) for text in ("", "[]", '{"names": 3, "has_whole_parts": true}')),
        *(("manifest.json", None), ("parts.json", None)),
    ],
)
def test_a_file_that_is_torn_or_gone_is_the_problem(copy: Path, name: str, content: str | None):
    (copy / name).unlink()
    if content is not None:
        (copy / name).write_text(content)
    [problem] = verify_store(str(copy))
    assert problem.startswith(f"{copy}/{name}: ")
    assert ("this is no finished token store" in problem) == (name[0] == "m" and not content)


def rewritten(store: Path, array: str, numbers: np.ndarray) -> list[str]:
    """The problems of a store with other numbers in an array, and with their checksums."""
    writer = FlatArrayWriter(
        str(store / array), "int64", shard_len=1 << 18, chunk_len=1 << 12, is_new=True
    )
    writer.write(0, numbers)

    manifest = read_manifest(str(store))
    checksums = {**manifest.checksums, array: [checksum(numbers)]}
    checksums.pop(f"{array}/chunk_checksums", None)
    manifest = replace(manifest, checksums=checksums, own_hash="")
    manifest = replace(manifest, own_hash=manifest.hash_of_content())
    (store / "manifest.json").write_text(json.dumps(asdict(manifest)))
    return verify_store(str(store))


def test_numbers_that_cannot_be_are_found_though_their_checksums_are_right(copy: Path):
    ends = np.cumsum(LENGTHS)
    flat = ends.copy()
    flat[7] = flat[6]
    assert rewritten(copy, "document_ends", flat) == [
        f"{copy}/document_ends/c/0: document ends that do not rise"
    ]
    short = ends.copy()
    short[-1] -= 1
    told = f"the last document ends at {short[-1]:,} of {ends[-1]:,} tokens"
    assert told in " ".join(rewritten(copy, "document_ends", short))
    assert rewritten(copy, "document_ends", ends) == []
    assert rewritten(copy, "document_marks", np.asarray([5])) == [
        f"{copy}/document_marks: marks that are not the documents' ends"
    ]
    assert rewritten(copy, "document_marks", ends[255:256]) == []
    falling = np.arange(len(ends))[::-1].copy()
    assert rewritten(copy, "locations", falling) == [
        f"{copy}/locations/c/0: locations that do not rise"
    ]


def test_a_plan_of_packed_rows_is_read_too(copy: Path):
    rule = PackingRule(row_len=16, max_documents=8, long_documents="split")
    PackedRows(TokenStore.open(str(copy)), rule)
    assert verify_store(str(copy)) == []
    [shard] = copy.glob("packing/*/piece_starts/c/0")
    flip(shard, 9)
    [problem] = verify_store(str(copy))
    assert problem.startswith(f"{shard}: ")
    # One that a killed process left unfinished is nobody's plan.
    os.unlink(shard.parents[2] / "plan.json")
    assert verify_store(str(copy)) == []


def test_the_command_reads_all_stores_names_the_damage_and_fails(built: Path, chomp: Chomp):
    told = chomp("data", "verify", "launch.py")
    assert (told.code, told.err) == (0, "")
    assert told.out.count("whole: ") == 4
    poems, notes = (store_folder(built, name, "train") for name in ("poems", "notes"))
    for path in (poems, notes):
        flip(path / "tokens/c/0", 100)
    told = chomp("data", "verify", "launch.py")
    assert told.code == 1
    assert told.out.count("whole: ") == 2
    for path in (poems, notes):
        assert f"  outputs/tokens/{path.name}/tokens/c/0: Digest mismatch" in told.out
    assert told.err.startswith("Error: 2 of 4 stores damaged: outputs/tokens/poems-train-")
    assert "`chomp data build launch.py`" in told.err


def test_stores_are_verified_by_their_folders_too(built: Path, chomp: Chomp):
    poems, notes = (store_folder(built, name, "validation") for name in ("poems", "notes"))
    (poems / "manifest.json").unlink()
    told = chomp("data", "verify", str(poems), str(notes))
    assert told.code == 1
    assert f"damaged: {poems}" in told.out
    assert f"whole: {notes}, " in told.out
    assert f"1 of 2 stores damaged: {poems}." in told.err
