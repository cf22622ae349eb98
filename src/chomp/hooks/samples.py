"""A sample of what a model writes, for the eye."""

from typing import Any

from jax.sharding import Mesh

from chomp.data import EvalDataset
from chomp.evaluation import generate
from chomp.hooks.run_folder import SAMPLE_MARK
from chomp.tokenize import Tokenizer

_PROMPT_TOKENS = 16


def sample_text(
    model: Any, dataset: EvalDataset, tokenizer: Tokenizer, *, mesh: Mesh, max_tokens: int
) -> str:
    """The beginning of the first held-out document, and how the model goes on from it."""
    # A real beginning: with boundary loss masked, nobody learns how a document starts.
    prompt = dataset.beginning(_PROMPT_TOKENS)
    ids = generate(
        model,
        prompt,
        mesh=mesh,
        max_tokens=max_tokens,
        eos_id=tokenizer.eos_id,
        temperature=0.7,
        top_k=40,
    )
    return f"{tokenizer.decode(prompt)}{SAMPLE_MARK}{tokenizer.decode(ids)}"
