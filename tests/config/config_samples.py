"""Configs the tests of chomp.config share: a run nested four deep, with string annotations."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any, Literal

from chomp.config import Config, config_from_mapping, setting
from chomp.config.files import parse_yaml
from chomp.errors import require


class Level(Enum):
    """How much is logged."""

    INFO = "info"
    DEBUG = "debug"


class Priority(IntEnum):
    """An enum whose values are numbers."""

    LOW = 1
    HIGH = 2


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(Config):
    """Shape of one attention layer."""

    num_heads: int = 8
    num_kv_heads: int = 4
    window: int | None = None

    def __post_init__(self) -> None:
        require(
            self.num_heads % self.num_kv_heads == 0,
            given=f"num_heads={self.num_heads} with num_kv_heads={self.num_kv_heads}",
            allowed="num_kv_heads that divides num_heads",
            fix="set num_kv_heads to a divisor of num_heads",
        )


@dataclass(frozen=True, kw_only=True)
class BlockConfig(Config):
    """One layer; there to make the nesting deep."""

    attention: AttentionConfig = field(default_factory=AttentionConfig)


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Config):
    """A model with one required field."""

    vocab_size: int
    hidden_dim: int = 128
    block: BlockConfig = field(default_factory=BlockConfig)
    norm_eps: float = 1e-5
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    dropout: float = setting(default=0.0, ge=0, lt=1)


@dataclass(frozen=True, kw_only=True)
class AdamConfig(Config):
    """One member of a union told apart by `kind`."""

    kind: Literal["adamw"] = "adamw"
    # Peak learning rate.
    lr: float = setting(default=3e-4, aliases=("learning_rate", "rate"))
    betas: tuple[float, float] = (0.9, 0.95)

    def __post_init__(self) -> None:
        require(
            self.lr > 0, given=f"lr={self.lr}", allowed="lr above 0", fix="set lr to 3e-4 or so"
        )


@dataclass(frozen=True, kw_only=True)
class MuonConfig(Config):
    """The other member."""

    kind: Literal["muon"] = "muon"
    lr: float = 0.02
    ns_steps: int = 5


@dataclass(frozen=True, kw_only=True)
class ComponentConfig:
    """One part of a mixture; it does without the base class on purpose."""

    weight: float
    paths: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StageConfig(Config):
    """One item of a list of configs."""

    start: int = 0
    weights: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DataConfig(Config):
    """Mappings and lists of configs."""

    components: dict[str, ComponentConfig] = field(default_factory=dict)
    stages: tuple[StageConfig, ...] = ()
    seed: int = setting(default=0, mark="schedule")


@dataclass(frozen=True, kw_only=True)
class LoggingConfig(Config):
    """All of it cosmetic where it is used."""

    level: Level = Level.INFO
    tags: tuple[str, ...] = ()
    log_file: Path | None = None


@dataclass(frozen=True, kw_only=True)
class RunConfig(Config):
    """A whole run."""

    model: ModelConfig
    optimizer: AdamConfig | MuonConfig = setting(default_factory=AdamConfig, aliases=("optim",))
    data: DataConfig = field(default_factory=DataConfig)
    logging: LoggingConfig = setting(default_factory=LoggingConfig, mark="cosmetic")
    fallback: AdamConfig | MuonConfig | None = None
    run_id: str = "run"
    steps: int = setting(default=100, aliases=("num_steps",), mark="schedule")  # Updates.
    ema_beta: float | None = None
    jit: bool = True
    priority: Priority = Priority.LOW
    width_or_name: int | str = 1
    extra: dict[str, Any] = field(default_factory=dict)


def run(**changes: Any) -> RunConfig:
    """A valid run, with some fields changed."""
    return RunConfig(**{"model": ModelConfig(vocab_size=256), **changes})


MODEL = {"vocab_size": 256}
"""The least a mapping must say about the model."""


def read(text: str, cls: type[Any] = RunConfig) -> Any:
    """The config in the text of a YAML file, which messages call run.yaml."""
    content = parse_yaml(text, source="run.yaml")
    return config_from_mapping(cls, {} if content is None else content, source="run.yaml")
