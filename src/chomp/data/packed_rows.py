"""Rows of whole documents: several short ones side by side, padding where none fits.

The plan (which pieces share a row) is made once per store and kept beside its tokens, on disk, so
that memory does not grow with the corpus. It holds the hash of the store's manifest and checksums
of its own arrays. All are compared when the plan is opened; one that differs is made again.
"""

import hashlib
import logging
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields

import numpy as np
from jaxtyping import Int

from chomp.config import fingerprint
from chomp.data.packing import PACKING_WINDOW, LongDocuments, PackedWindow, pack_windows
from chomp.data.progress import progress_bar
from chomp.data.rows import Piece, RowBatch, require_row_len, spread, too_small
from chomp.data.store.flat_array import FlatArray, FlatArrayWriter, checksum
from chomp.data.store.token_store import PACKING, TokenStore
from chomp.data.store.verify import PLAN, verify_plan
from chomp.errors import StorageError
from chomp.kernels.attention.mask import PAD_SEGMENT
from chomp.storage import exists, join, make_folder, read_json, remove_tree, rename_folder
from chomp.storage import write_json_atomic as write_json

log = logging.getLogger(__name__)

# Axes: N rows, T tokens of a row, P pieces.

_PLAN_VERSION = 1
_SHARD, _CHUNK = 1 << 18, 1 << 12


@dataclass(frozen=True, kw_only=True)
class PackingRule:
    """How documents become rows."""

    row_len: int
    max_documents: int  # pieces in one row
    long_documents: LongDocuments  # what happens to documents longer than a row

    @property
    def key(self) -> str:
        """A name for plans by this rule."""
        text = repr((_PLAN_VERSION, PACKING_WINDOW, self))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class PackingFigures:
    """What a plan did to the documents of a store."""

    num_rows: int = 0
    num_pieces: int = 0
    kept_tokens: int = 0
    dropped_tokens: int = 0  # by long_documents=truncate or drop
    long_documents: int = 0  # longer than a row

    def plus(self, window: PackedWindow) -> "PackingFigures":
        """The figures with one more window of documents."""
        return PackingFigures(
            num_rows=self.num_rows + len(window.pieces_per_row),
            num_pieces=self.num_pieces + len(window.length),
            kept_tokens=self.kept_tokens + int(window.length.sum()),
            dropped_tokens=self.dropped_tokens + window.dropped_tokens,
            long_documents=self.long_documents + window.long_documents,
        )


class PackedRows:
    """The packed rows of one store; row i is a function of i alone."""

    def __init__(self, store: TokenStore, rule: PackingRule) -> None:
        require_row_len(rule.row_len)
        self.store = store
        self.seq_len = rule.row_len
        folder = self._planned(rule)
        plan = read_json(join(folder, PLAN))
        figures = {field.name: plan[field.name] for field in fields(PackingFigures)}
        self.figures = PackingFigures(**figures)
        self.num_rows = self.figures.num_rows
        if self.num_rows == 0:
            kept = "lengthen train.seq_len, or set data.packing.long_documents to split or truncate"
            raise too_small(store, rule.row_len, "a document that is not dropped", kept)
        self._row_ends = FlatArray.open(join(folder, "row_ends"))
        self._starts = FlatArray.open(join(folder, "piece_starts"))
        self._lengths = FlatArray.open(join(folder, "piece_lengths"))

    def read(self, rows: Int[np.ndarray, " N"]) -> RowBatch:
        """Those rows, in the order asked for."""
        first, counts = self._pieces_of(rows)
        starts = self._starts.read(first, counts)
        lengths = self._lengths.read(first, counts)
        row_of_piece = np.repeat(np.arange(len(rows)), counts)
        number_in_row = np.arange(len(starts)) - np.repeat(np.cumsum(counts) - counts, counts)
        row_tokens = np.bincount(row_of_piece, lengths, minlength=len(rows))
        is_token = np.arange(self.seq_len) < row_tokens[:, None]
        segments = np.full(is_token.shape, PAD_SEGMENT, np.int32)
        segments[is_token] = np.repeat(number_in_row, lengths)
        weights = self.store.read_loss_weights(starts, lengths)
        return RowBatch(
            tokens=spread(self.store.read(starts, lengths), is_token.shape, is_token, np.int32),
            segment_ids=segments,
            loss_weights=None
            if weights is None
            else spread(weights, is_token.shape, is_token, np.float32),
        )

    def pieces(self, row: int) -> list[Piece]:
        """What a row is made of, in order."""
        first, counts = self._pieces_of(np.asarray([row]))
        lengths = self._lengths.read(first, counts)
        return [
            Piece(start=int(start), length=int(length), column=int(end - length))
            for start, length, end in zip(
                self._starts.read(first, counts), lengths, np.cumsum(lengths), strict=True
            )
        ]

    def rows_with(self, start: int, stop: int) -> list[int]:
        """The rows that hold any token of start..stop-1; reads the plan from its beginning."""
        found: set[int] = set()
        for first in range(0, len(self._starts), _SHARD):
            span = np.asarray([first]), np.asarray([min(_SHARD, len(self._starts) - first)])
            starts, lengths = self._starts.read(*span), self._lengths.read(*span)
            hits = first + np.flatnonzero((starts < stop) & (starts + lengths > start))
            found |= {self._row_of_piece(int(piece)) for piece in hits}
        return sorted(found)

    def _planned(self, rule: PackingRule) -> str:
        """The folder of the store's plan by that rule, which is made if it is not there.

        Its name holds the hash of the store's manifest: a plan never outlives the tokens it is of.
        Where the store cannot be written, the plan is in a temporary folder while it is in use.
        """
        store = self.store
        name = f"{rule.key}-{store.manifest.own_hash[:16]}"
        folder = join(store.path, PACKING, name)
        if is_there := exists(folder):
            problems = verify_plan(folder, store.manifest)
            if not problems:
                return folder
            log.warning("a plan of packed rows cannot be used and is made again: %s", problems[0])
        # Written aside and given its name at the end: another process, here or on another host, may
        # be making the same plan.
        aside = f"{folder}-{uuid.uuid4().hex[:8]}"
        try:
            make_folder(aside)
            _write_plan(store, rule, aside, name)
            if is_there:
                rename_folder(folder, f"{aside}-old")
                remove_tree(f"{aside}-old")
            rename_folder(aside, folder)
        except BaseException as error:
            with suppress(StorageError):
                remove_tree(aside)
            if not isinstance(error, StorageError):
                raise
            if exists(folder) and not verify_plan(folder, store.manifest):
                return folder
            reason = str(error)
        else:
            return folder
        temporary = tempfile.mkdtemp(prefix="chomp-packing-")
        weakref.finalize(self, shutil.rmtree, temporary, ignore_errors=True)
        log.warning(
            "the plan of packed rows cannot be kept in the store %s (%s). It is made at every "
            "start and kept in %s until the end. To keep it, open the store once where it may be "
            "written (chomp data forecast CONFIG).",
            *(store.path, reason, temporary),
        )
        _write_plan(store, rule, temporary, name)
        return temporary

    def _row_of_piece(self, piece: int) -> int:
        low, high = 0, self.num_rows - 1
        while low < high:
            middle = (low + high) // 2
            end = self._row_ends.read(np.asarray([middle]), np.asarray([1]))[0]
            low, high = (middle + 1, high) if end <= piece else (low, middle)
        return low

    def _pieces_of(
        self, rows: Int[np.ndarray, " N"]
    ) -> tuple[Int[np.ndarray, " N"], Int[np.ndarray, " N"]]:
        """The first piece of each row, and how many it has."""
        before = np.maximum(rows - 1, 0)
        ends = self._row_ends.read(before, np.full_like(rows, 2) - (rows == 0))
        last = np.cumsum(2 - (rows == 0)) - 1
        first = np.where(rows == 0, 0, ends[np.maximum(last - 1, 0)])
        return first, ends[last] - first


def _write_plan(store: TokenStore, rule: PackingRule, folder: str, name: str) -> None:
    arrays = ("row_ends", "piece_starts", "piece_lengths")
    row_ends, starts, lengths = (
        FlatArrayWriter(
            join(folder, array), "int64", shard_len=_SHARD, chunk_len=_CHUNK, is_new=True
        )
        for array in arrays
    )
    figures = PackingFigures()
    with progress_bar(
        f"packing {store.manifest.identity.name}", total=len(store.documents), unit="documents"
    ) as advance:
        for begins, window in _planned_windows(store, rule):
            ends = figures.num_pieces + np.cumsum(window.pieces_per_row)
            row_ends.write(figures.num_rows, ends)
            starts.write(figures.num_pieces, begins)
            lengths.write(figures.num_pieces, window.length)
            figures = figures.plus(window)
            advance(PACKING_WINDOW)
    checksums = {
        array: [checksum(shard) for shard in FlatArray.open(join(folder, array)).shards()]
        for array in arrays
    }
    plan = {
        **asdict(figures),
        "store": store.manifest.own_hash,
        "name": name,
        "checksums": checksums,
        "own_hash": "",
    }
    write_json(join(folder, PLAN), {**plan, "own_hash": fingerprint(plan)})


def _planned_windows(
    store: TokenStore, rule: PackingRule
) -> Iterator[tuple[Int[np.ndarray, " P"], PackedWindow]]:
    """Each window of documents as rows, with where its pieces begin in the store's line."""
    documents = store.documents
    for first in range(0, len(documents), PACKING_WINDOW):
        last = min(first + PACKING_WINDOW, len(documents))
        ends = documents.ends(first, last)
        begins = np.concatenate([[documents.span(first)[0]], ends[:-1]])
        (window,) = pack_windows(
            [(first, ends - begins)],
            rule.row_len,
            max_documents=rule.max_documents,
            rule=rule.long_documents,
        )
        yield begins[window.document - first] + window.offset, window
