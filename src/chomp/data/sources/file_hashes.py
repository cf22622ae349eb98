"""One hash for the content of many files, wherever they lie.

Names and folders do not enter it, only contents and their order: a corpus copied to another machine
keeps its hash. Files are read by a few threads, since hashing frees the interpreter lock.
"""

import hashlib
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from chomp.data.progress import progress_bar
from chomp.data.sources.source_files import present
from chomp.storage import FileInfo, file_info, open_stream

_MAX_THREADS = 4
_CHUNK_BYTES = 1 << 20
# Nobody needs a bar for less.
_PATIENCE_S = 3.0
_REDRAW_S = 0.2


def hash_of_files(files: Sequence[str], *, salt: str) -> str:
    """SHA-256 of `salt` and the contents of the files in order.

    A file in a store that keeps a checksum is known by that and its size, and is not read.
    """
    with ThreadPoolExecutor(_MAX_THREADS) as pool:
        facts = list(pool.map(_facts_of, files))
        reading = _Reading(total_bytes=sum(map(_bytes_to_read, facts)))
        futures = [pool.submit(reading.digest_of, *item) for item in zip(files, facts, strict=True)]
        try:
            _wait_with_bar(futures, reading)
            digests = [future.result() for future in futures]
        except BaseException:
            # Leaving the pool waits for its threads, which may be deep in a large file.
            reading.is_over.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return hashlib.sha256(salt.encode() + b"\0" + b"".join(digests)).hexdigest()


class _Reading:
    """What the threads share: how much there is, how much is done, whether to stop."""

    def __init__(self, *, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.read_bytes = 0
        self.is_over = threading.Event()
        self._guard = threading.Lock()

    def digest_of(self, path: str, facts: FileInfo) -> bytes:
        """The digest of one file."""
        if facts.checksum is not None:
            return hashlib.sha256(f"{facts.checksum} size={facts.size_bytes}".encode()).digest()
        digest = hashlib.sha256()
        with present(path), open_stream(path) as stream:
            while (chunk := stream.read(_CHUNK_BYTES)) and not self.is_over.is_set():
                digest.update(chunk)
                with self._guard:
                    self.read_bytes += len(chunk)
        return digest.digest()


def _facts_of(path: str) -> FileInfo:
    with present(path):
        return file_info(path)


def _bytes_to_read(facts: FileInfo) -> int:
    return facts.size_bytes if facts.checksum is None else 0


def _wait_with_bar(futures: Sequence["Future[bytes]"], reading: _Reading) -> None:
    """Return when all are done or one has failed; show a bar if that takes long."""
    if not wait(futures, timeout=_PATIENCE_S, return_when="FIRST_EXCEPTION").not_done:
        return
    shown = 0
    with progress_bar("hashing the sources", total=reading.total_bytes, unit="bytes") as advance:
        while not any(future.done() and future.exception() for future in futures):
            advance(reading.read_bytes - shown)
            shown = reading.read_bytes
            if not wait(futures, timeout=_REDRAW_S, return_when="FIRST_EXCEPTION").not_done:
                return
