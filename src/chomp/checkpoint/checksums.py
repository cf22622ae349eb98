"""A hash for every array of a state, computed where the array lies.

Each element's bits are mixed with its place in the array by four bijections of 32-bit words, and
the mixed words are added up, modulo 2^32: 128 bits. A sum of integers has no order, so the hash is
the same on any mesh and any number of processes, and neither gathers nor copies. A change of one
element changes all four sums, always; any other change escapes them with a chance of about 2^-128.
It guards against damage, not against forgery.
"""

import hashlib
import operator
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped, UInt32

from chomp.errors import NonFiniteError

# The bijections: shift, multiply, shift, multiply, shift, with odd multipliers. Two and two begin
# alike, which saves time; the first of each two is known (MurmurHash3's last step, and one of
# Wellons' hash-prospector). The numbers before them spread the places. One is odd and one even, so
# that what both begin with tells word and place: what hides a change in one does not in the other.
_LANES = (
    (0x9E3779B1, (16, 0x85EBCA6B, 13), ((0xC2B2AE35, 16), (0x297A2D39, 15))),
    (0x85EBCA76, (16, 0x7FEB352D, 15), ((0x846CA68B, 16), (0xB278E4AD, 17))),
)
# Below this numpy is faster than a compiler, which would run once for each shape.
_SMALL_BYTES = 256 * 1024
# Programs under way at a time. A CPU device takes 32 and then makes a thread wait that a process of
# several devices needs for its share of a sum: with Gloo, two processes of two devices hung.
_MOST_UNDER_WAY = 16


def receipt_of(leaves: Mapping[str, Any], *, must_be_finite: bool = False) -> dict[str, str]:
    """Leaf -> 32 hex digits that its bits, dtype and shape decide, and nothing else.

    With `must_be_finite`, raises `NonFiniteError` for a leaf with NaN or infinity.
    """
    receipt: dict[str, str] = {}
    names = list(leaves)
    for first in range(0, len(names), _MOST_UNDER_WAY):
        # Several are under way before the first is waited for.
        started = {
            name: _start_sums(leaves[name]) for name in names[first : first + _MOST_UNDER_WAY]
        }
        for name, sums in started.items():
            *lanes, not_finite = map(int, np.asarray(sums))
            if must_be_finite and not_finite:
                raise NonFiniteError(
                    f"the state has NaN or infinity in {name}",
                    allowed="finite states only",
                    fix="lower optim.lr or raise optim.warmup_steps; the last checkpoint is "
                    "untouched",
                )
            leaf = leaves[name]
            kind = hashlib.blake2b(f"{leaf.dtype} {tuple(leaf.shape)}".encode(), digest_size=16)
            words = b"".join(lane.to_bytes(4, "little") for lane in lanes)
            # By exclusive or, so that two arrays of one kind differ wherever their sums do.
            pairs = zip(kind.digest(), words, strict=True)
            receipt[name] = bytes(a ^ b for a, b in pairs).hex()
    return receipt


def sums_on_host(array: Shaped[np.ndarray, "..."]) -> UInt32[np.ndarray, " 5"]:
    """Four sums of mixed words, and how many elements are not finite; in numpy."""
    flat = np.ascontiguousarray(array).reshape(-1)
    # An element of up to four bytes is one word; one of eight bytes is two.
    words = flat.view(f"u{min(flat.dtype.itemsize, 4)}").astype(np.uint32)
    places = np.arange(words.size, dtype=np.uint64).astype(np.uint32)
    mixed = _mixed(words, places)
    not_finite = np.sum(~np.isfinite(flat)) if jnp.issubdtype(flat.dtype, jnp.floating) else 0
    return np.array([*(np.sum(m, dtype=np.uint32) for m in mixed), not_finite], np.uint32)


@jax.jit
def sums_on_device(leaf: Shaped[Array, "..."]) -> UInt32[Array, " 5"]:
    """The sums of an array where it lies, equal to `sums_on_host` to the bit."""
    if leaf.dtype == jnp.bool_:
        words = leaf.astype(jnp.uint32)
    else:
        width = min(leaf.dtype.itemsize, 4)
        bits = jax.lax.bitcast_convert_type(leaf, jnp.dtype(f"uint{8 * width}"))
        words = bits.astype(jnp.uint32)
    places = jnp.zeros_like(words)
    for axis, size in enumerate(words.shape):
        # Cut over the mesh as the words are.
        sharding = jax.typeof(words).sharding
        cut = None if sharding.mesh.empty else sharding
        indices = jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis, out_sharding=cut)
        places = places * np.uint32(size) + indices
    not_finite = jnp.zeros_like(words)
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        flags = (~jnp.isfinite(leaf)).astype(jnp.uint32)
        not_finite = flags if flags.shape == words.shape else flags[..., None] + not_finite
    # The first axis comes last: a CPU's cores share a sum only by its results.
    rows = _added((*_mixed(words, places), not_finite), tuple(range(1, words.ndim)))
    return jnp.stack(_added(rows, tuple(range(min(words.ndim, 1)))))


def _start_sums(leaf: Any) -> Any:
    is_whole_here = not isinstance(leaf, jax.Array) or (
        leaf.is_fully_addressable or leaf.is_fully_replicated
    )
    if is_whole_here and leaf.nbytes < _SMALL_BYTES:
        return sums_on_host(np.asarray(leaf))
    return sums_on_device(leaf)


def _mixed(words: Any, places: Any) -> list[Any]:
    """Every word with its place, through the four bijections."""
    lanes = []
    for spread, (first, multiplier, second), ends in _LANES:
        begun = _shifted(words + places * np.uint32(spread), first) * np.uint32(multiplier)
        begun = _shifted(begun, second)
        lanes += [_shifted(begun * np.uint32(other), last) for other, last in ends]
    return lanes


def _shifted(words: Any, bits: int) -> Any:
    return words ^ (words >> np.uint32(bits))


def _added(summands: tuple[Any, ...], axes: tuple[int, ...]) -> tuple[Any, ...]:
    """Sums of several arrays along the same axes.

    In one reduction: XLA then reads a leaf once, and on a CPU takes about a tenth of the time.
    """
    return tuple(
        jax.lax.reduce(
            summands,
            (np.uint32(0),) * len(summands),
            lambda a, b: tuple(map(operator.add, a, b)),
            axes,
        )
    )
