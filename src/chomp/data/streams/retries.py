"""Documents of a source over errors that pass: read on from the next one, lose and repeat none."""

import hashlib
import http.client
import logging
import time
from collections.abc import Generator, Iterator

from chomp.data.documents import LocatedDocument, Position
from chomp.data.sources.formats import Format
from chomp.data.sources.records import RecordSource, located_documents, part_names
from chomp.errors import DataError

_log = logging.getLogger(__name__)

# Libraries whose errors of the network are no OSError. Told by name: most runs import none of them.
_NETWORK_LIBRARIES = frozenset({"aiohttp", "httpcore", "httpx", "urllib3"})


class RetriedDocuments(Iterator[LocatedDocument]):
    """The documents of a source from its beginning, or from where `seek` puts it.

    A source that raised is finished, so every retry opens it anew at `position`, where the next
    unread record is, among the files that were there at first. Retries count from 0 again after
    each document; retry n (from 0) waits `retry_delay_s * 2**n` first. After `max_retries` of them
    the error stands.
    """

    def __init__(
        self,
        source: RecordSource,
        format: Format,
        *,
        name: str,
        max_retries: int,
        retry_delay_s: float,
    ) -> None:
        self.position = Position()
        self.retries = 0  # since the beginning, over all documents
        self._source = source
        self._format = format
        self._name = name
        self._max_retries = max_retries
        self._retry_delay_s = retry_delay_s
        # Positions count parts, so they mean something else once a file is added or gone. Names
        # without their folder: files may be moved.
        self.parts_hash: str | None = None  # SHA-256; None until the parts are listed
        self._parts: tuple[str, ...] | None = None
        self._documents: Iterator[LocatedDocument] | None = None

    def close(self) -> None:
        """Close the file that is being read; another `next` opens it again."""
        if isinstance(self._documents, Generator):
            self._documents.close()
        self._documents = None

    def seek(self, position: Position) -> None:
        """Go on from there; costs nothing if that is the next record anyway."""
        if position != self.position:
            self.close()
            self.position = position

    def __next__(self) -> LocatedDocument:
        failures = 0
        while True:
            try:
                located = next(self._opened())
            except StopIteration:
                raise
            except Exception as error:
                # Another `next` of a reader that raised would say that the source has ended.
                self._documents = None
                if not is_transient(error):
                    raise
                self._wait(failures, error)
                failures += 1
            else:
                part, record = located.position
                self.position = Position(part, record + 1)
                return located

    def _opened(self) -> Iterator[LocatedDocument]:
        if self._documents is None:
            if self._parts is None:
                self._parts = part_names(self._source)
                names = repr([name.rpartition("/")[2] for name in self._parts])
                self.parts_hash = hashlib.sha256(names.encode("utf-8", "replace")).hexdigest()
            self._documents = located_documents(
                self._source, self._format, start=self.position, parts=self._parts
            )
        return self._documents

    def _wait(self, failures: int, error: Exception) -> None:
        where = f"part {self.position.part}, record {self.position.record}"
        cause = f"{type(error).__name__}: {error}"
        if failures >= self._max_retries:
            raise DataError(
                f"the source cannot be read from {where} on, after {failures} retries ({cause})",
                allowed="a source that can be read; short failures are retried",
                fix="repair the source or the connection and resume, or raise max_retries",
            ) from error
        self.retries += 1
        delay_s = self._retry_delay_s * 2**failures
        _log.warning(
            "component %r: reading failed at %s, retry %d of %d in %.1f s (%s)",
            *(self._name, where, failures + 1, self._max_retries, delay_s, cause),
        )
        time.sleep(delay_s)


def is_transient(error: Exception) -> bool:
    """Whether reading may work if it is tried again: storage and network, not the data itself."""
    if isinstance(error, OSError | http.client.HTTPException):
        return True  # OSError: StorageError, ConnectionError and TimeoutError are among them
    return any(kind.__module__.split(".")[0] in _NETWORK_LIBRARIES for kind in type(error).__mro__)
