"""The nearest taps of the moving average: sums over a few tokens, no products.

Within pieces of `TAPS` tokens, so that documents cost a comparison for each tap.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

# Axes: B batch, T tokens of a row, D channels, L taps, K pieces of all rows.

TAPS = 8


# Said here, because derived gradients are sums over tokens of shifted arrays, which XLA for a CPU
# does one number at a time: seven milliseconds a tap (2 x 1024 x 1024, November 2026).
@jax.custom_vjp
def near_taps(
    x: Float[Array, "B T D"], taps: Float[Array, "D L"], reach: Int[Array, "B T"]
) -> Float[Array, "B T D"]:
    """sum of taps[tau] x_{t-tau} over tau up to `reach` of t, at most its place in its piece.

    T is a multiple of the number of taps, and so long is a piece.
    """
    y = x * taps[:, 0][None, None]
    for tau in range(1, taps.shape[1]):
        y = y + jnp.where((reach >= tau)[:, :, None], _moved(x, tau), 0) * taps[:, tau][None, None]
    return y


def _moved(x: Array, count: int) -> Array:
    """`x` that many tokens later, or earlier; zeros come in."""
    return jax.lax.pad(x, np.zeros((), x.dtype), [(0, 0, 0), (count, -count, 0), (0, 0, 0)])


_Saved = tuple[Array, Array, Array]


def _forward(x: Array, taps: Array, reach: Array) -> tuple[Array, _Saved]:
    return near_taps(x, taps, reach), (x, taps, reach)


def _backward(saved: _Saved, gradient: Array) -> tuple[Array, Array, None]:
    x, taps, reach = saved
    of_x = gradient * taps[:, 0][None, None]
    for tau in range(1, taps.shape[1]):
        read = jnp.where((reach >= tau)[:, :, None], gradient, 0)
        of_x = of_x + _moved(read, -tau) * taps[:, tau][None, None]
    return of_x, _slopes(x, gradient, reach, taps.shape[1]), None


def _slopes(x: Array, gradient: Array, reach: Array, length: int) -> Array:
    """Gradients of the taps: first over the pairs of a piece, then over the pieces."""
    x, gradient = (part.reshape(-1, length, x.shape[2]) for part in (x, gradient))
    reach = reach.reshape(-1, length)
    ones = jnp.ones(x.shape[0], x.dtype)

    def slope(tau: int) -> Array:
        pairs = (
            jnp.where((reach[:, t] >= tau)[:, None], x[:, t - tau] * gradient[:, t], 0)
            for t in range(tau, length)
        )
        return jnp.einsum("k,kd->d", ones, sum(pairs), precision=jax.lax.Precision.HIGHEST)

    return jnp.stack([slope(tau) for tau in range(length)], 1)


near_taps.defvjp(_forward, _backward)
