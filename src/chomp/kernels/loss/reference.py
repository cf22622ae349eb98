"""Linear layer plus softmax cross entropy as the formula says it: the specification of the loss.

Holds all logits at once. Weights enter exactly once, and never the unreduced losses.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

# Axes: B batch, S sequence, D model width, V vocabulary.

Reduction = Literal["none", "sum", "mean"]


def linear_cross_entropy(
    hidden: Float[Array, "B S D"],
    head: Float[Array, "D V"],
    labels: Int[Array, "B S"],
    weight: Float[Array, "B S"],
    *,
    reduction: Reduction = "mean",
    logsumexp_weight: float = 0.0,
) -> Float[Array, "..."]:
    """Cross entropy of `labels` under logits `hidden @ head`, in float32.

    With z = logsumexp(logits), a token's loss is z - logits[label] + logsumexp_weight * z^2.
    `none` gives that loss for every token, unweighted; `sum` the sum of weight times loss; `mean`
    that sum over the sum of weights (0 where no token counts).
    """
    logits = jnp.einsum("bsd,dv->bsv", hidden, head, preferred_element_type=jnp.float32)
    # A comparison instead of a gather: it stays local when the vocabulary is sharded.
    is_label = jnp.arange(head.shape[1])[None, None, :] == labels[:, :, None]
    label_logit = jnp.sum(jnp.where(is_label, logits, 0.0), axis=-1)
    logsumexp = jax.nn.logsumexp(logits, axis=-1)
    losses = logsumexp - label_logit + logsumexp_weight * jnp.square(logsumexp)
    if reduction == "none":
        return losses
    total = jnp.sum(losses * weight)
    if reduction == "sum":
        return total
    return total / jnp.maximum(jnp.sum(weight), 1e-9)
