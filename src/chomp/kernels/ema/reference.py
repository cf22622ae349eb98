"""The complex moving average as the recurrence says it: the specification of the fast one.

One step per token, the states of one token at a time. In float64 if everything given is.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from chomp.kernels.ema.modes import EmaModes, EmaState, clamped, empty_ema_state, times

# Axes: B batch, S sequence, D channels, N modes of a channel.


def reference_ema(
    x: Float[Array, "B S D"],
    modes: EmaModes,
    positions: Int[Array, "B S"],
    state: EmaState | None = None,
) -> tuple[Float[Array, "B S D"], EmaState]:
    """y_t = Re(sum_n g_n s_tn) of s_t = q s_{t-1} + x_t, and the last state.

    A token at position 0 forgets what was before it, also what `state` brings.
    """
    radius = jnp.exp(-clamped(modes.decay))
    q = radius * jnp.cos(modes.angle), radius * jnp.sin(modes.angle)

    def step(state: EmaState, token: tuple[Array, Array]) -> tuple[EmaState, Array]:
        x, position = token
        kept = jnp.where((position > 0)[:, None, None], jnp.stack(state), 0)
        turned = times((q[0][None], q[1][None]), (kept[0], kept[1]))
        state = EmaState(turned.re + x[:, :, None], turned.im)
        given = times((modes.gain_re[None], modes.gain_im[None]), state)
        return state, given.re.sum(-1)

    start = empty_ema_state(x.shape[0], modes) if state is None else state
    last, y = jax.lax.scan(step, start, (x.transpose(1, 0, 2), positions.T))
    return y.transpose(1, 0, 2), last
