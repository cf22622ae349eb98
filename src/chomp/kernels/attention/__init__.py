"""Attention with the mask as data."""

from chomp.kernels.attention.cache import KeyValueCache
from chomp.kernels.attention.call import AttentionCall
from chomp.kernels.attention.choice import Backend, BackendChoice, choose_backend
from chomp.kernels.attention.dispatch import attention
from chomp.kernels.attention.documents import max_segments, require_documents_fit
from chomp.kernels.attention.mask import AttentionMask
from chomp.kernels.attention.reference import reference_attention

__all__ = [
    "AttentionCall",
    "AttentionMask",
    "Backend",
    "BackendChoice",
    "KeyValueCache",
    "attention",
    "choose_backend",
    "max_segments",
    "reference_attention",
    "require_documents_fit",
]
