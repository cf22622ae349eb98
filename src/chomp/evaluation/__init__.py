"""Numbers and samples from a model: tagged loss, bits per byte, generated text."""

from chomp.evaluation.sampling import generate
from chomp.evaluation.tagged import DatasetSums, TaggedEvaluator, tagged_metrics

__all__ = ["DatasetSums", "TaggedEvaluator", "generate", "tagged_metrics"]
