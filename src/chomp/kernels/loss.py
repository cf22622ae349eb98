"""The next-token loss: a linear layer and softmax cross entropy, a chunk of tokens at a time.

Never holds all logits. Gradients are computed in the forward pass, while the logits of a chunk
exist; the backward pass of a sum only scales them. The custom derivatives wrap `shard_map`, not the
other way round: JAX then transposes no collective, and every sum over devices is written here.
Weights enter exactly once, and never the unreduced losses. `reference_losses` is the specification.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from chomp.errors import require
from chomp.kernels.platform import AMPERE, compute_capability, platform_of

# Axes: B batch, S sequence, D model width, V vocabulary, R rows (tokens) of a chunk. In functions
# that run inside `shard_map`, the part of B, S and V that this device holds.


def next_tokens(token_ids: Int[Array, "B S"]) -> Int[Array, "B S"]:
    """The token to the right of each position; 0 at the end of the row, where nothing follows."""
    # A pad, not jnp.roll: under JAX 0.11 a slice of one element forgets its sharding, and a roll of
    # a single row on an explicit mesh is refused.
    zero = jnp.zeros((), token_ids.dtype)
    return jax.lax.pad(token_ids, zero, ((0, 0, 0), (-1, 1, 0)))


def soft_cap(logits: Float[Array, "*shape"], cap: float | None) -> Float[Array, "*shape"]:
    """cap * tanh(logits / cap): near 0 the logits, never beyond +-cap. No cap: as they are."""
    return logits if cap is None else cap * jnp.tanh(logits / cap)


# ---- Losses of the rows of a chunk, from their logits -------------------------------------------
#
# The one place that passes over [rows, vocabulary] element by element, and so the one to replace by
# a hand-written kernel (`loss_triton`). Where the vocabulary is cut over mesh axes, the maximum,
# sum and label of a row are reduced over devices; the rest stays local.


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
    capped, axes = soft_cap(logits, terms.logit_soft_cap), terms.vocab_axes
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


def row_losses_and_grads(
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
        from chomp.kernels.loss_triton import (  # noqa: PLC0415
            triton_losses_and_grads,
        )

        losses, d_logits = triton_losses_and_grads(
            logits, labels, weight, logsumexp_weight=terms.logsumexp_weight, dtype=dtype
        )
        # Over axes of one device each: the sum changes nothing, and says that the losses are whole.
        return jax.lax.psum(losses, terms.vocab_axes) if terms.vocab_axes else losses, d_logits
    losses, logsumexp, _ = row_statistics(logits, labels, terms)
    # Changes no value: where the loss is NaN, so is its gradient. It makes XLA read the label's
    # logit before it writes d_logits, which then take the memory of the logits: 141 ms and 21 MiB
    # instead of 159 and 37 for 4 x 1024 tokens (as in `_scan_chunks`, November 2026).
    weight = jnp.where(jnp.isnan(losses), losses, weight)
    capped = soft_cap(logits, terms.logit_soft_cap)
    probs = jnp.exp(capped - logsumexp[:, None])
    # The probs are d logsumexp / d logits; the square in the loss pulls with 2 z as well.
    scale = 1.0 + 2.0 * terms.logsumexp_weight * logsumexp
    is_label = _ids(logits, terms)[None, :] == labels[:, None]
    d_logits = (probs * scale[:, None] - is_label.astype(jnp.float32)) * weight[:, None]
    if terms.logit_soft_cap is not None:
        d_logits = d_logits * (1.0 - jnp.square(capped / terms.logit_soft_cap))
    return losses, d_logits.astype(dtype)


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
    is_largest = soft_cap(logits, terms.logit_soft_cap) == largest[:, None]
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
    """The logit of each row's label, 0 where another device or none holds it."""
    # A gather reads one number a row: 0.1 ms against 1.5 for a comparison with every column, which
    # XLA does not fuse with the sum beside it (1024 x 4096, two cores, November 2026).
    column = labels - _first_id(logits, terms)
    is_here = (column >= 0) & (column < logits.shape[1])
    found = jnp.take_along_axis(logits, jnp.where(is_here, column, 0)[:, None], axis=1)[:, 0]
    return jnp.where(is_here, found, 0.0)


# ---- The specification --------------------------------------------------------------------------


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
    logits = soft_cap(logits, terms.logit_soft_cap)
    # A comparison instead of a gather: it stays local when the vocabulary is sharded.
    is_label = jnp.arange(head.shape[1])[None, None, :] == labels[:, :, None]
    label_logit = jnp.sum(jnp.where(is_label, logits, 0.0), axis=-1)
    logsumexp = jax.nn.logsumexp(logits, axis=-1)
    losses = logsumexp - label_logit + terms.logsumexp_weight * jnp.square(logsumexp)
    return losses, jnp.argmax(logits, axis=-1).astype(jnp.int32)


# ---- Chunks of tokens on one device -------------------------------------------------------------


# A narrow model's head gradient would let chunks shrink to nothing. Below this many logits (16 MiB
# in float32) they are too little work for an accelerator, and for a CPU's cache small enough.
LEAST_LOGITS = 2**22
LEAST_ROWS = 256


def chunk_rows(num_tokens: int, model_width: int, vocab: int) -> int:
    """Tokens per chunk, for the tokens and the part of the vocabulary that one device holds.

    A chunk of R tokens makes R x vocab float32 logits and, to add its share, reads and writes the
    whole head gradient, model_width x vocab float32. At R = 4 x model_width the logits take four
    times the bytes of that gradient, and moving it costs half of one pass over the logits, of which
    a chunk needs four or five: larger chunks would take more memory and gain little.
    So R is that, or what makes `LEAST_ROWS` and `LEAST_LOGITS` if more, or all tokens if fewer.

    Of the sizes from half to one and a half of it, the nearest that divides `num_tokens` is taken,
    since a shorter last chunk is compiled once more; without one, the chunks are nearly even.
    """
    wanted = max(4 * model_width, LEAST_ROWS, math.ceil(LEAST_LOGITS / vocab))
    fewest, most = math.ceil(num_tokens / (1.5 * wanted)), 2 * num_tokens // wanted
    even = [count for count in range(fewest, most + 1) if num_tokens % count == 0]
    if not even:
        return math.ceil(num_tokens / math.ceil(num_tokens / wanted))
    return num_tokens // min(even, key=lambda count: abs(math.log(num_tokens / count / wanted)))


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
    return _scan_chunks(step, None, (hidden, labels), rows)[1]


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

    def step(d_head: Float[Array, "D V"], chunk: Any) -> tuple[Float[Array, "D V"], Any]:
        hidden, labels, weight = chunk
        logits = jnp.einsum("rd,dv->rv", hidden, columns, preferred_element_type=jnp.float32)
        losses, d_logits = row_losses_and_grads(logits, labels, weight, terms, dtype)
        d_hidden = jnp.einsum("rv,dv->rd", d_logits, columns, preferred_element_type=jnp.float32)
        d_hidden = jax.lax.psum(d_hidden, terms.vocab_axes) if terms.vocab_axes else d_hidden
        added = jnp.einsum("rd,rv->dv", hidden, d_logits, preferred_element_type=jnp.float32)
        return d_head + added, (losses, d_hidden.astype(dtype))

    d_head = jnp.zeros(head.shape, jnp.float32)
    axes = (*terms.token_axes, *terms.vocab_axes)
    d_head = jax.lax.pcast(d_head, axes, to="varying") if axes else d_head
    rows = rows or chunk_rows(labels.size, *head.shape)
    d_head, (losses, d_hidden) = _scan_chunks(step, d_head, (hidden, labels, weight), rows)
    d_head = jax.lax.psum(d_head, terms.token_axes) if terms.token_axes else d_head
    return losses, d_hidden, d_head.astype(head.dtype)


def _scan_chunks(step: Step, carry: Any, arrays: Any, rows: int) -> tuple[Any, Any]:
    """`step` over chunks of `rows` tokens of [B, S, ...] arrays, then over the tokens left over.

    A scan, even over few chunks: unrolled, XLA on a CPU gives every chunk logits of its own, and
    touching fresh memory costs more than the loop (172 against 136 ms at 4 x 1024 tokens, width
    256, vocabulary 4096; two cores, November 2026).
    """
    shape = arrays[0].shape[:2]
    flat = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), arrays)
    count, rest = divmod(flat[0].shape[0], rows)
    whole = jax.tree.map(lambda a: a[: count * rows].reshape(count, rows, *a.shape[1:]), flat)
    carry, results = jax.lax.scan(step, carry, whole)
    results = jax.tree.map(lambda a: a.reshape(count * rows, *a.shape[2:]), results)
    if rest:
        carry, tail = step(carry, jax.tree.map(lambda a: a[count * rows :], flat))
        results = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), results, tail)
    return carry, jax.tree.map(lambda a: a.reshape(*shape, *a.shape[1:]), results)


# ---- Custom derivatives around shard_map --------------------------------------------------------


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
    `rows` tokens are taken at a time, by default `chunk_rows`. Arguments must be placed as
    `reshard_inputs` does it.
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
    residuals = _losses_and_gradients(hidden, head, labels, weight, terms, rows)
    return jnp.sum(residuals[0] * weight), residuals


def _sum_backward(
    terms: LossTerms,
    rows: int | None,
    residuals: tuple[PerToken, Hidden, Head],
    d_sum: Float[Array, ""],
) -> tuple[Hidden, Head, None, PerToken]:
    del terms, rows
    d_weight, d_hidden, d_head = (
        (array.astype(jnp.float32) * d_sum).astype(array.dtype) for array in residuals
    )
    return d_hidden, d_head, None, d_weight


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
    residuals: tuple[Hidden, Head, Labels],
    d_logits: tuple[PerToken, Any],
) -> tuple[Hidden, Head, None]:
    del with_argmax
    # The gradient of sum(d_sum * loss): the d_logits take the place of the weights.
    _, d_hidden, d_head = _losses_and_gradients(*residuals, d_logits[0], terms, rows)
    return d_hidden, d_head, None


chunked_losses.defvjp(_losses_forward, _losses_backward)


def reshard_inputs(
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


# ---- The entry ----------------------------------------------------------------------------------


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
    """Cross entropy of `labels` under logits `soft_cap(hidden @ head)`, in float32.

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
        return _reduce(losses, weight, reduction)
    hidden, head, labels, weight = reshard_inputs(hidden, head, labels, weight)
    if reduction == "none":
        return chunked_losses(hidden, head, labels, terms)[0]
    weight = weight.astype(jnp.float32)
    return _normalize(chunked_sum(hidden, head, labels, weight, terms), weight, reduction)


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
        hidden, head, labels, weight = reshard_inputs(hidden, head, labels, weight)
        losses, argmax = chunked_losses(hidden, head, labels, terms, None, True)
        assert argmax is not None  # it was asked for
    return _reduce(losses, weight, reduction), argmax


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


def _reduce(
    losses: Float[Array, "B S"], weight: Float[Array, "B S"], reduction: Reduction
) -> Float[Array, "..."]:
    if reduction == "none":
        return losses
    weight = weight.astype(jnp.float32)
    return _normalize(jnp.sum(losses * weight), weight, reduction)


def _normalize(
    total: Float[Array, ""], weight: Float[Array, "B S"], reduction: Reduction
) -> Float[Array, ""]:
    # The floor keeps a mean over no token at 0 / 1e-9 = 0, gradients included.
    return total if reduction == "sum" else total / jnp.maximum(jnp.sum(weight), 1e-9)
