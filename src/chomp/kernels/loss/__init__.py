"""Next-token loss from hidden states."""

from chomp.kernels.loss.labels import next_tokens
from chomp.kernels.loss.reference import Reduction, linear_cross_entropy

__all__ = ["Reduction", "linear_cross_entropy", "next_tokens"]
