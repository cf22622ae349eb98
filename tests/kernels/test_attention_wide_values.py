"""Heads with values wider than their keys, and values cut over the mesh where heads are few."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from chomp.errors import ConfigError
from chomp.kernels.attention import AttentionCall, AttentionMask, attention, choose_backend
from chomp.kernels.attention.api import with_wide_values
from chomp.kernels.attention.chunked import (
    WIDE,
    WIDE_MAX_BLOCK,
    WIDE_SCORE_BYTES,
    chunked_attention,
    query_spans,
    rows_at_once,
)
from chomp.kernels.attention.reference import reference_attention
from chomp.kernels.self_check import KernelShapes, check_kernels
from chomp.mesh import BATCH_AXES

BATCH, LENGTH, HEADS, KV_HEADS, WIDTH, VALUES = 4, 40, 4, 2, 8, 24
IDS = np.repeat(np.arange(5, dtype=np.int32), 8)[None].repeat(BATCH, 0)


def heads(num: int, width: int, seed: int) -> Array:
    return jax.random.normal(jax.random.key(seed), (BATCH, LENGTH, num, width))


def results(attend: object, mask: AttentionMask, kv_heads: int = KV_HEADS) -> list[np.ndarray]:
    """Values and gradients of everything."""
    q, k = heads(HEADS, WIDTH, 0), heads(kv_heads, WIDTH, 1)
    v, slope = heads(kv_heads, VALUES, 2), heads(HEADS, VALUES, 3)
    out, back = jax.vjp(lambda *x: attend(*x, mask), q, k, v)  # type: ignore[operator]
    return [np.asarray(x) for x in (out, *back(jax.device_put(slope, out.sharding)))]


def packed(window: int | None) -> AttentionMask:
    return AttentionMask.causal(segment_ids=jnp.asarray(IDS), sliding_window=window)


@pytest.mark.parametrize("mask", [AttentionMask.causal(), packed(None), packed(5)])
def test_chunked_attention_of_wide_values_is_the_reference(mask: AttentionMask) -> None:
    found, expected = results(chunked_attention, mask), results(reference_attention, mask)
    assert found[0].shape == (BATCH, LENGTH, HEADS, VALUES)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-5)


# 40 tokens make a block and a smaller one, 2100 two spans of two blocks and what is left over.
@pytest.mark.parametrize("length", [40, 2100])
@pytest.mark.parametrize("has_documents", [False, True])
def test_values_many_times_as_wide_as_keys_go_by_larger_blocks_and_are_the_reference(
    length: int, has_documents: bool
) -> None:
    keys = jax.random.split(jax.random.key(0), 4)
    widths = (4, 4, 4 * WIDE, 4 * WIDE)
    q, k, v, slope = (
        jax.random.normal(key, (2, length, 1, width))
        for key, width in zip(keys, widths, strict=True)
    )
    ids = jnp.arange(length)[None] // 17 if has_documents else None
    mask = AttentionMask.causal(segment_ids=ids)

    def found(attend: Callable[..., Array]) -> list[Array]:
        @jax.jit
        def of(q: Array, k: Array, v: Array) -> list[Array]:
            out, back = jax.vjp(lambda *x: attend(*x, mask), q, k, v)
            return [out, *back(slope)]

        return of(q, k, v)

    for mine, theirs in zip(found(chunked_attention), found(reference_attention), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-5)


@pytest.mark.parametrize("length", [256, 1024, 4096])
def test_blocks_of_wide_values_are_few_and_rows_that_go_together_stay_small(length: int) -> None:
    spans = query_spans(length, is_causal=True, sliding_window=None, is_wide=True)
    computed = sum(span.block * span.num_blocks * span.num_keys for span in spans)
    assert (len(spans), computed) == (2, 3 / 4 * length**2)
    assert max(span.block for span in spans) == min(WIDE_MAX_BLOCK, length // 2)
    rows = rows_at_once(64, length, 1, spans, is_wide=True)
    assert 64 % rows == 0
    assert rows == 1 or 4 * rows * length * min(length, WIDE_MAX_BLOCK) <= WIDE_SCORE_BYTES


def test_a_kernel_of_one_width_takes_wide_values_as_several_heads() -> None:
    def of_one_width(q: Array, k: Array, v: Array, mask: AttentionMask) -> Array:
        assert q.shape[3] == k.shape[3] == v.shape[3] == WIDTH
        return reference_attention(q, k, v, mask)

    found = results(lambda *x: with_wide_values(of_one_width, *x), packed(None))
    for mine, theirs in zip(found, results(reference_attention, packed(None)), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-5)


def test_values_may_be_cut_over_the_mesh_where_there_is_one_head(eight_device_mesh: Mesh) -> None:
    expected = results(reference_attention, packed(None), kv_heads=1)

    def cut(q: Array, k: Array, v: Array, mask: AttentionMask) -> Array:
        rows = NamedSharding(eight_device_mesh, P(BATCH_AXES, None, None, None))
        wide = NamedSharding(eight_device_mesh, P(BATCH_AXES, None, None, "model"))
        q, k, v = jax.reshard(q, rows), jax.reshard(k, rows), jax.reshard(v, wide)
        out = attention(q, k, v, mask, backend="chunked")
        assert jax.typeof(out).sharding.spec[3] == "model"
        return jax.reshard(out, rows)

    with jax.set_mesh(eight_device_mesh):
        found = results(jax.jit(cut), packed(None), kv_heads=1)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-5)


def test_the_self_check_tries_wide_values_as_they_lie_on_the_mesh(eight_device_mesh: Mesh) -> None:
    shapes = KernelShapes(
        num_heads=1, num_kv_heads=1, head_dim=8, hidden_dim=16, vocab_size=64, seq_len=32,
        value_dim=24,
    )  # fmt: skip
    ids = IDS[:, :32]
    mask = AttentionMask.causal(segment_ids=ids)
    report = check_kernels(shapes, mask, dtype="float32", mesh=eight_device_mesh)
    assert report.attention["value"].relative < 1e-5
    with pytest.raises(ConfigError, match=r"num_kv_heads=1 with mesh\.model=2"):
        replace(shapes, value_dim=25).require_cut_by(eight_device_mesh)


def test_cudnn_takes_values_of_several_key_widths_and_says_so_of_others() -> None:
    gpu = AttentionCall(
        platform="gpu", dtype="bfloat16", head_dim=256, num_heads=1, num_kv_heads=1, seq_len=1024,
        value_dim=2048, compute_capability=(9, 0),
    )  # fmt: skip
    assert choose_backend(gpu).name == "cudnn"
    other = choose_backend(replace(gpu, value_dim=2000))
    assert other.name == "chunked"
    assert "multiple of head_dim=256, not 2000" in other.reason
