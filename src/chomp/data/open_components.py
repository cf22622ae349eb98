"""The components of a run, open for training: rows of a store at any position, or of a stream."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from chomp.config import fingerprint
from chomp.data.config import LmComponentConfig, LmDataConfig, PackingConfig
from chomp.data.documents import Split
from chomp.data.packed_rows import PackedRows, PackingRule
from chomp.data.rows import ConcatRows, RowBatch, Rows
from chomp.data.shuffle import RowOrder
from chomp.data.sources.source import source_fingerprint
from chomp.data.store.token_store import TokenStore
from chomp.data.streams.stream import StreamRows
from chomp.errors import DataError, message
from chomp.tokenize import Tokenizer

# Axes: N rows that are asked for.


class StoreComponent:
    """A component whose tokens are in a store: any row at any time."""

    def __init__(self, rows: Rows, order: RowOrder) -> None:
        self.rows = rows
        self.order = order

    @property
    def num_rows(self) -> int:
        """Rows of one epoch."""
        return self.rows.num_rows

    @property
    def utilization(self) -> float:
        """The part of positions that hold tokens."""
        return self.rows.utilization

    def read(self, positions: Int[np.ndarray, " N"], is_kept: Bool[np.ndarray, " N"]) -> RowBatch:
        """The kept ones of the rows at those positions, which run on over the epochs."""
        return self.rows.read(self.order.rows(positions[is_kept]))

    def fingerprint(self) -> str:
        """SHA-256 of the store's manifest, which holds the checksums of its content."""
        return hashlib.sha256(repr(self.rows.store.manifest).encode()).hexdigest()


class StreamComponent:
    """A component without a store: its rows come once, in order."""

    def __init__(self, rows: StreamRows, identity: str) -> None:
        self._rows = rows
        self._identity = identity

    @property
    def utilization(self) -> float:
        """The part of positions that hold tokens, in the rows so far."""
        return self._rows.utilization

    def read(self, positions: Int[np.ndarray, " N"], is_kept: Bool[np.ndarray, " N"]) -> RowBatch:
        """The kept ones of the next rows. The mixture asks for a component's rows in order."""
        found = self._rows.read(len(positions))
        weights = found.loss_weights
        return RowBatch(
            tokens=found.tokens[is_kept],
            segment_ids=found.segment_ids[is_kept],
            loss_weights=None if weights is None else weights[is_kept],
        )

    def fingerprint(self) -> str:
        """SHA-256 of what the stream is read from and how."""
        return self._identity

    def state(self) -> dict[str, Any]:
        """Where the stream stands."""
        return self._rows.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self._rows.restore(state)

    def close(self) -> None:
        """End the stream's thread."""
        self._rows.close()


def opened_component(
    name: str, config: LmDataConfig, tokenizer: Tokenizer, *, seq_len: int, seed: int
) -> StoreComponent | StreamComponent:
    """A component by its config, with its store or stream open."""
    component = config.components[name]
    packing = config.packing or PackingConfig()
    if component.stream is not None:
        rows = StreamRows(
            component.source,
            component.format,
            tokenizer,
            name=name,
            seq_len=seq_len,
            seed=seed,
            packing_mode="packed" if config.packing_mode == "packed" else "concat",
            max_documents_per_row=packing.documents_per_row(seq_len),
            long_documents=packing.long_documents,
            validation_fraction=config.validation_fraction,
            config=component.stream,
        )
        parts = [source_fingerprint(component.source), tokenizer.content_hash]
        return StreamComponent(rows, fingerprint([*parts, component.format, component.stream]))
    store = opened_store(name, component, "train", tokenizer)
    stored: Rows
    if config.packing_mode == "concat":
        stored = ConcatRows(store, seq_len)
    else:
        rule = PackingRule(
            row_len=seq_len,
            max_documents=packing.documents_per_row(seq_len),
            long_documents=packing.long_documents,
        )
        stored = PackedRows(store, rule)
    order = RowOrder(stored.num_rows, seed=seed, name=name, shuffle=config.shuffle)
    return StoreComponent(stored, order)


def opened_store(
    name: str, component: LmComponentConfig, split: Split, tokenizer: Tokenizer
) -> TokenStore:
    """The store of one split of a component; it must be of this tokenizer."""
    path = component.train_store if split == "train" else component.validation_store
    if path is None:
        raise DataError(
            message(
                given=f"component {name!r} has no {split}_store",
                allowed="the folder of a built token store",
                fix="let the launch file build it, or set "
                f"data.components.{name}.{split}_store to one",
            )
        )
    try:
        return TokenStore.open(path, tokenizer_hash=tokenizer.content_hash)
    except DataError as error:
        raise DataError(f"component {name!r}: {error}") from error
