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
from chomp.data.store.array import FlatArray, checksum
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
        return _Verification(path, manifest, advance).problems()


def verify_plan(path: str, manifest: StoreManifest) -> list[str]:
    """What is wrong with the plan of packed rows at `path`, as a plan of that manifest's store."""
    verification = _Verification(path, manifest, lambda _: None)
    try:
        verification.check_plan(path, read_json(join(path, PLAN)))
    except StorageError as error:
        return [f"{join(path, PLAN)}: {_reason(error)}"]
    return verification.found


class _Verification:
    """One reading of a store, and the problems it has come across."""

    def __init__(self, path: str, manifest: StoreManifest, advance: Callable[[int], None]) -> None:
        self._path = path
        self._manifest = manifest
        self._advance = advance
        self.found: list[str] = []

    def problems(self) -> list[str]:
        """Read everything; then all that is wrong."""
        for name in (TOKENS, LOSS_WEIGHTS):
            if name in self._manifest.arrays:
                for _ in self._shards(name):
                    pass  # their numbers are compared by their checksums alone
        self._check_documents()
        last = -1
        for file, _, numbers in self._shards(LOCATIONS):
            if np.any(np.diff(numbers, prepend=last) <= 0):
                self._note(file, "locations that do not rise")
            last = int(numbers[-1])
        path = join(self._path, PARTS)
        try:
            if fingerprint(read_json(path)) != self._manifest.checksums[PARTS][0]:
                self._note(path, "other names than the manifest has the checksum of")
        except StorageError as error:
            self._note(path, _reason(error))
        self._check_plans()
        return self.found

    def _check_documents(self) -> None:
        """The ends of documents have to rise to the last token, and marks to be some of them."""
        expected = [np.empty(0, np.int64)]
        last, count, per_mark = 0, 0, DOCUMENTS_PER_MARK
        for file, first, ends in self._shards(DOCUMENT_ENDS):
            if np.any(np.diff(ends, prepend=last) <= 0):
                self._note(file, "document ends that do not rise")
            last, count = int(ends[-1]), count + len(ends)
            expected.append(ends[(per_mark - 1 - first) % per_mark :: per_mark])
        marks = [np.empty(0, np.int64)]
        marks += [numbers for _, _, numbers in self._shards(DOCUMENT_MARKS)]
        if count != self._manifest.num_documents:
            return  # not all ends can be read
        if last != self._manifest.num_tokens:
            where = join(self._path, DOCUMENT_ENDS)
            fault = f"the last document ends at {last:,} of {self._manifest.num_tokens:,} tokens"
            self._note(where, fault)
        wanted, read = np.concatenate(expected), np.concatenate(marks)
        if len(read) == len(wanted) and not np.array_equal(read, wanted):
            self._note(join(self._path, DOCUMENT_MARKS), "marks that are not the documents' ends")

    def _check_plans(self) -> None:
        """Plans of packed rows are kept beside the tokens."""
        folder = join(self._path, PACKING)
        for key in list_folder(folder) if is_folder(folder) else []:
            path = join(folder, key)
            try:
                plan = read_json(join(path, PLAN))
            except StorageError as error:
                # A missing one is being made, or was left by a process that was killed.
                if not isinstance(error.__cause__, FileNotFoundError):
                    self._note(join(path, PLAN), _reason(error))
                continue
            if isinstance(plan, dict) and "checksums" not in plan:
                continue  # of an earlier version: it is made again before it is used
            self.check_plan(path, plan)

    def check_plan(self, path: str, plan: Any) -> None:
        """Compare a plan with its own hash, with the store and the rule, and with its arrays."""
        fault = None
        if not isinstance(plan, dict) or "checksums" not in plan:
            fault = "has no checksums"
        elif plan.get("own_hash") != fingerprint({**plan, "own_hash": ""}):
            fault = "was changed after it was written"
        # A folder that does not have its final name yet begins with it.
        elif plan["store"] != self._manifest.own_hash or not name_of(path).startswith(plan["name"]):
            fault = "is the plan of another store or another rule"
        if fault is not None:
            self._note(join(path, PLAN), fault)
            return
        rows, pieces = plan["num_rows"], plan["num_pieces"]
        for name, size in {
            "row_ends": rows,
            "piece_starts": pieces,
            "piece_lengths": pieces,
        }.items():
            for _ in self._shards_of(join(path, name), "int64", size, plan["checksums"][name]):
                pass

    def _shards(self, name: str) -> Iterator[tuple[str, int, Num[np.ndarray, " L"]]]:
        dtype, size = self._manifest.arrays[name]
        path = join(self._path, name)
        try:
            read_chunk_checksums(path, self._manifest, name)
        except (DataError, StorageError) as error:
            self._note(join(path, CHUNK_CHECKSUMS), _reason(error))
        return self._shards_of(path, dtype, size, self._manifest.checksums.get(name))

    def _shards_of(
        self, folder: str, dtype: str, size: int, checksums: list[str] | None
    ) -> Iterator[tuple[str, int, Num[np.ndarray, " L"]]]:
        """The shards that can be read: file, place of the first number, numbers. Notes the rest."""
        metadata_path = join(folder, _ZARR_METADATA)
        try:
            metadata = read_json(metadata_path)
            array = FlatArray.open(folder)
            shard_len = int(metadata["chunk_grid"]["configuration"]["chunk_shape"][0])
        except (DataError, StorageError) as error:
            self._note(metadata_path, _reason(error))
            return
        # Every chunk is stored, so what fills absent ones was never anything but 0.
        if metadata.get("fill_value") != 0:
            self._note(metadata_path, f"fill_value {metadata.get('fill_value')}, not 0")
            return
        if array.dtype != np.dtype(dtype) or len(array) != size:
            found = f"{len(array):,} numbers of type {array.dtype}"
            self._note(folder, f"{found}, not the {size:,} of type {dtype} that were written")
        num_shards = -(-len(array) // shard_len)
        if checksums is not None and len(checksums) != num_shards:
            fault = f"{num_shards} shards, the manifest has checksums of {len(checksums)}"
            self._note(folder, fault)
            num_shards = min(num_shards, len(checksums))
        for shard in range(num_shards):
            first, file = shard * shard_len, join(folder, "c", str(shard))
            length = min(shard_len, len(array) - first)
            numbers, fault = None, "is missing"
            try:
                if exists(file):
                    numbers = array.read(np.asarray([first]), np.asarray([length]))
            except (DataError, StorageError) as error:
                fault = _reason(error)
            self._advance(length * array.dtype.itemsize)
            if numbers is None:
                self._note(file, fault)
                continue
            if checksums is not None and checksum(numbers) != checksums[shard]:
                self._note(file, "other numbers than the manifest has the checksum of")
            yield file, first, numbers

    def _note(self, file: str, fault: str) -> None:
        self.found.append(f"{file}: {fault}")


def _reason(error: ChompError) -> str:
    """Why something cannot be read, without the advice, which is the same for every file."""
    text = str(error.__cause__ or error)
    # TensorStore names its layers first, and adds its whole configuration at the end.
    for end in (". Allowed: ", " [tensorstore_spec="):
        text = text.partition(end)[0]
    return text.rpartition('": ')[2]
