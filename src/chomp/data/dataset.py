"""Examples by number: example n of a run is a pure function of config, seed and n.

A component that is a stream is the exception: its rows come one after the other, and where it
stands is a small state that goes into the checkpoint.
"""

import hashlib
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from chomp.data.batch_schedule import BatchSchedule
from chomp.data.config import LmDataConfig, PackingConfig
from chomp.data.examples import GrugLmExample
from chomp.data.forecast import Forecast, forecast
from chomp.data.mixture import Mixture, mixture_length, require_served
from chomp.data.open_components import (
    StoreComponent,
    StreamComponent,
    opened_component,
    opened_store,
)
from chomp.data.row_limits import RowLimits
from chomp.data.rows import ConcatRows, RowBatch
from chomp.data.store.token_store import TokenStore
from chomp.errors import DataError, message, require
from chomp.kernels.attention.mask import PAD_SEGMENT
from chomp.storage import is_local
from chomp.tokenize import Tokenizer

log = logging.getLogger(__name__)

# Axes: K rows that are kept or asked for, N rows of a batch, T tokens of a row.


class TrainDataset:
    """The mixture of a run's components, each shuffled anew every epoch."""

    def __init__(
        self,
        config: LmDataConfig,
        tokenizer: Tokenizer,
        *,
        seq_len: int,
        seed: int,
        batches: BatchSchedule,
    ) -> None:
        self.config = config
        self.batches = batches
        self.mixture = mixture_of(config, batches)
        self.seq_len = seq_len
        self._seed = seed
        self._eos_id = tokenizer.eos_id
        self.components: dict[str, StoreComponent | StreamComponent] = {
            name: opened_component(name, config, tokenizer, seq_len=seq_len, seed=seed)
            for name in self.mixture.names
        }

    @property
    def num_rows(self) -> dict[str, int]:
        """Rows of one epoch of every component that has a store."""
        return {
            name: component.num_rows
            for name, component in self.components.items()
            if isinstance(component, StoreComponent)
        }

    @property
    def is_local(self) -> bool:
        """Whether every store is on a disk of this machine, or mounted like one."""
        stored = [part for part in self.components.values() if isinstance(part, StoreComponent)]
        return all(is_local(part.rows.store.path) for part in stored)

    @property
    def num_examples(self) -> int | None:
        """How many examples the stop strategy allows; None: without end."""
        if self.config.stop_strategy == "restart":
            return None
        return mixture_length(self.mixture, self.num_rows, self.config.stop_strategy)

    def examples(
        self, start: int, stop: int, keep: Int[np.ndarray, " K"] | None = None
    ) -> GrugLmExample:
        """Examples start..stop-1 of the run, or only those `keep` counts from `start`, as numpy.

        Only the rows that are kept are read from stores.
        """
        components, positions = self.mixture.assign(start, stop)
        keep = np.arange(stop - start) if keep is None else keep
        # Where each example goes in what is returned; -1: it is not kept.
        place = np.full(stop - start, -1)
        place[keep] = np.arange(len(keep))
        rows = _empty_rows(len(keep), self.seq_len)
        weights: np.ndarray | None = None
        for i, component in enumerate(self.components.values()):
            mine = np.flatnonzero(components == i)
            found = component.read(positions[mine], place[mine] >= 0)
            target = place[mine][place[mine] >= 0]
            rows.tokens[target], rows.segment_ids[target] = found.tokens, found.segment_ids
            if found.loss_weights is not None:
                weights = np.ones(rows.tokens.shape, np.float32) if weights is None else weights
                weights[target] = found.loss_weights
        return examples_of(
            RowBatch(tokens=rows.tokens, segment_ids=rows.segment_ids, loss_weights=weights),
            self.config,
            eos_id=self._eos_id,
            train_on_eos=self.config.train_on_eos,
        )

    def forecast(self, total_steps: int) -> Forecast:
        """What a run of so many steps reads, by stage and component."""
        if self.streams:
            raise DataError(
                message(
                    given=f"a forecast with the stream {min(self.streams)!r}",
                    allowed="components with token stores, whose rows are counted",
                    fix="leave out data.components.*.stream to train from stores",
                )
            )
        return forecast(
            self.mixture, self.batches, self.num_rows, seq_len=self.seq_len, total_steps=total_steps
        )

    def fingerprint(self) -> str:
        """SHA-256 of everything that decides which tokens example n has."""
        config = self.config
        parts = (
            self._seed,
            self.seq_len,
            self.mixture.identity,
            config.packing_mode,
            (config.packing or PackingConfig()) if config.packing_mode == "packed" else None,
            config.shuffle,
        )
        digest = hashlib.sha256(repr(parts).encode())
        for component in self.components.values():
            digest.update(component.fingerprint().encode())
        return digest.hexdigest()

    def epochs(self, examples: int) -> dict[str, float]:
        """How many times each stored component was read once that many examples are served."""
        counts = dict(zip(self.mixture.names, self.mixture.counts_before(examples), strict=True))
        return {name: counts[name] / rows for name, rows in self.num_rows.items()}

    def utilization(self, example: int) -> float:
        """The part of positions that hold tokens, by the mixture at an example."""
        shares = self.mixture.weights_at(example)
        parts = self.components.items()
        return math.fsum(shares[name] * part.utilization for name, part in parts)

    @property
    def streams(self) -> dict[str, StreamComponent]:
        """The components that are streams."""
        return {
            name: component
            for name, component in self.components.items()
            if isinstance(component, StreamComponent)
        }

    def stream_states(self) -> dict[str, Any] | None:
        """Where the streams stand after the examples served so far; None without streams."""
        return {name: stream.state() for name, stream in self.streams.items()} or None

    def restore_streams(self, states: Mapping[str, Any] | None) -> None:
        """Put the streams where they stood; what a checkpoint has must be what this run needs."""
        found = set(states or {})
        if found != set(self.streams):
            raise DataError(
                message(
                    given=f"a checkpoint with the states of the streams {sorted(found)}",
                    allowed=f"the streams of this run: {sorted(self.streams)}",
                    fix="use the data config of the run that was saved",
                )
            )
        for name, state in (states or {}).items():
            self.streams[name].restore(state)

    def close(self) -> None:
        """End the threads of streams."""
        for stream in self.streams.values():
            stream.close()


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

    def beginning(self, num_tokens: int, number: int = 0) -> list[int]:
        """The first tokens of a held-out document, without its end: a prompt.

        Of document `number`, counted around, or of the next that is long enough; where the next few
        are not, of `number` itself, as many as it has.
        """
        store = self._rows.store
        count = len(store.documents)
        if count == 0:
            raise DataError(
                message(
                    given=f"component {self.name!r}, of which no document is held out",
                    allowed="a prompt from a component with held-out documents",
                    fix="take it from another, or raise data.validation_fraction",
                )
            )
        for place in range(number, number + min(count, _DOCUMENTS_TRIED)):
            start, end = store.documents.span(place % count)
            if end - 1 - start >= num_tokens:
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


def build_train_dataset(
    config: LmDataConfig,
    tokenizer: Tokenizer,
    *,
    seq_len: int,
    seed: int,
    batches: BatchSchedule,
    total_steps: int | None = None,
) -> TrainDataset:
    """The training examples of a run. Opens every store, so damage shows before step 0.

    With `total_steps`, also refuses a run that the data does not last for, and one in which a
    component with a weight never comes, and warns of text that is repeated too often.
    """
    dataset = TrainDataset(config, tokenizer, seq_len=seq_len, seed=seed, batches=batches)
    if total_steps is not None:
        mixture_of(config, batches, total_steps=total_steps)
        _require_enough(dataset, total_steps, batches.examples_before(total_steps))
        for number, stage in enumerate(config.stages):
            if stage.start_step >= total_steps:
                told = (number, stage.start_step, total_steps)
                log.warning("data.stages[%d] starts at step %d, and the run has %d steps", *told)
        if not dataset.streams:  # how long an epoch of a stream is, nobody knows
            for warning in dataset.forecast(total_steps).warnings():
                log.warning(warning)
    return dataset


def build_eval_datasets(
    config: LmDataConfig, tokenizer: Tokenizer, *, seq_len: int, limits: RowLimits | None = None
) -> list[EvalDataset]:
    """The held-out part of every component, in the order of names."""
    return [
        EvalDataset(name, config, tokenizer, seq_len=seq_len, limits=limits)
        for name in sorted(config.components)
    ]


def mixture_of(
    config: LmDataConfig, batches: BatchSchedule, *, total_steps: int | None = None
) -> Mixture:
    """The mixture a config asks for; stages that begin at steps begin at their first examples.

    With `total_steps`, refuses a weight that would not yield an example in the whole run.
    """
    stages = [(batches.examples_before(stage.start_step), stage.weights) for stage in config.stages]
    mixture = Mixture(stages or config.weights)
    if total_steps is not None:
        require_served(mixture, batches.examples_before(total_steps))
    return mixture


def examples_of(
    rows: RowBatch, config: LmDataConfig, *, eos_id: int, train_on_eos: bool
) -> GrugLmExample:
    """Rows as examples, by the rules of a data config."""
    return GrugLmExample.from_rows(
        rows.tokens,
        rows.segment_ids,
        eos_id=eos_id,
        mask_boundary_loss=config.mask_boundary_loss,
        train_on_eos=train_on_eos,
        loss_weights=rows.loss_weights,
        isolate_documents=not config.stream_semantics,
    )


def _empty_rows(count: int, seq_len: int) -> RowBatch:
    return RowBatch(
        tokens=np.zeros((count, seq_len), np.int32),
        segment_ids=np.full((count, seq_len), PAD_SEGMENT, np.int32),
    )


def _filled(rows: RowBatch, count: int) -> RowBatch:
    """The rows, and empty ones behind them up to `count`."""
    lacking = count - len(rows.tokens)
    if lacking == 0:  # most batches: nothing is copied
        return rows
    empty = _empty_rows(lacking, rows.tokens.shape[1])
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


def _require_enough(dataset: TrainDataset, total_steps: int, needed: int) -> None:
    available = dataset.num_examples
    if available is None:
        return
    # The last step whose examples are all there.
    steps = dataset.batches.step_of(available)
    require(
        needed <= available,
        given=f"train.steps={total_steps}, which take {needed} examples, with "
        f"data.stop_strategy={dataset.config.stop_strategy}, which gives {available}",
        allowed=f"at most {steps} steps",
        fix=f"set train.steps={steps}, or data.stop_strategy=restart to read components again",
    )
