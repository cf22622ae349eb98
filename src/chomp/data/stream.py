"""Rows straight from a stream of documents, without a token store.

The one part of the data path with a state: which window of documents is being served, and how many
of its rows were. The state is small, and a stream restored from it goes on with the same rows. A
window is a function of its cursor alone; only how fast it is made depends on what was read before.
After an error that passes, reading goes on from the next document: none is lost and none repeated.
"""

import hashlib
import http.client
import logging
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Int

from chomp.data.config import LmDataConfig
from chomp.data.documents import Document, LocatedDocument, Position, content_key, is_held_out
from chomp.data.order import Permutation
from chomp.data.packing import PackingRule, pack_documents
from chomp.data.rows import RowBatch, require_row_len, rows_of_pieces
from chomp.data.sources import located_documents
from chomp.data.store.build import EncodedBatch, encode_documents
from chomp.errors import DataError
from chomp.kernels.attention.mask import PAD_SEGMENT
from chomp.tokenize import Tokenizer

log = logging.getLogger(__name__)

# Axes: N rows.

_STATE_VERSION = 1
# Libraries whose errors of the network are no OSError. By name: most runs import none of them.
_NETWORK_LIBRARIES = frozenset({"aiohttp", "httpcore", "httpx", "urllib3"})
# A window also ends at so many characters (or ids), so that one of books does not fill the memory.
WINDOW_CHARACTERS = 1 << 26
# Documents given to the tokenizer at once: what it returns is far bigger than the ids kept of it.
_ENCODED_TOGETHER = 512


class StreamDocuments(Iterator[LocatedDocument]):
    """The documents of a component's source from its beginning, or from where `seek` puts it.

    A source that raised is finished, so every retry opens it anew at `position`, where the next
    unread record is, among the files that were there at first. Retries count from 0 again after
    each document; retry n (from 0) waits `retry_delay_s * 2**n` first. After `max_retries` of them
    the error stands.
    """

    def __init__(self, name: str, data: LmDataConfig) -> None:
        component = data.components[name]
        assert component.stream is not None
        self.position = Position()  # of the next record
        self.retries = 0  # since the beginning, over all documents
        # Positions count parts, so they mean something else once a file is added or gone. Names
        # without their folder: files may be moved.
        self.parts_hash: str | None = None  # SHA-256; None until the parts are listed
        self._name, self._config = name, component.stream
        self._source, self._format = component.required_source(name), component.format
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
                if self._documents is None:
                    if self._parts is None:
                        self._parts = self._source.part_names()
                        names = repr([name.rpartition("/")[2] for name in self._parts])
                        digest = hashlib.sha256(names.encode("utf-8", "replace"))
                        self.parts_hash = digest.hexdigest()
                    self._documents = located_documents(
                        self._source, self._format, start=self.position, parts=self._parts
                    )
                located = next(self._documents)
            except StopIteration:
                raise
            except Exception as error:
                # Another `next` of a reader that raised would say that the source has ended.
                self._documents = None
                # Storage and network may answer when asked again; data stays as it is.
                # OSError: StorageError, ConnectionError and TimeoutError are among them.
                modules = {kind.__module__.split(".")[0] for kind in type(error).__mro__}
                is_transient = isinstance(error, OSError | http.client.HTTPException)
                if not is_transient and not modules & _NETWORK_LIBRARIES:
                    raise
                where = f"part {self.position.part}, record {self.position.record}"
                cause = f"{type(error).__name__}: {error}"
                most = self._config.max_retries
                if failures >= most:
                    raise DataError(
                        f"the source cannot be read from {where} on, after {failures} retries "
                        f"({cause})",
                        allowed="a source that can be read; short failures are retried",
                        fix="repair the source or the connection and resume, or raise max_retries",
                    ) from error
                delay_s = self._config.retry_delay_s * 2**failures
                failures += 1
                self.retries += 1
                log.warning(
                    "component %r: reading failed at %s, retry %d of %d in %.1f s (%s)",
                    *(self._name, where, failures, most, delay_s, cause),
                )
                time.sleep(delay_s)
            else:
                part, record = located.position
                self.position = Position(part, record + 1)
                return located


def _no_documents() -> EncodedBatch:
    return EncodedBatch(ids=np.zeros(0, np.int32), lengths=np.zeros(0, np.int64), loss_weights=None)


@dataclass(frozen=True, kw_only=True, eq=False)
class Cursor:
    """Where a window begins: all that is needed to make it, and what was counted before it."""

    epoch: int = 0
    window: int = 0  # number in its epoch
    start: Position = field(default_factory=Position)
    parts_hash: str | None = None  # of the source that `start` is a position in
    # The end of a line that filled no row: the next documents go on from it.
    carry: EncodedBatch = field(default_factory=_no_documents)
    documents: int = 0
    rows: int = 0
    row_tokens: int = 0  # in these rows, without padding
    dropped_tokens: int = 0
    epoch_tokens: int = 0  # kept tokens, of this epoch only

    def as_json(self) -> dict[str, Any]:
        """The cursor in plain values."""
        ids, lengths, weights = self.carry.ids, self.carry.lengths, self.carry.loss_weights
        carry = {
            "tokens": ids.tolist(),
            "lengths": lengths.tolist(),
            # Exact: float32 goes through JSON unchanged.
            "loss_weights": None if weights is None else weights.tolist(),
        }
        return {**vars(self), "start": list(self.start), "carry": carry}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Cursor":
        """The cursor that `as_json` wrote."""
        lists = values["carry"]
        weights = lists["loss_weights"]
        carry = EncodedBatch(
            ids=np.asarray(lists["tokens"], np.int32),
            lengths=np.asarray(lists["lengths"], np.int64),
            loss_weights=None if weights is None else np.asarray(weights, np.float32),
        )
        return Cursor(**{**values, "start": Position(*values["start"]), "carry": carry})


@dataclass(frozen=True, kw_only=True, eq=False)
class Window:
    """The rows of some documents, none if all of them were dropped or too short for one."""

    cursor: Cursor
    rows: RowBatch
    after: Cursor  # where the next window begins

    def __len__(self) -> int:
        return len(self.rows.tokens)


class StreamRows:
    """The training rows of a component that is a stream; epochs follow each other without end.

    A thread of its own makes the next window while this one is served, so that reading and
    tokenizing hide behind training; `close` ends it. To be called by one thread at a time.
    """

    def __init__(
        self,
        name: str,
        data: LmDataConfig,
        tokenizer: Tokenizer,
        *,
        seq_len: int,
        seed: int,
        kept_out: Mapping[bytes, str] | None = None,
    ) -> None:
        """`kept_out` has the content keys of documents to leave out, with their validation set."""
        require_row_len(seq_len)
        stream = data.components[name].stream
        assert stream is not None
        self.name, self.seq_len = name, seq_len
        self.rows_served = 0  # so far
        self._rule = data.packing_rule(seq_len)
        # What decides the rows, besides the source.
        self._settings = {
            "name": name,
            "tokenizer": tokenizer.content_hash,
            "seq_len": seq_len,
            "seed": seed,
            "packing_mode": data.packing_mode,
            "max_documents_per_row": self._rule.max_documents,
            "long_documents": self._rule.long_documents,
            "validation_fraction": data.validation_fraction,
            "window_documents": stream.window_documents,
            "shuffle": stream.shuffle,
        }
        self._data, self._config, self._tokenizer, self._seed = data, stream, tokenizer, seed
        self._kept_out = kept_out or {}
        self._sets_warned_of: set[str] = set()
        self._documents = StreamDocuments(name, data)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=f"stream-{name}")
        self._cursor = Cursor()  # of the window that is served
        self._served = 0  # rows of it
        self._window: Window | None = None  # made when a row of it is read
        self._ahead: Future[Window] | None = None  # the window after it
        how = "NOT SHUFFLED; stream.shuffle=true would shuffle it within windows"
        if stream.shuffle:
            how = f"shuffled ONLY WITHIN WINDOWS of {stream.window_documents} documents"
        log.warning(
            "component %r is a stream, %s: batches follow the order of its source. A token store "
            "is shuffled over all of its rows, anew each epoch: build one instead.",
            *(name, how),
        )

    @property
    def epoch(self) -> int:
        """The epoch of the row that was read last."""
        return self._cursor.epoch

    @property
    def documents_read(self) -> int:
        """Training documents in all windows so far, the present one included."""
        return (self._cursor if self._window is None else self._window.after).documents

    @property
    def dropped_tokens(self) -> int:
        """Tokens of these documents that the rule for long ones left out."""
        return (self._cursor if self._window is None else self._window.after).dropped_tokens

    @property
    def retries(self) -> int:
        """Reads that failed and were tried again, by this process."""
        return self._documents.retries

    def read_at(self, positions: Int[np.ndarray, " N"]) -> RowBatch:
        """The rows at those positions, which have to be the next ones."""
        if len(positions) and positions[0] != self.rows_served:
            raise DataError(
                f"row {positions[0]} of the stream {self.name!r}, whose next row is "
                f"{self.rows_served}",
                allowed="the rows of a stream in order",
                fix="restore the state that was saved with the step to continue from",
            )
        return self.read(len(positions))

    def read(self, count: int) -> RowBatch:
        """The next rows. What a read that raises had already taken is given again by the next."""
        before = self._cursor, self._served
        rows, filled = RowBatch.empty(count, self.seq_len), 0
        weights = None
        try:
            while filled < count:
                window = self._window_with_rows()
                taken = min(count - filled, len(window) - self._served)
                source = slice(self._served, self._served + taken)
                target = slice(filled, filled + taken)
                rows.tokens[target] = window.rows.tokens[source]
                rows.segment_ids[target] = window.rows.segment_ids[source]
                if window.rows.loss_weights is not None:
                    # Where other windows have none, every position counts.
                    if weights is None:
                        weights = np.ones(rows.tokens.shape, np.float32)
                    weights[target] = window.rows.loss_weights[source]
                self._served += taken
                filled += taken
        except BaseException:
            self._cursor, self._served = before
            self._window = self._ahead = None
            raise
        self.rows_served += count
        return replace(rows, loss_weights=weights)

    def state(self) -> dict[str, Any]:
        """Where the stream stands after the rows read so far, in JSON's own types."""
        cursor, served = self._cursor, self._served
        if self._window is not None and served == len(self._window):
            cursor, served = self._window.after, 0
        return {
            "rows_served": self.rows_served,
            "version": _STATE_VERSION,
            "settings": self._settings,
            "cursor": cursor.as_json(),
            "served": served,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where the state was taken; its window is read and tokenized once more."""
        given, mine = state["settings"], self._settings
        if state.get("version") != _STATE_VERSION:
            given = {}
        if differing := [name for name in mine if given.get(name) != mine[name]]:
            raise DataError(
                f"component {self.name!r}: a stream state was saved with other settings "
                + ", ".join(f"({key}={given.get(key)!r}, now {mine[key]!r})" for key in differing),
                allowed="the settings that the state was saved with: they decide the rows",
                fix="restore these settings to resume, or start a new run",
            )
        self._cursor, self._served = Cursor.from_json(state["cursor"]), state["served"]
        self._window = self._ahead = None
        self.rows_served = state["rows_served"]

    def close(self) -> None:
        """End the thread, after the window it may be making, and close the source's files."""
        self._ahead = None
        self._worker.shutdown(cancel_futures=True)
        self._documents.close()

    def _window_with_rows(self) -> Window:
        """The window of the next row, which is the present one until its rows are served."""
        while self._window is None or self._served == len(self._window):
            cursor, served = self._cursor, self._served
            if self._window is not None:
                cursor, served = self._window.after, 0
            ahead, self._ahead = self._ahead, None
            try:
                window = (ahead or self._worker.submit(self._make_window, cursor)).result()
                if served > len(window):
                    raise DataError(
                        f"{served} rows were used of a window that now has {len(window)}",
                        allowed="the source as it was when the state was saved",
                        fix="restore the source's files, or start a new run",
                    )
            except DataError as error:
                error.within(f"component {self.name!r}")
                raise
            self._ahead = self._worker.submit(self._make_window, window.after)
            self._window, self._cursor, self._served = window, window.cursor, served
        return self._window

    def _make_window(self, cursor: Cursor) -> Window:
        """The window at a cursor. The last of an epoch may be short or even empty."""
        documents, is_last = self._next_documents(cursor.start)
        parts_hash = self._documents.parts_hash
        if cursor.parts_hash not in (None, parts_hash):
            raise DataError(
                "the stream state is of other files than the source has now",
                allowed="the files that the state was saved with",
                fix="remove the added files and restore the missing ones, or start a new run",
            )
        cursor = replace(cursor, parts_hash=parts_hash)
        key = f"{self._seed}/{self.name}/{cursor.epoch}/{cursor.window}"
        if self._config.shuffle and documents:
            order = Permutation(len(documents), key)(np.arange(len(documents)))
            documents = [documents[i] for i in order]
        batch = _join_batches(
            [
                encode_documents(documents[first : first + _ENCODED_TOGETHER], self._tokenizer)
                for first in range(0, len(documents), _ENCODED_TOGETHER)
            ]
        )
        carry, dropped_tokens = cursor.carry, 0
        if self._data.packing_mode == "concat":
            rows, carry = _concat_rows(batch, carry, self.seq_len)
        else:
            shuffle_key = f"{key}/rows" if self._config.shuffle else None
            rows, dropped_tokens = _packed_rows(batch, self._rule, shuffle_key)
        epoch_tokens = cursor.epoch_tokens + len(batch.ids) - dropped_tokens
        if is_last and epoch_tokens == 0:
            raise DataError(
                "an epoch of the stream has no token to train on "
                f"({cursor.dropped_tokens + dropped_tokens} tokens were dropped, of documents "
                "longer than a row)",
                allowed="at least one training document that is not held out "
                f"(validation_fraction={self._data.validation_fraction:g})",
                fix="add documents to the source, or set long_documents=split",
            )
        after = Cursor(
            epoch=cursor.epoch + is_last,
            window=0 if is_last else cursor.window + 1,
            start=Position() if is_last else self._documents.position,
            parts_hash=parts_hash,
            carry=carry,
            documents=cursor.documents + len(documents),
            rows=cursor.rows + len(rows.tokens),
            row_tokens=cursor.row_tokens + int((rows.segment_ids != PAD_SEGMENT).sum()),
            dropped_tokens=cursor.dropped_tokens + dropped_tokens,
            epoch_tokens=0 if is_last else epoch_tokens,
        )
        return Window(cursor=cursor, rows=rows, after=after)

    def _next_documents(self, start: Position) -> tuple[list[Document], bool]:
        """The next training documents, and whether the source has ended."""
        self._documents.seek(start)
        found: list[Document] = []
        size = 0
        for _, document in self._documents:
            if is_held_out(document, self._data.validation_fraction):
                continue
            name = self._kept_out.get(content_key(document)) if self._kept_out else None
            if name is None:
                found.append(document)
                size += document.size
                if len(found) == self._config.window_documents or size >= WINDOW_CHARACTERS:
                    return found, False
            elif name not in self._sets_warned_of:
                self._sets_warned_of.add(name)
                log.warning(
                    "component %r: document %s is also in the validation set %r. Such documents "
                    "are left out of training; only the first is reported.",
                    *(self.name, document.id, name),
                )
        return found, True


def _join_batches(batches: Sequence[EncodedBatch]) -> EncodedBatch:
    """The documents of all batches in one, ids as int32; a batch without weights has weights 1."""
    parts = [_no_documents(), *batches]

    def weights_of(batch: EncodedBatch) -> np.ndarray:
        weights = batch.loss_weights
        return np.ones(len(batch.ids), np.float32) if weights is None else weights

    has_weights = any(batch.loss_weights is not None for batch in batches)
    return EncodedBatch(
        ids=np.concatenate([batch.ids.astype(np.int32) for batch in parts]),
        lengths=np.concatenate([batch.lengths for batch in parts]),
        loss_weights=np.concatenate([weights_of(each) for each in parts]) if has_weights else None,
    )


def _concat_rows(
    batch: EncodedBatch, carry: EncodedBatch, seq_len: int
) -> tuple[RowBatch, EncodedBatch]:
    """The line that goes on from `carry`, cut every `seq_len` tokens, and what is left of it."""
    line = _join_batches([carry, batch])
    cut = len(line.ids) // seq_len * seq_len
    document = np.repeat(np.arange(len(line.lengths), dtype=np.int32), line.lengths)
    segments = document[:cut].reshape(-1, seq_len)
    weights = line.loss_weights
    rows = RowBatch(
        tokens=line.ids[:cut].reshape(-1, seq_len),
        segment_ids=segments - segments[:, :1],
        loss_weights=None if weights is None else weights[:cut].reshape(-1, seq_len),
    )
    ends = np.cumsum(line.lengths)
    left = EncodedBatch(
        ids=line.ids[cut:],
        # The first of them may have begun before the cut.
        lengths=np.diff(ends[ends > cut], prepend=cut),
        loss_weights=None if weights is None else weights[cut:],
    )
    return rows, left


def _packed_rows(
    batch: EncodedBatch, rule: PackingRule, shuffle_key: str | None
) -> tuple[RowBatch, int]:
    """The documents packed into rows, and how many tokens the rule for long ones left out.

    Rows are shuffled by the key; without one they are in the order of their first documents.
    """
    packed = pack_documents(batch.lengths, rule)
    counts, order = packed.pieces_per_row, np.arange(len(packed.length))
    if shuffle_key is not None and len(counts) > 0:
        by_row = Permutation(len(counts), shuffle_key)(np.arange(len(counts)))
        row_pieces = np.split(order, np.cumsum(counts)[:-1])
        counts, order = counts[by_row], np.concatenate([row_pieces[row] for row in by_row])
    lengths = packed.length[order]
    begins = np.cumsum(batch.lengths) - batch.lengths
    starts = begins[packed.document[order]] + packed.offset[order]
    # The numbers start..start+length-1 of each piece, one after the other.
    before = np.cumsum(lengths) - lengths
    tokens = np.arange(lengths.sum()) + np.repeat(starts - before, lengths)
    weights = batch.loss_weights
    rows = rows_of_pieces(
        batch.ids[tokens],
        lengths,
        counts,
        rule.row_len,
        weights=None if weights is None else weights[tokens],
    )
    return rows, packed.dropped_tokens
