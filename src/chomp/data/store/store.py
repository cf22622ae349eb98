"""The token store: the documents of one component and split as one long line of tokens on disk.

    <store>/manifest.json     counts, checksums, tokenizer, source; written last
    <store>/tokens/           zarr3: every document's ids, each with its end-of-document id
    <store>/loss_weights/     zarr3 float32, only where documents bring their own: one per token
    <store>/document_ends/    zarr3 int64: where each document ends in that line
    <store>/document_marks/   zarr3 int64: every 256th of those ends
    <store>/locations/        zarr3 int64: which record of which part of the source a document was
    <store>/parts.json        the names of those parts
    <store>/*/chunk_checksums crc32 of every chunk of the array, four bytes each, in order

A store without a manifest is unfinished and is refused. The manifest has the hashes of itself and
of the chunks' checksums, so damage and files of another place or store are found where they are
read and never trained on.

The ends of documents are read when they are needed; every 256th is a mark that is kept in memory.
A part is a file, or whatever else a source counts its records in. The name of a document is the
name of its part if the part is one document, else `part:record`.
"""

import bisect
import logging
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int, Integer, UInt32

from chomp.config import fingerprint
from chomp.data.documents import Position, Split
from chomp.data.store.array import FlatArray, checksum, damaged
from chomp.errors import DataError
from chomp.storage import exists, join, read_bytes, read_json

# Axes: N windows or pieces of the line, M beginnings of documents in them, L tokens of all of
# them, C chunks of an array.

# Between two marks lie 2 KiB: one read. At 500 tokens a document, a corpus of 10**12 tokens has
# 62 MB of marks.
DOCUMENTS_PER_MARK = 256
# A location is one number: the part in the high bits, the record in the low ones.
_RECORD_BITS = 40
_RECORD = re.compile(r"[0-9]{1,13}")  # as many digits as the bits have
log = logging.getLogger(__name__)
FORMAT_VERSION = 2
MANIFEST = "manifest.json"
PARTS = "parts.json"
TOKENS = "tokens"
LOSS_WEIGHTS = "loss_weights"
DOCUMENT_ENDS = "document_ends"
DOCUMENT_MARKS = "document_marks"
LOCATIONS = "locations"
CHUNK_CHECKSUMS = "chunk_checksums"  # in the folder of each array
PACKING = "packing"  # plans of packed rows, by `data build` or the first start
_WEIGHTS_AT_ONCE = 1 << 20  # while one above 0 is looked for
_warned: set[str] = set()  # of stores without checksums of their chunks


class DocumentIndex:
    """The ends of a store's documents, open for questions."""

    def __init__(self, ends: FlatArray, marks: Int[np.ndarray, " K"]) -> None:
        self._ends = ends
        self._marks = marks

    def __len__(self) -> int:
        return len(self._ends)

    def span(self, document: int) -> tuple[int, int]:
        """Where a document begins and ends in the line of tokens."""
        first = max(document - 1, 0)
        ends = self.ends(first, document + 1)
        return (int(ends[0]) if document else 0), int(ends[-1])

    def ends(self, first: int, last: int) -> Int[np.ndarray, " D"]:
        """The ends of documents first..last-1."""
        return self._ends.read(np.asarray([first]), np.asarray([last - first]))

    def beginnings(
        self, starts: Int[np.ndarray, " N"], lengths: Int[np.ndarray, " N"]
    ) -> tuple[Int[np.ndarray, " N"], Int[np.ndarray, " M"], Int[np.ndarray, " M"]]:
        """For windows of the line: the document of each first token, and where others begin.

        The last two go together: a window, and the place in it at which a further document begins.
        A document of which the window holds only the first token begins in it too.
        """
        stops = starts + lengths
        # A token belongs to the first document that ends after it.
        first = np.searchsorted(self._marks, starts, side="right") * DOCUMENTS_PER_MARK
        last = (np.searchsorted(self._marks, stops, side="left") + 1) * DOCUMENTS_PER_MARK
        counts = np.minimum(last, len(self)) - first
        ends = self._ends.read(first, counts)
        window = np.repeat(np.arange(len(starts)), counts)
        passed = np.bincount(window[ends <= starts[window]], minlength=len(starts))
        inside = (ends > starts[window]) & (ends < stops[window])
        window = window[inside]
        return first + passed, window, ends[inside] - starts[window]


def marks_of(ends: FlatArray) -> Int[np.ndarray, " K"]:
    """Every 256th end, in order: what an index keeps in memory."""
    places = np.arange(DOCUMENTS_PER_MARK - 1, len(ends), DOCUMENTS_PER_MARK)
    return ends.read(places, np.ones_like(places))


def location_of(position: Position) -> int:
    """A position as the one number that stores hold; in the order of positions."""
    if position.part >= 1 << (63 - _RECORD_BITS) or position.record >= 1 << _RECORD_BITS:
        raise DataError(
            f"record {position.record} in file {position.part} of a source",
            allowed=f"at most {1 << (63 - _RECORD_BITS):,} files in one component",
            fix="put several documents into one file, as JSON lines, or make two components",
        )
    return position.part << _RECORD_BITS | position.record


def position_of(location: int) -> Position:
    """The position that a number stands for."""
    return Position(part=location >> _RECORD_BITS, record=location & ((1 << _RECORD_BITS) - 1))


class DocumentLocations:
    """The location of every document of a store, by number; they only go up."""

    def __init__(self, numbers: FlatArray, parts: Sequence[str], *, has_whole_parts: bool) -> None:
        self._numbers = numbers
        self._parts = parts
        self._has_whole_parts = has_whole_parts  # each part is one document, which has its name

    def document_id(self, document: int) -> str:
        """The name that finds the document again in its source."""
        position = position_of(self[document])
        name = self._parts[position.part]
        return name if self._has_whole_parts else f"{name}:{position.record}"

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, document: int) -> int:
        return int(self._numbers.read(np.asarray([document]), np.asarray([1]))[0])

    def find(self, document_id: str) -> int | None:
        """The number of the document with that name; None if it is not in this store."""
        name, record = document_id, "0"
        if not self._has_whole_parts:
            name, _, record = document_id.rpartition(":")
        if name not in self._parts or not _RECORD.fullmatch(record):
            return None
        if int(record) >> _RECORD_BITS:
            return None
        wanted = location_of(Position(part=self._parts.index(name), record=int(record)))
        found = bisect.bisect_left(self, wanted)
        is_found = found < len(self) and self.document_id(found) == document_id
        return found if is_found else None


@dataclass(frozen=True, kw_only=True)
class StoreIdentity:
    """What a store is made from: two builds with one identity make the same store."""

    name: str
    split: Split
    validation_fraction: float
    source_fingerprint: str
    format_fingerprint: str
    tokenizer_hash: str
    max_documents: int | None = None  # only the first so many of the split; None: all


@dataclass(frozen=True, kw_only=True)
class StoreManifest:
    """What a finished store says about itself."""

    format_version: int
    identity: StoreIdentity
    eos_id: int
    num_tokens: int
    num_documents: int
    dtype: str
    has_loss_weights: bool
    # By array: the checksum of the numbers in each of its shards. Of the parts: of their names. Of
    # "tokens/chunk_checksums" and its like: of the file.
    checksums: dict[str, list[str]]
    own_hash: str = ""  # of all the above, so that an edited manifest is found out

    def hash_of_content(self) -> str:
        """SHA-256 of everything but `own_hash`."""
        return fingerprint({**asdict(self), "own_hash": ""})

    def fingerprint(self) -> str:
        """SHA-256 of what the store is made from and of its content, wherever its files were."""
        names = (TOKENS, LOSS_WEIGHTS, DOCUMENT_ENDS, LOCATIONS)
        content = {name: self.checksums[name] for name in names if name in self.checksums}
        return fingerprint([self.identity, content])

    @property
    def arrays(self) -> dict[str, tuple[str, int]]:
        """The type and the size of each array of the store."""
        sizes = {
            TOKENS: (self.dtype, self.num_tokens),
            LOSS_WEIGHTS: ("float32", self.num_tokens),
            DOCUMENT_ENDS: ("int64", self.num_documents),
            DOCUMENT_MARKS: ("int64", self.num_documents // DOCUMENTS_PER_MARK),
            LOCATIONS: ("int64", self.num_documents),
        }
        if not self.has_loss_weights:
            del sizes[LOSS_WEIGHTS]
        return sizes


class TokenStore:
    """A finished store, open for reading."""

    def __init__(self, path: str, manifest: StoreManifest) -> None:
        self.path = path
        self.manifest = manifest
        self._tokens = self._open(TOKENS)
        self._loss_weights = self._open(LOSS_WEIGHTS) if manifest.has_loss_weights else None
        self.documents = DocumentIndex(
            self._open(DOCUMENT_ENDS), self._open(DOCUMENT_MARKS).read_all()
        )
        if f"{TOKENS}/{CHUNK_CHECKSUMS}" not in manifest.checksums and path not in _warned:
            _warned.add(path)
            log.warning(
                "STORE %s HAS NO CHECKSUMS OF ITS CHUNKS BY PLACE: an earlier version built it. "
                "Its chunks are only checked for damage; one of another place or store is not "
                "found. Run `chomp data verify`, which compares shards, or build the store again.",
                path,
            )

    @staticmethod
    def open(path: str, *, tokenizer_hash: str | None = None) -> "TokenStore":
        """The store at `path`; it must be finished and, if a hash is given, of that tokenizer."""
        manifest = read_manifest(path)
        made_with = manifest.identity.tokenizer_hash
        if tokenizer_hash is not None and made_with != tokenizer_hash:
            raise DataError(
                f"store {path} was made with tokenizer {made_with[:12]}",
                allowed=f"a store made with this run's tokenizer, {tokenizer_hash[:12]}",
                fix="build the store again, or use the tokenizer that it was made with",
            )
        return TokenStore(path, manifest)

    @property
    def num_tokens(self) -> int:
        """Tokens of all documents, ends included."""
        return self.manifest.num_tokens

    @cached_property
    def locations(self) -> DocumentLocations:
        """Where each document came from."""
        numbers = self._open(LOCATIONS)
        parts = read_json(join(self.path, PARTS))
        if fingerprint(parts) != self.manifest.checksums[PARTS][0]:
            raise damaged(join(self.path, PARTS), "it was changed after it was written")
        return DocumentLocations(numbers, parts["names"], has_whole_parts=parts["has_whole_parts"])

    def read(
        self, starts: Int[np.ndarray, " N"], lengths: Int[np.ndarray, " N"]
    ) -> Integer[np.ndarray, " L"]:
        """The tokens from each start on, `lengths` of them, all pieces in one line."""
        return self._tokens.read(starts, lengths)

    def read_loss_weights(
        self, starts: Int[np.ndarray, " N"], lengths: Int[np.ndarray, " N"]
    ) -> Float[np.ndarray, " L"] | None:
        """The weights that belong to those tokens; None where the store has none."""
        return None if self._loss_weights is None else self._loss_weights.read(starts, lengths)

    def has_counted_tokens(self) -> bool:
        """Whether a loss weight is above 0. Reads up to the first such, which is mostly near."""
        if self._loss_weights is None:
            return True
        starts = range(0, self.num_tokens, _WEIGHTS_AT_ONCE)
        lengths = (min(_WEIGHTS_AT_ONCE, self.num_tokens - start) for start in starts)
        return any(
            self._loss_weights.read(np.asarray([start]), np.asarray([length])).any()
            for start, length in zip(starts, lengths, strict=True)
        )

    def _open(self, name: str) -> FlatArray:
        dtype, size = self.manifest.arrays[name]
        path = join(self.path, name)
        array = FlatArray.open(path, read_chunk_checksums(path, self.manifest, name))
        if len(array) != size or array.dtype != dtype:
            found = f"{len(array)} numbers of type {array.dtype}"
            fault = f"it says {found}, the manifest says {size} of type {dtype}"
            raise damaged(f"{path}/zarr.json", fault)
        return array


def read_chunk_checksums(
    path: str, manifest: StoreManifest, name: str
) -> UInt32[np.ndarray, " C"] | None:
    """The crc32 of each chunk of the array at `path`; None for a store built before they were."""
    expected = manifest.checksums.get(f"{name}/{CHUNK_CHECKSUMS}")
    if expected is None:
        return None
    # An array has no more chunks than numbers.
    content = read_bytes(f"{path}/{CHUNK_CHECKSUMS}", max_bytes=4 * manifest.arrays[name][1])
    if [checksum(np.frombuffer(content, np.uint8))] != expected:
        raise damaged(f"{path}/{CHUNK_CHECKSUMS}", "it was changed after it was written")
    return np.frombuffer(content, np.uint32)


def read_manifest(path: str) -> StoreManifest:
    """The manifest of the finished store at `path`."""
    location = join(path, MANIFEST)
    if not exists(location):
        raise DataError(
            f"no finished token store at {path} ({MANIFEST} is missing)",
            allowed="a finished store",
            fix="correct the path, or run the command that builds the store: it continues where "
            "it stopped",
        )
    content = read_json(location)
    version = content.get("format_version") if isinstance(content, dict) else None
    if version != FORMAT_VERSION:
        raise DataError(
            f"store {path} has format {version}",
            allowed=f"format {FORMAT_VERSION}",
            fix=f"use the version of chomp that wrote it, or move {path} away: the same "
            "command then builds it with this version",
        )
    for kind, given in ((StoreIdentity, content.get("identity")), (StoreManifest, content)):
        names = {field.name for field in fields(kind)}
        if not isinstance(given, dict) or names != given.keys():
            raise DataError(
                f"{location}, which is not the manifest of a token store",
                allowed=f"an object with the fields {', '.join(sorted(names))}",
                fix="correct the path; if a store was built there, bring the file back, or move "
                "the store away, and the same command builds it again",
            )
    if content["own_hash"] != fingerprint({**content, "own_hash": ""}):
        raise damaged(location, "it was changed after it was written")
    return StoreManifest(**{**content, "identity": StoreIdentity(**content["identity"])})
