"""The norm over time: against float64, over documents, over streams that are cut anywhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.grug.megalodon.layers import BLOCK, RunningSums, TimestepNorm, layer_norm

WIDTH, GROUPS, EPS = 12, 3, 1e-5
LENGTH = 2 * BLOCK + 9  # ends inside a block


def a_norm() -> TimestepNorm:
    scale, bias = 0.1 * np.random.default_rng(7).standard_normal((2, WIDTH))
    return TimestepNorm(
        jnp.asarray(scale, jnp.float32), jnp.asarray(bias, jnp.float32), GROUPS, EPS
    )


def in_float64(x: np.ndarray, places: np.ndarray, norm: TimestepNorm) -> np.ndarray:
    """The definition: mean and variance of all numbers of a group, of all tokens so far."""
    out = np.zeros_like(x, np.float64)
    for row, tokens in enumerate(x.astype(np.float64).reshape(*x.shape[:2], GROUPS, -1)):
        for t in range(x.shape[1]):
            seen = tokens[t - places[row, t] : t + 1]
            mean, variance = seen.mean((0, 2)), seen.var((0, 2))
            y = (tokens[t] - mean[:, None]) / np.sqrt(variance + EPS)[:, None]
            out[row, t] = y.ravel()
    return out * (1 + np.asarray(norm.scale, np.float64)) + np.asarray(norm.bias, np.float64)


def places_of(lengths: list[int], length: int) -> np.ndarray:
    places = np.concatenate([np.arange(n) for n in [*lengths, length]])
    return places[:length].astype(np.int32)


whole = jax.jit(lambda norm, x, places: norm(x, RunningSums.of(places)))
continued = jax.jit(lambda norm, x, state, count: norm.decode(x, state, count))


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, BLOCK + 20), max_size=12),
    st.lists(st.integers(1, 90), max_size=6),
    st.sampled_from([0.0, 3.0, 300.0]),
)
def test_every_token_is_normalised_by_its_document_so_far(
    one: list[int], other: list[int], offset: float
) -> None:
    x = np.random.default_rng(len(one)).standard_normal((2, LENGTH, WIDTH)).astype(np.float32)
    x += np.float32(offset)
    places = np.stack([places_of(one, LENGTH), places_of(other, LENGTH)])
    found = whole(a_norm(), jnp.asarray(x), jnp.asarray(places))
    # Numbers near 300 have 3e-5 between them, and the smallest deviations divide that.
    expected, near = in_float64(x, places, a_norm()), 2e-5 * max(1.0, offset)
    np.testing.assert_allclose(found, expected, atol=near, rtol=near)


def test_rows_of_one_document_each_need_no_places_on_the_device() -> None:
    x = np.random.default_rng(1).standard_normal((2, LENGTH, WIDTH)).astype(np.float32)
    places = np.arange(LENGTH, dtype=np.int32)[None]
    found = a_norm()(jnp.asarray(x), RunningSums.of(places))
    np.testing.assert_allclose(found, in_float64(x, places.repeat(2, 0), a_norm()), atol=2e-5)


@pytest.mark.parametrize("pieces", [[40], [1, 39], [7, 1, 32], [20, 20]])
def test_a_stream_cut_anywhere_is_normalised_as_one(pieces: list[int]) -> None:
    norm, length = a_norm(), 40
    x = 2.0 + np.random.default_rng(2).standard_normal((2, length, WIDTH)).astype(np.float32)
    state, parts, count = norm.empty_state(2), [], 0
    for size in pieces:
        part = jnp.asarray(x[:, count : count + size])
        y, state = continued(norm, part, state, jnp.int32(count))
        parts.append(y)
        count += size
    places = np.arange(length, dtype=np.int32)[None].repeat(2, 0)
    np.testing.assert_allclose(np.concatenate(parts, 1), in_float64(x, places, norm), atol=2e-5)


def test_a_long_stream_keeps_its_statistics() -> None:
    norm, size, steps = a_norm(), 1000, 20
    x = 5.0 + np.random.default_rng(3).standard_normal((1, size * steps, WIDTH)).astype(np.float32)
    state = norm.empty_state(1)
    for step in range(steps):
        part = jnp.asarray(x[:, step * size : (step + 1) * size])
        _, state = continued(norm, part, state, jnp.int32(step * size))
    groups = x.astype(np.float64).reshape(-1, GROUPS, WIDTH // GROUPS)
    np.testing.assert_allclose(state.mean[0], groups.mean((0, 2)), rtol=1e-5)
    np.testing.assert_allclose(state.variance[0], groups.var((0, 2)), rtol=1e-4)


def test_gradients_stay_inside_a_document_and_are_those_of_float64_differences() -> None:
    norm, length = a_norm(), 20
    x = np.random.default_rng(4).standard_normal((1, length, WIDTH)).astype(np.float32)
    slope = np.random.default_rng(5).standard_normal(x.shape)
    places = places_of([8, 12], length)[None]

    def value(x: np.ndarray) -> float:
        return float(np.sum(slope[:, 8:] * in_float64(x, places, norm)[:, 8:]))

    found = jax.grad(
        lambda x: jnp.sum((jnp.asarray(slope, jnp.float32) * whole(norm, x, places))[:, 8:])
    )(jnp.asarray(x))
    np.testing.assert_array_equal(found[:, :8], 0.0)
    for t, d in ((8, 0), (9, 5), (15, 11), (19, 3)):
        moved = np.zeros_like(x, np.float64)
        moved[0, t, d] = 1e-5
        expected = (value(x + moved) - value(x - moved)) / 2e-5
        np.testing.assert_allclose(found[0, t, d], expected, atol=2e-4, rtol=2e-3)


def test_bfloat16_is_normalised_in_float32() -> None:
    x = 100.0 + np.random.default_rng(6).standard_normal((1, 30, WIDTH))
    x = jnp.asarray(x, jnp.bfloat16)
    places = np.arange(30, dtype=np.int32)[None]
    found = a_norm()(x, RunningSums.of(places))
    assert found.dtype == jnp.bfloat16
    expected = in_float64(np.asarray(x, np.float32), places, a_norm())
    np.testing.assert_allclose(found.astype(jnp.float32), expected, atol=0.02, rtol=0.02)


def test_layer_norm_is_that_of_each_token() -> None:
    x = np.random.default_rng(8).standard_normal((2, 3, WIDTH)).astype(np.float32) + 4
    ones, zeros = jnp.ones(WIDTH), jnp.zeros(WIDTH)
    found = layer_norm(jnp.asarray(x), 2.0 * ones, zeros + 1.0, EPS)
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + EPS)
    np.testing.assert_allclose(found, 2 * expected + 1, atol=2e-5)
