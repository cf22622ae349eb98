"""The token store: the documents of one component and split as one long line of tokens on disk.

    <store>/manifest.json     counts, checksums, tokenizer, source; written last
    <store>/tokens/           zarr3: every document's ids, each with its end-of-document id
    <store>/loss_weights/     zarr3 float32, only where documents bring their own: one per token
    <store>/document_ends/    zarr3 int64: where each document ends in that line
    <store>/document_marks/   zarr3 int64: every 256th of those ends
    <store>/locations/        zarr3 int64: which record of which part of the source a document was
    <store>/parts.json        the names of those parts

A store without a manifest is unfinished and is refused. Every chunk carries a crc32c, and a chunk
that is missing is an error, so damage is found where it is read and never trained on.
"""

from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Integer

from chomp.config import fingerprint
from chomp.data.documents import Split
from chomp.data.store.document_index import DocumentIndex
from chomp.data.store.flat_array import FlatArray, damaged
from chomp.data.store.locations import DocumentLocations
from chomp.errors import DataError, message
from chomp.storage import exists, join, read_json

FORMAT_VERSION = 2
MANIFEST = "manifest.json"
PARTS = "parts.json"
TOKENS = "tokens"
LOSS_WEIGHTS = "loss_weights"
DOCUMENT_ENDS = "document_ends"
DOCUMENT_MARKS = "document_marks"
LOCATIONS = "locations"
PACKING = "packing"  # plans of packed rows, made when they are first asked for

# Axes: N pieces of the line, L tokens of all of them.


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
    # By array: the checksum of the numbers in each of its shards. Of the parts: of their names.
    checksums: dict[str, list[str]]
    own_hash: str = ""  # of all the above, so that an edited manifest is found out

    def hash_of_content(self) -> str:
        """SHA-256 of everything but `own_hash`."""
        return fingerprint({**asdict(self), "own_hash": ""})

    def fingerprint(self) -> str:
        """SHA-256 of what the store is made from and of its content, wherever its files were."""
        content = {name: sums for name, sums in self.checksums.items() if name != PARTS}
        return fingerprint([self.identity, content])


class TokenStore:
    """A finished store, open for reading."""

    def __init__(self, path: str, manifest: StoreManifest) -> None:
        self.path = path
        self.manifest = manifest
        self._tokens = self._open(TOKENS, manifest.num_tokens)
        self._loss_weights = (
            self._open(LOSS_WEIGHTS, manifest.num_tokens) if manifest.has_loss_weights else None
        )
        ends = self._open(DOCUMENT_ENDS, manifest.num_documents)
        marks = FlatArray.open(join(path, DOCUMENT_MARKS)).read_all()
        self.documents = DocumentIndex(ends, marks)

    @staticmethod
    def open(path: str, *, tokenizer_hash: str | None = None) -> "TokenStore":
        """The store at `path`; it must be finished and, if a hash is given, of that tokenizer."""
        manifest = read_manifest(path)
        made_with = manifest.identity.tokenizer_hash
        if tokenizer_hash is not None and made_with != tokenizer_hash:
            raise DataError(
                message(
                    given=f"store {path}, made with tokenizer {made_with[:12]}",
                    allowed=f"a store made with this run's tokenizer, {tokenizer_hash[:12]}",
                    fix="build the store again with this tokenizer, or name the other tokenizer",
                )
            )
        return TokenStore(path, manifest)

    @property
    def num_tokens(self) -> int:
        """Tokens of all documents, ends included."""
        return self.manifest.num_tokens

    @cached_property
    def locations(self) -> DocumentLocations:
        """Where each document came from."""
        numbers = self._open(LOCATIONS, self.manifest.num_documents)
        parts = read_json(join(self.path, PARTS))
        if fingerprint(parts) != self.manifest.checksums[PARTS][0]:
            raise damaged(self.path, f"{PARTS} was changed after it was written")
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

    def _open(self, array: str, size: int) -> FlatArray:
        opened = FlatArray.open(join(self.path, array))
        if len(opened) != size:
            raise damaged(
                self.path, f"{array} holds {len(opened)} numbers, the manifest says {size}"
            )
        return opened


def read_manifest(path: str) -> StoreManifest:
    """The manifest of the finished store at `path`."""
    location = join(path, MANIFEST)
    if not exists(location):
        raise DataError(
            message(
                given=f"no finished token store at {path} ({MANIFEST} is missing)",
                allowed="a store whose building has ended",
                fix="correct the path, or run the command that builds the store: it goes on where "
                "it was stopped",
            )
        )
    content = read_json(location)
    version = content.get("format_version") if isinstance(content, dict) else None
    if version != FORMAT_VERSION:
        raise DataError(
            message(
                given=f"store {path} of format {version}",
                allowed=f"format {FORMAT_VERSION}",
                fix=f"delete {path} and build the store again with this version of chomp",
            )
        )
    identity = _exactly(StoreIdentity, content.get("identity"), path)
    manifest: StoreManifest = _exactly(StoreManifest, {**content, "identity": identity}, path)
    if manifest.own_hash != manifest.hash_of_content():
        raise damaged(path, f"{MANIFEST} was changed after it was written")
    return manifest


def _exactly(kind: Any, content: Any, path: str) -> Any:
    names = {field.name for field in fields(kind)}
    if not isinstance(content, dict) or names != content.keys():
        raise damaged(path, f"{MANIFEST} holds other fields than {', '.join(sorted(names))}")
    return kind(**content)
