"""Chomp's own generation, as the harness asks for it: in batches, ended by what a text says."""

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np
from jax.sharding import Mesh

from chomp.evaluation.generation import Generation
from chomp.evaluation.harness.generation import Generate
from chomp.evaluation.token_choice import TokenChoice
from chomp.tokenize import Tokenizer

# Tokens between two looks at the texts: a look costs a trip to the host, a text that has ended
# costs on average half of these.
LOOK_EVERY = 16


def sampler(model: Any, *, mesh: Mesh, tokenizer: Tokenizer, batch_size: int) -> Generate:
    """A `generate` for `HarnessModel`, from a model in the dtype it computes in.

    Each prompt draws with a seed of its own, made from its tokens, so a text depends on neither its
    neighbours nor the batch size.
    """

    def generate(
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        temperature: float,
        top_k: int | None,
        top_p: float | None,
        seed: int,
        until: Sequence[str],
    ) -> list[list[int]]:
        choice = TokenChoice.of(temperature=temperature, top_k=top_k, top_p=top_p)
        texts: list[list[int]] = []
        for first in range(0, len(prompts), batch_size):
            some = prompts[first : first + batch_size]
            generation = Generation(
                model,
                some,
                mesh=mesh,
                max_tokens=max_tokens,
                end_ids=[tokenizer.eos_id],
                seeds=[_own_seed(prompt, seed) for prompt in some],
                choice=choice,
            )
            _advance(generation, tokenizer, [end for end in until if end])
            texts += generation.texts
        return texts

    return generate


def _own_seed(prompt: Sequence[int], seed: int) -> int:
    return crc32(np.asarray([seed, *prompt], np.int64).tobytes())


def _advance(generation: Generation, tokenizer: Tokenizer, until: Sequence[str]) -> None:
    while not generation.is_done:
        generation.advance(LOOK_EVERY if until else None)
        for index, ids in enumerate(generation.texts):
            text = tokenizer.decode(ids)
            if any(end in text for end in until):
                generation.stop(index)
