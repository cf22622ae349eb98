"""Next-token loss from hidden states."""

from chomp.kernels.loss.chunk_size import chunk_rows
from chomp.kernels.loss.cross_entropy import (
    Implementation,
    Reduction,
    Scores,
    linear_cross_entropy,
    linear_cross_entropy_and_argmax,
    next_token_scores,
)
from chomp.kernels.loss.labels import next_tokens
from chomp.kernels.loss.row_losses import LossKernel, loss_kernel
from chomp.kernels.loss.soft_cap import soft_capped

__all__ = [
    "Implementation",
    "LossKernel",
    "Reduction",
    "Scores",
    "chunk_rows",
    "linear_cross_entropy",
    "linear_cross_entropy_and_argmax",
    "loss_kernel",
    "next_token_scores",
    "next_tokens",
    "soft_capped",
]
