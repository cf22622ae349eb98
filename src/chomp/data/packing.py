"""Plans for rows of whole documents: which pieces share a row, computed from lengths alone.

No token is read here. Best-fit decreasing: pieces are placed longest first, each into the fullest
row that still has room. A plan holds every piece exactly once and no row is overfull.

The plan of a store is made once and kept beside its tokens, on disk, so that memory does not grow
with the corpus. It holds the hash of the store's manifest and checksums of its own arrays. All are
compared when the plan is opened; one that differs is made again.
"""

import atexit
import hashlib
import logging
import shutil
import tempfile
import uuid
from bisect import bisect_left, insort
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Int

from chomp.config import fingerprint
from chomp.data.progress import progress_bar
from chomp.data.store.array import FlatArray, FlatArrayWriter, checksum
from chomp.data.store.store import PACKING, TokenStore
from chomp.data.store.verify import PLAN, verify_plan
from chomp.errors import StorageError
from chomp.storage import exists, join, make_folder, remove_tree, rename_folder, write_json_atomic

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


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedDocuments:
    """Documents as rows of their pieces, in the order of rows."""

    document: Int[np.ndarray, " P"]
    offset: Int[np.ndarray, " P"]  # of the piece's first token in its document
    length: Int[np.ndarray, " P"]
    pieces_per_row: Int[np.ndarray, " R"]
    long_documents: int  # documents longer than a row
    dropped_tokens: int  # what "truncate" and "drop" leave out


def cut_documents(
    lengths: Int[np.ndarray, " N"], row_len: int, rule: LongDocuments
) -> tuple[Int[np.ndarray, " P"], Int[np.ndarray, " P"], Int[np.ndarray, " P"]]:
    """Pieces of at most `row_len` tokens: document, offset in it, and length of each.

    Documents longer than a row are split every `row_len` tokens, truncated to the first `row_len`,
    or dropped. An empty document makes no piece.
    """
    counts = -(-lengths // row_len)
    if rule != "split":
        counts = np.minimum(counts, 1)
    if rule == "drop":
        counts = np.where(lengths > row_len, 0, counts)
    document = np.repeat(np.arange(len(lengths)), counts)
    offset = row_len * (np.arange(len(document)) - (np.cumsum(counts) - counts)[document])
    return document, offset, np.minimum(lengths[document] - offset, row_len)


def pack(
    lengths: Int[np.ndarray, " P"], row_len: int, max_documents: int
) -> tuple[Int[np.ndarray, " P"], Int[np.ndarray, " R"]]:
    """Rows of at most `row_len` tokens and `max_documents` pieces that hold every piece once.

    Gives the pieces in the order of rows, ascending in each, and how many each row has. Pieces are
    of 1 to `row_len` tokens. Of the rows with equal room the one with the fewest free places is
    taken, of those the one that has waited longest. Rows are in the order of their first pieces, so
    a plan follows the order of documents as far as packing lets it. A quarter of a microsecond a
    piece (web lengths).
    """
    # Rows with equal room and equal free places are alike, so they wait in one queue. Its key is
    # `room * base + places`: sorted keys are rows from the fullest to the emptiest.
    base = max_documents + 1
    new_key = row_len * base + max_documents
    keys, queues = list[int](), dict[int, list[int]]()
    placed, num_rows = list[int](), 0  # the row of each piece, from the longest to the shortest
    sizes, counts = np.unique(lengths, return_counts=True)
    for size, left in zip(sizes[::-1].tolist(), counts[::-1].tolist(), strict=True):
        moved = list[tuple[int, list[int]]]()
        start = used = bisect_left(keys, size * base)
        while left:
            if used == len(keys):
                # As many new rows as the pieces need, so that none of them stays empty.
                count = -(-left // min(row_len // size, max_documents))
                keys.append(new_key)
                queues[new_key] = list(range(num_rows, num_rows + count))
                num_rows += count
            key = keys[used]
            room, places = divmod(key, base)
            # A row that took a piece is now the fullest with room, so it takes all that it can.
            each = min(room // size, places, left)
            rows = queues[key][: left // each]
            placed += rows if each == 1 else [row for row in rows for _ in range(each)]
            left -= each * len(rows)
            moved.append((key - each * (size * base + 1), rows))
            del queues[key][: len(rows)]
            used += not queues[key]
        for key in keys[start:used]:
            del queues[key]
        del keys[start:used]
        for key, rows in moved:
            if key < base or key % base == 0:
                continue  # no room or no place is left
            if key in queues:
                queues[key] += rows
            else:
                queues[key] = rows
                insort(keys, key)
    row_of_piece = np.empty(len(lengths), np.int64)
    row_of_piece[np.argsort(-lengths, kind="stable")] = placed
    # Rows are renumbered in the order of their first pieces. Written from the last piece to the
    # first, so a row's first piece is what stays.
    first_piece = np.empty(num_rows, np.int64)
    first_piece[row_of_piece[::-1]] = np.arange(len(row_of_piece))[::-1]
    rank = np.empty(num_rows, np.int64)
    rank[np.argsort(first_piece)] = np.arange(num_rows)
    row_of_piece = rank[row_of_piece]
    order = np.argsort(row_of_piece, kind="stable")
    return order, np.bincount(row_of_piece, minlength=num_rows)


def pack_documents(lengths: Int[np.ndarray, " N"], rule: PackingRule) -> PackedDocuments:
    """Documents of those lengths cut and packed into rows."""
    document, offset, length = cut_documents(lengths, rule.row_len, rule.long_documents)
    order, pieces_per_row = pack(length, rule.row_len, rule.max_documents)
    return PackedDocuments(
        document=document[order],
        offset=offset[order],
        length=length[order],
        pieces_per_row=pieces_per_row,
        long_documents=int((lengths > rule.row_len).sum()),
        dropped_tokens=int(lengths.sum() - length.sum()),
    )


def plan_folder(store: TokenStore, rule: PackingRule) -> str:
    """The folder of the store's plan by that rule, made if it is not there.

    Its name holds the hash of the store's manifest: a plan never outlives the tokens it is of.
    Where the store cannot be written, it is a temporary folder that goes when the process ends.
    """
    name = f"{rule.key}-{store.manifest.own_hash[:16]}"
    folder = join(store.path, PACKING, name)
    if exists(folder):
        problems = verify_plan(folder, store.manifest)
        if not problems:
            return folder
        log.warning("a plan of packed rows cannot be used and is made again: %s", problems[0])
    # Written aside and given its name at the end: another process, here or on another host, may
    # be making the same plan.
    aside = f"{folder}-{uuid.uuid4().hex[:8]}"
    try:
        make_folder(aside)
        write_plan(store, rule, aside, name)
        if exists(folder) and verify_plan(folder, store.manifest):
            remove_tree(folder)
        rename_folder(aside, folder)
    except BaseException as error:
        with suppress(StorageError):
            remove_tree(aside)
        if not isinstance(error, StorageError):
            raise
        if exists(folder) and not verify_plan(folder, store.manifest):
            return folder  # the other process was first
        log.warning(
            "the plan of packed rows cannot be kept in the store %s (%s). It is made at every "
            "start and kept in a temporary folder until the end. To keep it, run `chomp data build "
            "CONFIG` where the store may be written.",
            *(store.path, error),
        )
        folder = tempfile.mkdtemp(prefix="chomp-packing-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        write_plan(store, rule, folder, name)
    return folder


def write_plan(store: TokenStore, rule: PackingRule, folder: str, name: str) -> None:
    """Write the plan of that name into an empty folder: its arrays, then `plan.json`."""
    arrays = (ROW_ENDS, PIECE_STARTS, PIECE_LENGTHS)
    row_ends, starts, lengths = (
        FlatArrayWriter(
            join(folder, array), "int64", shard_len=PLAN_SHARD, chunk_len=_PLAN_CHUNK, is_new=True
        )
        for array in arrays
    )
    documents = store.documents
    num_rows = num_pieces = kept_tokens = dropped_tokens = long_documents = 0
    with progress_bar(
        f"packing {store.manifest.identity.name}", total=len(documents), unit="documents"
    ) as advance:
        for first in range(0, len(documents), PACKING_WINDOW):
            ends = documents.ends(first, min(first + PACKING_WINDOW, len(documents)))
            begins = np.concatenate([[documents.span(first)[0]], ends[:-1]])
            packed = pack_documents(ends - begins, rule)
            row_ends.write(num_rows, num_pieces + np.cumsum(packed.pieces_per_row))
            starts.write(num_pieces, begins[packed.document] + packed.offset)
            lengths.write(num_pieces, packed.length)
            num_rows += len(packed.pieces_per_row)
            num_pieces += len(packed.length)
            kept_tokens += int(packed.length.sum())
            dropped_tokens += packed.dropped_tokens
            long_documents += packed.long_documents
            advance(PACKING_WINDOW)
    plan = {
        "num_rows": num_rows,
        "num_pieces": num_pieces,
        "kept_tokens": kept_tokens,
        "dropped_tokens": dropped_tokens,
        "long_documents": long_documents,
        "store": store.manifest.own_hash,
        "name": name,
        "checksums": {
            array: [checksum(shard) for shard in FlatArray.open(join(folder, array)).shards()]
            for array in arrays
        },
        "own_hash": "",
    }
    write_json_atomic(join(folder, PLAN), {**plan, "own_hash": fingerprint(plan)})
