"""The embedding's rows, and the sums of their gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from chomp.kernels.layers import embed
from chomp.mesh import MeshConfig, create_mesh

ROWS = P(("replica", "data", "expert"), None, None)
VOCABULARY, WIDTH, BATCH, LENGTH = 16, 8, 8, 512


def _ids(seed: int) -> np.ndarray:
    """Ids as frequent as those of a text: the first stands at a third of all positions."""
    chances = 1 / np.arange(1, VOCABULARY + 1)
    drawn = np.random.default_rng(seed).choice(
        VOCABULARY, size=(BATCH, LENGTH), p=chances / chances.sum()
    )
    return drawn.astype(np.int32)


def _table_and_gradient(dtype: jnp.dtype, sizes: dict[str, int]) -> tuple[np.ndarray, ...]:
    """Looked-up rows, the table's gradient, and what that is in float64."""
    rng = np.random.default_rng(0)
    table = jnp.asarray(rng.standard_normal((VOCABULARY, WIDTH)), dtype)
    # All of one sign: nothing cancels, so a sum that stands still is seen.
    pull = jnp.asarray(rng.uniform(0.5, 1.0, (BATCH, LENGTH, WIDTH)), dtype)
    ids = _ids(1)
    devices = int(np.prod(list(sizes.values())))
    mesh = create_mesh(MeshConfig(**sizes), devices=jax.devices()[:devices])
    with jax.set_mesh(mesh):
        rows, back = jax.vjp(
            lambda table: embed(table, jax.device_put(ids, P(ROWS[0], None)), out_sharding=ROWS),
            jax.device_put(table, P("model", "data")),
        )
        (gradient,) = back(jax.device_put(pull, ROWS))
    exact = np.zeros((VOCABULARY, WIDTH))
    np.add.at(exact, ids, np.asarray(pull, np.float64))
    expected = np.asarray(table, np.float64)[ids]
    assert rows.dtype == gradient.dtype == dtype
    np.testing.assert_array_equal(np.asarray(rows, np.float64), expected)
    return np.asarray(gradient, np.float64), exact


@pytest.mark.parametrize("sizes", [{"data": 1}, {"data": 4, "model": 2}], ids=["one", "eight"])
def test_the_gradient_of_a_frequent_token_is_the_sum_of_all_its_rows(sizes: dict[str, int]) -> None:
    gradient, exact = _table_and_gradient(jnp.bfloat16, sizes)
    # Half a unit in the last of bfloat16's eight bits, from the one rounding at the end.
    np.testing.assert_allclose(gradient, exact, rtol=2.0**-8)


def test_in_float32_it_is_the_gradient_of_a_plain_lookup_bit_for_bit() -> None:
    rng = np.random.default_rng(0)
    table = jnp.asarray(rng.standard_normal((VOCABULARY, WIDTH)), jnp.float32)
    pull = jnp.asarray(rng.standard_normal((BATCH, LENGTH, WIDTH)), jnp.float32)
    ids = jnp.asarray(_ids(2))
    with jax.set_mesh(create_mesh(MeshConfig(), devices=jax.devices()[:1])):
        (ours,) = jax.vjp(lambda table: embed(table, ids, out_sharding=ROWS), table)[1](pull)
    (plain,) = jax.vjp(lambda table: table[ids], table)[1](pull)
    np.testing.assert_array_equal(np.asarray(ours), np.asarray(plain))
