"""What a run trains on: a tokenizer and named components with weights.

Until the executor has run, a path here may be a marker: "the output of that step".
"""

import math
from dataclasses import dataclass, field
from typing import Literal

from chomp.config import Config, setting
from chomp.data.sources import EmbeddedSource, Source
from chomp.errors import require
from chomp.tokenize import Tokenizer, load_tokenizer
from chomp.tokenize.bpe import MIN_BPE_VOCAB_SIZE


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig(Config):
    """The tokenizer of a run. `path` is the folder of a built one; the launch file fills it in."""

    kind: Literal["bpe", "byte"] = "bpe"
    vocab_size: int = 2048  # of a BPE; the byte tokenizer has 257
    path: str | None = setting(default=None, mark="cosmetic")  # the content counts, not the place

    def __post_init__(self) -> None:
        require(
            self.kind != "bpe" or self.vocab_size >= MIN_BPE_VOCAB_SIZE,
            given=f"data.tokenizer.vocab_size={self.vocab_size} of a BPE",
            allowed=f"{MIN_BPE_VOCAB_SIZE} or more (every byte and the end of a document)",
            fix="raise data.tokenizer.vocab_size, or set data.tokenizer.kind=byte",
        )

    def load(self) -> Tokenizer:
        """The built tokenizer at `path`."""
        require(
            self.path is not None,
            given="data.tokenizer.path=null",
            allowed="the folder of a built tokenizer",
            fix="run this config through a launch file, which builds one",
        )
        return load_tokenizer(str(self.path))


@dataclass(frozen=True, kw_only=True)
class LmComponentConfig(Config):
    """One named body of text. The stores are filled in by the launch file that builds them."""

    source: Source = field(default_factory=EmbeddedSource)
    weight: float = 1.0  # share of training examples; 0: evaluated, never trained on
    tags: tuple[str, ...] = ()  # groups it is also evaluated under, such as "text/web"
    # Where they are is cosmetic: what is in them is told by the run's data fingerprint.
    train_store: str | None = setting(default=None, mark="cosmetic")
    validation_store: str | None = setting(default=None, mark="cosmetic")

    def __post_init__(self) -> None:
        require(
            math.isfinite(self.weight) and self.weight >= 0,
            given=f"weight={self.weight} of a component",
            allowed="finite weights of 0 or more",
            fix="give each component its share; they need not add up to 1",
        )


@dataclass(frozen=True, kw_only=True)
class LmDataConfig(Config):
    """Tokenizer, components, and the rules that turn them into examples."""

    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    components: dict[str, LmComponentConfig] = field(default_factory=dict)
    validation_fraction: float = 0.05  # of documents, by hash
    mask_boundary_loss: bool = True  # a document's end does not predict the next document
    train_on_eos: bool = True  # the end of a document is something to predict

    def __post_init__(self) -> None:
        require(
            "ema" not in self.components,
            given="a component named 'ema'",
            allowed="any other name: eval/ema/* is the evaluation of the averaged weights",
            fix="rename the component",
        )
        require(
            0.0 < self.validation_fraction < 1.0,
            given=f"data.validation_fraction={self.validation_fraction}",
            allowed="between 0 and 1",
            fix="0.05 holds out one document in twenty",
        )
        for name in self.components:
            require(
                name != "" and name == name.strip(" /"),
                given=f"data.components with the name {name!r}",
                allowed="names that do not start or end with a blank or a slash",
                fix='name each component for what it holds, such as "code"; '
                "the name is part of paths and metrics",
            )

    @property
    def weights(self) -> dict[str, float]:
        """Weight of each component."""
        return {name: component.weight for name, component in self.components.items()}
