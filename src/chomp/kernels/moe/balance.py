"""Experts kept equally busy: by a bias on the choice, or by a term of the loss.

The bias costs the model nothing: it moves what is chosen and not what it weighs. It is set from one
step to the next so that every expert would have had its share of the step's tokens.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from chomp.kernels.moe.histogram import upper_quantile
from chomp.kernels.moe.routing import RouterSums

# Axes: L layers, E experts.


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
