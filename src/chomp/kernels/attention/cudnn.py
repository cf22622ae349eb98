"""cuDNN's flash attention: over whole rows, and over packed documents, where work between documents
is skipped, not masked.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from chomp.errors import private_names, require
from chomp.kernels.attention.call import AttentionCall
from chomp.kernels.attention.mask import AttentionMask, DocumentTable, document_table
from chomp.kernels.platform import AMPERE, HOPPER

# Axes: B batch, S sequence, H query heads, G key-value heads, K head width.


def cudnn_attention(
    q: Float[Array, "B S H K"],
    k: Float[Array, "B S G K"],
    v: Float[Array, "B S G K"],
    mask: AttentionMask,
) -> Float[Array, "B S H K"]:
    """Attention by cuDNN, for arrays of one device. What it cannot do: `unsupported_by_cudnn`."""
    # JAX counts the keys before the query, we count the query too.
    window = None if mask.sliding_window is None else (mask.sliding_window - 1, 0)
    return jax.nn.dot_product_attention(
        q, k, v, is_causal=mask.is_causal, local_window_size=window, implementation="cudnn"
    )


def unsupported_by_cudnn(call: AttentionCall) -> str | None:
    """Why cuDNN cannot do this call, with what it could do; None if it can."""
    if call.has_documents:
        return "it takes no documents (cudnn_packed does)"
    if call.seq_len % 2:
        # JAX asks this of calls with a bias, and counts every call as one (0.11.2).
        return f"it takes rows of an even length, not {call.seq_len}"
    return unsupported_by_library(call)


def unsupported_by_library(call: AttentionCall) -> str | None:
    """Why no form of cuDNN's attention can do this call; None if one may.

    The sizes are those that JAX asks for before it calls the library.
    """
    if call.platform != "gpu" or call.compute_capability is None:
        found = "a GPU of another make" if call.platform == "gpu" else call.platform
        return f"it needs an NVIDIA GPU, and this program is for {found}"
    if call.compute_capability < AMPERE:
        return f"it needs compute capability 8.0 or more, and this GPU has {_dotted(call)}"
    if call.dtype not in ("bfloat16", "float16"):
        return f"it takes bfloat16 and float16, not {call.dtype}"
    if call.seq_len == 1:
        return "it takes rows of two tokens or more"
    widest = 256 if call.compute_capability >= HOPPER else 128
    if call.head_dim % 8 or call.head_dim > widest:
        return f"it takes head_dim of 8, 16, .. {widest}, not {call.head_dim}"
    if call.has_window and not call.is_causal:
        # cuDNN is options where the window begins and not where it ends (jax#39576).
        return "it takes a window in causal attention only: without, it would show the future"
    return None


def _dotted(call: AttentionCall) -> str:
    return ".".join(map(str, call.compute_capability or ()))


# ---- Packed documents ---------------------------------------------------------------------------
#
# JAX offers this form only in a low-level module, with a limit on the documents per row, and
# (before 0.11.2, jax#39521) with wrong keys for grouped heads. Both come from how it computes the
# library's offsets, so the offsets are computed here and its two primitives are called with them.


_USED = (
    *("_dot_product_attention_fwd_p", "_dot_product_attention_bwd_p"),
    *("MaskType", "AttentionLayout"),
)
Residuals = tuple[Array, Array, Array, DocumentTable, Array, Array]


def cudnn_packed_attention(
    q: Float[Array, "B S H K"],
    k: Float[Array, "B S G K"],
    v: Float[Array, "B S G K"],
    mask: AttentionMask,
) -> Float[Array, "B S H K"]:
    """Attention inside each document, for arrays of one device; `mask` has segment ids.

    Rows with more documents than the mask has room for (`max_segments`) come out as NaN, all that
    are in the table: no loss over the batch is finite.
    """
    _require_offsets_fit(q)
    table = document_table(mask.segment_ids, mask.max_segments)
    # Into the queries, not the result: there it costs nothing, fused with the rotation.
    q = jnp.where(table.fits[None, None, None, None], q, jnp.asarray(jnp.nan, q.dtype))
    return _packed(q, k, v, table, mask.is_causal, mask.sliding_window)


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _packed(
    q: Array, k: Array, v: Array, table: DocumentTable, is_causal: bool, window: int | None
) -> Array:
    options = _options(q, is_causal, window)
    arrays = _operands(q, k, v, table)
    return _library()._dot_product_attention_fwd_p.bind(*arrays, is_training=False, **options)[0]


def _packed_forward(
    q: Array, k: Array, v: Array, table: DocumentTable, is_causal: bool, window: int | None
) -> tuple[Array, Residuals]:
    options = _options(q, is_causal, window)
    arrays = _operands(q, k, v, table)
    forward = _library()._dot_product_attention_fwd_p
    out, statistics = forward.bind(*arrays, is_training=True, **options)
    return out, (q, k, v, table, statistics, out)


def _packed_backward(
    is_causal: bool, window: int | None, residuals: Residuals, d_out: Array
) -> tuple[Array, Array, Array, None]:
    q, k, v, table, statistics, out = residuals
    options = _options(q, is_causal, window)
    arrays = (*_operands(q, k, v, table), statistics, out, d_out)
    dq, dk, dv = _library()._dot_product_attention_bwd_p.bind(*arrays, **options)
    return dq, dk, dv, None


_packed.defvjp(_packed_forward, _packed_backward)


def _operands(q: Array, k: Array, v: Array, table: DocumentTable) -> tuple[Array, ...]:
    """What both primitives take: heads, no bias, lengths, offsets, no pages."""
    rows = q.shape[0]
    lengths = table.lengths.reshape(rows, -1)
    # An entry more a row is asked for, of which the library reads one in all.
    behind = jnp.full(rows, q.shape[0] * q.shape[1], jnp.int32)
    starts = jnp.concatenate([table.starts, behind]).reshape(rows, -1)
    q_offsets, k_offsets = (starts * heads.shape[2] * heads.shape[3] for heads in (q, k))
    nothing = jnp.zeros(0, q.dtype)
    return q, k, v, nothing, lengths, lengths, q_offsets, k_offsets, nothing, nothing


def _options(q: Array, is_causal: bool, window: int | None) -> dict[str, Any]:
    library = _library()
    kinds = library.MaskType
    return {
        "scale": q.shape[-1] ** -0.5,
        "seed": 42,  # of a dropout there is none of
        "dropout_rate": 0.0,
        "variadic_args": (False, False),  # no bias, and none to be had of its gradient
        "mask_type": kinds.PADDING_CAUSAL if is_causal else kinds.PADDING,
        "layout": library.AttentionLayout.BTNH.value,
        "sliding_window_length": window,
    }


def _library() -> Any:
    """JAX's low-level module, with all that is used of it; no other backend needs it."""
    with private_names("jax"):
        from jax._src.cudnn import fused_attention_stablehlo as library  # noqa: PLC0415

        for name in _USED:
            getattr(library, name)
    return library


def unsupported_by_cudnn_packed(call: AttentionCall) -> str | None:
    """Why packed cuDNN cannot do this call, with what it could do; None if it can."""
    if not call.has_documents:
        return "it takes rows of documents (cudnn does without)"
    if reason := unsupported_by_library(call):
        return reason
    if call.compute_capability is not None and call.compute_capability < HOPPER:
        return "it needs compute capability 9.0 or more (Hopper)"
    return None


def _require_offsets_fit(q: Float[Array, "B S H K"]) -> None:
    # Offsets count numbers, not tokens, and are int32: past that they would wrap without a word.
    most = (2**31 - 1) // (q.shape[1] * q.shape[2] * q.shape[3])
    require(
        q.shape[0] <= most,
        f"{q.shape[0]} rows on a device, of {q.shape[1]} tokens x {q.shape[2]} heads x "
        f"{q.shape[3]}",
        allowed=f"at most {most} such rows for the attention backend cudnn_packed",
        fix="lower train.batch_size and raise train.grad_accum, or use more devices",
    )
