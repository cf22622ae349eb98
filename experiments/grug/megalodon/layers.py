"""Parts of a Megalodon layer: weights, products on a mesh, norms, and the moving average.

FSDP and tensor parallelism by hand: the shards of a weight over `data` are gathered for its
product, and again in the backward pass; its cut over `model` stays.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple
from zlib import crc32

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int
from jaxtyping import PRNGKeyArray as Key

from chomp.kernels.ema import EmaModes, EmaState, complex_ema, continued_ema, empty_ema_state
from chomp.kernels.layers import projection
from chomp.mesh import BATCH_AXES
from experiments.grug.megalodon.config import InitMode

# Axes: *L layers of a stack, none in a call, B batch, S sequence, D and E widths, G groups of
# features, F features of a group, N blocks of the sequence or modes of a channel, M positions of a
# block.

Positions = Int[Array, "#B S"] | Int[np.ndarray, "#B S"]  # of tokens in their own documents, from 0

# Where activations lie: rows over the batch axes, what is cut of a width over `model`.
ROWS, COLUMNS = P(BATCH_AXES, None, None), P(BATCH_AXES, None, "model")
# Positions whose sums are one small product. 32 to 128 took the same (two cores, November 2026).
BLOCK = 64
_FORGETS_ALL = 1.0 - 1e-6  # the logarithm of less has no slope left


# ---- Weights ------------------------------------------------------------------------------------


def own_key(key: Key, path: str) -> Key:
    """The key of one weight: no mesh and no other weight can change what it draws."""
    return jax.random.fold_in(key, crc32(path.encode()))


def matrices(
    key: Key, path: str, shape: tuple[int, int, int], spec: P, mode: InitMode
) -> Float[Array, "L _ _"]:
    """A matrix of every layer; the last two axes are its inputs and outputs."""
    drawn_by, (fan_in, fan_out) = own_key(key, path), shape[1:]
    match mode:
        case "he":  # Kaiming's for a leak of sqrt(5)
            return (3 * fan_in) ** -0.5 * jax.random.normal(drawn_by, shape, out_sharding=spec)
        case "bert":
            return 0.02 * jax.random.normal(drawn_by, shape, out_sharding=spec)
        case "gaussian":
            return jax.random.truncated_normal(drawn_by, -3.0, 3.0, shape, out_sharding=spec)
    # Xavier's, or as much as `he`, spread evenly.
    limit = (6 / (fan_in + fan_out)) ** 0.5 if mode == "xavier" else fan_in**-0.5
    return limit * jax.random.uniform(drawn_by, shape, minval=-1.0, maxval=1.0, out_sharding=spec)


def table(key: Key, path: str, shape: tuple[int, int], spec: P, width: int) -> Float[Array, "_ _"]:
    """The embedding or the head of a model of that width, whatever `init_mode` says."""
    drawn = jax.random.truncated_normal(own_key(key, path), -3.0, 3.0, shape, out_sharding=spec)
    return width**-0.5 * drawn


def zeros(*shape: int) -> Float[Array, "..."]:
    """Zeros, whole on every device."""
    return jnp.zeros(shape, out_sharding=P(*(None for _ in shape)))


# ---- Products -----------------------------------------------------------------------------------


def recompute(make: Callable[..., Any], *given: Array) -> Any:
    """`make(*given)`, of which the backward pass keeps `given` alone, and weights as they lie.

    For what passes over arrays once or twice: to make that again is cheaper than to keep it, in
    stacks of all layers.
    """
    return jax.checkpoint(make)(*given)


def product(
    x: Float[Array, "B S D"], weight: Float[Array, "D E"], cut: P, out: P
) -> Float[Array, "B S E"]:
    """`x` times a weight, the latter cut as `cut` for it; the result lies as `out`."""

    def projected(x: Array) -> Array:
        x = jax.reshard(x, P(BATCH_AXES, None, cut[0]))
        return projection(x, jax.reshard(weight, cut), out_sharding=out)

    return recompute(projected, x)


# Into columns that need no exchange, out of them with a sum.
def into_columns(x: Float[Array, "B S D"], weight: Float[Array, "D E"]) -> Float[Array, "B S E"]:
    """`x` times a weight whose outputs are cut over `model`."""
    return product(x, weight, P(None, "model"), COLUMNS)


def out_of_columns(x: Float[Array, "B S D"], weight: Float[Array, "D E"]) -> Float[Array, "B S E"]:
    """`x` times a weight whose inputs are cut over `model`, the parts added up."""
    return product(x, weight, P("model", None), ROWS)


def dropout(x: Array, rate: float, key: Key | None, what: str) -> Array:
    """`x` with a part of it 0 and the rest as much larger; `what` tells one place from another."""
    if key is None or rate == 0.0:
        return x
    spec = jax.typeof(x).sharding.spec
    keep = jax.random.bernoulli(own_key(key, what), 1.0 - rate, x.shape, out_sharding=spec)
    return jnp.where(keep, x / (1.0 - rate), jnp.zeros_like(x))


def add_bias(x: Float[Array, "B S E"], bias: Float[Array, " E"]) -> Float[Array, "B S E"]:
    """`x` and a bias, added in float32.

    A bias's gradient is a sum over all positions, which bfloat16 gets wrong by 10 % at 8,192 of
    them and by more at more.
    """
    return x.astype(jnp.float32) + bias[None, None].astype(jnp.float32)


def bias_silu(x: Float[Array, "B S E"], bias: Float[Array, " E"]) -> Float[Array, "B S E"]:
    """SiLU of x and a bias, back in x's dtype."""
    return jax.nn.silu(add_bias(x, bias)).astype(x.dtype)


# ---- Norms --------------------------------------------------------------------------------------


class RunningSums(eqx.Module):
    """Sums over each document up to each position, by products with zeros and ones.

    Which positions add up is the same in every layer: it is made once for a batch.
    """

    inverse_count: Float[Array, "#B S 1"]  # 1 / n, n tokens of the document being there so far
    ratio: Float[Array, "#B S 1"]  # n / (n - 1)
    within: Float[Array, "#B N M M"]  # of a block: the earlier one is in the later one's document
    carried: Float[Array, "#B N N"]  # the open end of an earlier block reaches into a later one
    reached: Float[Array, "#B N M 1"]  # the position's document began before its block

    @staticmethod
    def of(positions: Positions) -> "RunningSums":
        """The sums for tokens at these positions of their documents."""
        rows, length = positions.shape
        num = -(-length // BLOCK)
        # Past the end every token is a document of its own: nothing reaches into it or out of it.
        blocks = jnp.pad(positions, ((0, 0), (0, num * BLOCK - length))).reshape(rows, num, BLOCK)
        here, block = np.arange(BLOCK), np.arange(num)
        distance = (here[:, None] - here)[None, None]
        within = (distance >= 0) & (blocks[..., None] >= distance)
        # The last token before block n, and how far behind it the end of block m lies.
        last = jnp.pad(blocks[:, :-1, -1], ((0, 0), (1, 0)), constant_values=-1)
        behind = (BLOCK * (block[:, None] - 1 - block))[None]
        carried = (behind >= 0) & (last[..., None] >= behind)
        reached = (blocks > here[None, None])[..., None]
        count = (jnp.asarray(positions) + 1).astype(jnp.float32)[..., None]
        ratio = count / jnp.maximum(count - 1.0, 1.0)
        sums = (x.astype(jnp.float32) for x in (within, carried, reached))
        return RunningSums(1.0 / count, ratio, *sums)

    def __call__(self, x: Float[Array, "B S G"]) -> Float[Array, "B S G"]:
        """Sums of x over each document up to each position, itself included."""
        batch, length, groups = x.shape
        num = self.within.shape[1]
        x = jnp.pad(x, ((0, 0), (0, num * BLOCK - length), (0, 0)))
        x = x.reshape(batch, num, BLOCK, groups)
        sums = _product("bnml,bnlg->bnmg", self.within, x)
        open_ends = sums[:, :, BLOCK - 1]  # of a document that goes on, or nobody reaches for it
        before = _product("bnm,bmg->bng", self.carried, open_ends)
        sums = sums + self.reached * before[:, :, None]
        return sums.reshape(batch, -1, groups)[:, :length]


def _product(letters: str, mask: Array, x: Array) -> Array:
    """An einsum with a mask of each row, or of one row for all."""
    if mask.shape[0] == 1:
        letters, mask = letters[1:], mask[0]
    return jnp.einsum(letters, mask, x, precision=jax.lax.Precision.HIGHEST)


class NormState(NamedTuple):
    """What a norm has seen of a stream."""

    mean: Float[Array, "B G"]
    variance: Float[Array, "B G"]


class TimestepNorm(eqx.Module):
    """(x - mean) / deviation of the document so far, by groups, times 1 + scale, plus bias.

    A group norm made causal (Megalodon, arXiv 2404.08801). Sums are float32; those of squares are
    of distances from the mean so far, never a difference of two large ones.
    """

    scale: Float[Array, "*L D"]  # on top of 1: what pulls it to 0 pulls to the identity
    bias: Float[Array, "*L D"]
    num_groups: int = eqx.field(static=True)
    eps: float = eqx.field(static=True)

    @staticmethod
    def init(*shape: int, num_groups: int, eps: float) -> "TimestepNorm":
        """The identity after normalising."""
        # Two arrays, though equal ones: a step gives up what it has been given, and once only.
        scale, bias = (jnp.zeros(shape, out_sharding=P(*(None for _ in shape))) for _ in range(2))
        return TimestepNorm(scale, bias, num_groups, eps)

    def __call__(self, x: Float[Array, "B S D"], sums: RunningSums) -> Float[Array, "B S D"]:
        """Every token by its own document up to itself."""
        mean, spread = self._of_tokens(x)
        average = sums(mean) * sums.inverse_count
        # Welford's step: how far a token is from the average with it, times its distance from the
        # average without it, which is n / (n - 1) of the former.
        variance = sums(spread + jnp.square(mean - average) * sums.ratio) * sums.inverse_count
        return self._normalise(x, average, variance)

    def decode(
        self, x: Float[Array, "B S D"], state: NormState, count: Int[Array, ""]
    ) -> tuple[Float[Array, "B S D"], NormState]:
        """Tokens that come after `count` others of a stream, and what has been seen with them."""
        mean, spread = self._of_tokens(x)
        before = count.astype(jnp.float32)
        total = before + jnp.arange(1, x.shape[1] + 1, dtype=jnp.float32)[None, :, None]
        start = state.mean[:, None]
        average = start + jnp.cumsum(mean - start, axis=1) / total
        ratio = total / jnp.maximum(total - 1.0, 1.0)
        added = jnp.cumsum(spread + jnp.square(mean - average) * ratio, axis=1)
        variance = (before * state.variance[:, None] + added) / total
        seen = NormState(average[:, -1], variance[:, -1])
        return self._normalise(x, average, variance), seen

    def empty_state(self, batch: int) -> NormState:
        """Nothing seen yet."""
        return NormState(*(jnp.zeros((batch, self.num_groups)) for _ in range(2)))

    def _groups(self, x: Float[Array, "B S D"]) -> Float[Array, "B S G F"]:
        return x.astype(jnp.float32).reshape(*x.shape[:2], self.num_groups, -1)

    def _of_tokens(self, x: Array) -> tuple[Float[Array, "B S G"], Float[Array, "B S G"]]:
        groups = self._groups(x)
        mean = jnp.mean(groups, axis=-1)
        return mean, jnp.mean(jnp.square(groups - mean[..., None]), axis=-1)

    def _normalise(self, x: Array, mean: Array, variance: Array) -> Float[Array, "B S D"]:
        inverse = jax.lax.rsqrt(variance + self.eps)
        y = ((self._groups(x) - mean[..., None]) * inverse[..., None]).reshape(x.shape)
        return (y * (1.0 + self.scale)[None, None] + self.bias[None, None]).astype(x.dtype)


def layer_norm(
    x: Float[Array, "B S D"], scale: Float[Array, " D"], bias: Float[Array, " D"], eps: float
) -> Float[Array, "B S D"]:
    """Each token by its own mean and variance, in float32, back in x's dtype."""
    x32 = x.astype(jnp.float32)
    centred = x32 - jnp.mean(x32, axis=-1, keepdims=True)
    inverse = jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + eps)
    return (centred * inverse * scale[None, None] + bias[None, None]).astype(x.dtype)


# ---- The moving average -------------------------------------------------------------------------


class ComplexEma(eqx.Module):
    """A complex moving average; its weights are float32, whatever the rest is computed in.

    Each channel d has modes j that decay and rotate, and sums them up:

        h_t = q h_{t-1} + p u_t        y_t = Re(sum over modes of g h_t) + omega u_t

    with p = sigmoid(alpha), q = (1 - p sigmoid(delta)) exp(i j sigmoid(theta_d) 2 pi / N) and
    g = (gamma_re + i gamma_im) / sqrt(N). How the sum is computed is `chomp.kernels.ema`'s.
    """

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

    def __call__(
        self, u: Float[Array, "B S D"], positions: Positions | None
    ) -> Float[Array, "B S D"]:
        """The averages of every document, each from its own beginning."""
        return complex_ema(u, self.modes(), positions) + self._skip(u)

    def decode(
        self, u: Float[Array, "B S D"], state: EmaState
    ) -> tuple[Float[Array, "B S D"], EmaState]:
        """The averages of what comes after a state's stream, and the state with it."""
        y, state = continued_ema(u, self.modes(), state)
        return y + self._skip(u), state

    def empty_state(self, batch: int) -> EmaState:
        """The state of streams that have not begun."""
        return empty_ema_state(batch, self.modes())

    def _skip(self, u: Float[Array, "B S D"]) -> Float[Array, "B S D"]:
        return (u.astype(jnp.float32) * self.omega[None, None]).astype(u.dtype)
