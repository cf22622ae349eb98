"""The entry to attention: picks a backend and runs it on each device's own rows and heads.

The choice is static, logged, and never a silent fallback. A backend requested by name runs or is
refused. `auto` takes the fast one of the platform; if that one cannot do the call, it takes the
chunked one and warns.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from chomp.errors import ConfigError, divisors, require, require_at_most
from chomp.kernels.attention.call import AttentionCall
from chomp.kernels.attention.chunked import chunked_attention
from chomp.kernels.attention.cudnn import (
    cudnn_attention,
    cudnn_packed_attention,
    unsupported_by_cudnn,
    unsupported_by_cudnn_packed,
)
from chomp.kernels.attention.mask import AttentionMask
from chomp.kernels.attention.reference import reference_attention
from chomp.kernels.attention.splash import splash_attention, unsupported_by_splash

# Axes: B batch, Q query positions, T key positions, S positions of both (self attention), H query
# heads, G key-value heads, R query heads per key-value head (H = G R), K head width, W width of a
# head's values, N slices of them (W = N K).


# tokamax is left out: it was not to be had where these were measured, so nothing is known of its
# speed or of its masks beside them.
Backend = Literal["auto", "reference", "chunked", "cudnn", "cudnn_packed", "splash"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class BackendChoice:
    """The backend that runs, why, and whether a faster one was expected."""

    name: Backend
    reason: str
    is_fallback: bool = False


# Why a backend cannot do a call. The other two can do every call, on every platform.
_LIMITS: dict[Backend, Callable[[AttentionCall], str | None]] = {
    "cudnn": unsupported_by_cudnn,
    "cudnn_packed": unsupported_by_cudnn_packed,
    "splash": unsupported_by_splash,
}


def unsupported(backend: Backend, call: AttentionCall) -> str | None:
    """Why `backend` cannot do the call, with what it could do; None if it can."""
    if backend not in _LIMITS:
        return None
    if call.value_dim is not None and call.value_dim % call.head_dim:
        # Values of several widths go in as several heads (`wide_values`).
        return f"it takes values of a multiple of head_dim={call.head_dim}, not {call.value_dim}"
    return _LIMITS[backend](call)


def choose_backend(call: AttentionCall, requested: Backend = "auto") -> BackendChoice:
    """The backend for a call: the one requested, or with `auto` the best that can do it."""
    if requested != "auto":
        _require_runs(requested, call)
        return BackendChoice(name=requested, reason="asked for by name")
    if call.platform == "cpu":
        return BackendChoice(name="chunked", reason="the fast one on cpu")
    best = _best_backend(call)
    if best is None:
        reason = f"no faster one is known for the platform {call.platform}"
        return BackendChoice(name="chunked", reason=reason, is_fallback=True)
    if (limit := unsupported(best, call)) is not None:
        reason = f"{best} cannot do this call: {limit}"
        return BackendChoice(name="chunked", reason=reason, is_fallback=True)
    return BackendChoice(name=best, reason=f"the fast one on {call.platform}")


@cache
def log_choice(choice: BackendChoice) -> None:
    """Say which backend runs, once for each choice; a fallback is a warning."""
    text = f"attention backend {choice.name}: {choice.reason}"
    if choice.is_fallback:
        _log.warning(
            "%s. This is slower. Set model.attention to the backend you expect to make it an "
            "error, or to chunked to be content with it.",
            text,
        )
    else:
        _log.info("%s", text)


def _best_backend(call: AttentionCall) -> Backend | None:
    if call.platform == "gpu":
        return "cudnn_packed" if call.has_documents else "cudnn"
    return "splash" if call.platform == "tpu" else None


def _require_runs(requested: Backend, call: AttentionCall) -> None:
    limit = unsupported(requested, call)
    if limit is None:
        return
    names = [name for name in get_args(Backend) if name != "auto"]
    works = ", ".join(name for name in names if unsupported(name, call) is None)
    raise ConfigError(
        f"attention backend {requested}, which cannot do this call: {limit}",
        allowed=f"backends that can: {works}",
        fix="set model.attention to one of them, or to auto",
    )


# ---- Values wider than keys ---------------------------------------------------------------------
#
# For kernels that know one width: slices of the values become heads. Megalodon has few heads whose
# values are many times as wide as their keys. Each slice computes the scores again: with keys of
# 256 and values of 2048, 4096 products per pair of positions instead of 2304, by a kernel that
# keeps no scores.


def with_wide_values(
    attend: Callable[[Array, Array, Array, AttentionMask], Array],
    q: Float[Array, "B S H K"],
    k: Float[Array, "B S G K"],
    v: Float[Array, "B S G W"],
    mask: AttentionMask,
) -> Float[Array, "B S H W"]:
    """`attend`, which takes values as wide as keys, of values a multiple of that width."""
    batch, length, heads, width = q.shape
    groups, slices = k.shape[2], v.shape[3] // width
    if slices == 1:
        return attend(q, k, v, mask)
    per_group = heads // groups
    q = q.reshape(batch, length, groups, 1, per_group, width)
    q = jnp.broadcast_to(q, (batch, length, groups, slices, per_group, width))
    k = jnp.broadcast_to(k[:, :, :, None], (batch, length, groups, slices, width))
    out = attend(
        q.reshape(batch, length, heads * slices, width),
        k.reshape(batch, length, groups * slices, width),
        v.reshape(batch, length, groups * slices, width),
        mask,
    )
    out = out.reshape(batch, length, groups, slices, per_group, width)
    return out.swapaxes(3, 4).reshape(batch, length, heads, slices * width)


# ---- The entry ----------------------------------------------------------------------------------


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

    def reshard(x: Array, spec: P) -> Array:
        return jax.reshard(x, NamedSharding(sharding.mesh, spec))

    def local(q: Array, k: Array, v: Array, ids: Array | None) -> Array:
        if width is not None and is_checked:
            # With this, each device's part of their gradients is summed: a kernel with its own
            # gradient cannot know that other devices have other parts.
            q, k = (jax.lax.pcast(x, width, to="varying") for x in (q, k))
        return run(q, k, v, mask.with_segment_ids(ids))

    sharded = jax.shard_map(
        local,
        mesh=sharding.mesh,
        in_specs=(heads, heads, values, None if ids is None else rows),
        out_specs=values,
        check_vma=is_checked,
    )
    ids = None if ids is None else reshard(ids, rows)
    return sharded(q, reshard(k, heads), reshard(v, values), ids)


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


# ---- Keys and values kept while decoding --------------------------------------------------------


class KeyValueCache(NamedTuple):
    """What one layer has seen: `length` positions; the rest is zeros behind the causal mask."""

    k: Float[Array, "B T G K"]
    v: Float[Array, "B T G K"]
    length: Int[Array, ""]

    def extended(self, k: Float[Array, "B S G K"], v: Float[Array, "B S G K"]) -> "KeyValueCache":
        """The cache with S more positions, which must fit behind those it has.

        Only S itself can be checked here: `length` is known on the device alone, and a write past
        the end would land on the last positions instead.
        """
        require_at_most("new positions", k.shape[1], "the cache's length", self.k.shape[1])
        return KeyValueCache(
            jax.lax.dynamic_update_slice_in_dim(self.k, k, self.length, axis=1),
            jax.lax.dynamic_update_slice_in_dim(self.v, v, self.length, axis=1),
            self.length + k.shape[1],
        )
