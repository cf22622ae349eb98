"""Losses of a chunk of rows from its logits, and the derivative of their weighted sum.

The one place that passes over [rows, vocabulary] element by element, and so the one to replace by
a hand-written kernel. Where the vocabulary is cut over mesh axes (inside `shard_map`), a row's
maximum, sum and label are found together; the rest stays local.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from chomp.kernels.loss.soft_cap import soft_capped
from chomp.kernels.platform import AMPERE, compute_capability, platform_of

# Axes: R rows of a chunk, V vocabulary (this device's part of it).

NO_ID = 2**31 - 1
LossKernel = Literal["triton", "xla"]


@dataclass(frozen=True, kw_only=True)
class LossTerms:
    """What a token's loss is made of, and the mesh axes that cut the tokens and the vocabulary."""

    logsumexp_weight: float = 0.0
    logit_soft_cap: float | None = None
    token_axes: tuple[str, ...] = ()
    vocab_axes: tuple[str, ...] = ()


class RowStatistics(NamedTuple):
    """What each row's logits, soft cap applied, come to over the whole vocabulary."""

    losses: Float[Array, " R"]
    logsumexp: Float[Array, " R"]
    largest: Float[Array, " R"]


def row_statistics(
    logits: Float[Array, "R V"], labels: Int[Array, " R"], terms: LossTerms
) -> RowStatistics:
    """Unweighted loss, logsumexp and largest logit of every row, from float32 uncapped logits."""
    capped, axes = soft_capped(logits, terms.logit_soft_cap), terms.vocab_axes
    # Two passes. One variadic reduction to (maximum, sum) is not vectorised by XLA on a CPU: 12 ms
    # against 2 for 1024 x 4096 (two cores, November 2026).
    largest = jnp.max(capped, axis=1)
    largest = jax.lax.pmax(largest, axes) if axes else largest
    total = jnp.sum(jnp.exp(capped - largest[:, None]), axis=1)
    label_logit = _label_logits(capped, labels, terms)
    total, label_logit = jax.lax.psum((total, label_logit), axes) if axes else (total, label_logit)
    logsumexp = largest + jnp.log(total)
    losses = logsumexp - label_logit + terms.logsumexp_weight * jnp.square(logsumexp)
    return RowStatistics(losses, logsumexp, largest)


def row_losses_and_slopes(
    logits: Float[Array, "R V"],
    labels: Int[Array, " R"],
    weight: Float[Array, " R"],
    terms: LossTerms,
    dtype: DTypeLike,
) -> tuple[Float[Array, " R"], Float[Array, "R V"]]:
    """Unweighted loss of every row, and d sum(weight * losses) / d logits rounded once to `dtype`.

    `logits` are float32 and uncapped; so is all that happens to them here.
    """
    if is_one_kernel(logits, terms):
        # Pallas takes a third of a second to import, which only a GPU should pay.
        from chomp.kernels.loss.row_losses_triton import (  # noqa: PLC0415
            triton_losses_and_slopes,
        )

        losses, slopes = triton_losses_and_slopes(
            logits, labels, weight, logsumexp_weight=terms.logsumexp_weight, dtype=dtype
        )
        # Over axes of one device each: the sum changes nothing, and says that the losses are whole.
        return jax.lax.psum(losses, terms.vocab_axes) if terms.vocab_axes else losses, slopes
    losses, logsumexp, _ = row_statistics(logits, labels, terms)
    # A loss of NaN has slopes of NaN, as it would anyway; said here, it makes XLA read the label's
    # logit before the slopes, which it then writes over the logits, not beside them: 141 ms and
    # 21 MiB against 159 and 37 for 4 x 1024 tokens (as in `chunk_loop`, November 2026).
    weight = jnp.where(jnp.isnan(losses), losses, weight)
    capped = soft_capped(logits, terms.logit_soft_cap)
    shares = jnp.exp(capped - logsumexp[:, None])
    # The shares are d logsumexp / d logits; the square in the loss pulls with 2 z as well.
    pull = 1.0 + 2.0 * terms.logsumexp_weight * logsumexp
    is_label = _ids(logits, terms)[None, :] == labels[:, None]
    slopes = (shares * pull[:, None] - is_label.astype(jnp.float32)) * weight[:, None]
    if terms.logit_soft_cap is not None:
        slopes = slopes * (1.0 - jnp.square(capped / terms.logit_soft_cap))
    return losses, slopes.astype(dtype)


def is_one_kernel(logits: Float[Array, "R V"], terms: LossTerms) -> bool:
    """Whether the hand-written kernel takes these logits."""
    is_whole = all(jax.lax.axis_size(axis) == 1 for axis in terms.vocab_axes)
    name = loss_kernel(platform_of(logits), terms.logit_soft_cap, is_whole_vocabulary=is_whole)
    return name == "triton"


def loss_kernel(
    platform: str, logit_soft_cap: float | None, *, is_whole_vocabulary: bool
) -> LossKernel:
    """What computes the losses of rows: on a recent NVIDIA GPU, whole and without a cap, `triton`.

    A static choice between two ways to the same numbers; the self-check compares them at start.
    """
    is_recent = platform == "gpu" and (compute_capability() or (0, 0)) >= AMPERE
    return "triton" if is_recent and is_whole_vocabulary and logit_soft_cap is None else "xla"


def row_argmax(
    logits: Float[Array, "R V"], largest: Float[Array, " R"], terms: LossTerms
) -> Int[Array, " R"]:
    """Id of the largest capped logit of every row, of equal ones the lowest.

    A row with NaN in it has none and gets `NO_ID`, beyond any vocabulary.
    """
    # Not jnp.argmax: it is a variadic reduction too, and knows one part of the vocabulary only.
    is_largest = soft_capped(logits, terms.logit_soft_cap) == largest[:, None]
    first = jnp.min(jnp.where(is_largest, _ids(logits, terms)[None, :], NO_ID), axis=1)
    return jax.lax.pmin(first, terms.vocab_axes) if terms.vocab_axes else first


def _ids(logits: Float[Array, "R V"], terms: LossTerms) -> Int[Array, " V"]:
    """Vocabulary id of each column."""
    return _first_id(logits, terms) + jnp.arange(logits.shape[1], dtype=jnp.int32)


def _first_id(logits: Float[Array, "R V"], terms: LossTerms) -> Int[Array, ""]:
    parts_before = jax.lax.axis_index(terms.vocab_axes) if terms.vocab_axes else 0
    return jnp.int32(logits.shape[1]) * parts_before


def _label_logits(
    logits: Float[Array, "R V"], labels: Int[Array, " R"], terms: LossTerms
) -> Float[Array, " R"]:
    """The logit of each row's label, 0 where another device holds it or nobody does."""
    # A gather reads one number a row: 0.1 ms against 1.5 for a comparison with every column, which
    # XLA does not fuse with the sum beside it (1024 x 4096, two cores, November 2026).
    column = labels - _first_id(logits, terms)
    is_here = (column >= 0) & (column < logits.shape[1])
    found = jnp.take_along_axis(logits, jnp.where(is_here, column, 0)[:, None], axis=1)[:, 0]
    return jnp.where(is_here, found, 0.0)
