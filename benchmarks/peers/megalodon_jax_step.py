"""The peer of our Megalodon: the public `megalodon-jax` package, forward and backward.

    python -m benchmarks.peers.megalodon_jax_step SPEC

As its users call it: its own loss with all logits at once, under `eqx.filter_jit`. SPEC and what is
served are those of `benchmarks.megalodon_step`.
"""

import json
import sys
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import megalodon_jax
import numpy as np
from jaxtyping import Array, Int

from benchmarks.model_sizes import document_ids
from benchmarks.step_process import serve

# Axes: B rows, T tokens of a row.


class Gradients:
    """The mean loss of a batch and its gradients, without an optimizer."""

    def __init__(self, model: Any, tokens: Int[Array, "B T"], *, has_documents: bool) -> None:
        def loss_of(model: Any, tokens: Array, segment_ids: Array | None) -> Any:
            return model.compute_loss(tokens, tokens, segment_ids=segment_ids)

        # For the package 0 is padding.
        ids = jnp.asarray(1 + document_ids(*tokens.shape)) if has_documents else None
        self._given = model, tokens, ids
        begin = time.perf_counter()
        lowered = eqx.filter_jit(eqx.filter_value_and_grad(loss_of)).lower(*self._given)
        self._compiled = lowered.compile()
        self.report = {
            "compile_s": time.perf_counter() - begin,
            # Equinox wraps JAX's own program.
            "temp_bytes": self._compiled.compiled.memory_analysis().temp_size_in_bytes,
        }

    def take(self, calls: int) -> float:
        """The loss after that many calls, all done when this returns."""
        for _ in range(calls):
            loss, _ = jax.block_until_ready(self._compiled(*self._given))
        return float(loss)


def main(spec: dict[str, Any]) -> None:
    """Compile every way, tell what that took, then serve unless that was all."""
    cfg = megalodon_jax.MegalodonConfig(
        **spec["model"], compute_dtype=jnp.dtype(spec["compute"]), param_dtype=jnp.float32
    )
    # Weights also where nothing runs: `filter_jit` takes shapes for constants.
    model = megalodon_jax.MegalodonForCausalLM(cfg, key=jax.random.key(0))
    shape = tuple(spec["batch_shape"])
    random = np.random.default_rng(0)
    tokens = jnp.asarray(random.integers(0, cfg.vocab_size, shape, dtype=np.int32))
    ways = {way: Gradients(model, tokens, has_documents=way == "packed") for way in spec["ways"]}
    report: dict[str, Any] = {way: program.report for way, program in ways.items()}
    if spec["is_compile_only"]:
        print(json.dumps(report))
        return
    for way, program in ways.items():
        report[way]["loss"] = program.take(spec["warmup"])

    def take(way: str, calls: int) -> None:
        ways[way].take(calls)

    serve(report, take)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
