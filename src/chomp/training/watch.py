"""Norms and histograms of gradients, parameters, updates and optimizer state, every few steps.

They are computed inside the train step, behind a condition on its own counter: one executable, and
on the steps in between nothing but the test. The step returns them with its metrics under names
that begin with `watch/`; the host fetches those of a watched step alone.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from chomp.config import Config, setting
from chomp.errors import require

# Axes: E inner edges of the bins, H bins.

Target = Literal["grads", "params", "updates", "opt_state"]

NUM_BINS = 31
# Of a tensor whose histogram is taken, in this order as one array.
MOMENTS = ("min", "max", "mean", "rms")
_TRACED = "watch/"


@dataclass(frozen=True, kw_only=True)
class WatchConfig(Config):
    """What is watched, and how often. A run without one watches nothing."""

    # `updates` costs a little on every step: XLA would not write them down otherwise.
    targets: tuple[Target, ...] = ("grads", "params")
    include_norms: bool = True  # of each target as a whole
    include_per_parameter_norms: bool = True
    include_histograms: bool = False  # 31 bins for each tensor: thirty passes over it
    interval: int = setting(default=10, ge=1, lt=2**31)  # in completed steps

    def __post_init__(self) -> None:
        require(
            0 < len(self.targets) == len(set(self.targets)),
            f"watch.targets={list(self.targets)}",
            allowed=f"one or more of {list(get_args(Target))}, each once",
            fix="name the targets, or set watch to null",
        )
        require(
            self.include_norms or self.include_per_parameter_norms or self.include_histograms,
            "watch with every include_* off",
            allowed="at least one of include_norms, include_per_parameter_norms and "
            "include_histograms",
            fix="turn one on, or set watch to null",
        )


def watch_metrics(
    config: WatchConfig | None,
    step: Int[Array, ""],
    *,
    grads: Any,
    params: Any,
    updates: Any,
    opt_state: Any,
) -> dict[str, Array]:
    """Watched numbers of the step with the 0-based index `step`; to be called inside its jit.

    Zeros on steps that are not due; nothing at all without a config. Give the parameters and the
    optimizer state that the step returns: with the old ones the step could not reuse their memory.
    Leaves that are not real floating-point numbers (counters, random keys) are left out.
    """
    if config is None:
        return {}
    trees = {"grads": grads, "params": params, "updates": updates, "opt_state": opt_state}

    def numbers() -> dict[str, Array]:
        found: dict[str, Array] = {}
        for target in config.targets:
            prefix = "grad" if target == "grads" else target  # as seed 000 names the keys
            name, total = f"{_TRACED}{prefix}", jnp.float32(0)
            for path, leaf in jax.tree_util.tree_leaves_with_path(trees[target]):
                # A norm means something for real floating-point numbers that are there.
                is_array = isinstance(leaf, jax.Array) and leaf.size
                if not (is_array and jnp.issubdtype(leaf.dtype, jnp.floating)):
                    continue
                key = jax.tree_util.keystr(path, simple=True, separator=".")
                x = leaf.astype(jnp.float32)
                square = jnp.sum(jnp.square(x))
                total = total + square
                if config.include_per_parameter_norms:
                    found[f"{name}/norm/{key}"] = jnp.sqrt(square)
                if config.include_histograms:
                    low, high, rms = jnp.min(x), jnp.max(x), jnp.sqrt(square / x.size)
                    found[f"{name}/moments/{key}"] = jnp.stack([low, high, jnp.mean(x), rms])
                    found[f"{name}/hist/{key}"] = _bin_counts(x, low, high)
            if config.include_norms:
                found[f"{name}/norm/total"] = jnp.sqrt(total)
        return found

    def zeros() -> dict[str, Array]:
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(numbers))

    return jax.lax.cond((step + 1) % config.interval == 0, numbers, zeros)


def is_watched(name: str) -> bool:
    """Whether a metric that a step returned comes from `watch_metrics`."""
    return name.startswith(_TRACED)


def watched_row(
    config: WatchConfig | None, step: int, fetched: Mapping[str, Any]
) -> dict[str, float | str]:
    """The part of a step's row that was watched, from the metrics it returned; often empty.

    `fetched` may hold other metrics and may still lie on the device; on a step that is not due it
    is not touched. A histogram is the text of a JSON list of 31 counts, from `<key>/min` to
    `<key>/max` in equal widths, as `chomp.tracking.record` reads it for W&B and TensorBoard:
    thirty-one keys for each tensor would drown their charts, which have a line for every key.
    """
    if config is None or (step + 1) % config.interval:
        return {}
    # At once: the copies of single numbers would wait for each other.
    arrays = jax.device_get({key: value for key, value in fetched.items() if is_watched(key)})
    row: dict[str, float | str] = {}
    for traced, array in arrays.items():
        prefix, kind, path = traced.removeprefix(_TRACED).split("/", 2)
        key = f"{prefix}/hist/{path}"
        if kind == "norm":
            row[f"{prefix}/norm/{path}"] = float(array)
        elif kind == "hist":
            row[key] = json.dumps(array.tolist(), separators=(",", ":"))
        else:
            row |= {f"{key}/{name}": float(x) for name, x in zip(MOMENTS, array, strict=True)}
    return row


def _bin_counts(
    x: Float[Array, "..."], low: Float[Array, ""], high: Float[Array, ""]
) -> Int[Array, " H"]:
    """Numbers of `x` in each bin; a number on an edge belongs to the bin above it.

    All of a constant tensor is in the last bin. In int32: float32 cannot count beyond 16 million.
    """
    edges = low + (high - low) * (jnp.arange(1, NUM_BINS, dtype=jnp.float32) / NUM_BINS)
    # One pass for each edge: a sum over a sharded array stays where it lies, which a scatter does
    # not, and comparing with all edges at once took 30 times the memory of `x` and was no faster
    # (221 against 56 ms for 4 M numbers on two cores, November 2026).
    above: Int[Array, " E"] = jax.lax.map(lambda edge: jnp.sum(x >= edge, dtype=jnp.int32), edges)
    bounds = (jnp.full((1,), x.size, jnp.int32), above, jnp.zeros((1,), jnp.int32))
    return -jnp.diff(jnp.concatenate(bounds))
