"""Numbers and samples from a model: tagged loss, bits per byte, generated text."""

from chomp.evaluation.generation import Generation
from chomp.evaluation.sampling import generate, generate_batch
from chomp.evaluation.tagged import DatasetSums, TaggedEvaluator, tagged_metrics
from chomp.evaluation.token_choice import TokenChoice

__all__ = [
    "DatasetSums",
    "Generation",
    "TaggedEvaluator",
    "TokenChoice",
    "generate",
    "generate_batch",
    "tagged_metrics",
]
