"""Plans for rows of whole documents: which pieces share a row, computed from lengths alone.

No token is read here. Best-fit decreasing: pieces are placed longest first, each into the fullest
row that still has room. A plan holds every piece exactly once and no row is overfull.

The plan of a store is made once and kept beside its tokens, on disk, so that memory does not grow
with the corpus. It holds the hash of the store's manifest and checksums of its own arrays. All are
compared when the plan is opened; one that differs is made again.
"""

import hashlib
import logging
import tempfile
import uuid
from bisect import bisect_left, insort
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
from jaxtyping import Int

from chomp.config import fingerprint
from chomp.data.progress import progress_bar
from chomp.data.store.array import FlatArray, FlatArrayWriter, checksum
from chomp.data.store.store import PACKING, TokenStore
from chomp.data.store.verify import PLAN, verify_plan
from chomp.errors import DataError, StorageError
from chomp.storage import (
    exists,
    join,
    make_folder,
    remove_tree,
    rename_folder,
    write_json_atomic,
)

log = logging.getLogger(__name__)

# Axes: N documents, P pieces, R rows.

LongDocuments = Literal["split", "truncate", "drop"]

# Documents planned together. Memory is bounded by it, and what the last rows of a window waste is
# a few rows in ten thousands.
PACKING_WINDOW = 1 << 18
_PLAN_VERSION = 1
# Of the arrays of a plan on disk.
PLAN_SHARD, _PLAN_CHUNK = 1 << 18, 1 << 12
ROW_ENDS, PIECE_STARTS, PIECE_LENGTHS = "row_ends", "piece_starts", "piece_lengths"


@dataclass(frozen=True, kw_only=True, eq=False)
class Pieces:
    """Documents cut to the length of a row; pieces are in the order of documents and offsets."""

    document: Int[np.ndarray, " P"]
    offset: Int[np.ndarray, " P"]  # of the piece's first token in its document
    length: Int[np.ndarray, " P"]
    dropped_tokens: int  # what "truncate" and "drop" leave out


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedPlan:
    """Row i holds the pieces `order[row_ends[i - 1] : row_ends[i]]`, in ascending order."""

    order: Int[np.ndarray, " P"]
    row_ends: Int[np.ndarray, " R"]

    @property
    def pieces_per_row(self) -> Int[np.ndarray, " R"]:
        """How many pieces each row holds."""
        return np.diff(self.row_ends, prepend=0)


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedDocuments:
    """Documents as rows of their pieces, in the order of rows."""

    document: Int[np.ndarray, " P"]
    offset: Int[np.ndarray, " P"]
    length: Int[np.ndarray, " P"]
    pieces_per_row: Int[np.ndarray, " R"]
    long_documents: int  # documents longer than a row
    dropped_tokens: int


def cut_documents(lengths: Int[np.ndarray, " N"], row_len: int, rule: LongDocuments) -> Pieces:
    """The documents as pieces of at most `row_len` tokens; an empty document makes none.

    Documents longer than a row are split every `row_len` tokens, truncated to the first `row_len`,
    or dropped.
    """
    if rule == "split":
        counts = -(-lengths // row_len)
    elif rule == "truncate":
        counts = (lengths > 0).astype(np.int64)
    else:
        counts = ((lengths > 0) & (lengths <= row_len)).astype(np.int64)
    document = np.repeat(np.arange(len(lengths)), counts)
    number_in_document = np.arange(len(document)) - (np.cumsum(counts) - counts)[document]
    offset = number_in_document * row_len
    length = np.minimum(lengths[document] - offset, row_len)
    return Pieces(
        document=document,
        offset=offset,
        length=length,
        dropped_tokens=int(lengths.sum() - length.sum()),
    )


def pack(lengths: Int[np.ndarray, " P"], row_len: int, max_documents: int) -> PackedPlan:
    """Rows of at most `row_len` tokens and `max_documents` pieces that hold every piece once.

    Of the rows with equal room the one with the fewest free places is taken, of those the one that
    has waited longest. Rows are in the order of their first pieces, so a plan follows the order of
    documents as far as packing lets it. A quarter of a microsecond a piece (web lengths).
    """
    if max_documents < 1 or row_len < 1:
        raise DataError(
            f"rows of {row_len} tokens and {max_documents} documents",
            allowed="at least 1 token and at least 1 document",
            fix="raise the row length, or the limit on documents in a row",
        )
    if len(lengths) and not 1 <= lengths.min() <= lengths.max() <= row_len:
        raise DataError(
            f"pieces of {lengths.min()} to {lengths.max()} tokens for rows of {row_len}",
            allowed=f"pieces of 1 to {row_len} tokens",
            fix="cut the documents with cut_documents first",
        )
    open_rows, rows = _OpenRows(row_len, max_documents), list[int]()
    sizes, counts = np.unique(lengths, return_counts=True)
    for size, count in zip(sizes[::-1].tolist(), counts[::-1].tolist(), strict=True):
        rows += open_rows.place(size, count)
    num_rows = max(rows, default=-1) + 1
    row_of_piece = np.empty(len(lengths), np.int64)
    row_of_piece[np.argsort(-lengths, kind="stable")] = rows
    # Rows are renumbered in the order of their first pieces. Written from the last piece to the
    # first, so a row's first piece is what stays.
    first_piece = np.empty(num_rows, np.int64)
    first_piece[row_of_piece[::-1]] = np.arange(len(row_of_piece))[::-1]
    rank = np.empty(num_rows, np.int64)
    rank[np.argsort(first_piece)] = np.arange(num_rows)
    row_of_piece = rank[row_of_piece]
    return PackedPlan(
        order=np.argsort(row_of_piece, kind="stable"),
        row_ends=np.cumsum(np.bincount(row_of_piece, minlength=num_rows)),
    )


def pack_documents(
    lengths: Int[np.ndarray, " N"], row_len: int, *, max_documents: int, rule: LongDocuments
) -> PackedDocuments:
    """Documents of those lengths cut and packed into rows."""
    pieces = cut_documents(lengths, row_len, rule)
    plan = pack(pieces.length, row_len, max_documents)
    return PackedDocuments(
        document=pieces.document[plan.order],
        offset=pieces.offset[plan.order],
        length=pieces.length[plan.order],
        pieces_per_row=plan.pieces_per_row,
        long_documents=int((lengths > row_len).sum()),
        dropped_tokens=pieces.dropped_tokens,
    )


class _OpenRows:
    """Rows that still have room, and the one rule of best fit.

    Rows with equal room and equal free places are alike, so they wait in one queue. Its key is
    `room * base + places`: sorted keys are rows from the fullest to the emptiest.
    """

    def __init__(self, row_len: int, max_documents: int) -> None:
        self._base = max_documents + 1
        self._new_key = row_len * self._base + max_documents
        self._new_capacity = row_len, max_documents
        self._num_rows = 0
        self._keys: list[int] = []
        self._queues: dict[int, list[int]] = {}

    def place(self, size: int, left: int) -> list[int]:
        """The rows that take `left` pieces of one size, which is below all sizes before it."""
        keys, placed, moved = self._keys, list[int](), list[tuple[int, list[int]]]()
        start = used = bisect_left(keys, size * self._base)
        while left:
            if used == len(keys):
                # As many new rows as the pieces need, so that none of them stays empty.
                row_len, max_documents = self._new_capacity
                count = -(-left // min(row_len // size, max_documents))
                keys.append(self._new_key)
                self._queues[self._new_key] = list(range(self._num_rows, self._num_rows + count))
                self._num_rows += count
            room, places = divmod(keys[used], self._base)
            queue = self._queues[keys[used]]
            # A row that took a piece is now the fullest with room, so it takes all that it can.
            each = min(room // size, places, left)
            rows = queue[: left // each]
            placed += rows if each == 1 else [row for row in rows for _ in range(each)]
            left -= each * len(rows)
            moved.append((keys[used] - each * (size * self._base + 1), rows))
            del queue[: len(rows)]
            used += not queue
        for key in keys[start:used]:
            del self._queues[key]
        del keys[start:used]
        for key, rows in moved:
            if key < self._base or key % self._base == 0:
                continue  # no room or no place is left
            if key in self._queues:
                self._queues[key] += rows
            else:
                self._queues[key] = rows
                insort(keys, key)
        return placed


# --- the plan of a store, on disk ---------------------------------------------------------------


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


def plan_folder(store: TokenStore, rule: PackingRule) -> tuple[str, bool]:
    """The folder of the store's plan by that rule, made if it is not there; whether it is kept.

    Its name holds the hash of the store's manifest: a plan never outlives the tokens it is of.
    Where the store cannot be written, the plan is in a temporary folder, for the caller to remove.
    """
    name = f"{rule.key}-{store.manifest.own_hash[:16]}"
    folder = join(store.path, PACKING, name)
    if is_there := exists(folder):
        problems = verify_plan(folder, store.manifest)
        if not problems:
            return folder, True
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
            return folder, True
        log.warning(
            "the plan of packed rows cannot be kept in the store %s (%s). It is made at every "
            "start and kept in a temporary folder until the end. To keep it, open the store once "
            "where it may be written (chomp data forecast CONFIG).",
            *(store.path, error),
        )
        temporary = tempfile.mkdtemp(prefix="chomp-packing-")
        _write_plan(store, rule, temporary, name)
        return temporary, False
    return folder, True


def _write_plan(store: TokenStore, rule: PackingRule, folder: str, name: str) -> None:
    arrays = (ROW_ENDS, PIECE_STARTS, PIECE_LENGTHS)
    row_ends, starts, lengths = (
        FlatArrayWriter(
            join(folder, array), "int64", shard_len=PLAN_SHARD, chunk_len=_PLAN_CHUNK, is_new=True
        )
        for array in arrays
    )
    figures, documents = PackingFigures(), store.documents
    with progress_bar(
        f"packing {store.manifest.identity.name}", total=len(documents), unit="documents"
    ) as advance:
        for first in range(0, len(documents), PACKING_WINDOW):
            ends = documents.ends(first, min(first + PACKING_WINDOW, len(documents)))
            begins = np.concatenate([[documents.span(first)[0]], ends[:-1]])
            packed = pack_documents(
                ends - begins,
                rule.row_len,
                max_documents=rule.max_documents,
                rule=rule.long_documents,
            )
            row_ends.write(figures.num_rows, figures.num_pieces + np.cumsum(packed.pieces_per_row))
            starts.write(figures.num_pieces, begins[packed.document] + packed.offset)
            lengths.write(figures.num_pieces, packed.length)
            figures = PackingFigures(
                num_rows=figures.num_rows + len(packed.pieces_per_row),
                num_pieces=figures.num_pieces + len(packed.length),
                kept_tokens=figures.kept_tokens + int(packed.length.sum()),
                dropped_tokens=figures.dropped_tokens + packed.dropped_tokens,
                long_documents=figures.long_documents + packed.long_documents,
            )
            advance(PACKING_WINDOW)
    plan = {
        **asdict(figures),
        "store": store.manifest.own_hash,
        "name": name,
        "checksums": {
            array: [checksum(shard) for shard in FlatArray.open(join(folder, array)).shards()]
            for array in arrays
        },
        "own_hash": "",
    }
    write_json_atomic(join(folder, PLAN), {**plan, "own_hash": fingerprint(plan)})
