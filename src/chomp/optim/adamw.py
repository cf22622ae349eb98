"""AdamW: a step of about `lr` in every weight, and decay that is no part of the gradient.

    m <- b1 m + (1 - b1) g        v <- b2 v + (1 - b2) g g
    W <- W - lr (m' / (sqrt(v') + eps) + weight_decay W)

m' = m / (1 - b1^t) and v' = v / (1 - b2^t) after t updates; with `nesterov` m' looks one gradient
ahead (NAdam). Only the groups that decay have the last term.
"""

from dataclasses import dataclass
from typing import Any

import optax

from chomp.config import Config, setting
from chomp.optim.groups import decayed_weights
from chomp.optim.schedule import LearningRate


@dataclass(frozen=True, kw_only=True)
class AdamConfig(Config):
    """Moments of Adam."""

    b1: float = setting(default=0.9, gt=0, lt=1)
    b2: float = setting(default=0.999, gt=0, lt=1)
    eps: float = setting(default=1e-8, gt=0, le=1)
    nesterov: bool = False


def adamw(
    config: AdamConfig, schedule: LearningRate, *, weight_decay: float, param_groups: Any
) -> tuple[optax.GradientTransformation, ...]:
    """The transforms of AdamW, to be chained."""
    return (
        optax.scale_by_adam(b1=config.b1, b2=config.b2, eps=config.eps, nesterov=config.nesterov),
        optax.add_decayed_weights(weight_decay, mask=decayed_weights(param_groups)),
        optax.scale_by_learning_rate(schedule),
    )
