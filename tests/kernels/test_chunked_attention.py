"""Chunked attention against float64: values, gradients, who sees whom, memory, meshes."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_attention import Rows, deviations
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from chomp.errors import ConfigError
from chomp.kernels.attention import AttentionMask
from chomp.kernels.attention.chunked import (
    SCORE_BYTES,
    chunked_attention,
    query_spans,
    rows_at_once,
)
from chomp.mesh import BATCH_AXES

# Axes: B batch, S positions, Q queries, T keys, H heads, K head width.

Found = dict[str, jax.Array]


def masked(rows: Rows) -> AttentionMask:
    return AttentionMask(
        is_causal=rows.is_causal, sliding_window=rows.window, segment_ids=rows.segment_ids
    )


def arrays_of(rows: Rows, dtype: str = "float32") -> tuple[jax.Array, ...]:
    return tuple(jnp.asarray(array, jnp.dtype(dtype)) for array in rows.arrays())


@jax.jit
def result_and_gradients(
    q: jax.Array, k: jax.Array, v: jax.Array, weight: jax.Array, mask: AttentionMask
) -> Found:
    out, pull = jax.vjp(partial(chunked_attention, mask=mask), q, k, v)
    return {"out": out, **dict(zip("qkv", pull(weight), strict=True))}


def assert_exact(found: Found, rows: Rows, dtype: str = "float32") -> None:
    assert {array.dtype for array in found.values()} == {jnp.dtype(dtype)}
    off = deviations(found, rows.exact())
    print(rows, dtype, {name: f"{value:.1e}" for name, value in off.items()})
    # bfloat16 has steps of 2^-8, and a gradient sums over several roundings.
    most, mean = (5e-6, 5e-7) if dtype == "float32" else (2e-2, 2e-3)
    assert all(value < (most if "max" in name else mean) for name, value in off.items()), off


SLOW = pytest.mark.slow
# 67 tokens make two blocks and a last one of three queries, here in two groups of three rows;
# 1027 make four spans of two blocks, a row at a time, and the last one of three.
MANY_HEADS = Rows(batch=6, length=67, heads=64, kv_heads=32, width=4, documents=((50, 9),) * 6)
LONG = Rows(length=1027, documents=((900, 100), (1027,)), width=4)
CASES = {
    "one short block": (Rows(length=13), "float32"),
    "documents in a window": (
        Rows(length=45, window=7, documents=((5, 1, 30), (45,)), kv_heads=1),
        "float32",
    ),
    "not causal": (
        Rows(length=40, window=20, documents=((30,), (3, 30)), is_causal=False),
        "float32",
    ),
    "groups of rows": (MANY_HEADS, "float32"),
    "bfloat16": (Rows(length=45, documents=((5, 1, 30), (45,))), "bfloat16"),
    "long rows": (LONG, "float32"),
}


@pytest.mark.parametrize(("rows", "dtype"), CASES.values(), ids=CASES.keys())
def test_results_and_gradients_agree_with_float64(rows, dtype):
    assert_exact(result_and_gradients(*arrays_of(rows, dtype), masked(rows)), rows, dtype)


LENGTHS = {1: ((1,), ()), 33: ((20, 5), (33,)), 128: ((60, 9, 50), (1, 127)), 257: ((256,), (100,))}
GRID = [
    Rows(
        length=length,
        heads=4,
        kv_heads=kv_heads,
        is_causal=is_causal,
        window=window,
        documents=documents,
    )
    for length, kv_heads, is_causal, window in itertools.product(
        LENGTHS, (4, 2, 1), (True, False), (None, 1, 60)
    )
    for documents in (None, LENGTHS[length])
]


@SLOW
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows", GRID, ids=str)
def test_the_whole_grid_agrees_with_float64(rows, dtype):
    assert_exact(result_and_gradients(*arrays_of(rows, dtype), masked(rows)), rows, dtype)


@SLOW
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 130, 700, 5000])
@pytest.mark.parametrize("length", [1024, 1100, 2051])
def test_long_rows_agree_with_float64_under_any_window(length, window, is_causal):
    documents = ((length - 200, 100),)
    rows = Rows(
        batch=1, length=length, width=4, window=window, is_causal=is_causal, documents=documents
    )
    assert_exact(result_and_gradients(*arrays_of(rows), masked(rows)), rows)


def test_an_infinite_score_behind_the_mask_changes_nothing():
    rows = Rows(length=13)
    q, k, v, weight = arrays_of(rows)
    # Scores in the thousands for all, and a last key that only the last query may see.
    q, weight = q * 1e3, weight.at[:, -1].set(0)
    expected = result_and_gradients(q, k, v, weight, masked(rows))["out"][:, :-1]
    k = k.at[:, -1].set(3e38)
    found = result_and_gradients(q, k, v, weight, masked(rows))["out"][:, :-1]
    assert jnp.isfinite(found).all()
    np.testing.assert_array_equal(found, expected)


def test_a_query_reaches_back_to_every_key_it_may_see_and_to_none_ahead():
    rows = Rows(length=45, window=7, documents=((5, 1, 30), (45,)), kv_heads=1)
    q, k, v, _ = arrays_of(rows)
    # One pull for every query, each of all the heads of that query alone.
    one_query = jnp.eye(rows.length)[:, None, :, None, None]
    weights = jnp.broadcast_to(one_query, (rows.length, *q.shape))

    @jax.jit
    def key_gradients(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, ...]:
        _, pull = jax.vjp(partial(chunked_attention, mask=masked(rows)), q, k, v)
        return jax.vmap(pull)(weights)[1:]

    of_keys, of_values = (np.asarray(x).any((3, 4)) for x in key_gradients(q, k, v))
    allowed = rows.allowed.swapaxes(0, 1)
    np.testing.assert_array_equal(of_values, allowed)
    # A query that sees itself alone has nothing to choose between.
    np.testing.assert_array_equal(of_keys, allowed & (allowed.sum(2, keepdims=True) > 1))


def test_memory_grows_with_the_length_and_not_with_its_square():
    length, batch, num_heads = 8192, 2, 2
    heads = jax.ShapeDtypeStruct((batch, length, num_heads, 8), jnp.float32)
    program = result_and_gradients.lower(*[heads] * 4, AttentionMask.causal()).compile()
    found = program.memory_analysis().temp_size_in_bytes
    # A few blocks of 128 queries by all keys, and of q, k, v: 1/64 of the square each.
    assert found < 4 * batch * num_heads * length**2 / 16, found


def test_nothing_larger_than_its_arguments_is_kept_for_the_backward_pass():
    def pull(*arrays: jax.Array) -> jax.tree_util.Partial:
        return jax.vjp(partial(chunked_attention, mask=AttentionMask.causal()), *arrays)[1]

    heads = jax.ShapeDtypeStruct((2, 512, 4, 8), jnp.float32)
    kept = jax.tree.leaves(jax.eval_shape(pull, heads, heads, heads))
    assert kept
    assert max(array.size for array in kept) == heads.size


def test_rows_and_heads_on_eight_devices_give_what_one_gives(eight_device_mesh):
    rows = Rows(batch=4, length=1027, width=4, window=150, documents=((900, 100),) * 4)
    heads, ids = P(BATCH_AXES, None, "model", None), P(BATCH_AXES, None)

    def local(*arrays: jax.Array) -> Found:
        *heads, ids = arrays
        return result_and_gradients(*heads, masked(rows).with_segment_ids(ids))

    sharded = jax.shard_map(
        local, mesh=eight_device_mesh, in_specs=(*[heads] * 4, ids), out_specs=heads
    )
    with jax.set_mesh(eight_device_mesh):
        arrays = [jax.reshard(array, heads) for array in arrays_of(rows)]
        found = jax.jit(sharded)(*arrays, jax.reshard(rows.segment_ids, ids))
    assert {array.sharding.spec for array in found.values()} == {heads}
    assert_exact(found, rows)


def test_rematerialised_attention_has_the_same_gradients():
    rows = Rows(length=13)

    @jax.jit
    def found(q: jax.Array, k: jax.Array, v: jax.Array, weight: jax.Array) -> Found:
        attended = jax.checkpoint(partial(chunked_attention, mask=masked(rows)))
        out, pull = jax.vjp(attended, q, k, v)
        return {"out": out, **dict(zip("qkv", pull(weight), strict=True))}

    assert_exact(found(*arrays_of(rows)), rows)


@given(st.integers(1, 5000), st.booleans(), st.none() | st.integers(1, 6000))
def test_blocks_hold_every_query_once_and_no_key_the_mask_rules_out(length, is_causal, window):
    spans = query_spans(length, is_causal=is_causal, sliding_window=window)
    queries = [(span.start, span.start + span.block * span.num_blocks) for span in spans]
    edges = [0, *(stop for _, stop in queries)]
    assert [start for start, _ in queries] == edges[:-1]
    assert edges[-1] == length
    for span, (_, stop) in zip(spans, queries, strict=True):
        assert span.end_key == (stop if is_causal else length)
        assert span.first_key == (0 if window is None else max(0, span.start - window + 1))
        seen = span.end_key - span.first_key
        if is_causal and window is not None:
            seen = min(seen, span.block + window - 1)
        assert span.num_keys == seen


@pytest.mark.parametrize("length", [256, 512, 1024, 4096, 65536])
def test_causal_blocks_skip_most_of_what_lies_ahead_and_stay_few(length):
    spans = query_spans(length, is_causal=True, sliding_window=None)
    computed = sum(span.block * span.num_blocks * span.num_keys for span in spans)
    assert computed == 5 / 8 * length**2
    assert len(spans) == 4


@given(st.integers(1, 64), st.integers(1, 4096), st.integers(1, 64))
def test_rows_that_go_together_divide_the_batch_and_stay_small(batch, length, heads):
    spans = query_spans(length, is_causal=True, sliding_window=None)
    rows = rows_at_once(batch, length, heads, spans)
    assert batch % rows == 0
    assert rows == 1 or 4 * rows * heads * length * min(length, 128) <= SCORE_BYTES


def test_sizes_that_do_not_fit_are_refused_with_sizes_that_do():
    q, k, v, _ = arrays_of(Rows(heads=6, kv_heads=4))
    with pytest.raises(
        ConfigError, match=r"6 query heads with 4 .*num_kv_heads to .*\[1, 2, 3, 6\]"
    ):
        chunked_attention(q, k, v, AttentionMask.causal())
    q, k, v, _ = arrays_of(Rows())
    ids = np.zeros((2, 23), np.int32)
    with pytest.raises(ConfigError, match=r"shape \(2, 23\) for 24 queries"):
        chunked_attention(q, k, v, AttentionMask.causal(segment_ids=ids))
