"""The chunked loss, forward and backward, beside all logits at once in plain JAX.

    uv run python -m benchmarks.loss [--quick]

At the shapes of the models of `benchmarks.model`: bfloat16 on a GPU, float32 on a CPU. Memory is
what the compiled program takes beside its arguments and results.
"""

import argparse
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array

from benchmarks.device_programs import Program, milliseconds
from benchmarks.model_sizes import SIZES, ModelSize, measured_platform, sizes_for
from benchmarks.peers.full_logits import full_logits_loss
from benchmarks.record import Figure, record
from benchmarks.timing import note
from chomp.errors import KernelError
from chomp.kernels.loss import linear_cross_entropy

PEER = "all logits, plain JAX"
# Sums of 32,768 losses, whose products are bfloat16 on one side as on the other.
MOST_APART = 1e-3


def measured(name: str, *, rounds: int, calls: int) -> list[Figure]:
    """The figures of one model's shape."""
    size = SIZES[name]
    inputs = _inputs(size)
    chunked_loss = partial(linear_cross_entropy, reduction="sum")
    chunked, full = (_with_gradients(f, inputs) for f in (chunked_loss, full_logits_loss))
    _require_equal_losses(name, chunked, full)
    ours, peers = milliseconds(rounds, calls, chunked, full)
    note(f"{name}: chunked {ours:.2f} ms, all logits {peers:.2f} ms")
    tokens = size.step_tokens / 1e-3
    memory = (chunked.temporary_bytes / 2**20, full.temporary_bytes / 2**20)
    return [
        Figure(
            name=f"{name}, loss", value=ours, unit="ms", better="lower", peer=PEER, peer_value=peers
        ),
        Figure(
            name=f"{name}, loss, speed",
            value=tokens / ours,
            unit="tokens/s",
            better="higher",
            peer=PEER,
            peer_value=tokens / peers,
        ),
        Figure(
            name=f"{name}, loss, memory",
            value=memory[0],
            unit="MiB",
            better="lower",
            peer=PEER,
            peer_value=memory[1],
        ),
    ]


def _inputs(size: ModelSize) -> tuple[Array, Array, Array, Array]:
    """Hidden states of size 1, a head as at the start of training, random labels, full weight."""
    dtype = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
    tokens = (size.batch_size, size.seq_len)
    of_hidden, of_head, of_labels = jax.random.split(jax.random.key(0), 3)
    return (
        jax.random.normal(of_hidden, (*tokens, size.hidden_dim), dtype),
        0.02 * jax.random.normal(of_head, (size.hidden_dim, size.vocab_size), dtype),
        jax.random.randint(of_labels, tokens, 0, size.vocab_size),
        jnp.ones(tokens, jnp.float32),
    )


def _with_gradients(loss: Callable[..., Array], inputs: tuple[Array, ...]) -> Program:
    return Program.of(jax.value_and_grad(loss, argnums=(0, 1)), *inputs)


def _require_equal_losses(name: str, chunked: Program, full: Program) -> None:
    ours, peers = (float(program.result()[0]) for program in (chunked, full))
    if not abs(ours - peers) <= MOST_APART * abs(peers):
        raise KernelError(
            f"a chunked loss of {ours} where all logits give {peers}, at {name}",
            allowed=f"losses at most {MOST_APART:.0e} apart",
            fix="look at chomp.kernels.loss first; a wrong loss is not worth timing",
        )


def main() -> None:
    """Measure the shapes of this device."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few calls; nothing is written")
    quick, platform = parser.parse_args().quick, measured_platform()
    rounds, calls = 1 if quick else 5, 3 if quick or platform == "cpu" else 20
    figures: list[Figure] = []
    for name in sizes_for(platform):
        figures += measured(name, rounds=rounds, calls=calls)
    record("loss", figures, is_quick=quick)


if __name__ == "__main__":
    main()
