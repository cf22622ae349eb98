"""How far an array is from what it should be, and how far it may be."""

from typing import NamedTuple

import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

# Axes: N vectors of an array, K numbers of a vector.

# Inputs are of size 1, so results that matter are not far below; a smaller one is a sum of terms
# that should cancel, such as the gradient of the score of a single key, and is held to this size.
_LEAST_SIZE = 1e-2
# Error of one product, by how it is made: in the dtype itself, or in fewer bits where a chip takes
# float32 apart (TF32 on NVIDIA, bfloat16 on TPU). Float32 itself: sums of thousands of products.
_PRODUCT_ERRORS = {
    ("float32", "cpu"): 2.0**-18,
    ("float32", "gpu"): 2.0**-10,
    ("float32", "tpu"): 2.0**-7,
    ("float16", "any"): 2.0**-10,
    ("bfloat16", "any"): 2.0**-7,
}


class Deviation(NamedTuple):
    """Of all numbers together, and of the vector that is furthest off; NaN where any is not finite.

    Relative to the size of what was expected, for a single vector at least to the typical size.
    """

    relative: float
    worst: float

    def is_within(self, tolerance: "Deviation") -> bool:
        """Whether both keep to what is allowed; NaN never does."""
        return self.relative <= tolerance.relative and self.worst <= tolerance.worst


def tolerance(dtype: DTypeLike, platform: str) -> Deviation:
    """What a right kernel may deviate by in `dtype` on a platform (cpu, gpu or tpu).

    Attention in bfloat16 is off by 0.15 of this, in float32 on a CPU by 0.1 (November 2026).
    """
    name = np.dtype(dtype).name
    error = _PRODUCT_ERRORS.get((name, platform)) or _PRODUCT_ERRORS[name, "any"]
    return Deviation(relative=2 * error, worst=8 * error)


def deviation(found: Array, expected: Array) -> Deviation:
    """How far `found` is from `expected`, whose vectors lie along the last axis.

    Compares what the devices of this process hold; both arrays lie on them in the same way. A
    vector that is expected to be 0 has no part in the typical size.
    """
    vectors, exact = _local_vectors(found), _local_vectors(expected)
    difference, size = (np.linalg.norm(x, axis=1) for x in (vectors - exact, exact))
    least = _LEAST_SIZE * exact.shape[1] ** 0.5
    root = max(float(np.count_nonzero(size)), 1.0) ** 0.5
    typical = max(float(np.linalg.norm(size)) / root, least)
    relative = np.linalg.norm(difference) / root / typical
    worst = np.max(difference / np.maximum(size, typical))
    return Deviation(relative=float(relative), worst=float(worst))


def _local_vectors(x: Array) -> Float[np.ndarray, "N K"]:
    parts = [np.asarray(shard.data, np.float32) for shard in x.addressable_shards]
    return np.concatenate([part.reshape(-1, x.shape[-1]) for part in parts])
