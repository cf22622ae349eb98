"""Which experts each token goes to, and with what weight: in float32, whatever the model is in.

Two experts are often nearly as good, and rounding must not choose. Chosen are the K highest of
logits plus bias; the bias balances the experts and is no part of the weights. What is known of the
routing is kept as sums over real tokens, so that micro-batches and devices add up, and what is made
of the sums divides once.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from chomp.errors import require
from chomp.kernels.moe.histogram import NUM_BINS, histogram

# Axes: B batch, S sequence, D model width, E experts, K experts of a token, N bins.


class RouterSums(NamedTuple):
    """Sums over the real tokens of a layer; with a leading axis, of several layers."""

    tokens: Float[Array, "*L"]
    assigned: Float[Array, "*L E"]  # tokens of each expert
    probability: Float[Array, "*L E"]  # of the softmax over all experts
    entropy: Float[Array, "*L"]  # of that softmax, in nats
    logsumexp_squared: Float[Array, "*L"]
    # By how much an expert's logit passes what it took to be chosen: how many tokens in each bin.
    margins: Int[Array, "*L E N"]
    weight: Float[Array, "*L"]  # that tokens gave to experts
    dropped_weight: Float[Array, "*L"]  # of it, what found no room


class Routing(NamedTuple):
    """The choice for every token. Padding has chosen too, with weights of 0."""

    chosen: Int[Array, "B S K"]
    weights: Float[Array, "B S K"]  # of a real token they add up to 1 where K > 1
    sums: RouterSums  # with nothing dropped: that is not known yet


def router_logits(x: Float[Array, "B S D"], weight: Float[Array, "D E"]) -> Float[Array, "B S E"]:
    """How well each expert suits each token, in float32 from a float32 `weight`, whatever `x` is.

    The gradient of `x` is float32 up to the last, where it is rounded to what `x` is in.
    """
    require(
        weight.dtype == jnp.float32,
        f"the weights of a router in {weight.dtype}",
        allowed="float32",
        fix="label them 'dynamics' in param_groups(), which Precision leaves in float32",
    )
    return _float32_product(x, weight)


def route(
    logits: Float[Array, "B S E"],
    bias: Float[Array, " E"],
    *,
    top_k: int,
    is_real: Bool[Array, "B S"] | None = None,
) -> Routing:
    """The `top_k` experts of every token. Padding is what `is_real` says is none; None: no padding.

    Weights are the softmax over the chosen; with one expert a token, the softmax over all, since a
    weight that is always 1 would teach the router nothing.
    """
    num_experts = logits.shape[2]
    real = jnp.ones_like(logits[..., 0]) if is_real is None else is_real.astype(jnp.float32)
    biased = jax.lax.stop_gradient(logits + bias[None, None])
    # One more than is chosen: what the least of them had to pass.
    best, order = jax.lax.top_k(biased, min(top_k + 1, num_experts))
    chosen = order[..., :top_k]
    numbers = jnp.arange(num_experts, dtype=chosen.dtype)
    is_chosen = chosen[..., None] == numbers[None, None, None]
    # A sum over a mask and not a gather: its gradient is one too, and not a scatter.
    picked = jnp.sum(jnp.where(is_chosen, logits[:, :, None], 0.0), axis=-1)
    normalizer = jax.nn.logsumexp(logits, axis=-1)
    logs = picked - normalizer[..., None] if top_k == 1 else jax.nn.log_softmax(picked, axis=-1)
    weights = jnp.exp(logs) * real[..., None]
    is_any = jnp.any(is_chosen, axis=2)
    sums = _sums(logits, best, normalizer, is_any, real, top_k)
    return Routing(chosen, weights, sums._replace(weight=jnp.sum(jax.lax.stop_gradient(weights))))


# Checkpointed: the backward pass else keeps a float32 copy of every layer's tokens, twice what they
# take themselves.
@jax.checkpoint
def _float32_product(x: Float[Array, "B S D"], weight: Float[Array, "D E"]) -> Array:
    # Without HIGHEST a GPU may multiply in TF32, whose factors have 10 bits.
    return jnp.einsum(
        "bsd,de->bse", x.astype(jnp.float32), weight, precision=jax.lax.Precision.HIGHEST
    )


def _sums(
    logits: Float[Array, "B S E"],
    best: Float[Array, "B S _"],
    normalizer: Float[Array, "B S"],
    is_chosen: Bool[Array, "B S E"],
    real: Float[Array, "B S"],
    top_k: int,
) -> RouterSums:
    logs = logits - normalizer[..., None]
    probability = jnp.exp(logs)

    def total(values: Array) -> Array:
        return jnp.sum(values * real.reshape(*real.shape, *(1,) * (values.ndim - 2)), axis=(0, 1))

    return RouterSums(
        tokens=jnp.sum(real),
        assigned=total(is_chosen.astype(jnp.float32)),
        probability=total(probability),
        entropy=total(-jnp.sum(probability * logs, axis=-1)),
        logsumexp_squared=total(jnp.square(normalizer)),
        margins=_margins(jax.lax.stop_gradient(logits), best, is_chosen, real, top_k),
        weight=jnp.float32(0),
        dropped_weight=jnp.float32(0),
    )


def _margins(
    logits: Float[Array, "B S E"],
    best: Float[Array, "B S _"],
    is_chosen: Bool[Array, "B S E"],
    real: Float[Array, "B S"],
    top_k: int,
) -> Int[Array, "E N"]:
    """How far each expert's logit is from what it takes to be chosen, counted in bins.

    An expert that is chosen had to pass the best of those that are not; any other would have to
    pass the last of the chosen.
    """
    if top_k == logits.shape[2]:
        return jnp.zeros((top_k, NUM_BINS), jnp.int32)  # all are chosen: nothing to balance
    threshold = jnp.where(is_chosen, best[..., -1:], best[..., -2:-1])
    return histogram(logits - threshold, real > 0)
