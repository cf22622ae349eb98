"""Values wider than the keys, for kernels that know one width: their slices as so many heads.

Megalodon has few heads whose values are many times as wide as their keys. Each slice takes the
scores again: of 256 wide keys with 2048 wide values, 4096 products for each pair of positions in
place of 2304, by a kernel that keeps no scores.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from chomp.kernels.attention.mask import AttentionMask

# Axes: B batch, S positions, H query heads, G key-value heads, R query heads of each (H = G R),
# K head width, W width of a head's values, N slices of them (W = N K).


def with_wide_values(
    attend: Callable[[Array, Array, Array, AttentionMask], Array],
    q: Float[Array, "B S H K"],
    k: Float[Array, "B S G K"],
    v: Float[Array, "B S G W"],
    mask: AttentionMask,
) -> Float[Array, "B S H W"]:
    """`attend`, which takes values as wide as keys, of values a multiple of that width."""
    batch, length, heads, width = q.shape
    groups, slices = k.shape[2], v.shape[3] // width
    if slices == 1:
        return attend(q, k, v, mask)
    per_group = heads // groups
    q = q.reshape(batch, length, groups, 1, per_group, width)
    q = jnp.broadcast_to(q, (batch, length, groups, slices, per_group, width))
    k = jnp.broadcast_to(k[:, :, :, None], (batch, length, groups, slices, width))
    out = attend(
        q.reshape(batch, length, heads * slices, width),
        k.reshape(batch, length, groups * slices, width),
        v.reshape(batch, length, groups * slices, width),
        mask,
    )
    out = out.reshape(batch, length, groups, slices, per_group, width)
    return out.swapaxes(3, 4).reshape(batch, length, heads, slices * width)
