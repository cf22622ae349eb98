"""Attention with the mask as data."""

from chomp.kernels.attention.api import (
    Backend,
    BackendChoice,
    KeyValueCache,
    attention,
    choose_backend,
)
from chomp.kernels.attention.call import AttentionCall
from chomp.kernels.attention.mask import AttentionMask, documents_of_rows, max_segments
from chomp.kernels.attention.reference import reference_attention

__all__ = [
    "AttentionCall",
    "AttentionMask",
    "Backend",
    "BackendChoice",
    "KeyValueCache",
    "attention",
    "choose_backend",
    "documents_of_rows",
    "max_segments",
    "reference_attention",
]
