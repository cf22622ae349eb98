"""Muon: momentum whose matrices are made orthogonal, so that every direction moves alike.

    m <- beta m + (1 - beta) g
    u  = beta m / (1 - beta^(t+1)) + (1 - beta) g / (1 - beta^t)     after t updates, this one too
    W <- W - lr (lr_scale s O(u) + weight_decay weight_decay_mult W)

u is m / (1 - beta^t) without `nesterov`. O is Newton-Schulz. s is 1, or `consistent_rms` *
sqrt(max(rows, columns)), which gives every matrix an update of that root mean square whatever its
shape: 0.2 is what AdamW's have. Decay does not grow with `lr_scale`. Weights that are not matrices
go to AdamW. Not optax's Muon, which cannot run on an explicit mesh.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, DTypeLike, Int

from chomp.config import Config, setting
from chomp.optim.groups import Group, decayed_weights
from chomp.optim.matrix_stacks import map_matrices
from chomp.optim.newton_schulz import orthogonalized
from chomp.optim.schedule import LearningRate


@dataclass(frozen=True, kw_only=True)
class MuonConfig(Config):
    """Muon's own knobs, and which weights it takes beside the group `matrix`."""

    lr_scale: float = setting(default=100.0, gt=0, le=1e6)  # Muon's rate over optim.lr
    # Muon's decay over optim.weight_decay: 1 decays as AdamW does, 0 not at all.
    weight_decay_mult: float = setting(default=1.0, ge=0, le=1e6)
    momentum: float = setting(default=0.95, gt=0, lt=1)
    ns_steps: int = setting(default=5, ge=1, le=100)
    nesterov: bool = True
    # 0.2 gives updates the size of AdamW's; null: of norm sqrt(rows), whatever the columns.
    consistent_rms: float | None = setting(default=None, gt=0, le=1000)
    allow_all_2d: bool = False  # whatever is a table of numbers: embeddings too
    allow_tied_embed: bool = False  # the group `embedding` too

    def takes(self, group: Group, num_axes: int) -> bool:
        """Whether Muon updates a weight of that group."""
        if group == "embedding":
            return self.allow_tied_embed or (self.allow_all_2d and num_axes == 2)
        # A vector with two axes is a stack of those of many layers; so may be time constants, and
        # those of one layer mean nothing to one another.
        return group == "matrix"


def muon(
    config: MuonConfig, schedule: LearningRate, *, weight_decay: float, param_groups: Any
) -> tuple[optax.GradientTransformation, ...]:
    """The transforms of Muon for weights that are all matrices, to be chained."""
    return (
        scale_by_muon(momentum=config.momentum, nesterov=config.nesterov, ns_steps=config.ns_steps),
        optax.stateless(partial(_scaled, config)),
        optax.add_decayed_weights(
            weight_decay * config.weight_decay_mult, mask=decayed_weights(param_groups)
        ),
        optax.scale_by_learning_rate(schedule),
    )


class MuonState(NamedTuple):
    """Updates so far, and the momentum of every weight in the weight's dtype."""

    num_updates: Int[Array, ""]
    momentum: Any


def scale_by_muon(
    *, momentum: float, nesterov: bool, ns_steps: int
) -> optax.GradientTransformation:
    """Gradients to orthogonal directions: singular values about 1, whatever the gradient's size.

    Weights of one shape are orthogonalised together, shared out over the devices of the mesh that
    the weights lie on; axes before the last two count matrices.
    """

    def init(params: Any) -> MuonState:
        return MuonState(jnp.zeros([], jnp.int32), jax.tree.map(jnp.zeros_like, params))

    def update(updates: Any, state: MuonState, params: Any = None) -> tuple[Any, MuonState]:
        del params
        count = optax.safe_increment(state.num_updates)
        moved = jax.tree.map(partial(_moved, momentum), state.momentum, updates)
        if nesterov:
            ahead = partial(_ahead, momentum, count.astype(jnp.float32))
            moments = jax.tree.map(ahead, moved, updates)
        else:
            moments = moved  # their scale, which bias correction is, does not matter
        leaves, structure = jax.tree.flatten(moments)
        directions = map_matrices(
            partial(orthogonalized, steps=ns_steps), leaves, dtype=_working_dtype(leaves)
        )
        found = jax.tree.unflatten(structure, directions)
        found = jax.tree.map(lambda x, g: x.astype(g.dtype), found, updates)
        return found, MuonState(count, moved)

    return optax.GradientTransformation(init, update)


def _moved(beta: float, momentum: Array, gradient: Array) -> Array:
    return (beta * momentum + (1.0 - beta) * gradient).astype(momentum.dtype)


def _ahead(beta: float, count: Array, momentum: Array, gradient: Array) -> Array:
    """Momentum that has seen this gradient twice, each part with its bias corrected."""
    own = (1.0 - beta) / (1.0 - beta**count)
    old = beta / (1.0 - beta ** (count + 1.0))
    return old * momentum.astype(jnp.float32) + own * gradient.astype(jnp.float32)


def _scaled(config: MuonConfig, updates: Any, params: Any) -> Any:
    del params

    def scaled(update: Array) -> Array:
        rms = config.consistent_rms
        shape = 1.0 if rms is None else rms * math.sqrt(max(update.shape[-2:]))
        return update * (config.lr_scale * shape)

    return jax.tree.map(scaled, updates)


def _working_dtype(leaves: list[Array]) -> DTypeLike:
    """bfloat16, in which products add up in float32, but on a CPU, which has no fast ones."""
    device = jax.typeof(leaves[0]).sharding.mesh.abstract_device
    platform = jax.default_backend() if device is None else device.platform
    return jnp.float32 if platform == "cpu" else jnp.bfloat16
