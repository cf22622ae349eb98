"""Normalisation over time: each token by the mean and variance of its document up to itself.

Features are in groups, as in a group norm made causal (Megalodon, arXiv 2404.08801). Sums are
float32; those of squares are of distances from the mean so far, never a difference of two large
ones.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

# Axes: B batch, S sequence, D model width, G groups of features, F features of a group, N blocks of
# the sequence, M positions of a block; *L layers of a stack, none in a call.

Places = Int[Array, "#B S"] | Int[np.ndarray, "#B S"]  # of tokens in their own documents, from 0

# Positions whose sums are one small product. 32 to 128 took the same (two cores, November 2026).
BLOCK = 64


class RunningSums(eqx.Module):
    """Sums over each document up to each position, by products with zeros and ones.

    Which positions add up is the same in every layer: it is made once for a batch.
    """

    share: Float[Array, "#B S 1"]  # 1 / n, n tokens of the document being there so far
    ratio: Float[Array, "#B S 1"]  # n / (n - 1)
    within: Float[Array, "#B N M M"]  # of a block: the earlier one is in the later one's document
    carried: Float[Array, "#B N N"]  # the open end of an earlier block reaches into a later one
    reached: Float[Array, "#B N M 1"]  # the position's document began before its block

    @staticmethod
    def of(places: Places) -> "RunningSums":
        """The sums for tokens at these places of their documents."""
        rows, length = places.shape
        num = -(-length // BLOCK)
        # Past the end every token is a document of its own: nothing reaches into it or out of it.
        blocks = jnp.pad(places, ((0, 0), (0, num * BLOCK - length))).reshape(rows, num, BLOCK)
        here, block = np.arange(BLOCK), np.arange(num)
        distance = (here[:, None] - here)[None, None]
        within = (distance >= 0) & (blocks[..., None] >= distance)
        # The last token before block n, and how far behind it the end of block m lies.
        last = jnp.pad(blocks[:, :-1, -1], ((0, 0), (1, 0)), constant_values=-1)
        behind = (BLOCK * (block[:, None] - 1 - block))[None]
        carried = (behind >= 0) & (last[..., None] >= behind)
        reached = (blocks > here[None, None])[..., None]
        count = (jnp.asarray(places) + 1).astype(jnp.float32)[..., None]
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
    """(x - mean) / deviation of the document so far, by groups, times 1 + scale, plus bias."""

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
        average = sums(mean) * sums.share
        # Welford's step: how far a token is from the average with it, times its distance from the
        # average without it, which is n / (n - 1) of the former.
        variance = sums(spread + jnp.square(mean - average) * sums.ratio) * sums.share
        return self._normalised(x, average, variance)

    def continued(
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
        return self._normalised(x, average, variance), seen

    def empty_state(self, batch: int) -> NormState:
        """Nothing seen yet."""
        return NormState(*(jnp.zeros((batch, self.num_groups)) for _ in range(2)))

    def _groups(self, x: Float[Array, "B S D"]) -> Float[Array, "B S G F"]:
        return x.astype(jnp.float32).reshape(*x.shape[:2], self.num_groups, -1)

    def _of_tokens(self, x: Array) -> tuple[Float[Array, "B S G"], Float[Array, "B S G"]]:
        groups = self._groups(x)
        mean = jnp.mean(groups, axis=-1)
        return mean, jnp.mean(jnp.square(groups - mean[..., None]), axis=-1)

    def _normalised(self, x: Array, mean: Array, variance: Array) -> Float[Array, "B S D"]:
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
