"""A small train state with every kind of leaf, and the metadata of the run it belongs to."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from chomp.checkpoint import CheckpointMetadata

ROWS, COLUMNS = 64, 32


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """A counter, weights cut over a mesh, half-precision weights, moments, a random key."""

    step: jax.Array
    params: dict[str, jax.Array]
    moments: tuple[jax.Array, ...]
    training_key: jax.Array


def state_at(step: int, *, impl: str = "threefry2x32", columns: int = COLUMNS) -> State:
    """The state after `step` steps, on the current mesh: every leaf tells the step."""
    key = jax.random.fold_in(jax.random.key(7), step)
    draw = partial(jax.random.normal, out_sharding=P("data", "model"))
    bias = jax.random.normal(key, (columns,)).astype(jnp.bfloat16)
    return State(
        step=jnp.int32(step),
        params={"w": draw(key, (ROWS, columns)), "bias": bias},
        moments=(draw(jax.random.fold_in(key, 1), (ROWS, columns)), jnp.float32(0.5)),
        training_key=jax.random.key(step, impl=impl),
    )


def about(**changes: Any) -> CheckpointMetadata:
    """The run as it is now."""
    facts: dict[str, Any] = {
        "step": 0,
        "run_id": "tiny",
        "attempt": 1,
        "config_hash": "c0ffee",
        "config": {"optimizer": {"lr": 0.1}, "run_id": "tiny"},
        "data_fingerprint": "0123456789abcdef",
        "data_offset": 0,
        "tokens_seen": 0,
    }
    return CheckpointMetadata(**(facts | changes))
