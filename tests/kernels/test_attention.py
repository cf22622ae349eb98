"""The attention reference against loops in float64, its mask by gradients, and the cache."""

import math
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from chomp.errors import ConfigError
from chomp.kernels.attention import AttentionMask, KeyValueCache, reference_attention
from chomp.mesh import BATCH_AXES

# Axes: B batch, Q query positions, T key positions, H query heads, G key-value heads, K head width.


@dataclass(frozen=True)
class Case:
    """One attention: its sizes, its mask, its dtype."""

    queries: int = 7
    keys: int = 7
    heads: int = 4
    kv_heads: int = 2
    is_causal: bool = True
    window: int | None = None
    segments: tuple[tuple[int, ...], ...] | None = None
    offset: int = 0
    dtype: str = "float32"
    batch: int = 2
    width: int = 6

    def arrays(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """q, k, v with values that the dtype can hold."""
        draw = np.random.default_rng(0).normal
        shapes = [
            (self.queries, self.heads),
            (self.keys, self.kv_heads),
            (self.keys, self.kv_heads),
        ]
        values = (draw(size=(self.batch, *shape, self.width)) for shape in shapes)
        q, k, v = (jnp.asarray(value, jnp.dtype(self.dtype)) for value in values)
        return q, k, v

    @property
    def mask(self) -> AttentionMask:
        """The mask as the kernel takes it."""
        ids = None if self.segments is None else np.asarray(self.segments, np.int32)
        return AttentionMask(is_causal=self.is_causal, sliding_window=self.window, segment_ids=ids)

    def sees(self, row: int, query: int, key: int) -> bool:
        """Whether the query may see the key, one rule at a time."""
        position = self.offset + query
        if self.is_causal and key > position:
            return False
        if self.window is not None and key <= position - self.window:
            return False
        return self.segments is None or self.segments[row][query] == self.segments[row][key]


DOCUMENTS = ((0, 0, 0, 1, 1, 2, 2), (0, 0, 0, 0, 0, -1, -1))
CASES = {
    "one head for each": Case(heads=2, kv_heads=2),
    "grouped heads": Case(),
    "one key-value head": Case(kv_heads=1),
    "a single position": Case(queries=1, keys=1),
    "an odd length": Case(queries=13, keys=13, width=3),
    "not causal": Case(is_causal=False),
    "not causal, a window to look back": Case(is_causal=False, window=2),
    "a window of one": Case(window=1),
    "a window": Case(window=3),
    "a window longer than the row": Case(window=50),
    "documents and padding": Case(segments=DOCUMENTS),
    "documents in a window": Case(segments=DOCUMENTS, window=2, kv_heads=1),
    "documents, not causal": Case(segments=DOCUMENTS, is_causal=False),
    "decoding": Case(queries=1, offset=4),
    "decoding in a window": Case(queries=2, offset=5, window=3),
    "bfloat16": Case(dtype="bfloat16"),
    "bfloat16 documents in a window": Case(dtype="bfloat16", segments=DOCUMENTS, window=3),
}


def looped(case: Case, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Attention by its definition, in float64, one query at a time."""
    out = np.zeros(q.shape)
    for b, i, h in np.ndindex(*q.shape[:3]):
        g = h * case.kv_heads // case.heads
        seen = [j for j in range(case.keys) if case.sees(b, i, j)]
        scores = np.asarray([q[b, i, h] @ k[b, j, g] for j in seen]) / math.sqrt(case.width)
        shares = np.exp(scores - scores.max())
        out[b, i, h] = (shares / shares.sum()) @ v[b, seen, g]
    return out


@partial(jax.jit, static_argnums=4)
def attended(
    q: jax.Array, k: jax.Array, v: jax.Array, mask: AttentionMask, offset: int
) -> jax.Array:
    return reference_attention(q, k, v, mask, query_offset=offset)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_attention_equals_loops_in_float64(case):
    arrays = case.arrays()
    found = attended(*arrays, case.mask, case.offset)
    expected = looped(case, *(np.asarray(a, np.float64) for a in arrays))
    deviation = np.abs(np.asarray(found, np.float64) - expected)
    # The shares and the result are rounded to bfloat16, whose steps are 2^-8.
    tolerance = 2e-6 if case.dtype == "float32" else 2e-2
    assert found.dtype == case.dtype
    assert deviation.max() < tolerance, f"max {deviation.max():.2e}, mean {deviation.mean():.2e}"


@pytest.mark.parametrize("name", ["grouped heads", "documents in a window"])
def test_gradients_equal_those_of_the_loops(name):
    case = CASES[name]
    arrays, noise = case.arrays(), np.random.default_rng(1)
    weight = noise.normal(size=arrays[0].shape)

    def total(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.sum(reference_attention(q, k, v, case.mask) * jnp.asarray(weight, jnp.float32))

    found = jax.jit(jax.grad(total, argnums=(0, 1, 2)))(*arrays)
    exact = [np.asarray(a, np.float64) for a in arrays]
    for i, gradient in enumerate(found):
        direction, step = noise.normal(size=exact[i].shape), 1e-5
        moved = [
            (looped(case, *(a + s * direction if j == i else a for j, a in enumerate(exact))))
            for s in (step, -step)
        ]
        slope = ((moved[0] - moved[1]) * weight).sum() / (2 * step)
        assert float((np.asarray(gradient) * direction).sum()) == pytest.approx(slope, rel=1e-4)


@pytest.mark.parametrize("name", ["grouped heads", "a window", "documents and padding"])
def test_a_query_depends_on_exactly_the_keys_its_mask_allows(name):
    case = CASES[name]
    q, k, v = case.arrays()
    # d out[b, i] / d v[b, j], summed over heads and width: zero where i may not see j.
    jacobian = jax.jit(jax.jacrev(lambda v: reference_attention(q, k, v, case.mask).sum((2, 3))))(v)
    for b in range(case.batch):
        depends = np.abs(np.asarray(jacobian)[b, :, b]).sum((2, 3)) > 0
        seen = [[case.sees(b, i, j) for j in range(case.keys)] for i in range(case.queries)]
        np.testing.assert_array_equal(depends, np.asarray(seen))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_that_see_nothing_are_finite_and_so_are_their_gradients(dtype):
    q, k, v = Case(dtype=dtype).arrays()
    # Far behind the last key, a window of two has passed all of them.
    mask = AttentionMask.causal(sliding_window=2)

    def total(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        out = reference_attention(q, k, v, mask, query_offset=6)
        return jnp.sum(out.astype(jnp.float32) ** 2)

    value, gradients = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2)))(q, k, v)
    assert np.isfinite(value)
    assert all(np.isfinite(np.asarray(g, np.float32)).all() for g in gradients)


def test_heads_cut_over_the_mesh_give_what_one_device_gives(eight_device_mesh):
    case = Case(batch=4, segments=DOCUMENTS * 2, window=3)
    arrays = case.arrays()
    alone = attended(*arrays, case.mask, 0)
    with jax.set_mesh(eight_device_mesh):
        spread = P(BATCH_AXES, None, "model", None)
        ids = jax.reshard(jnp.asarray(case.mask.segment_ids), P(BATCH_AXES, None))
        mask = AttentionMask.causal(sliding_window=case.window, segment_ids=ids)
        together = attended(*(jax.reshard(a, spread) for a in arrays), mask, 0)
    assert together.sharding.spec == spread
    np.testing.assert_allclose(together, alone, rtol=0, atol=2e-6)


def test_the_dense_mask_has_one_row_for_all_unless_documents_differ():
    assert AttentionMask.causal().allowed(3, 3).shape == (1, 3, 3)
    assert CASES["documents and padding"].mask.allowed(7, 7).shape == (2, 7, 7)


def test_a_mask_under_another_window_keeps_everything_else():
    mask = CASES["documents in a window"].mask
    other = mask.with_sliding_window(None)
    assert other.sliding_window is None
    assert other.is_causal
    assert other.segment_ids is mask.segment_ids


def test_positions_begin_again_with_each_document_and_with_the_padding():
    ids = np.asarray([[0, 0, 0, 1, 2, 2, -1, -1], [0] * 8, [3, 3, 5, 5, 5, 5, 5, -1]], np.int32)
    found = AttentionMask.causal(segment_ids=ids).positions(8)
    expected = [[0, 1, 2, 0, 0, 1, 0, 1], [0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 0, 1, 2, 3, 4, 0]]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(AttentionMask.causal().positions(3), [[0, 1, 2]])


def test_positions_are_cut_over_the_mesh_like_the_documents(eight_device_mesh):
    with jax.set_mesh(eight_device_mesh):
        ids = jax.reshard(jnp.asarray(DOCUMENTS * 2, jnp.int32), P(BATCH_AXES, None))
        found = jax.jit(lambda ids: AttentionMask.causal(segment_ids=ids).positions(7))(ids)
    assert found.sharding.spec == P(BATCH_AXES, None)
    np.testing.assert_array_equal(found, [[0, 1, 2, 0, 1, 0, 1], [0, 1, 2, 3, 4, 0, 1]] * 2)


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_without_tokens_is_refused(window):
    with pytest.raises(ConfigError, match=rf"^sliding_window={window}\. Allowed: .* Fix: "):
        AttentionMask.causal(sliding_window=window)


def test_documents_for_another_length_are_refused_with_both_shapes():
    q, k, v = Case(queries=5, keys=5).arrays()
    with pytest.raises(
        ConfigError, match=r"segment_ids of shape \(2, 7\) for 5 queries and 5 keys"
    ):
        reference_attention(q, k, v, CASES["documents and padding"].mask)


def test_heads_that_cannot_be_grouped_are_refused_with_both_counts():
    q, k, v = Case(heads=4, kv_heads=3).arrays()
    with pytest.raises(ConfigError, match="4 query heads with 3 key-value heads"):
        reference_attention(q, k, v, AttentionMask.causal())


def test_a_cache_grows_by_what_it_is_given_and_keeps_what_it_has():
    _, k, v = Case(keys=5).arrays()
    empty = jnp.zeros_like(k)
    cache = KeyValueCache(empty, empty, jnp.int32(0))
    cache = cache.extended(k[:, :3], v[:, :3]).extended(k[:, 3:4], v[:, 3:4])
    assert int(cache.length) == 4
    np.testing.assert_array_equal(cache.k[:, :4], k[:, :4])
    np.testing.assert_array_equal(cache.v[:, :4], v[:, :4])
    assert not np.asarray(cache.k[:, 4:]).any()


def test_more_positions_than_a_cache_has_are_refused():
    _, k, v = Case(keys=5).arrays()
    cache = KeyValueCache(k[:, :3], v[:, :3], jnp.int32(0))
    with pytest.raises(ConfigError, match=r"new positions=5 with the cache's length=3"):
        cache.extended(k, v)
