"""Rotary positions turn pairs, keep lengths, and leave only distances in a score."""

import jax.numpy as jnp
import numpy as np
import pytest

from chomp.errors import ConfigError
from chomp.kernels.rotary import rotary

THETA = 100.0
K = 8


def vector(seed: int, length: int = 1) -> np.ndarray:
    row = np.random.default_rng(seed).normal(size=(1, 1, 1, K))
    return np.broadcast_to(row, (1, length, 1, K)).astype(np.float32)


def turned(x: np.ndarray, positions: list[int]) -> np.ndarray:
    return np.asarray(rotary(jnp.asarray(x), jnp.asarray(positions), theta=THETA))


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
    found = rotary(x, jnp.asarray([1000, 1001]), theta=THETA)
    assert found.dtype == jnp.bfloat16
    expected = turned(np.asarray(x, np.float32), [1000, 1001])
    np.testing.assert_allclose(np.asarray(found, np.float32), expected, atol=0.02)


def test_heads_of_odd_width_are_refused_with_a_width_that_works():
    with pytest.raises(ConfigError, match=r"heads of width 5\. .*set model\.head_dim=6"):
        rotary(jnp.ones((1, 2, 1, 5)), jnp.arange(2), theta=THETA)
