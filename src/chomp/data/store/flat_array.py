"""One long line of numbers on disk: a sharded zarr3 array, written once and read at any place.

Every chunk carries a crc32c, and a chunk that is missing is an error. Where the files are local,
a chunk is checked through TensorStore the first time it is touched, and from then on its bytes are
read straight from the file: as fast as a memory map, without a map's resident pages.
"""

import itertools
import os
import re
import resource
import threading
import weakref
from collections import OrderedDict
from typing import Any

import numpy as np
import tensorstore as ts
from jaxtyping import Int, Num

from chomp.errors import DataError, StorageError, message
from chomp.storage import is_local, join
from chomp.storage.locations import without_dots

# Axes: N pieces, L numbers of all pieces together.

# Decoded chunks of cloud stores kept in memory, over all stores of the process.
_CLOUD_CACHE_BYTES = 256 << 20
# Chunks that are checked at once: enough to keep TensorStore's threads busy, 4 MiB of tokens.
_CHECKED_AT_ONCE = 64
# Files kept open over all arrays: a quarter of what this process may have open, since a run may
# have many components of many shards each.
_OPEN_FILES = min(max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4, 16), 1024)
# Words of errors that say nothing about the files themselves: they may be read a minute later.
_PASSING = re.compile(
    "UNAVAILABLE|DEADLINE_EXCEEDED|PERMISSION_DENIED|UNAUTHENTICATED|RESOURCE_EXHAUSTED|ABORTED"
    "|Too many open files|Permission denied|Input/output error|timed out",
    re.IGNORECASE,
)

_NO_CACHE = ts.Context({"cache_pool": {"total_bytes_limit": 0}})
_CLOUD_CACHE = ts.Context({"cache_pool": {"total_bytes_limit": _CLOUD_CACHE_BYTES}})

_array_numbers = itertools.count()


class FlatArray:
    """An array that is open for reading."""

    def __init__(self, path: str, array: Any) -> None:
        self.path = path
        self.dtype: np.dtype[Any] = np.dtype(array.dtype.numpy_dtype)
        self._array = array
        self._shard_len = int(array.chunk_layout.write_chunk.shape[0])
        self._chunk_len = int(array.chunk_layout.read_chunk.shape[0])
        self._is_direct = is_local(path) and _is_plain(array)
        self._is_checked = np.zeros(-(-len(self) // self._chunk_len), np.bool_)
        # Arrays that were opened one after the other at one path may be of different files.
        self._number = next(_array_numbers)
        weakref.finalize(self, _open_shards.drop, self._number)

    @staticmethod
    def open(path: str) -> "FlatArray":
        """The array at `path`, which must be there."""
        context = _NO_CACHE if is_local(path) else _CLOUD_CACHE
        try:
            return FlatArray(path, ts.open(_spec(path), open=True, context=context).result())
        except (ValueError, OSError) as error:
            raise _unreadable(path, error) from error

    def __len__(self) -> int:
        return int(self._array.shape[0])

    def read(
        self, starts: Int[np.ndarray, " N"], lengths: Int[np.ndarray, " N"]
    ) -> Num[np.ndarray, " L"]:
        """The numbers from each start on, `lengths` of them, all pieces in one line."""
        if not self._is_direct:
            return self._read_through_tensorstore(starts, lengths)
        out = np.empty(int(lengths.sum()), self.dtype)
        chunks, offsets, counts = _cut_at_chunks(starts, lengths, self._chunk_len)
        unchecked = chunks[~self._is_checked[chunks]]
        if len(unchecked):
            self._check(np.unique(unchecked))
        self._read_files(chunks, offsets, counts, out)
        return out

    def read_all(self) -> Num[np.ndarray, " L"]:
        """The whole array. For arrays that are known to be small."""
        return self.read(np.zeros(1, np.int64), np.asarray([len(self)], np.int64))

    def _read_through_tensorstore(
        self, starts: Int[np.ndarray, " N"], lengths: Int[np.ndarray, " N"]
    ) -> Num[np.ndarray, " L"]:
        ends = starts + lengths
        futures = [self._array[a:b].read() for a, b in zip(starts, ends, strict=True)]
        try:
            pieces = [np.asarray(future.result()) for future in futures]
        except (ValueError, OSError) as error:
            raise _unreadable(self.path, error) from error
        return np.concatenate([np.empty(0, self.dtype), *pieces])

    def _check(self, chunks: Int[np.ndarray, " N"]) -> None:
        """Read chunks that were never read before the slow way, which compares their checksums."""
        for first in range(0, len(chunks), _CHECKED_AT_ONCE):
            batch = chunks[first : first + _CHECKED_AT_ONCE]
            starts = batch * self._chunk_len
            lengths = np.minimum(self._chunk_len, len(self) - starts)
            self._read_through_tensorstore(starts, lengths)
            self._is_checked[batch] = True

    def _read_files(
        self,
        chunks: Int[np.ndarray, " M"],
        offsets: Int[np.ndarray, " M"],
        counts: Int[np.ndarray, " M"],
        out: Num[np.ndarray, " L"],
    ) -> None:
        width = self.dtype.itemsize
        target = out.view(np.uint8).data
        shards, places = np.divmod(chunks, self._shard_len // self._chunk_len)
        begin, num_chunks = 0, self._shard_len // self._chunk_len
        for shard, place, offset, count in zip(
            shards.tolist(), places.tolist(), (offsets * width).tolist(), (counts * width).tolist(),
            strict=True,
        ):  # fmt: skip
            piece = target[begin : begin + count]
            try:
                file = _open_shards.get(self._number, self.path, shard, num_chunks)
                read = os.preadv(file.descriptor, [piece], file.chunk_begins[place] + offset)
            except OSError as error:
                raise _unreadable(self.path, error) from error
            if read != count:
                raise damaged(self.path, f"shard {shard} became shorter while it was open")
            begin += count


class FlatArrayWriter:
    """An array that grows at its end. There is one writer at a time: who builds holds a lease."""

    def __init__(
        self, path: str, dtype: str, *, shard_len: int, chunk_len: int, is_new: bool
    ) -> None:
        self.path = path
        self.shard_len = shard_len
        spec = {
            **_spec(path),
            "metadata": {
                "data_type": dtype,
                "shape": [0],
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [shard_len]}},
                "codecs": [{"name": "sharding_indexed", "configuration": _sharding(chunk_len)}],
            },
            # A shard that is not there yet is what every write begins with.
            "fill_missing_data_reads": True,
            # Else a chunk of zeros is not stored, and a reader takes it for a lost one.
            "store_data_equal_to_fill_value": True,
        }
        if not is_new:
            del spec["metadata"]
        try:
            _remove_stale_locks(path)
            self._array = ts.open(spec, create=is_new, delete_existing=is_new).result()
        except (ValueError, OSError) as error:
            raise _unwritable(path, error) from error

    def write(self, start: int, values: Num[np.ndarray, " L"]) -> None:
        """Let `values` be what the array holds from `start` to its end."""
        try:
            self._array = self._array.resize(exclusive_max=[start + len(values)]).result()
            self._array[start : start + len(values)].write(values).result()
        except (ValueError, OSError) as error:
            raise _unwritable(self.path, error) from error


class _ShardFile:
    """An open shard and where its chunks begin. Closed when nobody reads it any more."""

    def __init__(self, path: str, num_chunks: int) -> None:
        self.descriptor = -1
        self.descriptor = os.open(path, os.O_RDONLY)
        # The index ends the file: begin and size of each chunk, then its own checksum, which
        # TensorStore has compared when it checked the chunk that is about to be read.
        index_bytes = 16 * num_chunks + 4
        begin = os.fstat(self.descriptor).st_size - index_bytes
        index = np.frombuffer(os.pread(self.descriptor, index_bytes, begin), "<u8", 2 * num_chunks)
        self.chunk_begins: list[int] = index[::2].tolist()

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


class _OpenShards:
    """The shard files that the arrays of this process have open, the least used closed first."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._files: OrderedDict[tuple[int, int], _ShardFile] = OrderedDict()

    def get(self, array_number: int, path: str, shard: int, num_chunks: int) -> _ShardFile:
        """The open file of a shard. It stays open while it is used, even when it is dropped."""
        key = (array_number, shard)
        with self._guard:
            if key in self._files:
                self._files.move_to_end(key)
                return self._files[key]
        file = _ShardFile(join(path, "c", str(shard)), num_chunks)
        with self._guard:
            self._files[key] = file
            while len(self._files) > _OPEN_FILES:
                self._files.popitem(last=False)
        return file

    def drop(self, array_number: int) -> None:
        """Forget the files of an array."""
        with self._guard:
            for key in [key for key in self._files if key[0] == array_number]:
                del self._files[key]


_open_shards = _OpenShards()


def _remove_stale_locks(path: str) -> None:
    """Remove what a writer that was killed left beside the files of a local array.

    TensorStore writes `x.__lock` and renames it to `x`. It takes over one that is there without
    cutting it, so a shorter `x` would end with the rest of the longer (0.1.86).
    """
    for folder, _, files in os.walk(path) if is_local(path) else ():
        for name in files:
            if name.endswith(".__lock"):
                os.remove(os.path.join(folder, name))


def _unreadable(path: str, error: Exception) -> DataError | StorageError:
    """Damage, or a failure that says nothing about the files: nobody should delete those."""
    if not _PASSING.search(str(error)):
        return damaged(path, error)
    return StorageError(
        message(
            given=f"{path} could not be read: {_told(error)}",
            allowed="a store that can be read; it need not be damaged",
            fix="mend the access or the connection (or raise ulimit -n), then run the same command",
        )
    )


def damaged(path: str, reason: object) -> DataError:
    """The error of a store, or of one of its arrays, whose files are not as they were written."""
    return DataError(
        message(
            given=f"{path} is damaged: {_told(reason)}",
            allowed="a token store whose files are as they were written",
            fix="delete the store: the same command then builds it again; nothing of the damaged "
            "part was trained on",
        )
    )


def _unwritable(path: str, error: Exception) -> StorageError:
    return StorageError(
        message(
            given=f"{path} could not be written: {_told(error)}",
            allowed="a folder that can be written, with space for the tokens",
            fix="free space, or choose another --prefix; the same command goes on where this ended",
        )
    )


def _told(reason: object) -> str:
    # TensorStore ends its words with the whole configuration of the array.
    return str(reason).partition(" [tensorstore_spec=")[0]


def _spec(path: str) -> dict[str, Any]:
    return {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": without_dots(path) + "/"}
        if is_local(path)
        else path + "/",
        # Without this a lost shard reads as zeros.
        "fill_missing_data_reads": False,
        # Chunks read since the array was opened are not looked at again. Not `False`: a store that
        # was deleted and built anew would be served from the chunks of the old one.
        "recheck_cached_data": "open",
    }


def _sharding(chunk_len: int) -> dict[str, Any]:
    little_endian = {"name": "bytes", "configuration": {"endian": "little"}}
    # crc32c: without it a flipped byte reads as another token.
    codecs = [little_endian, {"name": "crc32c"}]
    return {"chunk_shape": [chunk_len], "codecs": codecs, "index_codecs": codecs}


def _is_plain(array: Any) -> bool:
    """Whether chunks lie in the files byte by byte as they do in memory."""
    (sharding,) = array.codec.to_json()["codecs"]
    settings = sharding.get("configuration", {})
    wanted = [codec["name"] for codec in settings.get("codecs", ())] == ["bytes", "crc32c"]
    return wanted and settings.get("index_location", "end") == "end"


def _cut_at_chunks(
    starts: Int[np.ndarray, " N"], lengths: Int[np.ndarray, " N"], chunk_len: int
) -> tuple[Int[np.ndarray, " M"], Int[np.ndarray, " M"], Int[np.ndarray, " M"]]:
    """Pieces that lie in one chunk each: the chunk, the place in it, the count."""
    ends = starts + lengths
    first, offsets = np.divmod(starts, chunk_len)
    if len(starts) and lengths.min() > 0 and (offsets + lengths).max() <= chunk_len:
        return first, offsets, lengths  # as nearly always: rows are short beside chunks
    parts = np.where(lengths > 0, -(-ends // chunk_len) - first, 0)
    piece = np.repeat(np.arange(len(starts)), parts)
    nth = np.arange(len(piece)) - np.repeat(np.cumsum(parts) - parts, parts)
    chunks = first[piece] + nth
    begins = np.maximum(starts[piece], chunks * chunk_len)
    counts = np.minimum(ends[piece], (chunks + 1) * chunk_len) - begins
    return chunks, begins - chunks * chunk_len, counts
