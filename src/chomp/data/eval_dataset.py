"""Held-out rows by number, with the document that each loss belongs to."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from chomp.data.config import LmDataConfig
from chomp.data.dataset import empty_rows, examples_of
from chomp.data.examples import GrugLmExample
from chomp.data.open_components import opened_store
from chomp.data.row_limits import RowLimits
from chomp.data.rows import ConcatRows, RowBatch
from chomp.data.store.token_store import TokenStore
from chomp.errors import DataError
from chomp.tokenize import Tokenizer

# Axes: K rows that are asked for, N rows of a batch, T tokens of a row.

# Held-out documents that are looked at for a prompt that is long enough.
_DOCUMENTS_TRIED = 50


@dataclass(frozen=True, kw_only=True, eq=False)
class EvalRows:
    """Rows to evaluate, and whose each loss is."""

    example: GrugLmExample
    # By its number in the store, the document of the token that a position predicts; -1: none.
    documents: Int[np.ndarray, "N T"]


class EvalDataset:
    """The held-out rows of one component, padded to whole batches; there may be none."""

    def __init__(
        self,
        name: str,
        config: LmDataConfig,
        tokenizer: Tokenizer,
        *,
        seq_len: int,
        limits: RowLimits | None = None,
        store: TokenStore | None = None,
    ) -> None:
        """`store` is evaluated in the place of the component's own: all of it, of any split."""
        self.name = name
        self._limits = limits or RowLimits()
        self.tags = (name, *config.components[name].tags)
        self._config = config
        self._eos_id = tokenizer.eos_id
        if store is None:
            store = opened_store(name, config, "validation", tokenizer)
        self._rows = ConcatRows(store, seq_len, is_eval=True)

    @property
    def num_rows(self) -> int:
        """Rows that hold every held-out token once as a target."""
        return self._rows.num_rows

    def prompt(self, num_tokens: int, number: int = 0, *, is_tail: bool = False) -> list[int]:
        """The first tokens of a held-out document, or the last before the one that ends it.

        Of document `number`, counted around, or of the next that is long enough; where the next few
        are not, of `number` itself, as many as it has.
        """
        store = self._rows.store
        count = len(store.documents)
        if count == 0:
            raise DataError(
                f"component {self.name!r} has no held-out document",
                allowed="a prompt from a component with held-out documents",
                fix="choose another component, or raise data.validation_fraction",
            )
        for place in range(number, number + min(count, _DOCUMENTS_TRIED)):
            start, end = store.documents.span(place % count)
            if end - 1 - start >= num_tokens:
                start = end - 1 - num_tokens if is_tail else start
                return store.read(np.asarray([start]), np.asarray([num_tokens])).tolist()
        start, end = store.documents.span(number % count)
        return store.read(np.asarray([start]), np.asarray([max(end - 1 - start, 1)])).tolist()

    def read(self, rows: Int[np.ndarray, " K"], batch_size: int) -> EvalRows:
        """Those rows, at most `batch_size`, filled up with rows that count for nothing.

        Raises `DataError` for rows that the dataset's limits do not allow.
        """
        found = _filled(self._rows.read(rows), batch_size)
        made = examples_of(found, self._config, eos_id=self._eos_id, train_on_eos=True)

        def told_row(row: int) -> str:
            return f"held-out row {rows[row]} of component {self.name!r}"

        self._limits.require_tokens(made.tokens, told_row)
        ids = made.attn_mask.segment_ids
        room = self._limits.max_segments(ids, told_row, batch_size=batch_size)
        return EvalRows(example=made.with_max_segments(room), documents=_predicted_documents(found))


def build_eval_datasets(
    config: LmDataConfig, tokenizer: Tokenizer, *, seq_len: int, limits: RowLimits | None = None
) -> list[EvalDataset]:
    """The held-out part of every component, in the order of names."""
    return [
        EvalDataset(name, config, tokenizer, seq_len=seq_len, limits=limits)
        for name in sorted(config.components)
    ]


def _filled(rows: RowBatch, count: int) -> RowBatch:
    """The rows, and empty ones behind them up to `count`."""
    lacking = count - len(rows.tokens)
    if lacking == 0:  # most batches: nothing is copied
        return rows
    empty = empty_rows(lacking, rows.tokens.shape[1])
    weights, firsts = rows.loss_weights, rows.first_documents
    return RowBatch(
        tokens=np.concatenate([rows.tokens, empty.tokens]),
        segment_ids=np.concatenate([rows.segment_ids, empty.segment_ids]),
        loss_weights=None if weights is None else np.pad(weights, [(0, lacking), (0, 0)]),
        first_documents=None if firsts is None else np.pad(firsts, (0, lacking)),
    )


def _predicted_documents(rows: RowBatch) -> Int[np.ndarray, "K T"]:
    """The document of the token after each position; -1 where none follows."""
    assert rows.first_documents is not None  # evaluation reads windows
    found = np.full(rows.tokens.shape, -1, np.int64)
    following = rows.segment_ids[:, 1:]
    np.add(rows.first_documents[:, None], following, out=found[:, :-1], where=following >= 0)
    return found
