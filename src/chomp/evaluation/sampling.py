"""Generated text: prefill, then one token at a time, in one compiled program."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int, PRNGKeyArray

from chomp.errors import require
from chomp.mesh import batch_shards, place_batch

# Axes: B generations, S prompt tokens, V vocabulary.


def generate(
    model: Any,
    prompt: Sequence[int],
    *,
    mesh: Mesh,
    max_tokens: int,
    eos_id: int,
    seed: int = 0,
    temperature: float = 1.0,
    top_k: int | None = None,
) -> list[int]:
    """Up to `max_tokens` ids that follow `prompt`, ending before the first end of document.

    `temperature` 0 takes the likeliest token; `top_k` leaves only that many to draw from. Same
    seed, same text. One compilation for each prompt length and `max_tokens`.
    """
    require(
        len(prompt) > 0 and max_tokens > 0,
        given=f"a prompt of {len(prompt)} tokens and max_tokens={max_tokens}",
        allowed="at least one of each",
        fix="start from the end-of-document token to generate freely",
    )
    require(
        temperature >= 0.0 and (top_k is None or top_k > 0),
        given=f"temperature={temperature} and top_k={top_k}",
        allowed="a temperature of 0 or more, and top_k above 0 or None",
        fix="temperature=0 takes the likeliest token, top_k=None draws from all of them",
    )
    # The batch must fill the mesh; the copies cost nothing that matters.
    rows = np.tile(np.asarray(prompt, np.int32), (batch_shards(mesh), 1))
    tokens = _generate(
        model,
        jnp.asarray(place_batch(rows, mesh, batch_axis=0)),
        jax.random.key(seed),
        max_tokens,
        temperature,
        top_k,
    )
    ids = np.asarray(tokens)[:, 0].tolist()
    return ids[: ids.index(eos_id)] if eos_id in ids else ids


@eqx.filter_jit
def _generate(
    model: Any,
    prompt: Int[Array, "B S"],
    key: PRNGKeyArray,
    max_tokens: int,
    temperature: float,
    top_k: int | None,
) -> Int[Array, "N B"]:
    cache = model.init_cache(prompt.shape[0], prompt.shape[1] + max_tokens)
    logits, cache = model.decode_step(cache, prompt)

    def step(carry: Any, step_key: PRNGKeyArray) -> Any:
        cache, logits = carry
        token = _sample(logits, step_key, temperature, top_k)
        logits, cache = model.decode_step(cache, token[:, None])
        return (cache, logits[:, -1]), token

    keys = jax.random.split(key, max_tokens)
    _, tokens = jax.lax.scan(step, (cache, logits[:, -1]), keys)
    return tokens


def _sample(
    logits: Float[Array, "B V"], key: PRNGKeyArray, temperature: float, top_k: int | None
) -> Int[Array, " B"]:
    # Whole over the vocabulary, which a mesh with a model axis leaves in pieces.
    logits = jax.reshard(logits, PartitionSpec(jax.typeof(logits).sharding.spec[0], None))
    if temperature == 0.0:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    if top_k is not None:
        kth = jnp.sort(logits, axis=-1)[:, -min(top_k, logits.shape[-1])][:, None]
        logits = jnp.where(logits >= kth, logits, -jnp.inf)
    # Gumbel noise by hand: one draw for all rows, whatever the mesh, so a text has one seed.
    noise = jax.random.gumbel(key, logits.shape[-1:])
    return jnp.argmax(logits / temperature + noise[None], axis=-1).astype(jnp.int32)
