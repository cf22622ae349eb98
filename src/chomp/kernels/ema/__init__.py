"""The complex exponential moving average of Megalodon, for packed rows and for streams.

`reference.py` is the specification: the recurrence, one token after another.
"""

from chomp.kernels.ema.complex_ema import complex_ema, continued_ema
from chomp.kernels.ema.modes import EmaModes, EmaState, empty_ema_state
from chomp.kernels.ema.reference import reference_ema

__all__ = [
    "EmaModes",
    "EmaState",
    "complex_ema",
    "continued_ema",
    "empty_ema_state",
    "reference_ema",
]
