"""Rows straight from a stream of documents, without a token store.

The one part of the data path with a state: which window of documents is being served, and how many
of its rows were. The state is small, and a stream restored from it goes on with the same rows.
"""

import logging
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from chomp.config import Config, setting
from chomp.data.packing import LongDocuments
from chomp.data.rows import RowBatch, require_row_len
from chomp.data.sources.formats import Format
from chomp.data.sources.source import RecordSource
from chomp.data.streams.windows import Cursor, RetriedDocuments, StreamSettings, Window, WindowMaker
from chomp.errors import DataError
from chomp.tokenize import Tokenizer

_log = logging.getLogger(__name__)

_STATE_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class StreamConfig(Config):
    """How a component is read that has no token store."""

    # Shuffled and packed together; two windows are held in memory.
    window_documents: int = setting(default=4096, ge=1, lt=2**31)
    shuffle: bool = True  # within each window; a stream has no other shuffle
    # Of a read, before the run fails.
    max_retries: int = setting(default=3, ge=0, le=1000, mark="cosmetic")
    # Before the first retry; doubled for each that follows.
    retry_delay_s: float = setting(default=1.0, ge=0, le=3600, mark="cosmetic")
    # Held-out documents to evaluate on: the first of the stream.
    max_validation_documents: int = setting(default=1000, ge=1, lt=2**31, mark="cosmetic")


class StreamRows:
    """The training rows of a stream, one after the other; epochs follow each other without end.

    A thread of its own makes the next window while this one is served, so that reading and
    tokenizing hide behind training; `close` ends it. To be called by one thread at a time.
    """

    def __init__(
        self,
        source: RecordSource,
        format: Format,
        tokenizer: Tokenizer,
        *,
        name: str,
        seq_len: int,
        seed: int,
        packing_mode: Literal["concat", "packed"],
        max_documents_per_row: int,
        long_documents: LongDocuments,
        validation_fraction: float,
        config: StreamConfig,
    ) -> None:
        require_row_len(seq_len)
        self.name = name
        self.seq_len = seq_len
        self._settings = StreamSettings(
            name=name,
            tokenizer=tokenizer.content_hash,
            seq_len=seq_len,
            seed=seed,
            packing_mode=packing_mode,
            max_documents_per_row=max_documents_per_row,
            long_documents=long_documents,
            validation_fraction=validation_fraction,
            window_documents=config.window_documents,
            shuffle=config.shuffle,
        )
        self._documents = RetriedDocuments(
            source,
            format,
            name=name,
            max_retries=config.max_retries,
            retry_delay_s=config.retry_delay_s,
        )
        self._windows = WindowMaker(self._documents, tokenizer, self._settings)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=f"stream-{name}")
        self._cursor = Cursor()  # of the window that is served
        self._served = 0  # rows of it
        self._window: Window | None = None  # made when a row of it is read
        self._ahead: Future[Window] | None = None  # the window after it
        _log.warning(_shuffle_warning(name, config))

    @property
    def epoch(self) -> int:
        """The epoch of the row that was read last."""
        return self._cursor.epoch

    @property
    def documents_read(self) -> int:
        """Training documents in all windows so far, the present one included."""
        return self._counted.documents

    @property
    def dropped_tokens(self) -> int:
        """Tokens of these documents that the rule for long ones left out."""
        return self._counted.dropped_tokens

    @property
    def retries(self) -> int:
        """Reads that failed and were tried again, by this process."""
        return self._documents.retries

    def read(self, count: int) -> RowBatch:
        """The next rows. What a read that raises had already taken is given again by the next."""
        before = self._cursor, self._served
        try:
            return self._read(count)
        except BaseException:
            self._go_to(before[0], served=before[1])
            raise

    def state(self) -> dict[str, Any]:
        """Where the stream stands after the rows read so far, in JSON's own types."""
        cursor, served = self._cursor, self._served
        if self._window is not None and served == len(self._window):
            cursor, served = self._window.after, 0
        return {
            "version": _STATE_VERSION,
            "settings": asdict(self._settings),
            "cursor": cursor.as_json(),
            "served": served,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where the state was taken; its window is read and tokenized once more."""
        given = state["settings"] if state.get("version") == _STATE_VERSION else {}
        mine = asdict(self._settings)
        if differing := [name for name in mine if given.get(name) != mine[name]]:
            raise DataError(
                f"component {self.name!r}: a stream state was saved with other settings "
                + ", ".join(f"({key}={given.get(key)!r}, now {mine[key]!r})" for key in differing),
                allowed="the settings that the state was saved with: they decide the rows",
                fix="restore these settings to resume, or start a new run",
            )
        self._go_to(Cursor.from_json(state["cursor"]), served=state["served"])

    def close(self) -> None:
        """End the thread, after the window it may be making, and close the source's files."""
        self._ahead = None
        self._worker.shutdown(cancel_futures=True)
        self._documents.close()

    @property
    def _counted(self) -> Cursor:
        return self._cursor if self._window is None else self._window.after

    def _go_to(self, cursor: Cursor, *, served: int) -> None:
        self._cursor, self._served = cursor, served
        self._window = self._ahead = None

    def _read(self, count: int) -> RowBatch:
        tokens = np.empty((count, self.seq_len), np.int32)
        segments = np.empty_like(tokens)
        weights = None
        filled = 0
        while filled < count:
            window = self._window_with_rows()
            taken = min(count - filled, len(window) - self._served)
            source = slice(self._served, self._served + taken)
            target = slice(filled, filled + taken)
            tokens[target] = window.rows.tokens[source]
            segments[target] = window.rows.segment_ids[source]
            if window.rows.loss_weights is not None:
                # Where other windows have none, every position counts.
                weights = np.ones(tokens.shape, np.float32) if weights is None else weights
                weights[target] = window.rows.loss_weights[source]
            self._served += taken
            filled += taken
        return RowBatch(tokens=tokens, segment_ids=segments, loss_weights=weights)

    def _window_with_rows(self) -> Window:
        """The window of the next row, which is the present one until its rows are served."""
        if self._window is None:
            self._window = self._made(self._cursor)
            self._cursor = self._window.cursor
            self._require_rows(self._window)
        while self._served == len(self._window):
            self._window = self._made(self._window.after)
            self._cursor, self._served = self._window.cursor, 0
        return self._window

    def _made(self, cursor: Cursor) -> Window:
        ahead, self._ahead = self._ahead, None
        window = (ahead or self._worker.submit(self._windows.window, cursor)).result()
        self._ahead = self._worker.submit(self._windows.window, window.after)
        return window

    def _require_rows(self, window: Window) -> None:
        if self._served > len(window):
            raise DataError(
                f"component {self.name!r}: {self._served} rows were used of a window "
                f"that now has {len(window)}",
                allowed="the source as it was when the state was saved",
                fix="restore the source's files, or start a new run",
            )


def _shuffle_warning(name: str, config: StreamConfig) -> str:
    remedy = "A token store is shuffled over all of its rows, anew each epoch: build one instead"
    if not config.shuffle:
        return (
            f"component {name!r} is a stream that is NOT SHUFFLED: batches follow the order of its "
            f"source. {remedy}, or set stream.shuffle=true to shuffle within windows."
        )
    return (
        f"component {name!r} is a stream, shuffled ONLY WITHIN WINDOWS of "
        f"{config.window_documents} documents: a sorted source stays sorted beyond that. {remedy}."
    )
