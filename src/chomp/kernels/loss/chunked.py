"""Linear layer plus softmax cross entropy, a chunk of tokens at a time: never all logits at once.

Gradients are made in the forward pass, while a chunk's logits exist; the backward pass of a sum
only scales them. The custom derivatives wrap `shard_map`, not the other way round: JAX then
transposes no collective, and every sum over devices is one that `chunk_loop` writes.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from chomp.kernels.loss.chunk_loop import gradients_by_chunks, losses_by_chunks
from chomp.kernels.loss.row_losses import LossTerms

# Axes: B batch, S sequence, D model width, V vocabulary.

Hidden = Float[Array, "B S D"]
Head = Float[Array, "D V"]
Labels = Int[Array, "B S"]
PerToken = Float[Array, "B S"]
Argmax = Int[Array, "B S"] | None


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def chunked_sum(
    hidden: Hidden,
    head: Head,
    labels: Labels,
    weight: PerToken,
    terms: LossTerms,
    rows: int | None = None,
) -> Float[Array, ""]:
    """Sum of weight times loss over all tokens, in float32.

    Asked for gradients, it makes them in the forward pass and keeps them in the dtypes of `hidden`
    and `head`; otherwise it computes losses only. The gradient by `weight` is the token's loss.
    `rows` tokens are taken at a time, by default `chunk_rows`. Arguments lie as `placed` puts them.
    """
    losses, _ = _losses(hidden, head, labels, terms, rows, with_argmax=False)
    return jnp.sum(losses * weight)


def _sum_forward(
    hidden: Hidden,
    head: Head,
    labels: Labels,
    weight: PerToken,
    terms: LossTerms,
    rows: int | None,
) -> tuple[Float[Array, ""], tuple[PerToken, Hidden, Head]]:
    kept = _losses_and_gradients(hidden, head, labels, weight, terms, rows)
    return jnp.sum(kept[0] * weight), kept


def _sum_backward(
    terms: LossTerms,
    rows: int | None,
    kept: tuple[PerToken, Hidden, Head],
    slope: Float[Array, ""],
) -> tuple[Hidden, Head, None, PerToken]:
    del terms, rows
    by_weight, by_hidden, by_head = (
        (array.astype(jnp.float32) * slope).astype(array.dtype) for array in kept
    )
    return by_hidden, by_head, None, by_weight


chunked_sum.defvjp(_sum_forward, _sum_backward)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def chunked_losses(
    hidden: Hidden,
    head: Head,
    labels: Labels,
    terms: LossTerms,
    rows: int | None = None,
    with_argmax: bool = False,
) -> tuple[PerToken, Argmax]:
    """Unweighted loss of every token in float32, and the id of its largest logit if wanted.

    What each loss counts for is known in the backward pass only, which therefore makes the logits
    again, chunk by chunk: four products where `chunked_sum` needs three.
    """
    return _losses(hidden, head, labels, terms, rows, with_argmax=with_argmax)


def _losses_forward(
    hidden: Hidden,
    head: Head,
    labels: Labels,
    terms: LossTerms,
    rows: int | None,
    with_argmax: bool,
) -> tuple[tuple[PerToken, Argmax], tuple[Hidden, Head, Labels]]:
    found = _losses(hidden, head, labels, terms, rows, with_argmax=with_argmax)
    return found, (hidden, head, labels)


def _losses_backward(
    terms: LossTerms,
    rows: int | None,
    with_argmax: bool,
    kept: tuple[Hidden, Head, Labels],
    slopes: tuple[PerToken, Any],
) -> tuple[Hidden, Head, None]:
    del with_argmax
    # The gradient of sum(slope * loss): the slopes take the place of the weights.
    _, by_hidden, by_head = _losses_and_gradients(*kept, slopes[0], terms, rows)
    return by_hidden, by_head, None


chunked_losses.defvjp(_losses_forward, _losses_backward)


def placed(
    hidden: Hidden, head: Head, labels: Labels, weight: PerToken
) -> tuple[Hidden, Head, Labels, PerToken]:
    """The arguments as the chunked loss wants them on a mesh: D whole, tokens cut as `hidden` is.

    Costs nothing where they lie so already, as with hidden P(BATCH_AXES, None, None) and head
    P(None, "model"); without a mesh they stay as they are.
    """
    sharding = jax.typeof(hidden).sharding
    if sharding.mesh.empty:
        return hidden, head, labels, weight
    b, s, _ = sharding.spec
    tokens = NamedSharding(sharding.mesh, P(b, s))
    return (
        jax.reshard(hidden, NamedSharding(sharding.mesh, P(b, s, None))),
        jax.reshard(head, NamedSharding(sharding.mesh, P(None, _vocab_cut(head)))),
        jax.reshard(labels, tokens),
        jax.reshard(weight, tokens),
    )


def _losses(
    hidden: Hidden,
    head: Head,
    labels: Labels,
    terms: LossTerms,
    rows: int | None,
    *,
    with_argmax: bool,
) -> tuple[PerToken, Argmax]:
    local = partial(losses_by_chunks, rows=rows, with_argmax=with_argmax)
    return _on_every_device(local, terms, (hidden, head, labels), out=("tokens", "tokens"))


def _losses_and_gradients(
    hidden: Hidden,
    head: Head,
    labels: Labels,
    weight: PerToken,
    terms: LossTerms,
    rows: int | None,
) -> tuple[PerToken, Hidden, Head]:
    local, arguments = partial(gradients_by_chunks, rows=rows), (hidden, head, labels, weight)
    return _on_every_device(local, terms, arguments, out=("tokens", "hidden", "head"))


def _on_every_device(
    local: Callable[..., Any], terms: LossTerms, arguments: tuple[Array, ...], out: tuple[str, ...]
) -> Any:
    """`local` of every device's part of hidden, head and per-token arrays; it gives `out`."""
    sharding, vocab = jax.typeof(arguments[0]).sharding, _vocab_cut(arguments[1])
    if sharding.mesh.empty:
        return local(*arguments, terms=terms)
    b, s, _ = sharding.spec
    specs = {"tokens": P(b, s), "hidden": P(b, s, None), "head": P(None, vocab)}
    terms = replace(terms, token_axes=_names(b) + _names(s), vocab_axes=_names(vocab))
    names = ("hidden", "head", "tokens", "tokens")[: len(arguments)]
    return jax.shard_map(
        partial(local, terms=terms),
        mesh=sharding.mesh,
        in_specs=tuple(specs[name] for name in names),
        out_specs=tuple(specs[name] for name in out),
    )(*arguments)


def _vocab_cut(head: Head) -> Any:
    return jax.typeof(head).sharding.spec[1]


def _names(part: Any) -> tuple[str, ...]:
    """The mesh axes in one entry of a spec."""
    return (part,) if isinstance(part, str) else tuple(part or ())
