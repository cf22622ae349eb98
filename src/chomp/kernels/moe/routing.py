"""Which experts each token goes to, with what weight, and the bias that balances them.

All in float32, whatever the model is in: two experts are often nearly as good, and rounding must
not choose. Chosen are the K highest of logits plus bias; the bias is no part of the weights. What
is known of the routing is kept as sums over real tokens, so that micro-batches and devices add up,
and metrics divide once.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from chomp.errors import require

# Axes: B batch, S sequence, D model width, E experts, K experts of a token, N bins, L layers.


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


# ---- Balancing ----------------------------------------------------------------------------------


def balanced_bias(
    bias: Float[Array, "*L E"], sums: RouterSums, *, top_k: int, rate: float
) -> Float[Array, "*L E"]:
    """The bias of the next step, with a mean of 0 over the experts.

    It moves by `rate` of the way to where, for each expert, an even share of the step's real tokens
    would pass the others' as they were: all of the way would follow what is peculiar to one batch.
    Without a single real token, or where all experts are chosen, it stays.
    """
    num_experts = bias.shape[-1]
    share = sums.tokens * (top_k / num_experts)
    found = -upper_quantile(sums.margins, share)
    found -= jnp.mean(found, axis=-1, keepdims=True)
    stays = (sums.tokens == 0) | (top_k == num_experts)
    return jnp.where(stays[..., None], bias, bias + rate * (found - bias))


def balance_loss(sums: RouterSums) -> Float[Array, "*L"]:
    """E times the sum over experts of share of the choices times mean probability; 1 if even.

    The term of Switch Transformers. Its gradient goes through the probabilities alone.
    """
    tokens = jnp.maximum(sums.tokens, 1.0)[..., None]
    assigned = jax.lax.stop_gradient(sums.assigned)
    shares = assigned / jnp.maximum(jnp.sum(assigned, axis=-1, keepdims=True), 1.0)
    return sums.assigned.shape[-1] * jnp.sum(shares * sums.probability / tokens, axis=-1)


def router_z_loss(sums: RouterSums) -> Float[Array, "*L"]:
    """The mean squared logsumexp of the logits, which keeps them from drifting."""
    return sums.logsumexp_squared / jnp.maximum(sums.tokens, 1.0)


def router_metrics(sums: RouterSums) -> dict[str, Float[Array, "*L"]]:
    """What is to be known of the routing, by name, for every layer.

    Of padding alone nothing is routed: no expert then has more or less than its share, so loads are
    1 and the violation is 0, and all the rest is 0.
    """
    tokens = jnp.maximum(sums.tokens, 1.0)
    total = jnp.sum(sums.assigned, axis=-1, keepdims=True)
    even = jnp.maximum(total / sums.assigned.shape[-1], 1e-9)
    loads = jnp.where(total > 0, sums.assigned / even, 1.0)
    load_max = jnp.max(loads, axis=-1)
    return {
        "entropy": sums.entropy / tokens,
        "load_max": load_max,  # of the busiest expert, where 1 is an even share
        "load_min": jnp.min(loads, axis=-1),
        "max_violation": load_max - 1.0,
        "balance_loss": balance_loss(sums),
        "z_loss": router_z_loss(sums),
        # Of all weight that tokens gave to experts.
        "dropped_fraction": sums.dropped_weight / jnp.maximum(sums.weight, 1e-9),
    }


# ---- Histograms of margins ----------------------------------------------------------------------


NUM_BINS = 1024


def histogram(values: Float[Array, "B S E"], is_counted: Bool[Array, "B S"]) -> Int[Array, "E N"]:
    """For every expert, the counted tokens in each bin, over all devices."""
    squashed = values / (1.0 + jnp.abs(values))
    bins = jnp.clip((squashed + 1.0) * (NUM_BINS / 2), 0.0, NUM_BINS - 1.0).astype(jnp.int32)
    # Past the last expert and so nowhere: what is not counted.
    numbers = jnp.arange(values.shape[2], dtype=jnp.int32)[None, None]
    experts = jnp.where(is_counted[..., None], numbers, values.shape[2])
    sharding = jax.typeof(values).sharding
    if sharding.mesh.empty:
        return _counts(bins, experts)
    rows = P(*sharding.spec[:2], None)
    axes = tuple(
        name for part in rows for name in ((part,) if isinstance(part, str) else part or ())
    )
    return jax.shard_map(
        lambda *local: jax.lax.psum(_counts(*local), axes) if axes else _counts(*local),
        in_specs=(rows, rows),
        out_specs=P(None, None),
    )(bins, jax.reshard(experts, rows))


def upper_quantile(counts: Int[Array, "*L E N"], above: Float[Array, "*L"]) -> Float[Array, "*L E"]:
    """The value that `above` of the counted tokens exceed, by interpolation inside its bin."""
    at_least = jnp.flip(jnp.cumsum(jnp.flip(counts, -1), axis=-1), -1).astype(jnp.float32)
    wanted = above[..., None, None]
    # The last bin that still has that many from it on; there are as many in the first as at all.
    number = jnp.maximum(jnp.sum(at_least >= wanted, axis=-1) - 1, 0)
    bins = jnp.arange(NUM_BINS).reshape(*(1,) * number.ndim, NUM_BINS)
    is_it = bins == number[..., None]
    here = jnp.sum(jnp.where(is_it, counts, 0), axis=-1).astype(jnp.float32)
    from_here = jnp.sum(jnp.where(is_it, at_least, 0.0), axis=-1)
    part = jnp.clip((from_here - wanted[..., 0]) / jnp.maximum(here, 1.0), 0.0, 1.0)
    squashed = (number.astype(jnp.float32) + part) * (2.0 / NUM_BINS) - 1.0
    squashed = jnp.clip(squashed, -1.0 + 1.0 / NUM_BINS, 1.0 - 1.0 / NUM_BINS)
    return squashed / (1.0 - jnp.abs(squashed))


def _counts(bins: Int[Array, "B S E"], experts: Int[Array, "B S E"]) -> Int[Array, "E N"]:
    empty = jnp.zeros((bins.shape[2], NUM_BINS), jnp.int32)
    return empty.at[experts.reshape(-1), bins.reshape(-1)].add(1, mode="drop")
