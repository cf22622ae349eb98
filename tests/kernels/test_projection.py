"""Projections side by side: the same numbers as one after the other, on every mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from chomp.kernels.layers import projection, projections, side_by_side
from chomp.mesh import BATCH_AXES

B, S, D, WIDTHS = 4, 3, 8, (6, 2, 4)


def arrays() -> tuple[np.ndarray, ...]:
    draw = np.random.default_rng(0).normal
    shapes = ((B, S, D), *((D, width) for width in WIDTHS), *((B, S, width) for width in WIDTHS))
    return tuple(draw(size=shape).astype(np.float32) for shape in shapes)


def expected() -> list[np.ndarray]:
    """Results, then the gradients of their weighted sum by x and by each weight."""
    x, *rest = (array.astype(np.float64) for array in arrays())
    weights, slopes = rest[:3], rest[3:]
    by_x = sum(slope @ weight.T for slope, weight in zip(slopes, weights, strict=True))
    by_weights = [np.einsum("bsd,bse->de", x, slope) for slope in slopes]
    return [*(x @ weight for weight in weights), by_x, *by_weights]


@pytest.mark.parametrize("run", [projections, side_by_side])
@pytest.mark.parametrize("mesh_name", [None, "one_device_mesh", "eight_device_mesh"])
def test_projections_and_their_gradients_equal_products_in_float64(run, mesh_name, request):
    def results(x, weights, slopes):
        def total(x, weights):
            out = run(x, *weights)
            parts = (jnp.sum(a * b) for a, b in zip(out, slopes, strict=True))
            return sum(parts), out

        (by_x, by_weights), out = jax.grad(total, argnums=(0, 1), has_aux=True)(x, weights)
        return [*out, by_x, *by_weights]

    x, *rest = map(jnp.asarray, arrays())
    if mesh_name is None:
        found = jax.jit(results)(x, rest[:3], rest[3:])
    else:
        with jax.set_mesh(request.getfixturevalue(mesh_name)):
            x = jax.reshard(x, P(BATCH_AXES, None, None))
            weights = [jax.reshard(weight, P(None, "model")) for weight in rest[:3]]
            slopes = [jax.reshard(slope, P(BATCH_AXES, None, "model")) for slope in rest[3:]]
            found = jax.jit(results)(x, weights, slopes)
    for array, exact in zip(found, expected(), strict=True):
        np.testing.assert_allclose(array, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mesh_name", ["one_device_mesh", "eight_device_mesh"])
def test_a_product_out_of_cut_columns_is_added_up_over_the_devices(mesh_name, request):
    x, weight, slope = arrays()[4], arrays()[1].T, arrays()[0]  # [B, S, E] by [E, D]

    def total(x, weight):
        out = projection(x, weight, out_sharding=P(BATCH_AXES, None, None))
        return jnp.sum(out * slope), out

    with jax.set_mesh(request.getfixturevalue(mesh_name)):
        cut = jax.reshard(jnp.asarray(x), P(BATCH_AXES, None, "model"))
        placed = jax.reshard(jnp.asarray(weight), P("model", None))
        slope = jax.reshard(jnp.asarray(slope), P(BATCH_AXES, None, None))
        gradients, out = jax.jit(jax.grad(total, argnums=(0, 1), has_aux=True))(cut, placed)
    expected = x @ weight, slope @ weight.T, np.einsum("bse,bsd->ed", x, slope)
    for array, exact in zip((out, *gradients), expected, strict=True):
        np.testing.assert_allclose(array, exact, rtol=1e-5, atol=1e-5)


def test_one_product_takes_the_place_of_three_and_its_gradient_is_put_together_once():
    x, *rest = map(jnp.asarray, arrays())

    def total(x, weights):
        return sum(jnp.sum(out) for out in side_by_side(x, *weights))

    program = str(jax.make_jaxpr(jax.grad(total, argnums=(0, 1)))(x, rest[:3]))
    assert program.count("dot_general") == 3  # forward, and one for each gradient
    assert "pad" not in program
