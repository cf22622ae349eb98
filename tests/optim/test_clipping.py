"""The norm that gradients are cut to is that of all of them, in whatever dtype they come."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from chomp.optim.config import clip_by_norm


def clipped(gradients, max_norm):
    rule = clip_by_norm(max_norm)
    return rule.update(gradients, rule.init(gradients))[0]


def test_small_gradients_stay_as_they_are_to_the_bit():
    gradients = {"a": jnp.asarray([0.3, -0.1]), "b": jnp.asarray([[0.2]])}
    for name, found in clipped(gradients, 1.0).items():
        np.testing.assert_array_equal(found, gradients[name])


def test_large_gradients_end_at_the_norm_in_their_own_direction():
    gradients = {"a": jnp.asarray([3.0, 0.0]), "b": jnp.asarray([[4.0]])}
    found = clipped(gradients, 2.0)
    assert float(optax.tree.norm(found)) == pytest.approx(2.0, rel=1e-6)
    np.testing.assert_allclose(found["a"], [1.2, 0.0], rtol=1e-6)


def test_the_norm_of_many_bfloat16_tensors_is_not_lost_in_their_sum():
    # 1000 ones: in bfloat16 the sum of squares would stand still at 256.
    gradients = [jnp.ones((1,), jnp.bfloat16) for _ in range(1000)]
    found = clipped(gradients, 1.0)
    assert all(leaf.dtype == jnp.bfloat16 for leaf in found)
    assert float(found[0][0]) == pytest.approx(1000**-0.5, rel=0.01)
