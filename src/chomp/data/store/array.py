"""One long line of numbers on disk: a sharded zarr3 array, written once and read at any place.

Every chunk carries a crc32c, and a chunk that is missing is an error. A chunk is checked through
TensorStore the first time it is touched, and its numbers are compared with the checksum of its
place, where the reader has one. From then on a local chunk is read straight from its file: as fast
as a memory map, without a map's resident pages.
"""

import hashlib
import itertools
import os
import resource
import threading
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import tensorstore as ts
from jaxtyping import Int, Num, UInt32

from chomp.errors import DataError, StorageError
from chomp.storage import file_info, is_local, join
from chomp.storage.paths import without_dots

# Axes: N pieces, L numbers of all pieces together, C chunks.

# Decoded chunks of cloud stores kept in memory, over all stores of the process.
_CLOUD_CACHE_BYTES = 256 << 20
# Chunks that are checked at once: enough to keep TensorStore's threads busy, 4 MiB of tokens.
_CHECKED_AT_ONCE = 64
# Files kept open over all arrays: a quarter of what this process may have open, since a run may
# have many components of many shards each.
_OPEN_FILES = min(max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4, 16), 1024)
# What TensorStore says of a chunk, or of the index of a shard, whose checksum is another.
_MISMATCH = "Digest mismatch"

_NO_CACHE = ts.Context({"cache_pool": {"total_bytes_limit": 0}})
_CLOUD_CACHE = ts.Context({"cache_pool": {"total_bytes_limit": _CLOUD_CACHE_BYTES}})

_array_numbers = itertools.count()


class FlatArray:
    """An array that is open for reading.

    With `checksums`, which `chunk_checksums` gave when it was written, a chunk of another array or
    of another place is an error too.
    """

    def __init__(
        self, path: str, array: Any, checksums: UInt32[np.ndarray, " C"] | None = None
    ) -> None:
        self.path = path
        self.dtype: np.dtype[Any] = np.dtype(array.dtype.numpy_dtype)
        self._array = array
        self._shard_len = int(array.chunk_layout.write_chunk.shape[0])
        self._chunk_len = int(array.chunk_layout.read_chunk.shape[0])
        num_chunks = -(-len(self) // self._chunk_len)
        if checksums is not None and len(checksums) != num_chunks:
            fault = f"it says {num_chunks} chunks, and {len(checksums)} were written"
            raise damaged(join(path, "zarr.json"), fault)
        self._checksums = checksums
        # Whether chunks lie in local files byte by byte as they do in memory.
        (sharding,) = array.codec.to_json()["codecs"]
        settings = sharding.get("configuration", {})
        codecs = [codec["name"] for codec in settings.get("codecs", ())]
        is_plain = codecs == ["bytes", "crc32c"] and settings.get("index_location", "end") == "end"
        self._is_direct = is_local(path) and is_plain
        # TensorStore itself compares the crc32c of what is read through it.
        self._is_checked = np.full(num_chunks, not self._is_direct and checksums is None)
        # Arrays that were opened one after the other at one path may be of different files.
        self._number = next(_array_numbers)
        weakref.finalize(self, _open_shards.drop, self._number)

    @staticmethod
    def open(path: str, checksums: UInt32[np.ndarray, " C"] | None = None) -> "FlatArray":
        """The array at `path`, which must be there."""
        _require_no_pipe(path)
        spec = _spec(path)
        context = _NO_CACHE if isinstance(spec["kvstore"], dict) else _CLOUD_CACHE
        try:
            array = ts.open(spec, open=True, context=context).result()
        except (ValueError, OSError) as error:
            raise _unreadable(path, error) from error
        return FlatArray(path, array, checksums)

    def __len__(self) -> int:
        return int(self._array.shape[0])

    def read(
        self, starts: Int[np.ndarray, " N"], lengths: Int[np.ndarray, " N"]
    ) -> Num[np.ndarray, " L"]:
        """The numbers from each start on, `lengths` of them, all pieces in one line."""
        chunks, offsets, counts = _cut_at_chunks(starts, lengths, self._chunk_len)
        unchecked = chunks[~self._is_checked[chunks]]
        if len(unchecked):
            for _ in self._read_checked(np.unique(unchecked)):
                pass  # read for their checksums alone
        if not self._is_direct:
            pieces = self._read_through_tensorstore(starts, lengths)
            return np.concatenate([np.empty(0, self.dtype), *pieces])
        out = np.empty(int(lengths.sum()), self.dtype)
        target, width = out.view(np.uint8).data, self.dtype.itemsize
        chunks_per_shard = self._shard_len // self._chunk_len
        shards, places = np.divmod(chunks, chunks_per_shard)
        begin = 0
        for shard, place, offset, count in zip(
            shards.tolist(), places.tolist(), (offsets * width).tolist(), (counts * width).tolist(),
            strict=True,
        ):  # fmt: skip
            piece = target[begin : begin + count]
            try:
                file = _open_shards.get(self._number, self.path, shard, chunks_per_shard)
                read = os.preadv(file.descriptor, [piece], file.chunk_begins[place] + offset)
            except (ValueError, OSError) as error:
                raise _unreadable(self.path, error) from error
            if read != count:
                raise _unreadable(self.path, f"shard {shard} became shorter while it was open")
            begin += count
        return out

    def read_all(self) -> Num[np.ndarray, " L"]:
        """The whole array. For arrays that are known to be small."""
        chunks = self._read_checked(np.arange(len(self._is_checked)))
        return np.concatenate([np.empty(0, self.dtype), *chunks])

    def shards(self) -> Iterator[Num[np.ndarray, " L"]]:
        """The numbers of each shard, reading one at a time."""
        for first in range(0, len(self), self._shard_len):
            length = min(self._shard_len, len(self) - first)
            yield self.read(np.asarray([first]), np.asarray([length]))

    def _read_through_tensorstore(
        self, starts: Int[np.ndarray, " N"], lengths: Int[np.ndarray, " N"]
    ) -> Iterator[Num[np.ndarray, " L"]]:
        futures = [self._array[a : a + n].read() for a, n in zip(starts, lengths, strict=True)]
        try:
            for future in futures:
                yield np.asarray(future.result())
        except (ValueError, OSError) as error:
            raise _unreadable(self.path, error) from error

    def _read_checked(self, chunks: Int[np.ndarray, " N"]) -> Iterator[Num[np.ndarray, " L"]]:
        """The numbers of each chunk, read the slow way, which compares their checksums."""
        for first in range(0, len(chunks), _CHECKED_AT_ONCE):
            batch = chunks[first : first + _CHECKED_AT_ONCE]
            starts = batch * self._chunk_len
            lengths = np.minimum(self._chunk_len, len(self) - starts)
            pieces = self._read_through_tensorstore(starts, lengths)
            for chunk, numbers in zip(batch.tolist(), pieces, strict=True):
                if (
                    self._checksums is not None
                    and zlib.crc32(numbers.data) != self._checksums[chunk]
                ):
                    shard = chunk * self._chunk_len // self._shard_len
                    file = join(self.path, "c", str(shard))
                    raise damaged(file, "it holds a chunk of another place or store")
                self._is_checked[chunk] = True
                yield numbers


class FlatArrayWriter:
    """An array that grows at its end. There is one writer at a time: who builds holds a lease."""

    def __init__(
        self, path: str, dtype: str, *, shard_len: int, chunk_len: int, is_new: bool
    ) -> None:
        self.path = path
        self.shard_len = shard_len
        little_endian = {"name": "bytes", "configuration": {"endian": "little"}}
        # crc32c: without it a flipped byte reads as another token.
        codecs = [little_endian, {"name": "crc32c"}]
        sharding = {"chunk_shape": [chunk_len], "codecs": codecs, "index_codecs": codecs}
        spec = {
            **_spec(path),
            "metadata": {
                "data_type": dtype,
                "shape": [0],
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [shard_len]}},
                "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
            },
            # A shard that is not there yet is what every write begins with.
            "fill_missing_data_reads": True,
            # Else a chunk of zeros is not stored, and a reader takes it for a lost one.
            "store_data_equal_to_fill_value": True,
        }
        if not is_new:
            del spec["metadata"]
        try:
            # TensorStore writes `x.__lock` and renames it to `x`. It takes over one that a killed
            # writer has left without cutting it, so a shorter `x` would end with the rest of the
            # longer (0.1.86).
            for folder, _, files in os.walk(path) if is_local(path) else ():
                for name in files:
                    if name.endswith(".__lock"):
                        os.remove(os.path.join(folder, name))
            _require_no_pipe(path)
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


def _require_no_pipe(path: str) -> None:
    """Raise `StorageError` for a pipe or a device among an array's files: reads would not end."""
    if not is_local(path):
        return
    files = [join(path, "zarr.json")]
    with suppress(OSError), os.scandir(join(path, "c")) as shards:
        # There may be thousands: a stat is only needed of links and of what is no file.
        files += [shard.path for shard in shards if not shard.is_file(follow_symlinks=False)]
    for file in files:
        if os.path.exists(file) and not os.path.isdir(file):
            file_info(file)


def checksum(values: Num[np.ndarray, " L"]) -> str:
    """128 bits of BLAKE2b over the numbers as they lie in memory."""
    return hashlib.blake2b(np.ascontiguousarray(values).data, digest_size=16).hexdigest()


def chunk_checksums(values: Num[np.ndarray, " L"], chunk_len: int) -> UInt32[np.ndarray, " C"]:
    """The crc32 of the numbers in each chunk; `values` begin with a chunk."""
    firsts = range(0, len(values), chunk_len)
    return np.asarray([zlib.crc32(values[a : a + chunk_len].data) for a in firsts], np.uint32)


def damaged(path: str, reason: object) -> DataError:
    """The error of a store's file or array whose content fails a checksum."""
    return DataError(
        f"{path} is damaged: {without_spec(reason)}",
        allowed="a token store whose files are as they were written",
        fix="delete the store: the same command then builds it again; nothing of the damaged "
        "part was trained on",
    )


def _unreadable(path: str, reason: object) -> DataError | StorageError:
    """Damage if a checksum says so. Nobody should delete a store for anything else."""
    if _MISMATCH in str(reason):
        return damaged(path, reason)
    return StorageError(
        f"{path} could not be read: {without_spec(reason)}",
        allowed="a store whose files are all there and can be read",
        fix="mend the access or the connection (or raise ulimit -n), or bring back the file; if it "
        "is lost, move the store away, and the same command builds it again",
    )


def _unwritable(path: str, error: Exception) -> StorageError:
    return StorageError(
        f"{path} could not be written: {without_spec(error)}",
        allowed="a writable folder with space for the tokens",
        fix="free space, or choose another --prefix; the same command then continues",
    )


def without_spec(reason: object) -> str:
    """What TensorStore says, without the whole configuration of the array at its end."""
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
