"""The token store: the documents of one component and split as one long line of tokens on disk.

    <store>/manifest.json     counts, dtype, tokenizer hash, source fingerprint; written last
    <store>/tokens/           zarr3: every document's ids, each followed by the end-of-document id
    <store>/document_ends/    zarr3 int64: where each document ends in that line

A store without a manifest is unfinished and is refused. Every chunk carries a crc32c, and a chunk
that is missing is an error, so damage is found where it is read and never trained on.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import tensorstore as ts
from jaxtyping import Int, Integer

from chomp.data.documents import Split
from chomp.errors import DataError, message
from chomp.storage import exists, is_local, join, read_json

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
TOKENS = "tokens"
DOCUMENT_ENDS = "document_ends"

# A shard is one file; a chunk is the least that is read. 32 Ki tokens are 64 KiB as uint16.
SHARD_TOKENS = 1 << 23
CHUNK_TOKENS = 1 << 15
# Decoded chunks kept in memory, over all stores of the process.
CACHE_BYTES = 256 << 20

_CONTEXT = ts.Context({"cache_pool": {"total_bytes_limit": CACHE_BYTES}})


@dataclass(frozen=True, kw_only=True)
class StoreManifest:
    """What a finished store says about itself."""

    format_version: int
    name: str
    split: Split
    validation_fraction: float
    source_fingerprint: str
    tokenizer_hash: str
    eos_id: int
    num_tokens: int
    num_documents: int
    dtype: str


class TokenStore:
    """A finished store, open for reading."""

    def __init__(self, path: str, manifest: StoreManifest, tokens: Any, ends: Any) -> None:
        self.path = path
        self.manifest = manifest
        self._tokens = tokens
        self.document_ends: Int[np.ndarray, " N"] = self._read(ends)

    @staticmethod
    def open(path: str, *, tokenizer_hash: str) -> "TokenStore":
        """The store at `path`; it must be finished and made with that tokenizer."""
        manifest = read_manifest(path)
        if manifest.tokenizer_hash != tokenizer_hash:
            raise DataError(
                message(
                    given=f"store {path}, made with tokenizer {manifest.tokenizer_hash[:12]}",
                    allowed=f"a store made with this run's tokenizer, {tokenizer_hash[:12]}",
                    fix="build the store again with this tokenizer, or name the other tokenizer",
                )
            )
        try:
            tokens = ts.open(array_spec(path, TOKENS), open=True, context=_CONTEXT).result()
            ends = ts.open(array_spec(path, DOCUMENT_ENDS), open=True, context=_CONTEXT).result()
        except (ValueError, OSError) as error:
            raise _damaged(path, error) from error
        sizes = (tokens.shape[0], ends.shape[0])
        if sizes != (manifest.num_tokens, manifest.num_documents):
            counted = f"{sizes[0]} tokens and {sizes[1]} documents"
            raise _damaged(path, f"the arrays hold {counted}, which is not what the manifest says")
        return TokenStore(path, manifest, tokens, ends)

    @property
    def num_tokens(self) -> int:
        """Tokens of all documents, ends included."""
        return self.manifest.num_tokens

    def read_windows(
        self, starts: Int[np.ndarray, " N"], length: int
    ) -> list[Integer[np.ndarray, " L"]]:
        """The tokens from each start on, `length` of them or as many as there are."""
        ends = np.minimum(starts + length, self.num_tokens)
        futures = [self._tokens[a:b].read() for a, b in zip(starts, ends, strict=True)]
        try:
            return [np.asarray(future.result()) for future in futures]
        except (ValueError, OSError) as error:
            raise _damaged(self.path, error) from error

    def _read(self, array: Any) -> Int[np.ndarray, " N"]:
        try:
            return np.asarray(array.read().result())
        except (ValueError, OSError) as error:
            raise _damaged(self.path, error) from error


def array_spec(path: str, array: str) -> dict[str, Any]:
    """The TensorStore spec that opens one array of a store."""
    folder = join(path, array)
    kvstore = {"driver": "file", "path": folder + "/"} if is_local(path) else folder + "/"
    return {
        "driver": "zarr3",
        "kvstore": kvstore,
        # Without this a lost shard reads as zeros.
        "fill_missing_data_reads": False,
        # Chunks read since the store was opened are not looked at again. Not `False`: a store that
        # was deleted and built anew would be served from the chunks of the old one.
        "recheck_cached_data": "open",
    }


def read_manifest(path: str) -> StoreManifest:
    """The manifest of the finished store at `path`."""
    location = join(path, MANIFEST)
    if not exists(location):
        raise DataError(
            message(
                given=f"no finished token store at {path} ({MANIFEST} is missing)",
                allowed="a store whose building has ended",
                fix=f"correct the path, or delete {path}: the same command then builds it again",
            )
        )
    content = read_json(location)
    version = content.get("format_version") if isinstance(content, dict) else None
    if version != FORMAT_VERSION:
        raise DataError(
            message(
                given=f"store {path} of format {version}",
                allowed=f"format {FORMAT_VERSION}",
                fix="build the store again with this version of chomp",
            )
        )
    names = {field.name for field in fields(StoreManifest)}
    if names != content.keys():
        raise _damaged(path, f"{MANIFEST} holds other fields than {', '.join(sorted(names))}")
    return StoreManifest(**content)


def _damaged(path: str, reason: object) -> DataError:
    return DataError(
        message(
            given=f"token store {path} is damaged: {reason}",
            allowed="a store whose files are as they were written",
            fix=f"delete {path}: the same command then builds it again; nothing was trained on it",
        )
    )
