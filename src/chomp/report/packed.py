"""Arrays as a page's JSON holds them: base64 of little-endian bytes, a quarter of their digits."""

import base64

import numpy as np
from jaxtyping import Float, Int

# Axes: N numbers.


def packed_steps(steps: Int[np.ndarray, " N"]) -> str:
    """The steps as 32-bit integers."""
    return base64.b64encode(steps.astype("<i4").tobytes()).decode()


def packed_values(values: Float[np.ndarray, " N"]) -> str:
    """The values as 32-bit floats: seven digits, which is more than a screen can show."""
    with np.errstate(over="ignore"):  # beyond 3e38 a page shows what it shows for infinity: nothing
        return base64.b64encode(values.astype("<f4").tobytes()).decode()
