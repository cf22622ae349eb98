"""Arrays as a page's JSON holds them: base64 of little-endian bytes, a quarter of their digits."""

import base64

import numpy as np
from jaxtyping import Float, Int

# Axes: N numbers.

# The largest that a 32-bit float can be. What lies beyond is drawn there: as infinity it would be
# drawn nowhere.
LARGEST = float(np.finfo(np.float32).max)


def packed_steps(steps: Int[np.ndarray, " N"]) -> str:
    """The steps as 32-bit integers."""
    return base64.b64encode(steps.astype("<i4").tobytes()).decode()


def packed_values(values: Float[np.ndarray, " N"]) -> str:
    """The values as 32-bit floats: seven digits, which is more than a screen can show.

    Each is finite, `LARGEST` at most, or NaN.
    """
    return base64.b64encode(np.clip(values, -LARGEST, LARGEST).astype("<f4").tobytes()).decode()
