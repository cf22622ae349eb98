"""The learning rate as a function of the step."""

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int


def learning_rate_schedule(
    *, lr: float, warmup_steps: int, decay_steps: int, min_lr_ratio: float
) -> optax.Schedule:
    """Linear warmup, then half a cosine down to `min_lr_ratio * lr`, which then stays.

    Step n (from 0) of the warmup runs at lr * (n + 1) / warmup_steps: the first update counts. The
    cosine reaches its end after `decay_steps` steps.
    """

    def at(step: int | Int[Array, ""]) -> Float[Array, ""]:
        count = jnp.asarray(step, jnp.float32)
        warmup = (count + 1.0) / max(warmup_steps, 1)
        progress = jnp.clip((count + 1.0 - warmup_steps) / max(decay_steps, 1), 0.0, 1.0)
        cosine = 0.5 * (1.0 + jnp.cos(jnp.pi * progress))
        decayed = min_lr_ratio + (1.0 - min_lr_ratio) * cosine
        return lr * jnp.where(count < warmup_steps, warmup, decayed)

    return at
