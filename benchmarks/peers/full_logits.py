"""The peer of the chunked loss: all logits at once, in plain JAX, differentiated by JAX."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

# Axes: B batch, S sequence, D model width, V vocabulary.


def full_logits_loss(
    hidden: Float[Array, "B S D"],
    head: Float[Array, "D V"],
    labels: Int[Array, "B S"],
    weight: Float[Array, "B S"],
) -> Float[Array, ""]:
    """Sum of weight times cross entropy; the softmax is float32, as everybody writes it."""
    logits = (hidden @ head).astype(jnp.float32)
    label_logit = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jnp.sum(weight * (jax.nn.logsumexp(logits, axis=-1) - label_logit))
