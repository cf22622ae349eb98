"""The next-token loss: one entry for losses, sums and means, whichever way they are computed.

Weights enter exactly once, and never the unreduced losses.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from chomp.errors import require
from chomp.kernels.loss.chunked import chunked_losses, chunked_sum, placed
from chomp.kernels.loss.labels import next_tokens
from chomp.kernels.loss.reference import reference_losses
from chomp.kernels.loss.row_losses import LossTerms

# Axes: B batch, S sequence, D model width, V vocabulary.

Reduction = Literal["none", "sum", "mean"]
Implementation = Literal["chunked", "reference"]
# Of every position: its loss, unweighted, and whether the next token was the likeliest one.
Scores = tuple[Float[Array, "B S"], Bool[Array, "B S"]]


@jax.named_scope("loss")  # by which a trace's reader tells its operations apart
def linear_cross_entropy(
    hidden: Float[Array, "B S D"],
    head: Float[Array, "D V"],
    labels: Int[Array, "B S"],
    weight: Float[Array, "B S"],
    *,
    reduction: Reduction = "mean",
    logsumexp_weight: float = 0.0,
    logit_soft_cap: float | None = None,
    implementation: Implementation = "chunked",
) -> Float[Array, "..."]:
    """Cross entropy of `labels` under logits `soft_capped(hidden @ head)`, in float32.

    With z = logsumexp(logits), a token's loss is z - logits[label] + logsumexp_weight * z^2.
    `none` gives that loss for every token, unweighted; `sum` the sum of weight times loss; `mean`
    that sum over the sum of weights (0 where no token counts).

    `chunked` holds the logits of `chunk_rows` tokens at a time and makes the gradients of `sum` and
    `mean` in the forward pass; those of `none` cost a second pass over the logits. `reference` is
    the formula, all logits at once. Products take the dtype of `hidden`. On a mesh the tokens may
    be cut over any axes and the vocabulary over any others; a head cut along D is collected.
    """
    terms = _terms(logsumexp_weight, logit_soft_cap)
    if implementation == "reference":
        losses, _ = reference_losses(hidden, head, labels, terms)
        return _reduced(losses, weight, reduction)
    hidden, head, labels, weight = placed(hidden, head, labels, weight)
    if reduction == "none":
        return chunked_losses(hidden, head, labels, terms)[0]
    weight = weight.astype(jnp.float32)
    return _divided(chunked_sum(hidden, head, labels, weight, terms), weight, reduction)


@jax.named_scope("loss")
def linear_cross_entropy_and_argmax(
    hidden: Float[Array, "B S D"],
    head: Float[Array, "D V"],
    labels: Int[Array, "B S"],
    weight: Float[Array, "B S"],
    *,
    reduction: Reduction = "mean",
    logsumexp_weight: float = 0.0,
    logit_soft_cap: float | None = None,
    implementation: Implementation = "chunked",
) -> tuple[Float[Array, "..."], Int[Array, "B S"]]:
    """What `linear_cross_entropy` gives, and the likeliest id of every token, from the same logits.

    Of equal logits the lowest id. For evaluation: gradients cost what those of `none` cost.
    """
    terms = _terms(logsumexp_weight, logit_soft_cap)
    argmax: Int[Array, "B S"] | None
    if implementation == "reference":
        losses, argmax = reference_losses(hidden, head, labels, terms)
    else:
        hidden, head, labels, weight = placed(hidden, head, labels, weight)
        losses, argmax = chunked_losses(hidden, head, labels, terms, None, True)
        assert argmax is not None  # it was asked for
    return _reduced(losses, weight, reduction), argmax


def next_token_scores(
    hidden: Float[Array, "B S D"],
    head: Float[Array, "D V"],
    token_ids: Int[Array, "B S"],
    *,
    logit_soft_cap: float | None = None,
) -> Scores:
    """The loss of every next token, unweighted, and whether it is the likeliest one.

    The last position of a row has nothing to predict: its values mean nothing.
    """
    labels = next_tokens(token_ids)
    losses, likeliest = linear_cross_entropy_and_argmax(
        hidden,
        head,
        labels,
        jnp.ones_like(labels, dtype=jnp.float32),  # enters no unreduced loss
        reduction="none",
        logit_soft_cap=logit_soft_cap,
    )
    return losses, likeliest == labels


def _terms(logsumexp_weight: float, logit_soft_cap: float | None) -> LossTerms:
    require(
        logit_soft_cap is None or logit_soft_cap > 0,
        f"logit_soft_cap={logit_soft_cap}",
        allowed="numbers above 0, or none for logits without a cap",
        fix="set logit_soft_cap to null, or to a bound such as 30.0",
    )
    return LossTerms(logsumexp_weight=logsumexp_weight, logit_soft_cap=logit_soft_cap)


def _reduced(
    losses: Float[Array, "B S"], weight: Float[Array, "B S"], reduction: Reduction
) -> Float[Array, "..."]:
    if reduction == "none":
        return losses
    weight = weight.astype(jnp.float32)
    return _divided(jnp.sum(losses * weight), weight, reduction)


def _divided(
    total: Float[Array, ""], weight: Float[Array, "B S"], reduction: Reduction
) -> Float[Array, ""]:
    # The floor keeps a mean over no token at 0 / 1e-9 = 0, gradients included.
    return total if reduction == "sum" else total / jnp.maximum(jnp.sum(weight), 1e-9)
