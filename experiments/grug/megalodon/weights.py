"""Fresh weights: each drawn from a key of its own, cut as its spec says."""

from zlib import crc32

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float
from jaxtyping import PRNGKeyArray as Key

from experiments.grug.megalodon.config import InitMode

# Axes: L layers.


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
