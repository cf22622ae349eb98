"""Generated text in one call: for many prompts, or for one."""

from collections.abc import Sequence
from typing import Any

from jax.sharding import Mesh

from chomp.evaluation.generation import Generation
from chomp.evaluation.token_choice import TokenChoice


def generate_batch(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    mesh: Mesh,
    max_tokens: int,
    eos_id: int,
    seed: int | Sequence[int] = 0,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> list[list[int]]:
    """Up to `max_tokens` ids after each prompt, ending before the first end of document.

    How tokens are chosen is said at `TokenChoice.of`. A prompt and a seed have one text, whatever
    is beside them. Texts with one seed share their luck, position by position: give a seed for
    each prompt to draw independently, or to have several texts of one prompt.
    """
    generation = Generation(
        model,
        prompts,
        mesh=mesh,
        max_tokens=max_tokens,
        end_ids=[eos_id],
        seeds=[seed] * len(prompts) if isinstance(seed, int) else seed,
        choice=TokenChoice.of(temperature=temperature, top_k=top_k, top_p=top_p),
    )
    generation.advance(None)
    return generation.texts


def generate(
    model: Any,
    prompt: Sequence[int],
    *,
    mesh: Mesh,
    max_tokens: int,
    eos_id: int,
    seed: int = 0,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> list[int]:
    """The text that `generate_batch` gives for one prompt."""
    (text,) = generate_batch(
        model,
        [prompt],
        mesh=mesh,
        max_tokens=max_tokens,
        eos_id=eos_id,
        seed=seed,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
    )
    return text
