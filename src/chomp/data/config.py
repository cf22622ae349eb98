"""What a run trains on: a tokenizer, named components with weights, and how they become rows.

Until the executor has run, a path here may be a marker: "the output of that step".
"""

from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Literal

from chomp.config import Config, setting
from chomp.data.formats import Format, TextFormat
from chomp.data.mixture import StopStrategy
from chomp.data.order import BlockShuffleConfig
from chomp.data.packing import LongDocuments, PackingRule
from chomp.data.sources import Source
from chomp.errors import ConfigError, require
from chomp.storage import exists
from chomp.tokenize import (
    MIN_BPE_VOCAB_SIZE,
    ByteTokenizer,
    Tokenizer,
    load_tokenizer,
    tokenizer_from_json_file,
)

TokenizerKind = Literal["bpe", "byte", "json", "hub"]
PackingMode = Literal["concat", "packed", "sequential", "bin"]

# Which fields a tokenizer of a kind reads, besides `path`; any other has to be left alone.
_TOKENIZER_FIELDS: dict[TokenizerKind, frozenset[str]] = {
    "bpe": frozenset({"vocab_size", "training_documents"}),
    "byte": frozenset(),
    "json": frozenset({"file", "eos", "bos"}),
    "hub": frozenset({"name", "revision", "eos", "bos"}),
}
# The names of the first chomp for the same two packing modes.
_OTHER_NAMES: dict[str, PackingMode] = {"sequential": "concat", "bin": "packed"}


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig(Config):
    """The tokenizer of a run. `path` is the folder of a built one; the launch file fills it in.

    `bpe` is trained on the run's own documents, `byte` needs nothing, `json` is the
    `tokenizer.json` of another model, `hub` the name of a model that has one.
    """

    kind: TokenizerKind = "bpe"
    # Of a trained BPE: every byte and the end of a document at least.
    vocab_size: int = setting(default=2048, ge=MIN_BPE_VOCAB_SIZE, lt=2**24)
    # That a BPE learns from, the first of each component; None: all. A stream may have no end.
    training_documents: int | None = setting(default=None, ge=1, lt=2**31)
    file: str | None = None  # of kind json
    name: str | None = None  # of kind hub
    revision: str | None = None  # of kind hub; None: the newest
    # Ends a document, by its id or its text; None: the usual one.
    eos: int | str | None = setting(default=None, ge=0, lt=2**24)
    # Begins it, likewise; None: nothing does.
    bos: int | str | None = setting(default=None, ge=0, lt=2**24)
    # To a run its content counts and not the place; to a step, which does not look, the place.
    path: str | None = setting(default=None, mark="cosmetic", is_versioned=True)

    def __post_init__(self) -> None:
        needed = {"json": "file", "hub": "name"}.get(self.kind)
        require(
            needed is None or bool(getattr(self, needed)) or self.path is not None,
            f"data.tokenizer.kind={self.kind} without data.tokenizer.{needed}",
            allowed="the path of a tokenizer.json, or a name on the hub",
            fix=f"set data.tokenizer.{needed}",
        )
        used = _TOKENIZER_FIELDS[self.kind]
        for other in fields(self):
            value = getattr(self, other.name)
            require(
                other.name in ("kind", "path", *used) or value == other.default,
                f"data.tokenizer.{other.name}={value} with data.tokenizer.kind={self.kind}",
                allowed=", ".join(sorted(used)) or "no other field",
                fix=f"remove {other.name}, or choose a kind that uses it",
            )

    @property
    def known_vocab_size(self) -> int | None:
        """How many ids it has, where that is known before it is made."""
        if self.kind == "byte":
            return ByteTokenizer.vocab_size
        if self.kind == "json" and self.file is not None and exists(self.file):
            return tokenizer_from_json_file(self.file, eos=self.eos, bos=self.bos).vocab_size
        return self.vocab_size if self.kind == "bpe" else None

    def load(self) -> Tokenizer:
        """The built tokenizer at `path`."""
        require(
            self.path is not None,
            "data.tokenizer.path=null",
            allowed="the folder of a built tokenizer",
            fix="start this run through a launch file, which builds the tokenizer",
        )
        return load_tokenizer(str(self.path))


@dataclass(frozen=True, kw_only=True)
class StreamConfig(Config):
    """How a component is read that has no token store."""

    # Shuffled and packed together; two windows are held in memory.
    window_documents: int = setting(default=4096, ge=1, lt=2**31)
    shuffle: bool = True  # within each window; a stream has no other shuffle
    # Of a read, before the run fails.
    max_retries: int = setting(default=3, ge=0, le=1000, mark="cosmetic")
    # Before the first retry; doubled for each that follows.
    retry_delay_s: float = setting(default=1.0, ge=0, le=3600, mark="cosmetic")
    # Held-out documents to evaluate on: the first of the stream.
    max_validation_documents: int = setting(default=1000, ge=1, lt=2**31, mark="cosmetic")


@dataclass(frozen=True, kw_only=True)
class LmComponentConfig(Config):
    """One named body of text. The stores are filled in by the launch file that builds them."""

    source: Source | None = None  # may be left out where both stores are given
    format: Format = field(default_factory=TextFormat)
    # Share of training examples, unless data.stages says it; 0: never trained on, evaluated whole.
    weight: float = setting(default=1.0, ge=0, le=1e9)
    # Groups it is also evaluated under, such as "text/web".
    tags: tuple[str, ...] = setting(default=(), mark="cosmetic")
    stream: StreamConfig | None = None  # train straight from the source, without a store
    # Its tokens, once built. The place is cosmetic: the run's data fingerprint covers the content.
    # A step has no such fingerprint, so there the place counts.
    train_store: str | None = setting(default=None, mark="cosmetic", is_versioned=True)
    # Those of the documents that are held out.
    validation_store: str | None = setting(default=None, mark="cosmetic", is_versioned=True)

    def __post_init__(self) -> None:
        require(
            self.stream is None or self.train_store is None,
            "a component with stream and train_store",
            allowed="one of the two: a stream is read without a store",
            fix="remove stream to train from the store, which is shuffled better",
        )

    def required_source(self, name: str) -> Source:
        """The source of the component of that name, which something has to be made from."""
        require(
            self.source is not None,
            f"data.components.{name} without a source",
            allowed="a source, or the folders of both stores",
            fix=f"set data.components.{name}.source, or train_store and validation_store",
        )
        assert self.source is not None
        return self.source


@dataclass(frozen=True, kw_only=True)
class LmValidationConfig(Config):
    """A named set of documents that is evaluated whole and never trained on."""

    source: Source | None = None  # may be left out where the store is given
    format: Format = field(default_factory=TextFormat)
    # Groups it is also evaluated under, such as "paloma/c4".
    tags: tuple[str, ...] = setting(default=(), mark="cosmetic")
    # Its tokens, once built; filled in by the launch file that builds them.
    store: str | None = setting(default=None, mark="cosmetic", is_versioned=True)


@dataclass(frozen=True, kw_only=True)
class MixtureStage(Config):
    """Weights that hold from a step on, until the next stage."""

    start_step: int = setting(ge=0, lt=2**31)
    weights: dict[str, float] = setting(ge=0, le=1e9)


@dataclass(frozen=True, kw_only=True)
class PackingConfig(Config):
    """How whole documents share rows."""

    # None: 64, or one for each 32 tokens of a longer row. With a low bound, rows stay half empty.
    max_documents_per_row: int | None = setting(default=None, ge=1, le=2**20)
    long_documents: LongDocuments = "split"  # than a row: split them, truncate them or drop them


@dataclass(frozen=True, kw_only=True)
class LmDataConfig(Config):
    """Tokenizer, components, and the rules that turn them into examples."""

    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    components: dict[str, LmComponentConfig] = field(default_factory=dict)
    # Weights by step, in the place of the components' own; empty: those hold for the whole run.
    stages: tuple[MixtureStage, ...] = setting(default=(), mark="schedule")
    # When a component has been read once: begin it again, or let the data end there.
    stop_strategy: StopStrategy = "restart"
    shuffle: bool | BlockShuffleConfig = True  # rows of stores, anew every epoch
    packing_mode: PackingMode = "concat"  # windows over the line of documents, or whole documents
    packing: PackingConfig | None = None  # of packed rows; None: its defaults
    # Of the documents of every component that is trained on, by hash; 0: none.
    validation_fraction: float = setting(default=0.05, ge=0, lt=1)
    # Sets that are evaluated whole, by name. Each is also a component of weight 0, and training
    # documents that are in one are left out.
    validation: dict[str, LmValidationConfig] = setting(default_factory=dict, is_added=True)
    # Train on documents that are in a validation set too; they are reported all the same.
    allow_contamination: bool = setting(default=False, is_added=True)
    mask_boundary_loss: bool = True  # a document's end does not predict the next document
    train_on_eos: bool = True  # the end of a document is something to predict
    stream_semantics: bool = False  # attention goes on over the documents of a row

    def __post_init__(self) -> None:
        mode = _OTHER_NAMES.get(self.packing_mode, self.packing_mode)
        object.__setattr__(self, "packing_mode", mode)
        require(
            self.packing is None or mode == "packed",
            f"data.packing with data.packing_mode={mode}",
            allowed="data.packing with data.packing_mode=packed",
            fix="set data.packing_mode=packed, or remove data.packing",
        )
        components = dict(self.components)
        for name, part in self.validation.items():
            require(
                part.source is not None or self.allow_contamination,
                f"data.validation.{name} without a source",
                allowed="a source, whose documents are compared with those that are trained on",
                fix=f"set data.validation.{name}.source; with a store alone also set "
                "data.allow_contamination=true",
            )
            own = components.get(name)
            store = part.store if own is None else part.store or own.validation_store
            component = LmComponentConfig(
                source=part.source,
                format=part.format,
                weight=0.0,
                tags=part.tags,
                validation_store=store,
            )
            require(
                own is None or replace(own, validation_store=store) == component,
                f"{name!r} in data.components and in data.validation",
                allowed="a name of its own for each: it is part of the names of metrics",
                fix="rename one of them",
            )
            components[name] = component
        object.__setattr__(self, "components", components)
        require(
            "ema" not in components,
            "a component named 'ema'",
            allowed="any other name: eval/ema/* is for the averaged weights",
            fix="rename the component",
        )
        for name, component in components.items():
            require(
                name != "" and name == name.strip(" /"),
                f"data.components with the name {name!r}",
                allowed="names that do not start or end with a space or a slash",
                fix='name each component for what it holds, such as "code"; '
                "the name is part of paths and metrics",
            )
            require(
                self.stop_strategy == "restart" or component.stream is None,
                f"data.stop_strategy={self.stop_strategy} with the stream {name!r}",
                allowed="data.stop_strategy=restart: the length of a stream is not known",
                fix="set data.stop_strategy=restart, or train from a token store",
            )
        # An unknown name is a typing error; one that is left out would vanish without a word.
        trained = sorted(components.keys() - self.validation.keys())
        listed = f"a weight for each of the components {', '.join(trained)}"
        for number, stage in enumerate(self.stages):
            given = f"data.stages[{number}].weights"
            if unknown := sorted(stage.weights.keys() - set(trained)):
                raise ConfigError(
                    f"{given} with {unknown[0]!r}, which is not trained on",
                    allowed=f"{listed}; a validation set is never trained on",
                    fix="correct the name, remove it, or add the component to data.components",
                )
            if missing := [name for name in trained if name not in stage.weights]:
                raise ConfigError(
                    f"{given} without {missing[0]!r}",
                    allowed=listed,
                    fix=f"add {missing[0]}: 0 to leave it out of this stage",
                )
        starts = [stage.start_step for stage in self.stages]
        require(
            starts[:1] in ([], [0]) and all(a < b for a, b in pairwise(starts)),
            f"data.stages that start at the steps {starts}",
            allowed="a first stage at step 0, each next one later",
            fix="sort the stages by start_step, the first with start_step: 0",
        )
        weights = [stage.weights for stage in self.stages] or [self.weights]
        require(
            not components or all(any(each.values()) for each in weights),
            f"data.components {', '.join(sorted(components))}, all with weight 0"
            f"{' in a stage' if self.stages else ''}",
            allowed="at least one weight above 0; a component with weight 0 is only evaluated",
            fix="set a weight above 0 for the components to train on",
        )

    def packing_rule(self, seq_len: int) -> PackingRule:
        """How documents share rows of that length, where rows are packed."""
        packing = self.packing or PackingConfig()
        return PackingRule(
            row_len=seq_len,
            max_documents=packing.max_documents_per_row or max(64, seq_len // 32),
            long_documents=packing.long_documents,
        )

    @property
    def weights(self) -> dict[str, float]:
        """The largest weight of each component in any stage: 0 if it is never trained on."""
        if not self.stages:
            return {name: component.weight for name, component in self.components.items()}
        stages = [stage.weights for stage in self.stages]
        return {name: max(each.get(name, 0.0) for each in stages) for name in self.components}

    def held_out_fraction(self, name: str) -> float:
        """The part of a component's documents that is evaluated: all, if it is never trained on."""
        return self.validation_fraction if self.weights[name] > 0 else 1.0

    def require_documents_apart(self, field: str) -> None:
        """Raise `ConfigError` where attention runs over documents and `field` would do nothing."""
        require(
            not self.stream_semantics,
            f"{field} with data.stream_semantics=true",
            allowed=f"{field} only where attention stays within a document",
            fix=f"set data.stream_semantics=false, or remove {field}",
        )
