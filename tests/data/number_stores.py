"""Stores whose every token a test has chosen, in shards and chunks small enough to look at."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from chomp.data import (
    Document,
    LmComponentConfig,
    LmDataConfig,
    Split,
    StoreIdentity,
    StoreManifest,
    StoreWriter,
    TextSource,
    TokenStore,
    encode_documents,
)

EOS = 0
FRACTION = 0.1
SHARD_TOKENS = 64
CHUNK_TOKENS = 16


class NumberTokenizer:
    """Ids written out: the text "3 1 4" is the ids 3, 1 and 4. A document ends with 0."""

    eos_id = EOS
    bos_id = None

    def __init__(self, vocab_size: int = 50_000) -> None:
        self.vocab_size = vocab_size

    @property
    def content_hash(self) -> str:
        return f"numbers below {self.vocab_size}"

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[int(word) for word in text.split()] for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))

    def token_bytes(self) -> list[bytes | None]:
        return [None, *(str(i).encode() for i in range(1, self.vocab_size))]


NUMBERS = NumberTokenizer()


def counted_documents(lengths: Sequence[int]) -> list[list[int]]:
    """Documents of those lengths that count on from 1, so that a token tells where it stands."""
    ends = np.cumsum([0, *lengths])
    return [list(range(a + 1, b + 1)) for a, b in pairwise(ends)]


def line_of(documents: Sequence[Sequence[int]]) -> list[int]:
    """The tokens of a store with those documents."""
    return [token for document in documents for token in [*document, EOS]]


def number_identity(
    tokenizer: NumberTokenizer = NUMBERS,
    source_fingerprint: str = "as written",
    split: Split = "train",
) -> StoreIdentity:
    """What a store of numbers is made from."""
    return StoreIdentity(
        name="numbers",
        split=split,
        validation_fraction=FRACTION,
        source_fingerprint=source_fingerprint,
        format_fingerprint="numbers",
        tokenizer_hash=tokenizer.content_hash,
    )


def number_writer(path: Path, identity: StoreIdentity | None = None) -> StoreWriter:
    """A writer with small shards."""
    return StoreWriter(
        str(path),
        identity or number_identity(),
        NUMBERS,
        shard_tokens=SHARD_TOKENS,
        chunk_tokens=CHUNK_TOKENS,
    )


def write_store(
    path: Path,
    documents: Sequence[Sequence[int]],
    *,
    tokenizer: NumberTokenizer = NUMBERS,
    batch: int = 3,
    source_fingerprint: str = "as written",
    split: Split = "train",
) -> TokenStore:
    """A finished store of those documents, opened."""
    writer = StoreWriter(
        str(path),
        number_identity(tokenizer, source_fingerprint, split),
        tokenizer,
        shard_tokens=SHARD_TOKENS,
        chunk_tokens=CHUNK_TOKENS,
    )
    texts = [Document(id=str(i), text=NUMBERS.decode(ids)) for i, ids in enumerate(documents)]
    for start in range(0, len(texts), batch):
        some = texts[start : start + batch]
        writer.append(np.arange(start, start + len(some)), encode_documents(some, tokenizer))
    writer.finish(("numbers",), has_whole_parts=False)
    return TokenStore.open(str(path), tokenizer_hash=tokenizer.content_hash)


def rehash_manifest(path: Path, **changes: object) -> None:
    """Change a manifest as its writer could have, with the hash of the changed one."""
    found = json.loads((path / "manifest.json").read_text())
    manifest = StoreManifest(**{**found, "identity": StoreIdentity(**found["identity"]), **changes})
    manifest = replace(manifest, own_hash=manifest.hash_of_content())
    (path / "manifest.json").write_text(json.dumps(asdict(manifest)))


def whole_line(store: TokenStore) -> list[int]:
    """Every token of a store."""
    return store.read(np.asarray([0]), np.asarray([store.num_tokens])).tolist()


def number_data(
    folder: Path, lengths: dict[str, Sequence[int]], weights: dict[str, float] | None = None
) -> LmDataConfig:
    """A data config whose components are stores of counted documents, the same in both splits.

    "a" counts from 0, "b" from 10,000, "c" from 20,000: a token tells its component. Stores that
    are in the folder already are used as they are.
    """
    components = {}
    for name, sizes in lengths.items():
        first = 10_000 * "abc".index(name)
        documents = [[first + token for token in ids] for ids in counted_documents(sizes)]
        if not (folder / name).exists():
            write_store(folder / name, documents)
            write_store(folder / f"{name}-held-out", documents, split="validation")
        components[name] = LmComponentConfig(
            source=TextSource(paths=("not read",)),
            weight=1.0 if weights is None else weights[name],
            train_store=str(folder / name),
            validation_store=str(folder / f"{name}-held-out"),
        )
    return LmDataConfig(components=components, validation_fraction=FRACTION)
