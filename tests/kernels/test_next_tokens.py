"""Labels are the tokens shifted by one, on any mesh and for any number of rows."""

import jax
import numpy as np
import pytest

from chomp.kernels.loss import next_tokens
from chomp.mesh import place_batch


@pytest.mark.parametrize("rows", [8, 16])
def test_a_label_is_the_token_to_the_right(eight_device_mesh, rows):
    tokens = np.arange(1, rows * 5 + 1, dtype=np.int32).reshape(rows, 5)
    with jax.set_mesh(eight_device_mesh):
        labels = jax.jit(next_tokens)(place_batch(tokens, eight_device_mesh, batch_axis=0))
    expected = np.concatenate([tokens[:, 1:], np.zeros((rows, 1), np.int32)], axis=1)
    np.testing.assert_array_equal(labels, expected)


def test_a_single_row_of_a_single_token_has_nothing_to_predict(one_device_mesh):
    with jax.set_mesh(one_device_mesh):
        row = place_batch(np.array([[7]], np.int32), one_device_mesh, batch_axis=0)
        assert jax.jit(next_tokens)(row).tolist() == [[0]]
