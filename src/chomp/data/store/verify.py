"""Whether a token store still is what its manifest says: every number is read and compared.

One shard is in memory at a time. What is wrong with one file does not keep the others from being
read, so one pass finds everything.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jaxtyping import Num

from chomp.config import fingerprint
from chomp.data.progress import progress_bar
from chomp.data.store.array import FlatArray, checksum, without_spec
from chomp.data.store.store import (
    CHUNK_CHECKSUMS,
    DOCUMENT_ENDS,
    DOCUMENT_MARKS,
    DOCUMENTS_PER_MARK,
    LOCATIONS,
    LOSS_WEIGHTS,
    MANIFEST,
    PACKING,
    PARTS,
    TOKENS,
    StoreManifest,
    read_chunk_checksums,
    read_manifest,
)
from chomp.errors import ChompError, DataError, StorageError
from chomp.storage import exists, is_folder, join, list_folder, name_of, read_json

# Axes: L numbers of a shard.

_ZARR_METADATA = "zarr.json"
PLAN = "plan.json"  # of packed rows


def verify_store(path: str) -> list[str]:
    """What is wrong with the store at `path`; nothing if it is as it was written.

    Each problem begins with the file that it is in. Damage never raises. Shows a progress bar.
    """
    location = join(path, MANIFEST)
    try:
        if not exists(location):
            return [f"{location}: is missing, so this is no finished token store"]
        manifest = read_manifest(path)
    except (DataError, StorageError) as error:
        return [f"{location}: {_reason(error)}"]
    total = sum(size * np.dtype(dtype).itemsize for dtype, size in manifest.arrays.values())
    with progress_bar(f"verifying {path}", total=total, unit="bytes") as advance:
        reading = _Reading(advance)
        for name in (TOKENS, LOSS_WEIGHTS):
            if name in manifest.arrays:
                for _ in reading.shards_of_store(path, name, manifest):
                    pass  # their numbers are compared by their checksums alone
        _check_documents(path, manifest, reading)
        last = -1
        for file, _, numbers in reading.shards_of_store(path, LOCATIONS, manifest):
            if np.any(np.diff(numbers, prepend=last) <= 0):
                reading.note(file, "locations that do not rise")
            last = int(numbers[-1])
        try:
            if fingerprint(read_json(join(path, PARTS))) != manifest.checksums[PARTS][0]:
                fault = "other names than the manifest has the checksum of"
                reading.note(join(path, PARTS), fault)
        except StorageError as error:
            reading.note(join(path, PARTS), _reason(error))
        folder = join(path, PACKING)
        for key in list_folder(folder) if is_folder(folder) else []:
            try:
                plan = read_json(join(folder, key, PLAN))
            except StorageError as error:
                # A missing one is being made, or was left by a process that was killed.
                if not isinstance(error.__cause__, FileNotFoundError):
                    reading.note(join(folder, key, PLAN), _reason(error))
                continue
            # One of an earlier version has none: it is made again before it is used.
            if not isinstance(plan, dict) or "checksums" in plan:
                _check_plan(join(folder, key), plan, manifest, reading)
        return reading.problems


def verify_plan(path: str, manifest: StoreManifest) -> list[str]:
    """What is wrong with the plan of packed rows at `path`, as a plan of that manifest's store."""
    reading = _Reading(lambda _: None)
    try:
        _check_plan(path, read_json(join(path, PLAN)), manifest, reading)
    except StorageError as error:
        reading.note(join(path, PLAN), _reason(error))
    return reading.problems


class _Reading:
    """Arrays that are read shard by shard, and the problems that this has come across."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance = advance
        self.problems: list[str] = []

    def note(self, file: str, fault: str) -> None:
        self.problems.append(f"{file}: {fault}")

    def shards_of_store(
        self, path: str, name: str, manifest: StoreManifest
    ) -> Iterator[tuple[str, int, Num[np.ndarray, " L"]]]:
        dtype, size = manifest.arrays[name]
        folder = join(path, name)
        try:
            read_chunk_checksums(folder, manifest, name)
        except (DataError, StorageError) as error:
            self.note(join(folder, CHUNK_CHECKSUMS), _reason(error))
        return self.shards(folder, dtype, size, manifest.checksums.get(name))

    def shards(
        self, folder: str, dtype: str, size: int, checksums: list[str] | None
    ) -> Iterator[tuple[str, int, Num[np.ndarray, " L"]]]:
        """The shards that can be read: file, place of the first number, numbers. Notes the rest."""
        metadata_path = join(folder, _ZARR_METADATA)
        try:
            metadata = read_json(metadata_path)
            array = FlatArray.open(folder)
            shard_len = int(metadata["chunk_grid"]["configuration"]["chunk_shape"][0])
        except (DataError, StorageError) as error:
            self.note(metadata_path, _reason(error))
            return
        # Every chunk is stored, so what fills absent ones was never anything but 0.
        if metadata.get("fill_value") != 0:
            self.note(metadata_path, f"fill_value {metadata.get('fill_value')}, not 0")
            return
        if array.dtype != np.dtype(dtype) or len(array) != size:
            found = f"{len(array):,} numbers of type {array.dtype}"
            self.note(folder, f"{found}, not the {size:,} of type {dtype} that were written")
        num_shards = -(-len(array) // shard_len)
        if checksums is not None and len(checksums) != num_shards:
            fault = f"{num_shards} shards, the manifest has checksums of {len(checksums)}"
            self.note(folder, fault)
            num_shards = min(num_shards, len(checksums))
        for shard in range(num_shards):
            first, file = shard * shard_len, join(folder, "c", str(shard))
            length = min(shard_len, len(array) - first)
            self._advance(length * array.dtype.itemsize)
            try:
                if not exists(file):
                    self.note(file, "is missing")
                    continue
                numbers = array.read(np.asarray([first]), np.asarray([length]))
            except (DataError, StorageError) as error:
                self.note(file, _reason(error))
                continue
            if checksums is not None and checksum(numbers) != checksums[shard]:
                self.note(file, "other numbers than the manifest has the checksum of")
            yield file, first, numbers


def _check_documents(path: str, manifest: StoreManifest, reading: _Reading) -> None:
    """The ends of documents have to rise to the last token, and marks to be some of them."""
    expected = [np.empty(0, np.int64)]
    last, count, per_mark = 0, 0, DOCUMENTS_PER_MARK
    for file, first, ends in reading.shards_of_store(path, DOCUMENT_ENDS, manifest):
        if np.any(np.diff(ends, prepend=last) <= 0):
            reading.note(file, "document ends that do not rise")
        last, count = int(ends[-1]), count + len(ends)
        expected.append(ends[(per_mark - 1 - first) % per_mark :: per_mark])
    shards = reading.shards_of_store(path, DOCUMENT_MARKS, manifest)
    read = np.concatenate([np.empty(0, np.int64), *(numbers for _, _, numbers in shards)])
    if count != manifest.num_documents:
        return  # not all ends can be read
    if last != manifest.num_tokens:
        fault = f"the last document ends at {last:,} of {manifest.num_tokens:,} tokens"
        reading.note(join(path, DOCUMENT_ENDS), fault)
    wanted = np.concatenate(expected)
    if len(read) == len(wanted) and not np.array_equal(read, wanted):
        reading.note(join(path, DOCUMENT_MARKS), "marks that are not the documents' ends")


def _check_plan(path: str, plan: Any, manifest: StoreManifest, reading: _Reading) -> None:
    """Compare a plan with its own hash, with the store and the rule, and with its arrays."""
    fault = None
    if not isinstance(plan, dict) or "checksums" not in plan:
        fault = "has no checksums"
    elif plan.get("own_hash") != fingerprint({**plan, "own_hash": ""}):
        fault = "was changed after it was written"
    # A folder that does not have its final name yet begins with it.
    elif plan["store"] != manifest.own_hash or not name_of(path).startswith(plan["name"]):
        fault = "is the plan of another store or another rule"
    if fault is not None:
        reading.note(join(path, PLAN), fault)
        return
    sizes = {"row_ends": "num_rows", "piece_starts": "num_pieces", "piece_lengths": "num_pieces"}
    for name, size in sizes.items():
        for _ in reading.shards(join(path, name), "int64", plan[size], plan["checksums"][name]):
            pass  # compared by their checksums


def _reason(error: ChompError) -> str:
    """Why something cannot be read, without the advice, which is the same for every file."""
    # TensorStore names its layers first.
    return without_spec(error.__cause__ or error).partition(". Allowed: ")[0].rpartition('": ')[2]
