"""The moving average of Megalodon: each channel has modes that decay and turn, and sums them up.

    h_t = q h_{t-1} + p u_t        y_t = Re(sum over modes of g h_t) + omega u_t

Per channel d and mode j: p = sigmoid(alpha), q = (1 - p sigmoid(delta)) exp(i j sigmoid(theta_d)
2 pi / N), g = (gamma_re + i gamma_im) / sqrt(N). How the sum is computed is `chomp.kernels.ema`'s.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float
from jaxtyping import PRNGKeyArray as Key

from chomp.kernels.ema import EmaModes, EmaState, complex_ema, continued_ema, empty_ema_state
from experiments.grug.megalodon.norm import Places

# Axes: *L layers of a stack, none in a call, B batch, S sequence, D model width (one channel each),
# N modes of a channel.

_FORGETS_ALL = 1.0 - 1e-6  # the logarithm of less has no slope left


class ComplexEma(eqx.Module):
    """Time constants and gains; all float32, whatever the rest is computed in."""

    alpha: Float[Array, "*L D N"]
    delta: Float[Array, "*L D N"]
    theta: Float[Array, "*L D"]
    gamma_re: Float[Array, "*L D N"]
    gamma_im: Float[Array, "*L D N"]
    omega: Float[Array, "*L D"]

    @staticmethod
    def init(num_layers: int, width: int, num_modes: int, *, key: Key) -> "ComplexEma":
        """The averages of all layers, stacked: memories of a few tokens, turning at all speeds."""
        alpha, delta, theta, gamma, omega = jax.random.split(key, 5)
        shape, whole = (num_layers, width, num_modes), P(None, None, None)
        # Speeds from a whole turn to 1 / D of one, shuffled over the channels of each layer.
        speed = jnp.exp(-math.log(width) / width * jnp.arange(1, width + 1, dtype=jnp.float32))
        speed = jnp.clip(speed, 1e-6, 1.0 - 1e-6)
        logit = jnp.broadcast_to(jnp.log(speed / (1.0 - speed))[None], (num_layers, width))
        normal = jax.random.normal
        return ComplexEma(
            alpha=0.2 * normal(alpha, shape, out_sharding=whole),
            delta=0.2 * normal(delta, shape, out_sharding=whole),
            theta=jax.random.permutation(theta, logit, axis=1, independent=True),
            gamma_re=normal(gamma, shape, out_sharding=whole),
            gamma_im=jnp.zeros(shape, out_sharding=whole),
            omega=0.25
            * jax.random.truncated_normal(
                omega, -4.0, 4.0, (num_layers, width), out_sharding=P(None, None)
            ),
        )

    def modes(self) -> EmaModes:
        """The modes of one layer as the kernel takes them: p is part of the gains."""
        shape, num_modes = self.alpha.shape, self.alpha.shape[1]
        # As one long axis: a short last one compiles for longer (`doubled_powers`).
        p, kept = (jax.nn.sigmoid(x.reshape(-1)) for x in (self.alpha, self.delta))
        # What |q| = 1 - p sigmoid(delta) differs from 1 by, which |q| would round away.
        decay = -jnp.log1p(-jnp.minimum(p * kept, _FORGETS_ALL))
        turn = jnp.arange(1, num_modes + 1, dtype=jnp.float32) * (2.0 * math.pi / num_modes)
        gain = p.reshape(shape) * num_modes**-0.5
        return EmaModes(
            decay=decay.reshape(shape),
            angle=jax.nn.sigmoid(self.theta)[:, None] * turn[None],
            gain_re=gain * self.gamma_re,
            gain_im=gain * self.gamma_im,
        )

    def __call__(self, u: Float[Array, "B S D"], places: Places | None) -> Float[Array, "B S D"]:
        """The averages of every document, each from its own beginning."""
        return complex_ema(u, self.modes(), places) + self._skipped(u)

    def continued(
        self, u: Float[Array, "B S D"], state: EmaState
    ) -> tuple[Float[Array, "B S D"], EmaState]:
        """The averages of what comes after a state's stream, and the state with it."""
        y, state = continued_ema(u, self.modes(), state)
        return y + self._skipped(u), state

    def empty_state(self, batch: int) -> EmaState:
        """The state of streams that have not begun."""
        return empty_ema_state(batch, self.modes())

    def _skipped(self, u: Float[Array, "B S D"]) -> Float[Array, "B S D"]:
        return (u.astype(jnp.float32) * self.omega[None, None]).astype(u.dtype)
