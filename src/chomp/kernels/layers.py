"""Small layers that models share: norm, embedding, projections, rotary positions, remat."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Float32, Int

from chomp.errors import require
from chomp.kernels.platform import platform_of

# Axes: B batch, S sequence, D model width, E width of a projection, V vocabulary, H heads, K head
# width, P pairs of a head (K = 2 P).


def rms_norm(
    x: Float[Array, "*rows D"], scale: Float[Array, " D"], eps: float
) -> Float[Array, "*rows D"]:
    """x / rms(x) times a learned scale, back in x's dtype."""
    x32 = x.astype(jnp.float32)
    inverse_rms = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
    scale = jnp.broadcast_to(scale.astype(jnp.float32), x.shape)
    return (x32 * inverse_rms * scale).astype(x.dtype)


# ---- Embedding ----------------------------------------------------------------------------------
#
# Frequent tokens occur thousands of times in a batch, and the gradient of a row is the sum over all
# of them. Summed in bfloat16, as the lookup's own gradient would be, it was off by 10 % with the
# token frequencies of text, and took 42 ms instead of 0.13 on an H200, where additions queue for
# the same row (32,768 ids of 50,304, width 768, JAX 0.11.2, November 2026).


def embed(
    table: Float[Array, "V D"], token_ids: Int[Array, "B S"], *, out_sharding: P
) -> Float[Array, "B S D"]:
    """`table[token_ids]`, in the table's dtype, cut over devices as `out_sharding` says.

    The gradient of the table is summed in float32 and rounded once.
    """
    # The table is collected first: looking up in a sharded one makes XLA do that anyway, worse.
    whole = jax.reshard(table, P(None, None))
    # Casting up and down again changes no value, and is taken into the lookup by the compiler.
    sums = jnp.float32 if table.dtype.itemsize < 4 else table.dtype
    return whole.astype(sums).at[token_ids].get(out_sharding=out_sharding).astype(table.dtype)


# ---- Projections --------------------------------------------------------------------------------
#
# On a CPU a product runs over one axis of tokens: a weight gradient that sums over two makes XLA
# transpose a factor first. Forward and backward of the base model took 0.30 s of CPU instead of
# 0.33 at the quickstart's size, 1.85 instead of 2.03 at width 256 (two cores, November 2026).
#
# On a GPU several projections of the same activations are one product. While widths are small, one
# of three times the width takes less than three times the time, and the backward pass writes one
# gradient of the activations instead of adding three. At 124M on an H200 a step took 58.9 ms
# instead of 59.6 (November 2026).


def projections(
    x: Float[Array, "B S D"], *weights: Float[Array, "D _"]
) -> tuple[Float[Array, "B S _"], ...]:
    """`x @ weight` for each weight, cut over columns as the weight is; D is whole everywhere."""
    mesh, (batch, sequence, _) = jax.typeof(x).sharding.mesh, jax.typeof(x).sharding.spec
    if mesh.empty:
        return tuple(jnp.einsum("bsd,de->bse", x, weight) for weight in weights)
    if platform_of(x) == "cpu":
        # There a product takes what its size says, and putting together and apart costs 1 to 3 % of
        # a step (quickstart's size, two cores, November 2026).
        out = P(batch, sequence, jax.typeof(weights[0]).sharding.spec[1])
        return tuple(projection(x, weight, out_sharding=out) for weight in weights)
    return side_by_side(x, *weights)


def projection(
    x: Float[Array, "B S D"], weight: Float[Array, "D E"], *, out_sharding: P
) -> Float[Array, "B S E"]:
    """`x @ weight`, cut over devices as `out_sharding` says; a cut D is added up."""
    batch, sequence, width = jax.typeof(x).sharding.spec
    if platform_of(x) != "cpu" or sequence is not None:
        return jnp.einsum("bsd,de->bse", x, weight, out_sharding=out_sharding)
    tokens = jnp.reshape(x, (-1, x.shape[2]), out_sharding=P(batch, width))
    flat = P(out_sharding[0], out_sharding[2])
    out = jnp.einsum("td,de->te", tokens, weight, out_sharding=flat)
    return jnp.reshape(out, (*x.shape[:2], -1), out_sharding=out_sharding)


def side_by_side(
    x: Float[Array, "B S D"], *weights: Float[Array, "D _"]
) -> tuple[Float[Array, "B S _"], ...]:
    """`projections` as one product: each device lays its own columns of the weights together."""
    mesh, columns = jax.typeof(x).sharding.mesh, jax.typeof(weights[0]).sharding.spec[1]
    if mesh.empty:
        return _one_product(x, *weights)
    batch, sequence, _ = jax.typeof(x).sharding.spec
    return jax.shard_map(
        _one_product,
        mesh=mesh,
        in_specs=(P(batch, sequence, None), *(P(None, columns),) * len(weights)),
        out_specs=(P(batch, sequence, columns),) * len(weights),
    )(x, *weights)


def _one_product(x: Array, *weights: Array) -> tuple[Array, ...]:
    together = jnp.einsum("bsd,de->bse", x, jnp.concatenate(weights, axis=1))
    # `split`, not slices: its gradient is one concatenation, theirs a sum of padded arrays.
    return tuple(jax.lax.split(together, [weight.shape[1] for weight in weights], axis=2))


# ---- Rotary positions ---------------------------------------------------------------------------
#
# A position becomes an angle, so scores depend on distances alone. The angles are the same in every
# layer, and for queries and keys: a model computes them once (`rotary_angles`) and rotates its
# heads by them (`rotate`).


Positions = Int[Array, "#B S"] | Int[Array, " S"] | Int[np.ndarray, "#B S"]


class Angles(NamedTuple):
    """Cosine and sine of the angle of every position and pair, in float32."""

    cos: Float32[Array, "#B S P"]
    sin: Float32[Array, "#B S P"]


def require_pairs(width: int) -> None:
    """Raise `ConfigError` unless heads of that width split into pairs."""
    require(
        width % 2 == 0,
        f"heads of width {width}",
        allowed="even widths: rotary positions rotate pairs",
        fix=f"set model.head_dim={width + 1}, or num_heads so that hidden_dim / num_heads is even",
    )


def rotary_angles(positions: Positions, *, width: int, theta: float) -> Angles:
    """Angles position * theta^(-2i/K) for pair i of heads of `width` K.

    One line of positions serves every row. Float32: in bfloat16, positions past 256 would share
    their angles. Positions that are known while tracing (numpy) become constants, made in float64:
    otherwise XLA on a CPU computes cosines again for every head of every layer, 110 of 1030 ms of a
    step (256 wide, four layers, two cores, November 2026).
    """
    require_pairs(width)
    half = width // 2
    rows = positions if positions.ndim == 2 else positions[None]
    if isinstance(rows, np.ndarray):
        angle = rows[:, :, None] * theta ** (-np.arange(half) / half)
        return Angles(
            jnp.asarray(np.cos(angle), jnp.float32), jnp.asarray(np.sin(angle), jnp.float32)
        )
    rate = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = rows.astype(jnp.float32)[:, :, None] * rate[None, None, :]
    return Angles(jnp.cos(angles), jnp.sin(angles))


# The gradient of a rotation is the rotation back. The automatic gradient takes more passes: forward
# and backward in bfloat16 took 6.0 ms instead of 2.5 (16 x 256 rows of four heads of 64 on two CPU
# cores, November 2026).
@jax.custom_vjp
def rotate(x: Float[Array, "B S H K"], angles: Angles) -> Float[Array, "B S H K"]:
    """`x` with pair (i, i + K/2) of each head rotated by its angle. Angles get no gradient."""
    return (by_halves if platform_of(x) == "cpu" else by_reversal)(x, angles)


def by_halves(x: Float[Array, "B S H K"], angles: Angles) -> Float[Array, "B S H K"]:
    """`rotate`, each half by itself: on a CPU 0.14 ms against 0.44 (November 2026)."""
    cos, sin = (part[:, :, None, :] for part in angles)
    left, right = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)
    return rotated.astype(x.dtype)


def by_reversal(x: Float[Array, "B S H K"], angles: Angles) -> Float[Array, "B S H K"]:
    """`rotate` in one pass over `x`: its halves are swapped by a reversal, which XLA fuses.

    By halves it was three passes in the backward pass on an H200, 1.8 of 57 ms of a step at 124M
    (November 2026).
    """
    cos, sin = (part[:, :, None, None, :] for part in angles)
    halves = x.astype(jnp.float32).reshape(*x.shape[:3], 2, -1)
    sign = jnp.asarray([-1.0, 1.0], jnp.float32)[None, None, None, :, None]
    rotated = halves * cos + jax.lax.rev(halves, (3,)) * (sin * sign)
    return rotated.astype(x.dtype).reshape(x.shape)


def _rotate_forward(x: Array, angles: Angles) -> tuple[Array, Angles]:
    return rotate(x, angles), angles


def _rotate_backward(angles: Angles, gradient: Array) -> tuple[Array, None]:
    return rotate(gradient, Angles(angles.cos, -angles.sin)), None


rotate.defvjp(_rotate_forward, _rotate_backward)


# ---- Remat: what the backward pass of a layer recomputes ----------------------------------------


Remat = Literal["none", "block", "matmuls"]

# Products are what takes the time; norms and gates between them are cheap to make again.
_KEEP_PRODUCTS = jax.checkpoint_policies.dots_with_no_batch_dims_saveable


def remat(apply: Callable[..., Any], policy: Remat) -> Callable[..., Any]:
    """`apply`, keeping everything (`none`), its inputs alone (`block`), or also its products."""
    match policy:
        case "none":
            return apply
        case "block":
            return jax.checkpoint(apply)
        case "matmuls":
            return partial(jax.checkpoint, policy=_KEEP_PRODUCTS)(apply)
