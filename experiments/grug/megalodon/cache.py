"""What a Megalodon keeps of streams while it writes: a ring of keys and values, norms, averages."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, DTypeLike, Float, Int

from chomp.kernels.ema import EmaState
from chomp.kernels.self_check import KernelShapes
from chomp.mesh import BATCH_AXES
from experiments.grug.megalodon.config import GrugModelConfig
from experiments.grug.megalodon.norm import NormState

# Axes: B batch, R keys kept, H heads, K width of keys, W width of values.


class LayerCache(NamedTuple):
    """What one layer keeps of a stream: the last R keys and values, a norm, an average."""

    keys: Float[Array, "B R H K"]  # turned already
    values: Float[Array, "B R H W"]
    norm: NormState
    ema: EmaState


class Cache(NamedTuple):
    """What the model keeps of streams; the same size however long they are."""

    layers: LayerCache  # every array is [L, ...]
    final_norm: NormState
    length: Int[Array, ""]  # tokens so far, of all rows


def empty_cache(
    cfg: GrugModelConfig, norm: NormState, ema: EmaState, *, num_kept: int, dtype: DTypeLike
) -> Cache:
    """A cache of streams that have not begun; `norm` and `ema` are one layer's empty states."""
    num, batch = cfg.num_layers, norm.mean.shape[0]
    specs = KernelShapes.of(cfg, seq_len=1).attention_specs(jax.sharding.get_abstract_mesh())

    def ring(width: int, spec: P) -> Array:
        empty = jnp.zeros((num, batch, num_kept, cfg.num_heads, width), dtype)
        return jax.reshard(empty, P(None, *spec))

    layers = LayerCache(
        keys=ring(cfg.inferred_head_dim, specs[0]),
        values=ring(cfg.value_head_dim, specs[1]),
        norm=_placed(norm, num),
        ema=_placed(ema, num),
    )
    return Cache(layers, _placed(norm), jnp.int32(0))


def _placed(state: Any, *front: int) -> Any:
    """Zeros like `state`, its rows over the batch axes, with more axes in front."""

    def zeros(x: Array) -> Array:
        spec = P(*(None for _ in front), BATCH_AXES, *(None,) * (x.ndim - 1))
        return jax.reshard(jnp.zeros((*front, *x.shape), x.dtype), spec)

    return jax.tree.map(zeros, state)
