"""Root-mean-square normalisation against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chomp.kernels.layers import rms_norm


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("bfloat16", 1e-2)])
def test_rows_are_divided_by_their_root_mean_square_in_float32(dtype, tolerance):
    draw = np.random.default_rng(0).normal
    # Squares of these pass 65504: in half precision they would be infinite.
    x, scale = jnp.asarray(draw(size=(3, 5, 16)) * 300, dtype), jnp.asarray(draw(size=16), dtype)
    found = rms_norm(x, scale, 1e-5)
    exact, by = np.asarray(x, np.float64), np.asarray(scale, np.float64)
    expected = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-5) * by
    assert found.dtype == x.dtype
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=tolerance)


def test_a_row_of_zeros_stays_finite_with_its_gradient():
    gradient = jax.grad(lambda x: rms_norm(x, jnp.ones(4), 1e-5).sum())(jnp.zeros((2, 4)))
    assert np.isfinite(np.asarray(gradient)).all()
