"""Windows of a stream: some documents of it, made into rows together.

A window is a function of its cursor alone, so a stream that is opened again at a cursor goes on
with the same rows. Only how fast it is made depends on what was read before.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from chomp.data.documents import Document, Position, is_held_out
from chomp.data.packing import LongDocuments
from chomp.data.permutation import Permutation
from chomp.data.rows import RowBatch
from chomp.data.store.encoding import EncodedBatch, encoded
from chomp.data.streams.retries import RetriedDocuments
from chomp.data.streams.rows import Carry, concat_rows, joined, packed_rows
from chomp.errors import DataError
from chomp.kernels.attention.mask import PAD_SEGMENT
from chomp.tokenize import Tokenizer

# A window also ends at so many characters (or ids), so that one of books does not fill the memory.
WINDOW_CHARACTERS = 1 << 26
# Documents given to the tokenizer at once: what it returns is far bigger than the ids kept of it.
_ENCODED_TOGETHER = 512


@dataclass(frozen=True, kw_only=True)
class StreamSettings:
    """What decides the rows of a stream, besides its source."""

    name: str
    tokenizer: str  # its content hash
    seq_len: int
    seed: int
    packing_mode: Literal["concat", "packed"]
    max_documents_per_row: int
    long_documents: LongDocuments
    validation_fraction: float
    window_documents: int
    shuffle: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Cursor:
    """Where a window begins: all that is needed to make it, and what was counted before it."""

    epoch: int = 0
    window: int = 0  # number in its epoch
    start: Position = field(default_factory=Position)
    parts_hash: str | None = None  # of the source that `start` is a position in
    carry: Carry = field(default_factory=Carry)
    documents: int = 0
    rows: int = 0
    row_tokens: int = 0  # in these rows, without padding
    dropped_tokens: int = 0
    epoch_tokens: int = 0  # kept tokens, of this epoch only

    def as_json(self) -> dict[str, Any]:
        """The cursor in plain values."""
        return {**vars(self), "start": list(self.start), "carry": self.carry.as_json()}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Cursor":
        """The cursor that `as_json` wrote."""
        start, carry = Position(*values["start"]), Carry.from_json(values["carry"])
        return Cursor(**{**values, "start": start, "carry": carry})


@dataclass(frozen=True, kw_only=True, eq=False)
class Window:
    """The rows of some documents, none if all of them were dropped or too short for one."""

    cursor: Cursor
    rows: RowBatch
    after: Cursor  # where the next window begins

    def __len__(self) -> int:
        return len(self.rows.tokens)


class WindowMaker:
    """Makes windows from documents; quickest in the order of the stream."""

    def __init__(
        self, documents: RetriedDocuments, tokenizer: Tokenizer, settings: StreamSettings
    ) -> None:
        self._reader = documents
        self._tokenizer = tokenizer
        self._settings = settings

    def window(self, cursor: Cursor) -> Window:
        """The window at a cursor. The last of an epoch may be short or even empty.

        What is wrong with the source or a document is a `DataError` that names the component.
        """
        try:
            return self._window(cursor)
        except DataError as error:
            error.within(f"component {self._settings.name!r}")
            raise

    def _window(self, cursor: Cursor) -> Window:
        documents, is_last = self._documents(cursor.start)
        cursor = self._among_same_parts(cursor)
        key = f"{self._settings.seed}/{self._settings.name}/{cursor.epoch}/{cursor.window}"
        batch = self._encoded(documents, key)
        rows, carry, dropped_tokens = self._rows(batch, cursor.carry, key)
        epoch_tokens = cursor.epoch_tokens + len(batch.ids) - dropped_tokens
        if is_last and epoch_tokens == 0:
            raise self._nothing_to_train_on(cursor.dropped_tokens + dropped_tokens)
        after = Cursor(
            epoch=cursor.epoch + is_last,
            window=0 if is_last else cursor.window + 1,
            start=Position() if is_last else self._reader.position,
            parts_hash=cursor.parts_hash,
            carry=carry,
            documents=cursor.documents + len(documents),
            rows=cursor.rows + len(rows.tokens),
            row_tokens=cursor.row_tokens + int((rows.segment_ids != PAD_SEGMENT).sum()),
            dropped_tokens=cursor.dropped_tokens + dropped_tokens,
            epoch_tokens=0 if is_last else epoch_tokens,
        )
        return Window(cursor=cursor, rows=rows, after=after)

    def _documents(self, start: Position) -> tuple[list[Document], bool]:
        """The next training documents, and whether the source has ended."""
        self._reader.seek(start)
        found: list[Document] = []
        size = 0
        for _, document in self._reader:
            if is_held_out(document, self._settings.validation_fraction):
                continue
            found.append(document)
            size += document.size
            if len(found) == self._settings.window_documents or size >= WINDOW_CHARACTERS:
                return found, False
        return found, True

    def _encoded(self, documents: list[Document], key: str) -> EncodedBatch:
        if self._settings.shuffle and documents:
            order = Permutation(len(documents), key)(np.arange(len(documents)))
            documents = [documents[i] for i in order]
        return joined(
            [
                encoded(documents[first : first + _ENCODED_TOGETHER], self._tokenizer)
                for first in range(0, len(documents), _ENCODED_TOGETHER)
            ]
        )

    def _rows(self, batch: EncodedBatch, carry: Carry, key: str) -> tuple[RowBatch, Carry, int]:
        """The rows, what is carried to the next window, and the number of dropped tokens."""
        settings = self._settings
        if settings.packing_mode == "concat":
            return *concat_rows(batch, carry, settings.seq_len), 0
        rows, dropped_tokens = packed_rows(
            batch,
            settings.seq_len,
            max_documents=settings.max_documents_per_row,
            rule=settings.long_documents,
            shuffle_key=f"{key}/rows" if settings.shuffle else None,
        )
        return rows, carry, dropped_tokens

    def _among_same_parts(self, cursor: Cursor) -> Cursor:
        """The cursor with the hash of the parts it counts, which must be those it was made with."""
        parts_hash = self._reader.parts_hash
        if cursor.parts_hash not in (None, parts_hash):
            raise DataError(
                "the stream state is of other files than the source has now",
                allowed="the files that the state was saved with",
                fix="remove the added files and restore the missing ones, or start a new run",
            )
        return replace(cursor, parts_hash=parts_hash)

    def _nothing_to_train_on(self, dropped_tokens: int) -> DataError:
        settings = self._settings
        return DataError(
            "an epoch of the stream has no token to train on "
            f"({dropped_tokens} tokens were dropped, of documents longer than a row)",
            allowed="at least one training document that is not held out "
            f"(validation_fraction={settings.validation_fraction:g})",
            fix="add documents to the source, or set long_documents=split",
        )
