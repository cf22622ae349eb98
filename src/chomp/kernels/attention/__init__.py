"""Attention with the mask as data."""

from chomp.kernels.attention.cache import KeyValueCache
from chomp.kernels.attention.mask import AttentionMask
from chomp.kernels.attention.reference import attention

__all__ = ["AttentionMask", "KeyValueCache", "attention"]
