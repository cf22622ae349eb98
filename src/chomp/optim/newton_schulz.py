"""Newton-Schulz: the nearest matrix with all singular values about 1, by products alone.

One step is X <- P X with P = a I + b A + c A A and A = X X^T, on X of Frobenius norm 1. Five steps
take singular values above 0.002 of that norm into [0.68, 1.21] (smaller ones grow by a^5 = 485) and
leave the singular vectors. Formula and coefficients are those of Muon (Jordan et al., 2024).

Steps come in blocks. Inside a block only A and the product Q of the P are kept, both small; X
itself takes part at its two ends, as A = X X^T and Q X (of a tall X: X^T X and X Q). Blocks of one
step are the textbook form.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

# Axes: N matrices, R rows, C columns; S is the smaller of both.

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
EPS = 1e-8  # added to the norm: a gradient of zero stays zero

# An error in A grows by up to a^2 = 12 with each step of a block. In bfloat16, blocks of 3 and 2
# steps come as close to the exact result as blocks of one: relative error 0.023 against 0.025 at
# condition 1e2, 0.038 against 0.051 at 1e4 (768 x 3072; the same from 64 rows on, with 16 rows
# twice as far). 2 and 3 are three times worse; all 5 in one give singular values of 2.4 to 3.8 and
# are useless. The first block may be longer, as before it A is far below 1, and so is its error.
_FIRST_BLOCK, _NEXT_BLOCKS = 3, 2


def orthogonalized(
    x: Float[Array, "N R C"], *, steps: int, blocks: tuple[int, ...] | None = None
) -> Float[Array, "N R C"]:
    """Each matrix with its singular values brought to about 1, in the dtype of `x`.

    In bfloat16 the products add up in float32. No matrix needs to be scaled before; `blocks` (sums
    to `steps`) says how the steps are taken, default the way with the fewest operations.
    """
    rows, columns = x.shape[1:]
    # Over the longer side, and Q from the shorter one: turning a tall X would be a copy each way.
    gram_of = "nrs,nrc->nsc" if rows > columns else "nsc,nrc->nsr"
    moved_by = "nrs,nsc->nrc" if rows > columns else "nsr,nsc->nrc"
    # Of the norm only its square is needed, which is the trace of A: no scaled copy of x is made.
    gram = jnp.einsum(gram_of, x, x, preferred_element_type=jnp.float32)
    norm = jnp.sqrt(jnp.trace(gram, axis1=1, axis2=2))[:, None, None]
    scale = 1.0 / (norm + EPS)
    a = (gram * (scale * scale)).astype(x.dtype)
    sides = sorted((rows, columns))
    for number, length in enumerate(blocks or steps_in_blocks(steps, *sides)):
        if number > 0:
            a = jnp.einsum(gram_of, x, x)
        q = _block(a, length)
        q = (q * scale).astype(x.dtype) if number == 0 else q.astype(x.dtype)
        x = jnp.einsum(moved_by, *((x, q) if rows > columns else (q, x)))
    return x


def steps_in_blocks(steps: int, rows: int, columns: int) -> tuple[int, ...]:
    """How many steps each block takes: whatever needs the fewest operations.

    For 5 steps that is 3 and 2 from an aspect of 1.5 on, and single steps below.
    """
    left = max(steps - _FIRST_BLOCK, 0)
    short = (left % _NEXT_BLOCKS,) if left % _NEXT_BLOCKS else ()
    few = (min(steps, _FIRST_BLOCK), *(_NEXT_BLOCKS,) * (left // _NEXT_BLOCKS), *short)
    aspect = columns / rows
    return min((1,) * steps, few, key=lambda blocks: products(blocks, aspect))


def products(blocks: tuple[int, ...], aspect: float) -> float:
    """What the blocks cost, in products of two square matrices of the smaller size."""
    # Two with x a block; inside it A A in each step, Q P after the first, P A P before the last.
    return sum(2 * aspect + 4 * length - 3 for length in blocks)


def _block(a: Float[Array, "N R R"], length: int) -> Float[Array, "N R R"]:
    """The product of the P of so many steps, in float32; all are polynomials of A and commute."""
    q = p = _polynomial(a)
    for _ in range(length - 1):
        narrow = p.astype(a.dtype)
        a = _product(_product(narrow, a), narrow)
        p = _polynomial(a)
        q = _product(p.astype(a.dtype), q.astype(a.dtype)).astype(jnp.float32)
    return q


def _polynomial(a: Float[Array, "N R R"]) -> Float[Array, "N R R"]:
    first, second, third = COEFFICIENTS
    identity = jnp.eye(a.shape[1], dtype=jnp.float32)[None]
    square = _product(a, a).astype(jnp.float32)
    return first * identity + second * a.astype(jnp.float32) + third * square


def _product(left: Float[Array, "N R R"], right: Float[Array, "N R R"]) -> Float[Array, "N R R"]:
    return jnp.einsum("nij,njk->nik", left, right)
