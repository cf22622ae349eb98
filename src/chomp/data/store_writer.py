"""Writing a token store: documents go in, whole shards go to disk, the manifest comes last.

Only the format lives here; which documents, and what a failure means for a build, is for `build`.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import tensorstore as ts
from jaxtyping import Integer

from chomp.data.documents import Document, Split
from chomp.data.store import (
    CHUNK_TOKENS,
    DOCUMENT_ENDS,
    FORMAT_VERSION,
    MANIFEST,
    SHARD_TOKENS,
    TOKENS,
    StoreManifest,
    array_spec,
)
from chomp.errors import StorageError, message
from chomp.storage import join, make_folder, remove_tree, write_json_atomic
from chomp.tokenize import Tokenizer


class StoreWriter:
    """Appends documents to a new store's two arrays and, at the end, writes the manifest.

    Arrays that an unfinished build left at `path` are removed; whatever else is there stays.
    """

    def __init__(
        self,
        path: str,
        tokenizer: Tokenizer,
        *,
        shard_tokens: int = SHARD_TOKENS,
        chunk_tokens: int = CHUNK_TOKENS,
    ) -> None:
        self._path = path
        self._tokenizer = tokenizer
        self._shard_tokens = shard_tokens
        self._chunk_tokens = chunk_tokens
        self._dtype = "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"
        make_folder(path)
        for array in (TOKENS, DOCUMENT_ENDS):
            remove_tree(join(path, array))
        self._tokens = self._create_array(TOKENS, self._dtype)
        self._pending: list[np.ndarray] = []
        self._num_pending = 0
        self._num_written = 0
        self._ends: list[int] = []

    @property
    def num_documents(self) -> int:
        """Documents appended so far."""
        return len(self._ends)

    def append(self, documents: Sequence[Document]) -> None:
        """Tokenize and append, each document with its end."""
        for ids in self._tokenizer.encode_batch([document.text for document in documents]):
            self._pending.append(np.asarray([*ids, self._tokenizer.eos_id], self._dtype))
            self._num_pending += len(ids) + 1
            self._ends.append(self._num_written + self._num_pending)
        # Whole shards only: a shard written twice would be read back to be written again.
        while self._num_pending >= self._shard_tokens:
            self._flush(self._shard_tokens)

    def finish(
        self, *, name: str, split: Split, validation_fraction: float, source_fingerprint: str
    ) -> None:
        """Write what is left, the document ends, and last the manifest."""
        self._flush(self._num_pending)
        ends = self._create_array(DOCUMENT_ENDS, "int64")
        self._write(ends, 0, np.asarray(self._ends, np.int64))
        manifest = StoreManifest(
            format_version=FORMAT_VERSION,
            name=name,
            split=split,
            validation_fraction=validation_fraction,
            source_fingerprint=source_fingerprint,
            tokenizer_hash=self._tokenizer.content_hash,
            eos_id=self._tokenizer.eos_id,
            num_tokens=self._num_written,
            num_documents=len(self._ends),
            dtype=self._dtype,
        )
        write_json_atomic(join(self._path, MANIFEST), asdict(manifest))

    def _flush(self, count: int) -> None:
        line = np.concatenate([np.empty(0, self._dtype), *self._pending])
        self._tokens = self._write(self._tokens, self._num_written, line[:count])
        self._pending = [line[count:]]
        self._num_pending -= count
        self._num_written += count

    def _create_array(self, array: str, dtype: str) -> Any:
        little_endian = {"name": "bytes", "configuration": {"endian": "little"}}
        # crc32c: without it a flipped byte reads as another token.
        codecs = [little_endian, {"name": "crc32c"}]
        sharding = {"chunk_shape": [self._chunk_tokens], "codecs": codecs, "index_codecs": codecs}
        spec = {
            **array_spec(self._path, array),
            "metadata": {
                "data_type": dtype,
                "shape": [0],
                "chunk_grid": {
                    "name": "regular",
                    "configuration": {"chunk_shape": [self._shard_tokens]},
                },
                "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
            },
            # A shard that is not there yet is what every write begins with.
            "fill_missing_data_reads": True,
            # Else a chunk of zeros is not stored, and a reader takes it for a lost one.
            "store_data_equal_to_fill_value": True,
        }
        try:
            return ts.open(spec, create=True).result()
        except (ValueError, OSError) as error:
            raise self._unwritable(error) from error

    def _write(self, array: Any, start: int, values: Integer[np.ndarray, " N"]) -> Any:
        """The array, grown to hold `values` from `start` on."""
        try:
            array = array.resize(exclusive_max=[start + len(values)]).result()
            array[start : start + len(values)].write(values).result()
        except (ValueError, OSError) as error:
            raise self._unwritable(error) from error
        return array

    def _unwritable(self, error: Exception) -> StorageError:
        return StorageError(
            message(
                given=f"token store {self._path} could not be written: {error}",
                allowed="a folder that can be written, with space for the tokens",
                fix="free space or choose another --prefix; the same command begins the store anew",
            )
        )
