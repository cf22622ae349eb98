"""Numbers and samples from a model: tagged loss, bits per byte, generated text."""

from chomp.evaluation.document_sums import DocumentSums
from chomp.evaluation.generation import Generation
from chomp.evaluation.sampling import generate, generate_batch
from chomp.evaluation.tag_tree import tagged_metrics
from chomp.evaluation.tagged import HeldOut, TaggedEvaluator
from chomp.evaluation.token_choice import TokenChoice

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
