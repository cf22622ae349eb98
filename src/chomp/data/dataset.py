"""Examples by number: example n of a run is a pure function of config, seed and n.

A component that is a stream is the exception: its rows come one after the other, and where it
stands is a small state that goes into the checkpoint.
"""

import hashlib
import logging
from collections.abc import Mapping
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
)
from chomp.data.rows import RowBatch
from chomp.errors import DataError, require
from chomp.kernels.attention.mask import PAD_SEGMENT
from chomp.storage import is_local
from chomp.tokenize import Tokenizer

log = logging.getLogger(__name__)

# Axes: K rows that are kept, T tokens of a row.


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
        """Examples start..stop-1 of the run, or only those `keep` counts from `start`, as numpy."""
        return self.examples_of(self.rows(start, stop, keep))

    def rows(self, start: int, stop: int, keep: Int[np.ndarray, " K"] | None = None) -> RowBatch:
        """The rows that these examples are made of. Only those that are kept are read from stores.

        They tell padding from tokens where examples do not (`data.stream_semantics`).
        """
        components, positions = self.mixture.assign(start, stop)
        keep = np.arange(stop - start) if keep is None else keep
        # Where each example goes in what is returned; -1: it is not kept.
        place = np.full(stop - start, -1)
        place[keep] = np.arange(len(keep))
        rows = empty_rows(len(keep), self.seq_len)
        weights: np.ndarray | None = None
        for i, component in enumerate(self.components.values()):
            mine = np.flatnonzero(components == i)
            found = component.read(positions[mine], place[mine] >= 0)
            target = place[mine][place[mine] >= 0]
            rows.tokens[target], rows.segment_ids[target] = found.tokens, found.segment_ids
            if found.loss_weights is not None:
                weights = np.ones(rows.tokens.shape, np.float32) if weights is None else weights
                weights[target] = found.loss_weights
        return RowBatch(tokens=rows.tokens, segment_ids=rows.segment_ids, loss_weights=weights)

    def examples_of(self, rows: RowBatch) -> GrugLmExample:
        """Rows as training examples."""
        return examples_of(
            rows, self.config, eos_id=self._eos_id, train_on_eos=self.config.train_on_eos
        )

    def forecast(self, total_steps: int) -> Forecast:
        """What a run of so many steps reads, by stage and component."""
        if self.streams:
            raise DataError(
                f"a forecast for data with the stream {min(self.streams)!r}",
                allowed="components with token stores: the rows of a stream are not counted",
                fix="remove data.components.*.stream to train from token stores",
            )
        return forecast(
            self.mixture, self.batches, self.num_rows, seq_len=self.seq_len, total_steps=total_steps
        )

    def fingerprint(
        self, mixture: Mixture | None = None, *, others: Mapping[str, str] | None = None
    ) -> str:
        """SHA-256 of everything that decides which tokens example n has.

        With `mixture`, by that one: `others` are the fingerprints of components that it has and
        this dataset has not.
        """
        config, mixture = self.config, mixture or self.mixture
        parts = (
            self._seed,
            self.seq_len,
            mixture.identity,
            config.packing_mode,
            (config.packing or PackingConfig()) if config.packing_mode == "packed" else None,
            config.shuffle,
        )
        digest = hashlib.sha256(repr(parts).encode())
        for name in mixture.names:
            component = self.components.get(name)
            found = (others or {})[name] if component is None else component.fingerprint()
            digest.update(found.encode())
        return digest.hexdigest()

    def epochs(self, examples: int) -> dict[str, float]:
        """How many times each stored component was read once that many examples are served."""
        counts = dict(zip(self.mixture.names, self.mixture.counts_before(examples), strict=True))
        return {name: counts[name] / rows for name, rows in self.num_rows.items()}

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
        """Put the streams where they stood; what a checkpoint has must be what this run needs.

        A stream that was not read yet may come or go: stages may change after a checkpoint.
        """
        states = states or {}
        gone = {name for name, state in states.items() if state.get("rows_served", 1)}
        gone -= set(self.streams)
        lost = {name for name, stream in self.streams.items() if stream.rows_served} - set(states)
        if gone or lost:
            raise DataError(
                f"a checkpoint with states of the streams {sorted(states)}",
                allowed=f"the streams of this run: {sorted(self.streams)}",
                fix="use the data config of the run that was saved",
            )
        for name in states.keys() & self.streams.keys():
            self.streams[name].restore(states[name])

    def close(self) -> None:
        """End the threads of streams."""
        for stream in self.streams.values():
            stream.close()


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


def mixture_of(
    config: LmDataConfig, batches: BatchSchedule, *, total_steps: int | None = None
) -> Mixture:
    """The mixture a config asks for; stages that begin at steps begin at their first examples.

    With `total_steps`, refuses a weight that would not yield an example in the whole run.
    """
    if not config.components:
        raise DataError(
            "data without components",
            allowed="at least one component, each with a source",
            fix="write data.components: {NAME: {source: {kind: ...}}}",
        )
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


def empty_rows(count: int, seq_len: int) -> RowBatch:
    """Rows that count for nothing."""
    return RowBatch(
        tokens=np.zeros((count, seq_len), np.int32),
        segment_ids=np.full((count, seq_len), PAD_SEGMENT, np.int32),
    )


def _require_enough(dataset: TrainDataset, total_steps: int, needed: int) -> None:
    available = dataset.num_examples
    if available is None:
        return
    # The last step whose examples are all there.
    steps = dataset.batches.step_of(available)
    allowed, fix = f"at most {steps} steps", f"set train.steps={steps}"
    if steps == 0:
        allowed = f"data for at least one step, which takes {dataset.batches.examples(0)} examples"
        fix = "add documents, lower train.batch_size or train.seq_len"
    require(
        needed <= available,
        f"train.steps={total_steps}, which take {needed} examples, with "
        f"data.stop_strategy={dataset.config.stop_strategy}, which gives {available}",
        allowed=allowed,
        fix=f"{fix}, or set data.stop_strategy=restart to read components again",
    )
