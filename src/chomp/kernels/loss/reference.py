"""Linear layer plus softmax cross entropy as the formula says it: the specification of the loss.

Holds all logits at once.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from chomp.kernels.loss.row_losses import LossTerms
from chomp.kernels.loss.soft_cap import soft_capped

# Axes: B batch, S sequence, D model width, V vocabulary.


def reference_losses(
    hidden: Float[Array, "B S D"],
    head: Float[Array, "D V"],
    labels: Int[Array, "B S"],
    terms: LossTerms,
) -> tuple[Float[Array, "B S"], Int[Array, "B S"]]:
    """Unweighted loss of every token in float32, and the id of its largest logit.

    With z = logsumexp(logits), a loss is z - logits[label] + logsumexp_weight * z^2. A label out of
    the vocabulary counts as a logit of 0; of equal largest logits the lowest id is given.
    """
    head = head.astype(hidden.dtype)
    logits = jnp.einsum("bsd,dv->bsv", hidden, head, preferred_element_type=jnp.float32)
    logits = soft_capped(logits, terms.logit_soft_cap)
    # A comparison instead of a gather: it stays local when the vocabulary is sharded.
    is_label = jnp.arange(head.shape[1])[None, None, :] == labels[:, :, None]
    label_logit = jnp.sum(jnp.where(is_label, logits, 0.0), axis=-1)
    logsumexp = jax.nn.logsumexp(logits, axis=-1)
    losses = logsumexp - label_logit + terms.logsumexp_weight * jnp.square(logsumexp)
    return losses, jnp.argmax(logits, axis=-1).astype(jnp.int32)
