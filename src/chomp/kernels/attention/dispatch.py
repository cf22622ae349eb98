"""The one way into attention: picks the backend and runs it on each device's own rows and heads."""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from chomp.errors import divisors, require
from chomp.kernels.attention.call import AttentionCall
from chomp.kernels.attention.choice import Backend, choose_backend, log_choice
from chomp.kernels.attention.chunked import chunked_attention
from chomp.kernels.attention.cudnn import cudnn_attention
from chomp.kernels.attention.cudnn_packed import cudnn_packed_attention
from chomp.kernels.attention.mask import AttentionMask
from chomp.kernels.attention.reference import reference_attention
from chomp.kernels.attention.splash import splash_attention
from chomp.kernels.attention.wide_values import with_wide_values

# Axes: B batch, Q query positions, T key positions, H query heads, G key-value heads, K head width,
# W width of a head's values.

# Self attention of the rows and heads that one device holds.
LocalAttention = Callable[[Array, Array, Array, AttentionMask], Array]

_LOCAL: dict[Backend, LocalAttention] = {
    "chunked": chunked_attention,
    "cudnn": partial(with_wide_values, cudnn_attention),
    "cudnn_packed": partial(with_wide_values, cudnn_packed_attention),
    "splash": partial(with_wide_values, splash_attention),
}


@jax.named_scope("attention")  # by which a trace's reader tells its operations apart
def attention(
    q: Float[Array, "B Q H K"],
    k: Float[Array, "B T G K"],
    v: Float[Array, "B T G W"],
    mask: AttentionMask,
    *,
    query_offset: int | Int[Array, ""] = 0,
    backend: Backend = "auto",
) -> Float[Array, "B Q H W"]:
    """softmax(q k^T / sqrt(K)) v under `mask`, each key-value head serving H/G query heads.

    Under a mesh, rows may be cut over any axes and heads too, key-value heads like query heads;
    where heads are whole, the width of the values may be cut.
    Query i stands at position `query_offset + i` of the keys' line; decoding (an offset, or fewer
    queries than keys) is the reference's, whatever `backend` says.
    """
    is_self_attention = isinstance(query_offset, int) and query_offset == 0
    if not is_self_attention or q.shape[1] != k.shape[1]:
        return reference_attention(q, k, v, mask, query_offset=query_offset)
    mask.require_length(q.shape[1], k.shape[1])
    choice = choose_backend(AttentionCall.of(q, k, mask, value_dim=_local_width(v)), backend)
    log_choice(choice)
    if choice.name == "reference":
        return reference_attention(q, k, v, mask)
    # Pallas does not say over which mesh axes its results vary, so nothing can be checked there.
    return on_local_shards(_LOCAL[choice.name], q, k, v, mask, is_checked=choice.name != "splash")


def _local_width(v: Float[Array, "B T G W"]) -> int:
    """The width of values on one device."""
    sharding = jax.typeof(v).sharding
    cut = sharding.spec[3]
    names = () if cut is None else (cut,) if isinstance(cut, str) else cut
    return v.shape[3] // math.prod(sharding.mesh.shape[name] for name in names)


def on_local_shards(
    run: LocalAttention,
    q: Float[Array, "B Q H K"],
    k: Float[Array, "B Q G K"],
    v: Float[Array, "B Q G W"],
    mask: AttentionMask,
    *,
    is_checked: bool = True,
) -> Float[Array, "B Q H W"]:
    """`run` on every device's own part of the arrays, or on the whole where there is no mesh."""
    ids = mask.segment_ids
    if ids is not None:
        # Ids of one row for all are spelled out, as the rows go to different devices.
        ids = jnp.broadcast_to(ids, (q.shape[0], q.shape[1]))
    sharding = jax.typeof(q).sharding
    if sharding.mesh.empty:
        return run(q, k, v, mask.with_segment_ids(ids))
    heads, rows = _specs(sharding, k.shape[2])
    width = jax.typeof(v).sharding.spec[3]
    values = P(*heads[:3], width)

    def placed(x: Array, spec: P) -> Array:
        return jax.reshard(x, NamedSharding(sharding.mesh, spec))

    def local(q: Array, k: Array, v: Array, ids: Array | None) -> Array:
        if width is not None and is_checked:
            # Said here, each device's part of their gradients is summed: a kernel with a gradient
            # of its own cannot know that somebody else has another part.
            q, k = (jax.lax.pcast(x, width, to="varying") for x in (q, k))
        return run(q, k, v, mask.with_segment_ids(ids))

    sharded = jax.shard_map(
        local,
        mesh=sharding.mesh,
        in_specs=(heads, heads, values, None if ids is None else rows),
        out_specs=values,
        check_vma=is_checked,
    )
    ids = None if ids is None else placed(ids, rows)
    return sharded(q, placed(k, heads), placed(v, values), ids)


def _specs(sharding: NamedSharding, num_kv_heads: int) -> tuple[P, P]:
    """Specs of heads and of segment ids where the queries are cut like `sharding`."""
    batch, sequence, heads, width = sharding.spec
    require(
        sequence is None and width is None,
        f"queries cut as {sharding.spec}",
        allowed="cuts of the batch and of the heads",
        fix="reshard the queries so that the second and the last axis are whole",
    )
    names = () if heads is None else (heads,) if isinstance(heads, str) else heads
    parts = math.prod(sharding.mesh.shape[name] for name in names)
    require(
        num_kv_heads % parts == 0,
        f"num_kv_heads={num_kv_heads} with heads cut into {parts} over {', '.join(names)}",
        allowed="a cut that divides num_kv_heads",
        fix=f"set mesh.model to one of {divisors(num_kv_heads)}, or raise num_kv_heads",
    )
    return P(batch, None, heads, None), P(batch, None)
