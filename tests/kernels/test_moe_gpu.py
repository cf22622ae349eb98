"""The grouped products that come with JAX for Hopper GPUs, against each group alone in float32.

Run with `JAX_PLATFORMS=cuda python -m pytest -m gpu`. On another device these tests fail: there is
no skip.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chomp.kernels.moe.mosaic import mosaic_matmul, mosaic_outer, unsupported_by_mosaic

pytestmark = pytest.mark.gpu

# Rows of each group, and the two widths.
CASES = {
    "even": ([512] * 8, 256, 512),
    "uneven": ([1, 700, 0, 3000, 64, 63, 268, 0], 768, 1024),
    "one takes all": ([0, 0, 4096, 0], 256, 192),
    "one group": ([512], 64, 128),
    "small and odd": ([1, 3998, 1], 192, 320),
}


@pytest.fixture(autouse=True, scope="module")
def _hopper() -> None:
    if (limit := unsupported_by_mosaic(jnp.bfloat16, 512, 64)) is not None:
        pytest.fail(f"JAX's grouped kernels do not run here: {limit}")


def deviation(found: jax.Array, wanted: np.ndarray) -> float:
    """The error beside the length of what was wanted."""
    error = np.linalg.norm(np.asarray(found, np.float32) - wanted)
    return float(error / np.linalg.norm(wanted))


@pytest.mark.parametrize("name", CASES)
def test_groups_of_any_size_multiply_as_each_alone_would(name: str) -> None:
    sizes, into, out = CASES[name]
    random, ends = np.random.default_rng(0), np.cumsum(sizes)
    spans = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]

    def drawn(*shape: int) -> jax.Array:
        return jnp.asarray(random.standard_normal(shape), jnp.bfloat16)

    rows, others, weights = (
        drawn(ends[-1], into),
        drawn(ends[-1], out),
        drawn(len(sizes), into, out),
    )
    a, b, w = (np.asarray(each, np.float32) for each in (rows, others, weights))
    counts = jnp.asarray(sizes, jnp.int32)
    assert unsupported_by_mosaic(jnp.bfloat16, len(rows), into, out) is None
    forward = np.concatenate([a[span] @ w[i] for i, span in enumerate(spans)])
    assert deviation(mosaic_matmul(rows, weights, counts, transpose=False), forward) < 3e-3
    turned = np.concatenate([b[span] @ w[i].T for i, span in enumerate(spans)])
    assert deviation(mosaic_matmul(others, weights, counts, transpose=True), turned) < 3e-3
    sums = np.stack([a[span].T @ b[span] for span in spans])
    found = mosaic_outer(rows, others, counts)
    assert deviation(found, sums) < 3e-3
    # A group without rows has a gradient of zeros, and not what the memory held before.
    empty = [i for i, size in enumerate(sizes) if size == 0]
    np.testing.assert_array_equal(np.asarray(found, np.float32)[empty], 0)
