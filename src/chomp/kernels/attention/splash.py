"""Splash attention, JAX's Pallas kernel for TPUs: masked blocks are skipped, documents compared.

Proven in Pallas' interpreter only; no TPU has run it yet.
"""

from collections.abc import Callable

import jax
from jaxtyping import Array, Float, Int

from chomp.kernels.attention.call import AttentionCall
from chomp.kernels.attention.mask import AttentionMask

# Axes: B batch, S sequence, H query heads, G key-value heads, R query heads per key-value head
# (H = G R), K head width.

# Attention of the query heads that share a key-value head: [R S K], [S K], [S K] and segment ids.
GroupKernel = Callable[[Array, Array, Array, Array | None], Array]

# Rows are cut into blocks of the largest of these that divides them; 128 is a TPU's vector width.
BLOCKS = (512, 256, 128)


def splash_attention(
    q: Float[Array, "B S H K"],
    k: Float[Array, "B S G K"],
    v: Float[Array, "B S G K"],
    mask: AttentionMask,
    *,
    is_interpreted: bool = False,
) -> Float[Array, "B S H K"]:
    """Attention by splash, for arrays of one device. Its limits: `unsupported_by_splash`."""
    batch, length, heads, width = q.shape
    groups = k.shape[2]
    kernel = _group_kernel(mask, length, heads // groups, is_interpreted)
    # The documents belong to the row, whatever the key-value head.
    of_row = jax.vmap(kernel, in_axes=(0, 0, 0, None))
    # [B S G R K] -> [B G R S K], and scaled, which the kernel leaves to its caller.
    grouped = (q * width**-0.5).reshape(batch, length, groups, -1, width).transpose(0, 2, 3, 1, 4)
    k, v = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    out = jax.vmap(of_row)(grouped, k, v, mask.segment_ids)
    return out.transpose(0, 3, 1, 2, 4).reshape(q.shape)


def unsupported_by_splash(call: AttentionCall) -> str | None:
    """Why splash cannot do this call, with what it could do; None if it can."""
    if call.platform != "tpu":
        return f"it needs a TPU, and this program is for {call.platform}"
    if call.dtype not in ("bfloat16", "float32"):
        return f"it takes bfloat16 and float32, not {call.dtype}"
    if call.seq_len % BLOCKS[-1]:
        return f"it takes rows of a multiple of {BLOCKS[-1]} tokens, not {call.seq_len}"
    if call.head_dim % 64:
        return f"it takes head_dim of a multiple of 64, not {call.head_dim}"
    return None


def _group_kernel(
    mask: AttentionMask, length: int, num_heads: int, is_interpreted: bool
) -> GroupKernel:
    # Takes 0.3 s to import, and only a TPU needs it.
    from jax.experimental.pallas.ops.tpu import splash_attention as splash  # noqa: PLC0415

    shape, before, after = (length, length), None, 0 if mask.is_causal else None
    if mask.sliding_window is not None:
        before = mask.sliding_window - 1
    is_whole = before is None and after is None
    seen = splash.FullMask(shape) if is_whole else splash.LocalMask(shape, (before, after), 0)
    block = next(size for size in BLOCKS if length % size == 0)
    kernel = splash.make_splash_mqa_single_device(
        splash.MultiHeadMask([seen] * num_heads),
        block_sizes=splash.BlockSizes(
            block_q=block,
            block_kv=block,
            block_q_dkv=block,
            block_kv_dkv=block,
            block_q_dq=block,
            block_kv_dq=block,
        ),
        interpret=is_interpreted,
    )

    def run(
        q: Float[Array, "R S K"],
        k: Float[Array, "S K"],
        v: Float[Array, "S K"],
        ids: Int[Array, " S"] | None,
    ) -> Float[Array, "R S K"]:
        return kernel(q, k, v, None if ids is None else splash.SegmentIds(q=ids, kv=ids))

    return run
