"""cuDNN's flash attention over whole rows: causal, causal in a window, or everything."""

import jax
from jaxtyping import Array, Float

from chomp.kernels.attention.call import AttentionCall
from chomp.kernels.attention.mask import AttentionMask
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
        # cuDNN is told where the window begins and not where it ends (jax#39576).
        return "it takes a window in causal attention only: without, it would show the future"
    return None


def _dotted(call: AttentionCall) -> str:
    return ".".join(map(str, call.compute_capability or ()))
