"""Grouped products on an NVIDIA Hopper GPU: the kernels for them that come with JAX.

They take groups of any size, none of whose rows is padded, at three quarters of the speed of one
large product (65,536 rows, 768 x 1536, eight groups, H200, November 2026: 500 to 700 TFLOP/s
against 715; `jax.lax.ragged_dot` reached 66, because XLA multiplies every row by every group).

Their derivatives are written out in `experts`; nothing of theirs is asked for by JAX.
"""

import importlib.util
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int

from chomp.kernels.platform import HOPPER, compute_capability

# Axes: M rows sorted by group, E groups, D and F widths.

_KERNELS = "jax.experimental.pallas.ops.gpu.ragged_dot_mgpu"
# The kernels step through the inner axis by this many.
_INNER = 64
_ROW_MULTIPLE = 8
_ROWS, _STEPS = 128, 4
# Columns of a block, the best first; 256 would spill.
_COLUMNS = (192, 128, 64)


def unsupported_by_mosaic(dtype: DTypeLike, rows: int, *widths: int) -> str | None:
    """Why these kernels cannot multiply so many rows of such widths; None if they can."""
    if compute_capability() != HOPPER:
        return f"they are made for compute capability {HOPPER}, and here is {compute_capability()}"
    if importlib.util.find_spec(_KERNELS) is None:
        return f"this JAX has no {_KERNELS}"
    if jnp.dtype(dtype) not in (jnp.bfloat16, jnp.float16):
        return f"they multiply bfloat16 and float16, not {jnp.dtype(dtype)}"
    if rows % _ROW_MULTIPLE:
        return f"they need a number of rows that {_ROW_MULTIPLE} divides"
    odd = [width for width in widths if width % _INNER]
    return f"they need widths that {_INNER} divides, not {odd}" if odd else None


# Jitted, though their callers are: JAX then writes a kernel once into a program, however many
# layers call it, and compiles one instead of one for each call (12 s a layer).
@partial(jax.jit, static_argnames="transpose")
def mosaic_matmul(
    rows: Float[Array, "M _"],
    weights: Float[Array, "E _ _"],
    sizes: Int[Array, " E"],
    *,
    transpose: bool,
) -> Float[Array, "M _"]:
    """Every row times the weights of its group, or with `transpose` times their transpose."""
    # Inside: made for a GPU, and slow to import.
    from jax.experimental.pallas.ops.gpu import ragged_dot_mgpu  # noqa: PLC0415

    width = weights.shape[1] if transpose else weights.shape[2]
    return ragged_dot_mgpu.ragged_dot(
        rows,
        weights,
        group_sizes=sizes,
        block_m=_ROWS,
        block_n=_block(width),
        block_k=_INNER,
        max_concurrent_steps=_STEPS,
        grid_block_n=_blocks_at_once(width),
        transpose_rhs=transpose,
    )


@jax.jit
def mosaic_outer(
    rows: Float[Array, "M D"], others: Float[Array, "M F"], sizes: Int[Array, " E"]
) -> Float[Array, "E D F"]:
    """For every group, the sum over its rows of the outer products."""
    from jax.experimental.pallas.ops.gpu import transposed_ragged_dot_mgpu  # noqa: PLC0415

    return transposed_ragged_dot_mgpu.transposed_ragged_dot(
        rows,
        others,
        group_sizes=sizes,
        block_m=128 if rows.shape[1] % 128 == 0 else _INNER,
        block_n=_block(others.shape[1]),
        block_k=_INNER,
        max_concurrent_steps=_STEPS,
        grid_block_n=1,
    )


def _block(width: int) -> int:
    return next(columns for columns in _COLUMNS if width % columns == 0)


def _blocks_at_once(width: int) -> int:
    """How many blocks of columns are gone through before the next rows: these stay in the cache.

    65,536 rows of 1024 by 768: 204 us with one, 182 with four; of 768 by 1024: 266 and 202.
    """
    return next(count for count in (4, 2, 1) if (width // _block(width)) % count == 0)
