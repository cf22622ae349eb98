"""What a run trains on: a tokenizer, named components with weights, and how they become rows.

Until the executor has run, a path here may be a marker: "the output of that step".
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from chomp.config import Config, setting
from chomp.data.mixture import StopStrategy
from chomp.data.packing import LongDocuments
from chomp.data.shuffle import BlockShuffleConfig
from chomp.data.sources.formats import Format, TextFormat
from chomp.data.sources.source import Source
from chomp.data.streams.stream import StreamConfig
from chomp.data.tokenizer_config import TokenizerConfig
from chomp.errors import require

PackingMode = Literal["concat", "packed", "sequential", "bin"]

# The names of the first chomp for the same two ways.
_OTHER_NAMES: dict[str, PackingMode] = {"sequential": "concat", "bin": "packed"}


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
    # Its tokens, once built. The place is cosmetic: what is in it is told by the run's data
    # fingerprint. A step has none, so that there the place counts.
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

    def documents_per_row(self, seq_len: int) -> int:
        """The bound for rows of that length."""
        return self.max_documents_per_row or max(64, seq_len // 32)


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
    # Of the documents of every component that is trained on, by hash.
    validation_fraction: float = setting(default=0.05, gt=0, lt=1)
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
        _check_names(self.components)
        streams = [name for name, part in self.components.items() if part.stream is not None]
        require(
            self.stop_strategy == "restart" or not streams,
            f"data.stop_strategy={self.stop_strategy} with the stream {streams[:1]}",
            allowed="data.stop_strategy=restart: the length of a stream is not known in advance",
            fix="set data.stop_strategy=restart, or train from a token store",
        )
        require(
            not self.components or bool(self.stages) or any(self.weights.values()),
            f"data.components, all with weight 0: {', '.join(sorted(self.components))}",
            allowed="at least one weight above 0; a component with weight 0 is only evaluated",
            fix="set a weight above 0 for the components to train on",
        )
        for number, stage in enumerate(self.stages):
            _check_stage(number, stage, self.components)
        _check_starts([stage.start_step for stage in self.stages])

    @property
    def weights(self) -> dict[str, float]:
        """The largest weight of each component in any stage: 0 if it is never trained on."""
        if not self.stages:
            return {name: component.weight for name, component in self.components.items()}
        return {name: max(stage.weights[name] for stage in self.stages) for name in self.components}

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


def _check_names(components: dict[str, LmComponentConfig]) -> None:
    require(
        "ema" not in components,
        "a component named 'ema'",
        allowed="any other name: eval/ema/* is for the averaged weights",
        fix="rename the component",
    )
    for name in components:
        require(
            name != "" and name == name.strip(" /"),
            f"data.components with the name {name!r}",
            allowed="names that do not start or end with a space or a slash",
            fix='name each component for what it holds, such as "code"; '
            "the name is part of paths and metrics",
        )


def _check_starts(starts: list[int]) -> None:
    require(
        starts[:1] in ([], [0]) and all(a < b for a, b in pairwise(starts)),
        f"data.stages that start at the steps {starts}",
        allowed="a first stage at step 0, each next one later",
        fix="sort the stages by start_step, the first with start_step: 0",
    )


def _check_stage(
    number: int, stage: MixtureStage, components: dict[str, LmComponentConfig]
) -> None:
    """A name nobody knows is a typing error; one that is left out would vanish without a word."""
    listed = f"a weight for each of the components {', '.join(sorted(components))}"
    for name in stage.weights:
        require(
            name in components,
            f"data.stages[{number}].weights with the unknown component {name!r}",
            allowed=listed,
            fix="correct the name, or add the component to data.components",
        )
    for name in components:
        require(
            name in stage.weights,
            f"data.stages[{number}].weights without {name!r}",
            allowed=listed,
            fix=f"add {name}: 0 to leave it out of this stage",
        )
    require(
        any(stage.weights.values()),
        f"data.stages[{number}].weights that are all 0",
        allowed=f"{listed}, at least one above 0",
        fix="set a weight above 0 for the components to train on in this stage",
    )
