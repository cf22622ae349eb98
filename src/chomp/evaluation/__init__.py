"""Numbers and samples from a model: tagged loss, bits per byte, generated text."""

from chomp.evaluation.generation import Generation, TokenChoice, generate, generate_batch
from chomp.evaluation.losses import DocumentSums, HeldOut, TaggedEvaluator, tagged_metrics

__all__ = [
    "DocumentSums",
    "Generation",
    "HeldOut",
    "TaggedEvaluator",
    "TokenChoice",
    "generate",
    "generate_batch",
    "tagged_metrics",
]
