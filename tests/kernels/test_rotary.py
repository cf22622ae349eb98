"""Rotary positions turn pairs, keep lengths, and leave only distances in a score."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from chomp.errors import ConfigError
from chomp.kernels.layers import by_halves, by_reversal, rotary_angles, rotate
from chomp.mesh import BATCH_AXES

THETA = 100.0
K = 8


def vector(seed: int, length: int = 1) -> np.ndarray:
    row = np.random.default_rng(seed).normal(size=(1, 1, 1, K))
    return np.broadcast_to(row, (1, length, 1, K)).astype(np.float32)


def turned(x: np.ndarray, positions: object) -> np.ndarray:
    angles = rotary_angles(jnp.asarray(positions), width=x.shape[-1], theta=THETA)
    return np.asarray(rotate(jnp.asarray(x), angles))


def test_a_score_depends_on_the_distance_alone():
    places = [0, 1, 5, 40, 700]
    q, k = vector(0, len(places)), vector(1, len(places))
    for distance in (0, 3, 17):
        queries = turned(q, [place + distance for place in places])
        scores = (queries * turned(k, places)).sum(-1)
        np.testing.assert_allclose(scores, scores[:, :1].repeat(len(places), 1), atol=2e-4)
    scores = (turned(q, [0, 1, 2, 3, 4]) * turned(k, [0] * 5)).sum(-1)
    assert np.unique(scores.round(3)).size == 5


def test_pairs_turn_like_complex_numbers_by_position_times_rate():
    positions = [0, 1, 2, 9]
    x = vector(2, len(positions)).astype(np.float64)
    rates = THETA ** (-2 * np.arange(K // 2) / K)
    pairs = x[..., : K // 2] + 1j * x[..., K // 2 :]
    pairs = pairs * np.exp(1j * np.outer(positions, rates))[None, :, None]
    expected = np.concatenate([pairs.real, pairs.imag], -1)
    np.testing.assert_allclose(turned(x.astype(np.float32), positions), expected, atol=1e-5)


def test_position_zero_changes_nothing_and_no_position_changes_a_length():
    x = vector(3, 3)
    found = turned(x, [0, 11, 1000])
    np.testing.assert_array_equal(found[:, 0], x[:, 0])
    np.testing.assert_allclose(
        np.linalg.norm(found, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-6
    )


def test_angles_are_exact_where_bfloat16_positions_would_be_shared():
    x = jnp.asarray(vector(4, 2), jnp.bfloat16)
    found = rotate(x, rotary_angles(jnp.asarray([1000, 1001]), width=K, theta=THETA))
    assert found.dtype == jnp.bfloat16
    expected = turned(np.asarray(x, np.float32), [1000, 1001])
    np.testing.assert_allclose(np.asarray(found, np.float32), expected, atol=0.02)


def test_heads_of_odd_width_are_refused_with_a_width_that_works():
    with pytest.raises(ConfigError, match=r"heads of width 5\. .*set model\.head_dim=6"):
        rotary_angles(jnp.arange(2), width=5, theta=THETA)


def test_every_row_may_have_positions_of_its_own():
    x = np.concatenate([vector(5, 4), vector(6, 4)])
    rows = [[0, 1, 2, 3], [0, 0, 1, 7]]
    found = turned(x, rows)
    for row, positions in enumerate(rows):
        np.testing.assert_array_equal(found[row], turned(x[row : row + 1], positions)[0])


def test_the_gradient_of_a_turn_is_the_turn_back():
    x, weight = vector(7, 5), np.random.default_rng(8).normal(size=(1, 5, 1, K)).astype(np.float32)
    places = np.asarray([0, 1, 2, 30, 400])
    angles = rotary_angles(jnp.asarray(places), width=K, theta=THETA)
    gradient = jax.grad(lambda x: jnp.sum(rotate(x, angles) * weight))(jnp.asarray(x))
    np.testing.assert_allclose(gradient, turned(weight, -places), rtol=0, atol=1e-6)
    # By its definition, too: the sum is linear in x, so its slope along x is the sum itself.
    np.testing.assert_allclose((gradient * x).sum(), (turned(x, places) * weight).sum(), rtol=1e-5)


def test_heads_cut_over_the_mesh_are_turned_where_they_lie(eight_device_mesh):
    x = np.random.default_rng(9).normal(size=(4, 3, 2, K)).astype(np.float32)
    rows = np.asarray([[0, 1, 2], [0, 0, 1], [5, 6, 7], [9, 0, 1]], np.int32)
    weight = jnp.asarray(x[::-1].copy())

    def total(x: jax.Array, rows: jax.Array, weight: jax.Array) -> jax.Array:
        return jnp.sum(rotate(x, rotary_angles(rows, width=K, theta=THETA)) * weight)

    alone = jax.grad(total)(jnp.asarray(x), jnp.asarray(rows), weight)
    with jax.set_mesh(eight_device_mesh):
        heads = P(BATCH_AXES, None, "model", None)
        cut = jax.reshard(x, heads), jax.reshard(rows, P(BATCH_AXES, None))
        together = jax.jit(jax.grad(total))(*cut, jax.reshard(weight, heads))
    assert together.sharding.spec == heads
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_both_ways_to_turn_give_the_same(dtype, eight_device_mesh):
    positions = np.asarray([[0, 3, 900, 7]] * 4)
    x = np.random.default_rng(7).normal(size=(4, 4, 2, K))
    with jax.set_mesh(eight_device_mesh):
        heads = jax.reshard(jnp.asarray(x, jnp.dtype(dtype)), P(BATCH_AXES, None, "model", None))
        angles = rotary_angles(positions, width=K, theta=THETA)
        ways = [jax.jit(way)(heads, angles) for way in (by_halves, by_reversal)]
    tolerance = 1e-6 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(*(np.asarray(way, np.float32) for way in ways), atol=tolerance)
    assert ways[1].dtype == dtype


def test_angles_of_known_positions_are_those_of_traced_ones():
    places = np.asarray([[0, 1, 50, 4000]])
    known = rotary_angles(places, width=K, theta=THETA)
    traced = jax.jit(lambda places: rotary_angles(places, width=K, theta=THETA))(places)
    # The traced ones are made in float32, where an angle of 4000 has steps of 2.4e-4.
    for a, b in zip(known, traced, strict=True):
        np.testing.assert_allclose(a, b, atol=3e-4)
