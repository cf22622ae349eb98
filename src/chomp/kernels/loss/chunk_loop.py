"""The loop over chunks of tokens on one device: losses alone, or losses with their gradients.

Sees one device's arrays only. Where a mesh cuts the tokens or the vocabulary, `LossTerms` names the
axes, and the sums over them are made here.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from chomp.kernels.loss.chunk_size import chunk_rows
from chomp.kernels.loss.row_losses import (
    LossTerms,
    row_argmax,
    row_losses_and_slopes,
    row_statistics,
)

# Axes: B batch, S sequence, R tokens of a chunk, D model width, V vocabulary; of B, S and V the
# part that this device holds.

Step = Callable[[Any, Any], tuple[Any, Any]]


def losses_by_chunks(
    hidden: Float[Array, "B S D"],
    head: Float[Array, "D V"],
    labels: Int[Array, "B S"],
    *,
    terms: LossTerms,
    rows: int | None,
    with_argmax: bool,
) -> tuple[Float[Array, "B S"], Int[Array, "B S"] | None]:
    """Unweighted loss of every token, and the id of its largest logit if wanted."""
    head = head.astype(hidden.dtype)

    def step(carry: None, chunk: Any) -> tuple[None, Any]:
        hidden, labels = chunk
        logits = jnp.einsum("rd,dv->rv", hidden, head, preferred_element_type=jnp.float32)
        found = row_statistics(logits, labels, terms)
        argmax = row_argmax(logits, found.largest, terms) if with_argmax else None
        return carry, (found.losses, argmax)

    rows = rows or chunk_rows(labels.size, *head.shape)
    return _over_chunks(step, None, (hidden, labels), rows)[1]


def gradients_by_chunks(
    hidden: Float[Array, "B S D"],
    head: Float[Array, "D V"],
    labels: Int[Array, "B S"],
    weight: Float[Array, "B S"],
    *,
    terms: LossTerms,
    rows: int | None,
) -> tuple[Float[Array, "B S"], Float[Array, "B S D"], Float[Array, "D V"]]:
    """Unweighted loss of every token, and the gradients of sum(weight * losses) by hidden and head.

    Products take the dtype of `hidden` and add up in float32, over chunks and devices too; each
    gradient is rounded once, to the dtype of what it belongs to.
    """
    dtype, columns = hidden.dtype, head.astype(hidden.dtype)

    def step(by_head: Float[Array, "D V"], chunk: Any) -> tuple[Float[Array, "D V"], Any]:
        hidden, labels, weight = chunk
        logits = jnp.einsum("rd,dv->rv", hidden, columns, preferred_element_type=jnp.float32)
        losses, slopes = row_losses_and_slopes(logits, labels, weight, terms, dtype)
        by_hidden = jnp.einsum("rv,dv->rd", slopes, columns, preferred_element_type=jnp.float32)
        by_hidden = jax.lax.psum(by_hidden, terms.vocab_axes) if terms.vocab_axes else by_hidden
        added = jnp.einsum("rd,rv->dv", hidden, slopes, preferred_element_type=jnp.float32)
        return by_head + added, (losses, by_hidden.astype(dtype))

    by_head = jnp.zeros(head.shape, jnp.float32)
    axes = (*terms.token_axes, *terms.vocab_axes)
    by_head = jax.lax.pcast(by_head, axes, to="varying") if axes else by_head
    rows = rows or chunk_rows(labels.size, *head.shape)
    by_head, (losses, by_hidden) = _over_chunks(step, by_head, (hidden, labels, weight), rows)
    by_head = jax.lax.psum(by_head, terms.token_axes) if terms.token_axes else by_head
    return losses, by_hidden, by_head.astype(head.dtype)


def _over_chunks(step: Step, carry: Any, arrays: Any, rows: int) -> tuple[Any, Any]:
    """`step` over chunks of `rows` tokens of [B, S, ...] arrays, then over the tokens left over.

    A scan, even over few chunks: unrolled, XLA on a CPU gives every chunk logits of its own, and
    touching fresh memory costs more than the loop (172 against 136 ms at 4 x 1024 tokens, width
    256, vocabulary 4096; two cores, November 2026).
    """
    shape = arrays[0].shape[:2]
    flat = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), arrays)
    count, rest = divmod(flat[0].shape[0], rows)
    whole = jax.tree.map(lambda a: a[: count * rows].reshape(count, rows, *a.shape[1:]), flat)
    carry, made = jax.lax.scan(step, carry, whole)
    made = jax.tree.map(lambda a: a.reshape(count * rows, *a.shape[2:]), made)
    if rest:
        carry, tail = step(carry, jax.tree.map(lambda a: a[count * rows :], flat))
        made = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), made, tail)
    return carry, jax.tree.map(lambda a: a.reshape(*shape, *a.shape[1:]), made)
