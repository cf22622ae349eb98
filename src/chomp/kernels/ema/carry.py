"""States carried over blocks: a linear recurrence with one step per block.

Its gradient is the same recurrence, run backwards, so neither way of running it is differentiated.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from chomp.kernels.ema.modes import Pair, times
from chomp.kernels.platform import platform_of

# Axes: C blocks, B batch, D channels, N modes of a channel.

States = tuple[Float[Array, "C B D N"], Float[Array, "C B D N"]]
Factor = tuple[Float[Array, "D N"], Float[Array, "D N"]]
# A factor f, and f^2, f^4, ... up to the number of blocks. Gradients are those of f alone.
Factors = list[Factor]
Keeps = Bool[Array, "C B"] | None


@jax.custom_vjp
def carried(added: States, factors: Factors, keeps: Keeps) -> States:
    """h_c = added_c + f h_{c-1}, the second term only where `keeps` says so (None: always)."""
    # A loop on a CPU, where XLA would fuse the doublings into one pass that computes each anew.
    return _carried(added, factors, keeps, is_backwards=False)


def _carried(added: States, factors: Factors, keeps: Keeps, *, is_backwards: bool) -> States:
    by = carried_by_loop if platform_of(added[0]) == "cpu" else carried_by_doubling
    return by(added, factors, keeps, is_backwards=is_backwards)


def carried_by_loop(
    added: States, factors: Factors, keeps: Keeps, *, is_backwards: bool = False
) -> States:
    """`carried`, one block after another; backwards, from each block to the one before it."""
    factor = factors[0][0][None], factors[0][1][None]

    def step(state: Pair, block: tuple[tuple[Array, Array], Array | None]) -> tuple[Pair, Pair]:
        (re, im), keep = block
        moved = times(factor, _kept(state, keep))
        state = Pair(re + moved.re, im + moved.im)
        return state, state

    start = Pair(*(jnp.zeros_like(part[0]) for part in added))
    states = jax.lax.scan(step, start, (added, keeps), reverse=is_backwards)[1]
    return states.re, states.im


def carried_by_doubling(
    added: States, factors: Factors, keeps: Keeps, *, is_backwards: bool = False
) -> States:
    """`carried` in log2(C) passes: what came over 1, 2, 4, ... blocks. Few kernels on a GPU."""
    state = Pair(*added)
    for doubling in range((added[0].shape[0] - 1).bit_length()):
        re, im = factors[doubling]
        count = -(2**doubling) if is_backwards else 2**doubling
        earlier = Pair(*(_later(part, count) for part in state))
        moved = times((re[None, None], im[None, None]), _kept(earlier, keeps))
        # Without the barrier a pass would be made again by each pass that reads it twice.
        re, im = jax.lax.optimization_barrier((state.re + moved.re, state.im + moved.im))
        state = Pair(re, im)
        keeps = None if keeps is None else keeps & _later(keeps, count)
    return state.re, state.im


def _later(x: Array, count: int) -> Array:
    """`x` moved by `count` along its first axis, or back; nothing (0, False) comes in."""
    others = [(0, 0, 0)] * (x.ndim - 1)
    return jax.lax.pad(x, jnp.zeros((), x.dtype), [(count, -count, 0), *others])


def _kept(state: Pair, keep: Bool[Array, "..."] | None) -> Pair:
    if keep is None:
        return state
    return Pair(*(jnp.where(keep[..., None, None], part, 0) for part in state))


_Saved = tuple[States, Factors, Keeps]


def _forward(added: States, factors: Factors, keeps: Keeps) -> tuple[States, _Saved]:
    states = carried(added, factors, keeps)
    return states, (states, factors, keeps)


def _backward(saved: _Saved, gradient: States) -> tuple[States, Factors, None]:
    states, factors, keeps = saved
    conjugates = [(re, -im) for re, im in factors]
    # Backwards, block c goes on to c - 1 where c keeps it: the flags, too, move by one.
    flags = None if keeps is None else _later(keeps, -1)
    reached = Pair(*_carried(gradient, conjugates, flags, is_backwards=True))
    before = _kept(Pair(*(_later(part, 1) for part in states)), keeps)
    slope = times(reached, (before.re, -before.im))
    first = (slope.re.sum((0, 1)), slope.im.sum((0, 1)))
    others = [(jnp.zeros_like(re), jnp.zeros_like(im)) for re, im in factors[1:]]
    return (reached.re, reached.im), [first, *others], None


carried.defvjp(_forward, _backward)
