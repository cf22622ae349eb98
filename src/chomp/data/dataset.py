"""Examples by number: example n of a run is a pure function of config, seed and n.

Also held-out rows by number, with the document that each loss belongs to, and documents as prompts.
A component that is a stream is the exception: its rows come one after the other, and where it
stands is a small state that goes into the checkpoint.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Int

from chomp.config import fingerprint
from chomp.data.config import LmDataConfig, PackingConfig
from chomp.data.contamination import keys_of_sets, sets_fingerprint, validation_sets
from chomp.data.documents import Split, documents_of_split
from chomp.data.examples import GrugLmExample, RowLimits
from chomp.data.forecast import Forecast, forecast
from chomp.data.mixture import BatchSchedule, Mixture, mixture_length, require_served
from chomp.data.order import RowOrder
from chomp.data.rows import ConcatRows, PackedRows, RowBatch, Rows
from chomp.data.sources import source_fingerprint
from chomp.data.store.build import encode_documents
from chomp.data.store.store import TokenStore
from chomp.data.stream import StreamDocuments, StreamRows
from chomp.errors import ConfigError, DataError, StorageError
from chomp.storage import is_local
from chomp.tokenize import Tokenizer

# Axes: K rows that are asked for, N rows of a batch, T tokens of a row.

log = logging.getLogger(__name__)

T = TypeVar("T")
# Documents that are looked at for a prompt.
_PROMPT_DOCUMENTS = 50


@dataclass(frozen=True, kw_only=True)
class StoreComponent:
    """A component whose tokens are in a store: any row at any time."""

    rows: Rows
    order: RowOrder

    @property
    def num_rows(self) -> int:
        """Rows of one epoch."""
        return self.rows.num_rows


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
        self.components: dict[str, StoreComponent | StreamRows] = {}  # in the order of names
        self.stores: dict[str, StoreComponent] = {}
        self.streams: dict[str, StreamRows] = {}
        # SHA-256 of what each component is made from and of its content, wherever its files were.
        self._fingerprints: dict[str, str] = {}
        for name in self.mixture.names:
            if config.components[name].stream is None:
                rows = _training_rows(name, config, tokenizer, seq_len)
                order = RowOrder(rows.num_rows, seed=seed, name=name, shuffle=config.shuffle)
                self.components[name] = self.stores[name] = StoreComponent(rows=rows, order=order)
                self._fingerprints[name] = rows.store.manifest.fingerprint()
            else:
                stream, identity = _open_stream(name, config, tokenizer, seq_len, seed)
                self.components[name] = self.streams[name] = stream
                self._fingerprints[name] = identity

    @property
    def num_rows(self) -> dict[str, int]:
        """Rows of one epoch of every component that has a store."""
        return {name: store.num_rows for name, store in self.stores.items()}

    @property
    def is_local(self) -> bool:
        """Whether every store is on a disk of this machine, or mounted like one."""
        return all(is_local(store.rows.store.path) for store in self.stores.values())

    @property
    def num_examples(self) -> int | None:
        """How many examples the stop strategy allows; None: without end."""
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
        rows = RowBatch.empty(len(keep), self.seq_len)
        weights: np.ndarray | None = None
        for i, component in enumerate(self.components.values()):
            mine = np.flatnonzero(components == i)
            is_kept = place[mine] >= 0
            target, wanted = place[mine][is_kept], positions[mine]
            if isinstance(component, StoreComponent):
                found = component.rows.read(component.order.rows(wanted[is_kept]))
            else:
                found = component.read_at(wanted).take(is_kept)
            rows.tokens[target], rows.segment_ids[target] = found.tokens, found.segment_ids
            if found.loss_weights is not None:
                weights = np.ones(rows.tokens.shape, np.float32) if weights is None else weights
                weights[target] = found.loss_weights
        return RowBatch(tokens=rows.tokens, segment_ids=rows.segment_ids, loss_weights=weights)

    def examples_of(self, rows: RowBatch) -> GrugLmExample:
        """Rows as training examples."""
        train_on_eos = self.config.train_on_eos
        return _examples_of(rows, self.config, eos_id=self._eos_id, train_on_eos=train_on_eos)

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
        fingerprints = {**(others or {}), **self._fingerprints}
        for name in mixture.names:
            digest.update(fingerprints[name].encode())
        return digest.hexdigest()

    def epochs(self, examples: int) -> dict[str, float]:
        """How many times each stored component was read once that many examples are served."""
        counts = dict(zip(self.mixture.names, self.mixture.counts_before(examples), strict=True))
        return {name: counts[name] / rows for name, rows in self.num_rows.items()}

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
    if total_steps is None:
        return dataset
    needed, available = batches.examples_before(total_steps), dataset.num_examples
    require_served(dataset.mixture, needed)
    if available is not None and needed > available:
        # The last step whose examples are all there.
        steps = batches.step_of(available)
        allowed, fix = f"at most {steps} steps", f"set train.steps={steps}"
        if steps == 0:
            allowed = f"data for at least one step, which takes {batches.examples(0)} examples"
            fix = "add documents, lower train.batch_size or train.seq_len"
        raise ConfigError(
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


def _examples_of(
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


def _open_stream(
    name: str, config: LmDataConfig, tokenizer: Tokenizer, seq_len: int, seed: int
) -> tuple[StreamRows, str]:
    """The rows of a stream, and the SHA-256 of what it is read from and how."""
    component = config.components[name]
    assert component.stream is not None
    sets = validation_sets(config, lambda name, source: source_fingerprint(source, component=name))
    parts: list[Any] = [
        source_fingerprint(component.required_source(name)),
        tokenizer.content_hash,
        component.format,
        component.stream.window_documents,
        component.stream.shuffle,
    ]
    if sets:
        parts.append(sets_fingerprint(sets, allow_contamination=config.allow_contamination))
    kept_out = {} if config.allow_contamination else keys_of_sets(sets)
    stream = StreamRows(name, config, tokenizer, seq_len=seq_len, seed=seed, kept_out=kept_out)
    return stream, fingerprint(parts)


def _training_rows(name: str, config: LmDataConfig, tokenizer: Tokenizer, seq_len: int) -> Rows:
    """The rows of a component with a store, which is opened."""
    store = open_store(name, config, "train", tokenizer)
    if not store.has_counted_tokens():
        raise DataError(
            f"component {name!r}: {store.path}, whose loss weights are all 0",
            allowed="a train split with a token that counts for the loss",
            fix=f"correct the weights in its source, or leave out data.components.{name}",
        )
    if config.packing_mode == "concat":
        return ConcatRows(store, seq_len)
    rule = config.packing_rule(seq_len)
    rows = PackedRows(store, rule)
    if dropped := rows.figures["dropped_tokens"]:
        log.warning(
            "component %r: %d documents are longer than a row, and %d of their tokens are left "
            "out (data.packing.long_documents=%s)",
            *(name, rows.figures["long_documents"], dropped, rule.long_documents),
        )
    return rows


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
    identity, fraction = store.manifest.identity, config.held_out_fraction(name)
    found = identity.split, identity.validation_fraction
    if found == (split, fraction):
        return store
    allowed = f"the {split} split at data.validation_fraction={fraction}"
    fix = "name the store of that split, or set the data.validation_fraction it was built with"
    if fraction == 1.0:
        if found == ("validation", config.validation_fraction):
            # Built before weight 0 meant all of it; none of it was trained on.
            log.warning(
                "component %r is evaluated IN PART: its store %s holds %s of its documents",
                *(name, store.path, f"{found[1]:.0%}"),
            )
            return store
        allowed = (
            "a store of all its documents (validation_fraction=1.0): with weight 0 it is never "
            "trained on and evaluated whole"
        )
        fix = (
            f"leave out data.components.{name}.{split}_store to have it built; `chomp eval RUN "
            "--data NAME=FOLDER` evaluates any store"
        )
    raise DataError(
        f"component {name!r}: {split}_store {store.path} is the {found[0]} split at "
        f"validation_fraction={found[1]}",
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
        last = number + min(count, _PROMPT_DOCUMENTS)
        spans = [store.documents.span(place % count) for place in range(number, last)]
        start, end = _long_enough(spans, num_tokens, 0, lambda span: span[1] - span[0] - 1)
        return _read_prompt(store, start, max(end - start - 1, 1), num_tokens, is_tail=is_tail)

    def read(self, rows: Int[np.ndarray, " K"], batch_size: int) -> EvalRows:
        """Those rows, at most `batch_size`, filled up with rows that count for nothing.

        Raises `DataError` for rows that the dataset's limits do not allow.
        """
        found = self._rows.read(rows).padded_to(batch_size)
        made = _examples_of(found, self._config, eos_id=self._eos_id, train_on_eos=True)

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
        self._ends: tuple[int, list[tuple[list[int], list[int]]]] = (0, [])

    def prompt(self, num_tokens: int, number: int = 0, *, is_tail: bool = False) -> list[int]:
        """The first tokens of document `number`, counted around, or of the next long enough.

        Where none is, of `number` itself: as many as it has. `is_tail`: the last ones. The token
        that ends a document is never among them.
        """
        if self._config.components[self.name].stream is None:
            store, spans = self._spans
            start, length = _long_enough(spans, num_tokens, number, lambda span: span[1])
            return _read_prompt(store, start, length, num_tokens, is_tail=is_tail)
        if num_tokens > self._ends[0]:
            self._ends = (num_tokens, self._read_ends(num_tokens))
        head, tail = _long_enough(self._ends[1], num_tokens, number, lambda ends: len(ends[0]))
        return tail[-num_tokens:] if is_tail else head[:num_tokens]

    @cached_property
    def _spans(self) -> tuple[TokenStore, list[tuple[int, int]]]:
        """Where each document begins and how long it is without its end; of those with a token.

        Documents may be books: only what a sample begins with is read.
        """
        store = open_store(self.name, self._config, "train", self._tokenizer)
        count = min(len(store.documents), _PROMPT_DOCUMENTS)
        spans = [store.documents.span(number) for number in range(count)]
        return store, self._some([(a, b - a - 1) for a, b in spans if b - a > 1])

    def _read_ends(self, num_tokens: int) -> list[tuple[list[int], list[int]]]:
        """The first and last tokens of each document of a stream, from its source's beginning."""
        fraction, found = self._config.validation_fraction, []
        with closing(StreamDocuments(self.name, self._config)) as located:
            documents = (document for _, document in located)
            trained = documents_of_split(documents, "train", fraction)
            for each in islice(trained, _PROMPT_DOCUMENTS):
                # One by one, so that no more than one document is held whole.
                ids = encode_documents([each], self._tokenizer).ids[:-1]
                if len(ids):
                    found.append((ids[:num_tokens].tolist(), ids[-num_tokens:].tolist()))
        return self._some(found)

    def _some(self, found: list[T]) -> list[T]:
        if not found:
            raise DataError(
                f"component {self.name!r} has no token in its first {_PROMPT_DOCUMENTS} training "
                "documents",
                allowed="a training document that a sample can start from",
                fix="set samples.max_tokens=0, or add documents",
            )
        return found


def _long_enough(found: Sequence[T], num_tokens: int, number: int, length: Callable[[T], int]) -> T:
    """The one with that number, counted around, or the next of so many tokens; else itself."""
    from_there = [found[(number + place) % len(found)] for place in range(len(found))]
    return next((each for each in from_there if length(each) >= num_tokens), from_there[0])


def _read_prompt(
    store: TokenStore, start: int, length: int, num_tokens: int, *, is_tail: bool
) -> list[int]:
    taken = min(length, num_tokens)
    start += length - taken if is_tail else 0
    return store.read(np.asarray([start]), np.asarray([taken])).tolist()
