"""What updates the weights: a config that builds an optax transform."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import optax

from chomp.config import Config
from chomp.errors import ConfigError, message, require, require_positive
from chomp.optim.schedule import learning_rate_schedule

PARAM_GROUPS = ("matrix", "embedding", "vector", "dynamics")


@dataclass(frozen=True, kw_only=True)
class AdamConfig(Config):
    """Moments of Adam."""

    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        require_positive(self)
        for name, value in (("b1", self.b1), ("b2", self.b2)):
            require(
                value < 1.0,
                given=f"optim.adam.{name}={value}",
                allowed="above 0 and below 1",
                fix="0.9 and 0.95 are usual for b1 and b2",
            )


@dataclass(frozen=True, kw_only=True)
class GrugOptimizerConfig(Config):
    """AdamW with warmup and cosine decay; weight decay on matrices only."""

    name: Literal["adamw"] = "adamw"
    lr: float = 3e-4
    weight_decay: float = 0.01
    grad_clip_norm: float = 1.0  # global norm; 0: no clipping
    warmup_steps: int = 10
    decay_steps: int | None = None  # after warmup; None: the rest of the run
    min_lr_ratio: float = 0.0
    adam: AdamConfig = field(default_factory=AdamConfig)

    def __post_init__(self) -> None:
        require(self.lr > 0, given=f"optim.lr={self.lr}", allowed="above 0", fix="try 3e-4")
        for name in ("weight_decay", "grad_clip_norm", "warmup_steps"):
            value = getattr(self, name)
            require(
                value >= 0,
                given=f"optim.{name}={value}",
                allowed="0 or more",
                fix=f"set optim.{name}=0 to turn it off",
            )
        require(
            0.0 <= self.min_lr_ratio <= 1.0,
            given=f"optim.min_lr_ratio={self.min_lr_ratio}",
            allowed="between 0 and 1",
            fix="0.1 ends the run at a tenth of optim.lr",
        )
        require(
            self.decay_steps is None or self.decay_steps > 0,
            given=f"optim.decay_steps={self.decay_steps}",
            allowed="above 0, or null for the rest of the run",
            fix="set optim.decay_steps=null",
        )

    def schedule(self, num_steps: int) -> optax.Schedule:
        """The learning rate of a run of `num_steps`."""
        require(
            self.warmup_steps < num_steps,
            given=f"optim.warmup_steps={self.warmup_steps} in a run of {num_steps} steps",
            allowed="fewer warmup steps than steps",
            fix=f"set optim.warmup_steps to {num_steps // 10}",
        )
        return learning_rate_schedule(
            lr=self.lr,
            warmup_steps=self.warmup_steps,
            decay_steps=self.decay_steps or num_steps - self.warmup_steps,
            min_lr_ratio=self.min_lr_ratio,
        )

    def build(self, num_steps: int, param_groups: Any) -> optax.GradientTransformation:
        """The update rule for parameters whose tree of group labels is `param_groups`."""
        labels = set(jax.tree.leaves(param_groups))
        if not labels <= set(PARAM_GROUPS):
            raise ConfigError(
                message(
                    given=f"parameter groups {sorted(labels)}",
                    allowed=f"{list(PARAM_GROUPS)}",
                    fix="correct the model's param_groups()",
                )
            )
        decayed = jax.tree.map(lambda label: label == "matrix", param_groups)
        clip = optax.clip_by_global_norm(self.grad_clip_norm)
        rule = optax.chain(
            clip if self.grad_clip_norm > 0 else optax.identity(),
            optax.scale_by_adam(b1=self.adam.b1, b2=self.adam.b2, eps=self.adam.eps),
            optax.add_decayed_weights(self.weight_decay, mask=decayed),
            optax.scale_by_learning_rate(self.schedule(num_steps)),
        )
        return optax.GradientTransformation(rule.init, _with_standard_promotion(rule.update))


def _with_standard_promotion(update: Callable[..., Any]) -> Callable[..., Any]:
    """`update` under JAX's usual dtype rules: optax raises floats to the power of int32 counts,
    which the strict rules of our tests refuse.
    """

    def updated(updates: Any, state: Any, params: Any = None) -> Any:
        with jax.numpy_dtype_promotion("standard"):
            return update(updates, state, params)

    return updated
