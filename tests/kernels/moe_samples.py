"""Tokens, routers and experts to try, and the mixture of experts written out token by token."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from chomp.kernels.moe import ExpertWeights
from chomp.mesh import BATCH_AXES

BATCH, LENGTH, WIDTH = 8, 16, 16


def sample(
    num_experts: int, *, has_gate: bool, width: int = 8, seed: int = 0
) -> tuple[Array, Array, ExpertWeights]:
    """Activations, logits of a router, and experts whose outputs are about 1."""
    keys = jax.random.split(jax.random.key(seed), 5)
    x = jax.random.normal(keys[0], (BATCH, LENGTH, WIDTH))
    logits = jax.random.normal(keys[1], (BATCH, LENGTH, num_experts))
    into = 0.25 * jax.random.normal(keys[2], (num_experts, WIDTH, width))
    gate = jax.random.normal(keys[3], into.shape) / 4 if has_gate else None
    down = 0.25 * jax.random.normal(keys[4], (num_experts, width, WIDTH))
    return x, logits, ExpertWeights(into, gate, down)


def on_mesh(x: Array, logits: Array, experts: ExpertWeights) -> tuple[Array, Array, ExpertWeights]:
    """The sample as a template cuts it over the mesh that is set."""
    rows, into = P(BATCH_AXES, None, None), P("expert", "data", "model")
    cut = ExpertWeights(
        jax.reshard(experts.up, into),
        None if experts.gate is None else jax.reshard(experts.gate, into),
        jax.reshard(experts.down, P("expert", "model", "data")),
    )
    return jax.reshard(x, rows), jax.reshard(logits, rows), cut


def by_hand(
    x: np.ndarray, logits: np.ndarray, bias: np.ndarray, experts: ExpertWeights, top_k: int
) -> np.ndarray:
    """One token after the other, in float64: the experts with the highest sums, then the sum."""
    out = np.zeros(x.shape)
    up, down = np.asarray(experts.up, np.float64), np.asarray(experts.down, np.float64)
    for place in np.ndindex(*x.shape[:2]):
        own, scores = x[place].astype(np.float64), logits[place].astype(np.float64)
        chosen = np.argsort(-(scores + bias), kind="stable")[:top_k]
        weights = np.exp(scores) / np.exp(scores).sum()
        weights = weights[chosen] if top_k == 1 else weights[chosen] / weights[chosen].sum()
        for expert, weight in zip(chosen, weights, strict=True):
            inner = own @ up[expert]
            if experts.gate is None:
                inner = np.maximum(inner, 0) ** 2
            else:
                gate = own @ np.asarray(experts.gate[expert], np.float64)
                inner = inner * gate / (1 + np.exp(-gate))
            out[place] += weight * (inner @ down[expert])
    return out


def total(tree: Array) -> Array:
    """A number that depends on every entry in its own way."""
    return jnp.sum(jnp.sin(tree))
