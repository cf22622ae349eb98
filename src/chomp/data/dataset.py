"""Examples by number: example n of a run is a pure function of config, seed and n.

Also held-out rows by number, with the document that each loss belongs to, and documents as prompts.
A component that is a stream is the exception: its rows come one after the other, and where it
stands is a small state that goes into the checkpoint.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Bool, Int

from chomp.config import fingerprint
from chomp.data.config import LmDataConfig, PackingConfig
from chomp.data.contamination import keys_of_sets, sets_fingerprint, validation_sets
from chomp.data.documents import Document, Split, documents_of_split
from chomp.data.examples import GrugLmExample, RowLimits
from chomp.data.forecast import Forecast, forecast
from chomp.data.mixture import BatchSchedule, Mixture, mixture_length, require_served
from chomp.data.order import RowOrder
from chomp.data.packing import PackingRule
from chomp.data.rows import ConcatRows, PackedRows, RowBatch, Rows
from chomp.data.sources import source_fingerprint
from chomp.data.store.build import encode_documents
from chomp.data.store.store import TokenStore
from chomp.data.stream import RetriedDocuments, StreamRows
from chomp.errors import DataError, StorageError, require
from chomp.kernels.attention.mask import PAD_SEGMENT
from chomp.storage import is_local
from chomp.tokenize import Tokenizer

# Axes: K rows that are asked for, N rows of a batch, T tokens of a row.

log = logging.getLogger(__name__)

T = TypeVar("T")
# Documents that are looked at for a prompt.
_PROMPT_DOCUMENTS = 50


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
            name: open_component(name, config, tokenizer, seq_len=seq_len, seed=seed)
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

        Padding is marked here even where examples do not mark it (`data.stream_semantics`).
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
        needed, available = batches.examples_before(total_steps), dataset.num_examples
        if available is not None:
            # The last step whose examples are all there.
            steps = batches.step_of(available)
            allowed, fix = f"at most {steps} steps", f"set train.steps={steps}"
            if steps == 0:
                first = batches.examples(0)
                allowed = f"data for at least one step, which takes {first} examples"
                fix = "add documents, lower train.batch_size or train.seq_len"
            require(
                needed <= available,
                f"train.steps={total_steps}, which take {needed} examples, with "
                f"data.stop_strategy={config.stop_strategy}, which gives {available}",
                allowed=allowed,
                fix=f"{fix}, or set data.stop_strategy=restart to read components again",
            )
        for number, stage in enumerate(config.stages):
            if stage.start_step >= total_steps:
                log.warning(
                    "data.stages[%d] starts at step %d, and the run has %d steps",
                    *(number, stage.start_step, total_steps),
                )
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


def open_component(
    name: str, config: LmDataConfig, tokenizer: Tokenizer, *, seq_len: int, seed: int
) -> StoreComponent | StreamComponent:
    """A component by its config, with its store or stream open."""
    component = config.components[name]
    packing = config.packing or PackingConfig()
    if component.stream is not None:
        source = component.required_source(name)
        sets = validation_sets(
            config, lambda name, source: source_fingerprint(source, component=name)
        )
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
            kept_out={} if config.allow_contamination else keys_of_sets(sets),
            config=component.stream,
        )
        parts: list[Any] = [source_fingerprint(source), tokenizer.content_hash, component.format]
        parts += [component.stream.window_documents, component.stream.shuffle]
        if sets:
            parts.append(sets_fingerprint(sets, allow_contamination=config.allow_contamination))
        return StreamComponent(rows, fingerprint(parts))
    store = open_store(name, config, "train", tokenizer)
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
        if stored.figures.dropped_tokens:
            log.warning(
                "component %r: %d documents are longer than a row, and %d of their tokens are left "
                "out (data.packing.long_documents=%s)",
                *(name, stored.figures.long_documents, stored.figures.dropped_tokens),
                packing.long_documents,
            )
    order = RowOrder(stored.num_rows, seed=seed, name=name, shuffle=config.shuffle)
    return StoreComponent(stored, order)


def open_store(name: str, config: LmDataConfig, split: Split, tokenizer: Tokenizer) -> TokenStore:
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
    # Two stores that were split in different ways may share documents: held out from nothing.
    found, fraction = store.manifest.identity, config.held_out_fraction(name)
    if (found.split, found.validation_fraction) == (split, fraction):
        return store
    if fraction == 1.0 and (found.split, found.validation_fraction) == (
        "validation",
        config.validation_fraction,
    ):
        # Built before weight 0 meant all of it; none of it was trained on.
        log.warning(
            "component %r is evaluated IN PART: its store %s holds %s of its documents",
            *(name, store.path, f"{found.validation_fraction:.0%}"),
        )
        return store
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
            store = open_store(name, config, "validation", tokenizer)
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
        for place in range(number, number + min(count, _PROMPT_DOCUMENTS)):
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
        found = _fill(self._rows.read(rows), batch_size)
        made = examples_of(found, self._config, eos_id=self._eos_id, train_on_eos=True)

        def row_name(row: int) -> str:
            return f"held-out row {rows[row]} of component {self.name!r}"

        self._limits.require_tokens(made.tokens, row_name)
        ids = made.attn_mask.segment_ids
        room = self._limits.max_segments(ids, row_name, batch_size=batch_size)
        # The document of the token after each position; -1 where none follows.
        assert found.first_documents is not None  # evaluation reads windows
        documents = np.full(found.tokens.shape, -1, np.int64)
        following = found.segment_ids[:, 1:]
        firsts = found.first_documents[:, None]
        np.add(firsts, following, out=documents[:, :-1], where=following >= 0)
        return EvalRows(example=made.with_max_segments(room), documents=documents)


def build_eval_datasets(
    config: LmDataConfig, tokenizer: Tokenizer, *, seq_len: int, limits: RowLimits | None = None
) -> list[EvalDataset]:
    """The held-out part of every component that has one, and validation sets, in name order."""
    return [
        EvalDataset(name, config, tokenizer, seq_len=seq_len, limits=limits)
        for name, component in sorted(config.components.items())
        if component.validation_store is not None or config.held_out_fraction(name) > 0
    ]


def _fill(rows: RowBatch, count: int) -> RowBatch:
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


class TrainedTexts:
    """The first training documents of the component that a run has most of.

    They are read when one is asked for, apart from the rows of the run, and are the same in every
    process and at every start.
    """

    def __init__(self, config: LmDataConfig, tokenizer: Tokenizer) -> None:
        self._config, self._tokenizer = config, tokenizer
        weights = config.weights
        self.name = max(sorted(weights), key=weights.__getitem__)
        # Of a stream: how long each head and tail is, and those of each document.
        self._read: tuple[int, list[tuple[list[int], list[int]]]] = (0, [])

    def prompt(self, num_tokens: int, number: int = 0, *, is_tail: bool = False) -> list[int]:
        """The first tokens of document `number`, counted around, or of the next long enough.

        Where none is, of `number` itself: as many as it has. `is_tail`: the last ones. The token
        that ends a document is never among them.
        """
        if self._config.components[self.name].stream is None:
            start, length = _long_enough(self._spans, num_tokens, number, lambda span: span[1])
            taken = min(length, num_tokens)
            start += length - taken if is_tail else 0
            return self._store.read(np.asarray([start]), np.asarray([taken])).tolist()
        found = self._of_stream(num_tokens)
        head, tail = _long_enough(found, num_tokens, number, lambda ends: len(ends[0]))
        return tail[-num_tokens:] if is_tail else head[:num_tokens]

    @cached_property
    def _store(self) -> TokenStore:
        return open_store(self.name, self._config, "train", self._tokenizer)

    @cached_property
    def _spans(self) -> list[tuple[int, int]]:
        """Where each document begins and how long it is without its end; of those with a token.

        Documents may be books: only what a sample begins with is read.
        """
        documents = self._store.documents
        ends = [documents.span(number) for number in range(min(len(documents), _PROMPT_DOCUMENTS))]
        spans = [(start, end - start - 1) for start, end in ends if end - start > 1]
        return self._some(spans)

    def _of_stream(self, num_tokens: int) -> list[tuple[list[int], list[int]]]:
        """The first and last tokens of each document; read again where more are asked."""
        if num_tokens > self._read[0] or not self._read[1]:
            fraction = self._config.validation_fraction
            trained = documents_of_split(self._source_documents(), "train", fraction)
            # One by one, so that no more than one document is held whole.
            whole = (
                encode_documents([each], self._tokenizer).ids[:-1]
                for each in islice(trained, _PROMPT_DOCUMENTS)
            )
            ends = [
                (ids[:num_tokens].tolist(), ids[-num_tokens:].tolist()) for ids in whole if len(ids)
            ]
            self._read = (num_tokens, self._some(ends))
        return self._read[1]

    def _some(self, found: list[T]) -> list[T]:
        if not found:
            raise DataError(
                f"component {self.name!r} has no token in its first {_PROMPT_DOCUMENTS} training "
                "documents",
                allowed="a training document that a sample can start from",
                fix="set samples.max_tokens=0, or add documents",
            )
        return found

    def _source_documents(self) -> Iterator[Document]:
        """From the beginning of the source: where the run's own reader stands does not matter."""
        component = self._config.components[self.name]
        assert component.stream is not None
        documents = RetriedDocuments(
            component.required_source(self.name),
            component.format,
            name=self.name,
            max_retries=component.stream.max_retries,
            retry_delay_s=component.stream.retry_delay_s,
        )
        try:
            for located in documents:
                yield located.document
        finally:
            documents.close()


def _long_enough(found: Sequence[T], num_tokens: int, number: int, length: Callable[[T], int]) -> T:
    """The one with that number, counted around, or the next of so many tokens; else itself."""
    from_there = [found[(number + place) % len(found)] for place in range(len(found))]
    return next((each for each in from_there if length(each) >= num_tokens), from_there[0])
