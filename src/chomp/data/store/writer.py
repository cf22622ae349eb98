"""Writing a token store so that a kill at any instant costs at most the last shard.

Tokens go to disk in whole shards. After each, `progress.json` says how far the store is good and
which record of the source comes next; a writer that finds it goes on from there. The manifest,
which makes the store a store, comes last.
"""

from collections.abc import Iterable
from dataclasses import asdict, replace
from itertools import islice
from typing import Any

import numpy as np
from jaxtyping import Int, Num, UInt32

from chomp.config import fingerprint
from chomp.data.progress import progress_bar
from chomp.data.store.encoding import EncodedBatch
from chomp.data.store.flat_array import (
    FlatArray,
    FlatArrayWriter,
    checksum,
    chunk_checksums,
    damaged,
)
from chomp.data.store.token_store import (
    CHUNK_CHECKSUMS,
    DOCUMENT_ENDS,
    DOCUMENT_MARKS,
    FORMAT_VERSION,
    LOCATIONS,
    LOSS_WEIGHTS,
    MANIFEST,
    PACKING,
    PARTS,
    TOKENS,
    StoreIdentity,
    StoreManifest,
    marks_of,
    position_of,
)
from chomp.storage import (
    exists,
    join,
    make_folder,
    read_json,
    remove_tree,
    write_bytes_atomic,
    write_json_atomic,
)
from chomp.tokenize import Tokenizer

# A shard is one file; a chunk is the least that is read. 32 Ki tokens are 64 KiB as uint16.
SHARD_TOKENS = 1 << 23
CHUNK_TOKENS = 1 << 15
# Of the arrays with one number per document: 2 MiB and 32 KiB.
SHARD_DOCUMENTS = 1 << 18
CHUNK_DOCUMENTS = 1 << 12
PROGRESS = "progress.json"
# All of a store. What makes it look finished, or half done, goes first where it is begun anew.
_WRITTEN = (
    MANIFEST, PROGRESS, PARTS, PACKING,
    TOKENS, LOSS_WEIGHTS, DOCUMENT_ENDS, DOCUMENT_MARKS, LOCATIONS,
)  # fmt: skip


class StoreWriter:
    """Appends documents to the store at `path`, from wherever an earlier writer was stopped."""

    def __init__(
        self,
        path: str,
        identity: StoreIdentity,
        tokenizer: Tokenizer,
        *,
        has_loss_weights: bool = False,
        shard_tokens: int = SHARD_TOKENS,
        chunk_tokens: int = CHUNK_TOKENS,
    ) -> None:
        self._path = path
        self._identity = identity
        self._eos_id = tokenizer.eos_id
        self._dtype = smallest_dtype(tokenizer.vocab_size)
        self._shard_tokens = shard_tokens
        self._chunk_tokens = chunk_tokens
        make_folder(path)
        found = self._progress()
        self.is_resumed = found is not None
        if found is None:
            for name in _WRITTEN:
                remove_tree(join(path, name))
            found = {"num_tokens": 0, "num_documents": 0, "next": 0, "checksums": {}}
        self.num_documents: int = found["num_documents"]  # all that were appended
        self.next_position = position_of(found["next"])
        self._num_tokens: int = found["num_tokens"]  # on disk
        self._num_ends: int = found["num_documents"]  # on disk
        self._checksums: dict[str, list[str]] = {}
        self._chunk_checksums: dict[str, list[UInt32[np.ndarray, " C"]]] = {}
        if self.is_resumed:
            self._read_checksums(found["checksums"])
        self._tokens = self._token_array(TOKENS, self._dtype)
        self._weights = self._token_array(LOSS_WEIGHTS, "float32") if has_loss_weights else None
        self._ends = self._document_array(DOCUMENT_ENDS)
        self._locations = self._document_array(LOCATIONS)
        # The document that was being written when the progress was noted begins before its end.
        self._line_end = self._end_of_last_document()
        self._skip = self._num_tokens - self._line_end
        self._pending_tokens = np.empty(0, self._dtype)
        self._pending_weights = np.empty(0, np.float32)
        self._pending_ends = np.empty(0, np.int64)
        self._pending_locations = np.empty(0, np.int64)

    def append(self, locations: Int[np.ndarray, " N"], encoded: EncodedBatch) -> None:
        """Append documents, each with its end, and note the progress after whole shards."""
        ends = self._line_end + np.cumsum(encoded.lengths)
        weights = encoded.loss_weights
        if weights is None:
            weights = np.ones(len(encoded.ids) if self._weights else 0, np.float32)
        ids = encoded.ids.astype(self._dtype)
        self._pending_tokens = np.concatenate([self._pending_tokens, ids[self._skip :]])
        self._pending_weights = np.concatenate([self._pending_weights, weights[self._skip :]])
        self._pending_ends = np.concatenate([self._pending_ends, ends])
        self._pending_locations = np.concatenate([self._pending_locations, locations])
        self._line_end, self._skip = int(ends[-1]), max(self._skip - len(ids), 0)
        self.num_documents += len(ends)
        # Whole shards only: a shard written twice would be read back to be written again.
        whole = len(self._pending_tokens) // self._shard_tokens * self._shard_tokens
        if whole:
            self._write_tokens(whole)
            self._write_documents()
            self._note_progress(next_location=int(locations[-1]) + 1)

    def finish(self, parts: tuple[str, ...], *, has_whole_parts: bool) -> None:
        """Write what is left, the marks and the names of the parts, and last the manifest."""
        self._write_tokens(len(self._pending_tokens))
        self._write_documents()
        marks = marks_of(FlatArray.open(self._ends.path))
        self._document_array(DOCUMENT_MARKS, is_new=True).write(0, marks)
        for array in (DOCUMENT_ENDS, DOCUMENT_MARKS, LOCATIONS):
            shards = FlatArray.open(join(self._path, array)).shards()
            self._add_checksums(array, shards, CHUNK_DOCUMENTS)
        names = {"names": list(parts), "has_whole_parts": has_whole_parts}
        write_json_atomic(join(self._path, PARTS), names, indent=None)
        checksums = {**self._checksums, PARTS: [fingerprint(names)]}
        for array, found in self._chunk_checksums.items():
            content = np.concatenate([np.empty(0, np.uint32), *found]).view(np.uint8)
            name = join(array, CHUNK_CHECKSUMS)
            write_bytes_atomic(join(self._path, name), content.tobytes())
            checksums[name] = [checksum(content)]
        manifest = StoreManifest(
            format_version=FORMAT_VERSION,
            identity=self._identity,
            eos_id=self._eos_id,
            num_tokens=self._num_tokens,
            num_documents=self.num_documents,
            dtype=self._dtype,
            has_loss_weights=self._weights is not None,
            checksums=checksums,
        )
        manifest = replace(manifest, own_hash=manifest.hash_of_content())
        write_json_atomic(join(self._path, MANIFEST), asdict(manifest))
        self.forget_progress()

    def forget_progress(self) -> None:
        """Let the next writer begin anew: what was appended is not to be relied on."""
        remove_tree(join(self._path, PROGRESS))

    def _write_tokens(self, count: int) -> None:
        """Put the first `count` pending tokens on disk."""
        self._write_shards(TOKENS, self._tokens, self._pending_tokens[:count])
        self._pending_tokens = self._pending_tokens[count:]
        if self._weights is not None:
            self._write_shards(LOSS_WEIGHTS, self._weights, self._pending_weights[:count])
            self._pending_weights = self._pending_weights[count:]
        self._num_tokens += count

    def _write_shards(
        self, name: str, array: FlatArrayWriter, values: Num[np.ndarray, " L"]
    ) -> None:
        size = self._shard_tokens
        shards = (values[first : first + size] for first in range(0, len(values), size))
        self._add_checksums(name, shards, self._chunk_tokens)
        array.write(self._num_tokens, values)

    def _write_documents(self) -> None:
        """Put the ends and locations of documents on disk whose tokens all are."""
        count = int(np.searchsorted(self._pending_ends, self._num_tokens, side="right"))
        self._ends.write(self._num_ends, self._pending_ends[:count])
        self._locations.write(self._num_ends, self._pending_locations[:count])
        self._pending_ends = self._pending_ends[count:]
        self._pending_locations = self._pending_locations[count:]
        self._num_ends += count

    def _note_progress(self, *, next_location: int) -> None:
        waiting = self._pending_locations
        progress = {
            "format_version": FORMAT_VERSION,
            "identity": asdict(self._identity),
            "sizes": self._sizes,
            "num_tokens": self._num_tokens,
            "num_documents": self._num_ends,
            "next": int(waiting[0]) if len(waiting) else next_location,
            "checksums": self._checksums,
        }
        progress["own_hash"] = fingerprint(progress)
        write_json_atomic(join(self._path, PROGRESS), progress, indent=None)

    def _progress(self) -> dict[str, Any] | None:
        """What an earlier writer of this very store has noted; None if it has to begin anew."""
        path = join(self._path, PROGRESS)
        if not exists(path):
            return None
        found: dict[str, Any] = read_json(path)
        # Earlier versions wrote none.
        if found.pop("own_hash", None) not in (None, fingerprint(found)):
            raise damaged(path, "it was changed after it was written")
        wanted = {
            "format_version": FORMAT_VERSION,
            "identity": asdict(self._identity),
            "sizes": self._sizes,
        }
        is_same = all(found.get(name) == value for name, value in wanted.items())
        return found if is_same else None

    @property
    def _sizes(self) -> list[int]:
        return [self._shard_tokens, self._chunk_tokens]

    def _end_of_last_document(self) -> int:
        if self.num_documents == 0:
            return 0
        last = np.asarray([self.num_documents - 1])
        return int(FlatArray.open(self._ends.path).read(last, np.ones(1, np.int64))[0])

    def _read_checksums(self, noted: dict[str, list[str]]) -> None:
        """Make the checksums of the shards that an earlier writer has noted, from the shards."""
        total = sum(map(len, noted.values()))
        with progress_bar(f"checking {self._path}", total=total, unit="shards") as advance:
            for name, expected in noted.items():
                path = join(self._path, name)
                for shard in islice(FlatArray.open(path).shards(), len(expected)):
                    self._add_checksums(name, [shard], self._chunk_tokens)
                    advance(1)
                if self._checksums[name] != expected:
                    raise damaged(path, "other numbers than the build has noted the checksums of")

    def _add_checksums(
        self, name: str, shards: Iterable[Num[np.ndarray, " L"]], chunk_len: int
    ) -> None:
        by_shard = self._checksums.setdefault(name, [])
        by_chunk = self._chunk_checksums.setdefault(name, [])
        for numbers in shards:
            by_shard.append(checksum(numbers))
            by_chunk.append(chunk_checksums(numbers, chunk_len))

    def _token_array(self, name: str, dtype: str) -> FlatArrayWriter:
        return FlatArrayWriter(
            join(self._path, name),
            dtype,
            shard_len=self._shard_tokens,
            chunk_len=self._chunk_tokens,
            is_new=not self.is_resumed,
        )

    def _document_array(self, name: str, *, is_new: bool = False) -> FlatArrayWriter:
        return FlatArrayWriter(
            join(self._path, name),
            "int64",
            shard_len=SHARD_DOCUMENTS,
            chunk_len=CHUNK_DOCUMENTS,
            is_new=is_new or not self.is_resumed,
        )


def smallest_dtype(vocab_size: int) -> str:
    """The smallest unsigned dtype that holds every id of a vocabulary."""
    return np.min_scalar_type(vocab_size - 1).name
