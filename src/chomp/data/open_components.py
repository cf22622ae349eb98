"""The components of a run, open for training: rows of a store at any position, or of a stream."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from chomp.config import fingerprint
from chomp.data.config import LmDataConfig, PackingConfig
from chomp.data.documents import Split
from chomp.data.packed_rows import PackedRows, PackingFigures, PackingRule
from chomp.data.packing import LongDocuments
from chomp.data.rows import ConcatRows, RowBatch, Rows
from chomp.data.shuffle import RowOrder
from chomp.data.sources.source import source_fingerprint
from chomp.data.store.token_store import TokenStore
from chomp.data.streams.stream import StreamRows
from chomp.errors import DataError, StorageError
from chomp.tokenize import Tokenizer

log = logging.getLogger(__name__)

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

    def read(self, positions: Int[np.ndarray, " N"], is_kept: Bool[np.ndarray, " N"]) -> RowBatch:
        """The kept ones of the rows at those positions, which run on over the epochs."""
        return self.rows.read(self.order.rows(positions[is_kept]))

    def fingerprint(self) -> str:
        """SHA-256 of what the store is made from and of its content, wherever its files were."""
        return self.rows.store.manifest.fingerprint()


class StreamComponent:
    """A component without a store: its rows come once, in order."""

    def __init__(self, rows: StreamRows, identity: str) -> None:
        self._rows = rows
        self._identity = identity
        self.rows_served = 0  # so far

    def read(self, positions: Int[np.ndarray, " N"], is_kept: Bool[np.ndarray, " N"]) -> RowBatch:
        """The kept ones of the next rows, which have to be those at the positions."""
        if len(positions) and positions[0] != self.rows_served:
            raise DataError(
                f"row {positions[0]} of the stream {self._rows.name!r}, whose next row is "
                f"{self.rows_served}",
                allowed="the rows of a stream in order",
                fix="restore the state that was saved with the step to continue from",
            )
        found = self._rows.read(len(positions))
        self.rows_served += len(positions)
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
        return {"rows_served": self.rows_served, **self._rows.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self._rows.restore(state)
        self.rows_served = state["rows_served"]

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
        source = component.required_source(name)
        rows = StreamRows(
            source,
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
        parts = [source_fingerprint(source), tokenizer.content_hash, component.format]
        windows = [component.stream.window_documents, component.stream.shuffle]
        return StreamComponent(rows, fingerprint([*parts, *windows]))
    store = opened_store(name, config, "train", tokenizer)
    if not store.has_counted_tokens():
        raise DataError(
            f"component {name!r}: {store.path}, whose loss weights are all 0",
            allowed="a train split with a token that counts for the loss",
            fix=f"correct the weights in its source, or leave out data.components.{name}",
        )
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
        _tell_dropped(name, stored.figures, packing.long_documents)
    order = RowOrder(stored.num_rows, seed=seed, name=name, shuffle=config.shuffle)
    return StoreComponent(stored, order)


def _tell_dropped(name: str, figures: PackingFigures, rule: LongDocuments) -> None:
    if figures.dropped_tokens:
        log.warning(
            "component %r: %d documents are longer than a row, and %d of their tokens are left out "
            "(data.packing.long_documents=%s)",
            *(name, figures.long_documents, figures.dropped_tokens, rule),
        )


def opened_store(name: str, config: LmDataConfig, split: Split, tokenizer: Tokenizer) -> TokenStore:
    """The store of one split of a component; it must be of this split and tokenizer."""
    component = config.components[name]
    path = component.train_store if split == "train" else component.validation_store
    if path is None:
        raise DataError(
            f"component {name!r} has no {split}_store",
            allowed="the folder of a built token store",
            fix=f"let the launch file build it, or set data.components.{name}.{split}_store",
        )
    try:
        store = TokenStore.open(path, tokenizer_hash=tokenizer.content_hash)
    except (DataError, StorageError) as error:
        error.within(f"component {name!r}")
        raise
    _require_split(name, store, split, config)
    return store


def _require_split(name: str, store: TokenStore, split: Split, config: LmDataConfig) -> None:
    """Two stores that were split in different ways may share documents: held out from nothing."""
    found, fraction = store.manifest.identity, config.held_out_fraction(name)
    if (found.split, found.validation_fraction) == (split, fraction):
        return
    if fraction == 1.0 and (found.split, found.validation_fraction) == (
        "validation",
        config.validation_fraction,
    ):
        # Built before weight 0 meant all of it; none of it was trained on.
        log.warning(
            "component %r is evaluated IN PART: its store %s holds %s of its documents",
            *(name, store.path, f"{found.validation_fraction:.0%}"),
        )
        return
    allowed = f"the {split} split at data.validation_fraction={fraction}"
    fix = "name the store of that split, or set the data.validation_fraction it was built with"
    if fraction == 1.0:
        allowed = "a store of all its documents (validation_fraction=1.0): with weight 0 it is "
        allowed += "never trained on and evaluated whole"
        fix = f"leave out data.components.{name}.{split}_store to have it built; "
        fix += "`chomp eval RUN --data NAME=FOLDER` evaluates any store"
    raise DataError(
        f"component {name!r}: {split}_store {store.path} is the {found.split} "
        f"split at validation_fraction={found.validation_fraction}",
        allowed=allowed,
        fix=fix,
    )
