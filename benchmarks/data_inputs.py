"""What the data benchmark reads: texts, stores of random tokens, and a store of 20 GB.

Tokens are those of the byte tokenizer, which needs two bytes each: 256 bytes and an end. Documents
have the lengths of web pages, lognormal with a mean of 500 tokens.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import chain, cycle
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt16

from chomp.data import (
    MANIFEST,
    TOKENS,
    EncodedBatch,
    LmDataConfig,
    StoreIdentity,
    StoreManifest,
    StoreWriter,
    embedded_documents,
)
from chomp.data.store.array import FlatArray, FlatArrayWriter, checksum, chunk_checksums
from chomp.data.store.build import CHUNK_DOCUMENTS, CHUNK_TOKENS, SHARD_DOCUMENTS, SHARD_TOKENS
from chomp.data.store.store import (
    CHUNK_CHECKSUMS,
    DOCUMENT_ENDS,
    DOCUMENT_MARKS,
    FORMAT_VERSION,
    marks_of,
)
from chomp.tokenize import ByteTokenizer

# Axes: N documents, L tokens.

TOKENIZER = ByteTokenizer()

# Of ten components; all differ, and none is a multiple of another's.
WEIGHTS = {f"part{i}": float(weight) for i, weight in enumerate(range(11, 31, 2))}

# Shards of the large store whose documents are written at once: a million documents.
_SHARDS_AT_ONCE = 64


def corpus_texts(num_bytes: int) -> list[str]:
    """The embedded corpus, again and again, until it has that many characters or more."""
    parts = [embedded_documents("code"), embedded_documents("prose")]
    texts: list[str] = []
    size = 0
    for text in cycle([document.text for document in chain.from_iterable(parts)]):
        if size >= num_bytes:
            return texts
        texts.append(text)
        size += len(text)
    raise AssertionError("a corpus without documents")


def web_texts(num_bytes: int) -> Iterator[str]:
    """The embedded corpus cut to the lengths of web pages, one byte or so being a token."""
    line = "\n".join(corpus_texts(num_bytes))
    ends = np.cumsum(web_lengths(num_bytes, seed=0)).tolist()
    for start, end in zip([0, *ends], ends, strict=False):
        yield line[start:end]


def write_jsonl(path: Path, texts: Iterator[str] | list[str]) -> None:
    """Write the texts as JSON lines under the key "text"."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)


def web_lengths(total: int, *, seed: int) -> Int[np.ndarray, " N"]:
    """Lengths of documents like web pages that are `total` tokens together."""
    # More than enough at a mean of exp(5.6 + 1.1**2 / 2) = 500.
    drawn = np.random.default_rng(seed).lognormal(5.6, 1.1, total // 400 + 1000)
    ends = np.cumsum(np.maximum(drawn.astype(np.int64), 8))
    ends = ends[: np.searchsorted(ends, total)]
    return np.diff(np.append(ends, total), prepend=0)


def random_tokens(lengths: Int[np.ndarray, " N"], *, seed: int) -> UInt16[np.ndarray, " L"]:
    """Documents of those lengths, of random bytes, each with its end."""
    tokens = np.random.default_rng(seed).integers(0, 256, int(lengths.sum()), np.uint16)
    tokens[np.cumsum(lengths) - 1] = TOKENIZER.eos_id
    return tokens


def write_store(path: Path, num_tokens: int, *, seed: int, shard_tokens: int = SHARD_TOKENS) -> str:
    """Write a store of random tokens at `path`, which comes back; chunks as they always are."""
    writer = StoreWriter(
        str(path),
        _identity(path.name),
        TOKENIZER,
        shard_tokens=shard_tokens,
        chunk_tokens=min(CHUNK_TOKENS, shard_tokens),
    )
    lengths = web_lengths(num_tokens, seed=seed)
    ids = random_tokens(lengths, seed=seed)
    writer.append(
        np.arange(len(lengths)), EncodedBatch(ids=ids, lengths=lengths, loss_weights=None)
    )
    writer.finish(("random",), has_whole_parts=False)
    return str(path)


def write_components(folder: Path, num_tokens: int) -> dict[str, str]:
    """Write ten stores as large as their weights say; where each is, by name.

    So an epoch of the mixture is an epoch of every component.
    """
    total = sum(WEIGHTS.values())
    return {
        name: write_store(folder / name, int(num_tokens * weight / total), seed=seed)
        for seed, (name, weight) in enumerate(WEIGHTS.items())
    }


def write_large_store(path: Path, num_bytes: int) -> str:
    """Write a store of `num_bytes` bytes of tokens, which takes 16 MiB and its documents' ends.

    One shard of tokens is written. All other shards are hard links to its file, each read through
    its own path, and the shape in the array's metadata is raised to hold them. Documents end with
    the shard, and every shard has the same, so tokens and ends agree everywhere. Where documents
    came from is left out: reading batches does not ask.
    """
    lengths = web_lengths(SHARD_TOKENS, seed=0)
    shards = -(-num_bytes // (2 * SHARD_TOKENS))
    _write_linked_tokens(path / TOKENS, random_tokens(lengths, seed=0), shards)
    ends = _document_array(path / DOCUMENT_ENDS)
    ends_in_shard = np.cumsum(lengths)
    for first in range(0, shards, _SHARDS_AT_ONCE):
        numbers = np.arange(first, min(first + _SHARDS_AT_ONCE, shards))
        values = numbers[:, None] * SHARD_TOKENS + ends_in_shard
        ends.write(first * len(lengths), values.reshape(-1))
    marks = marks_of(FlatArray.open(str(path / DOCUMENT_ENDS)))
    _document_array(path / DOCUMENT_MARKS).write(0, marks)
    of_chunks = {TOKENS: [chunk_checksums(random_tokens(lengths, seed=0), CHUNK_TOKENS)] * shards}
    for name in (DOCUMENT_ENDS, DOCUMENT_MARKS):
        numbers = FlatArray.open(str(path / name)).shards()
        of_chunks[name] = [chunk_checksums(shard, CHUNK_DOCUMENTS) for shard in numbers]
    checksums = {}
    for name, by_shard in of_chunks.items():
        content = np.concatenate(by_shard)
        (path / name / CHUNK_CHECKSUMS).write_bytes(content.tobytes())
        checksums[f"{name}/{CHUNK_CHECKSUMS}"] = [checksum(content)]
    manifest = StoreManifest(
        format_version=FORMAT_VERSION,
        identity=_identity(path.name),
        eos_id=TOKENIZER.eos_id,
        num_tokens=shards * SHARD_TOKENS,
        num_documents=shards * len(lengths),
        dtype="uint16",
        has_loss_weights=False,
        checksums=checksums,  # those of shards are compared by `verify` alone
    )
    manifest = replace(manifest, own_hash=manifest.hash_of_content())
    (path / MANIFEST).write_text(json.dumps(asdict(manifest)))
    return str(path)


def _write_linked_tokens(path: Path, shard: UInt16[np.ndarray, " L"], count: int) -> None:
    writer = FlatArrayWriter(
        str(path), "uint16", shard_len=len(shard), chunk_len=CHUNK_TOKENS, is_new=True
    )
    writer.write(0, shard)
    for number in range(1, count):
        os.link(path / "c" / "0", path / "c" / str(number))
    metadata = json.loads((path / "zarr.json").read_text())
    metadata["shape"] = [count * len(shard)]
    (path / "zarr.json").write_text(json.dumps(metadata))


def _document_array(path: Path) -> FlatArrayWriter:
    return FlatArrayWriter(
        str(path), "int64", shard_len=SHARD_DOCUMENTS, chunk_len=CHUNK_DOCUMENTS, is_new=True
    )


def _identity(name: str) -> StoreIdentity:
    return StoreIdentity(
        name=name,
        split="train",
        validation_fraction=LmDataConfig().validation_fraction,
        source_fingerprint="random",
        format_fingerprint="random",
        tokenizer_hash=TOKENIZER.content_hash,
    )
