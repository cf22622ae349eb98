"""The models that are measured, and the rows they are measured on: one place for both sides."""

from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Int32

from chomp.errors import require

# Axes: B rows, T tokens of a row.


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """A decoder with full heads and relu², and the batch it is stepped on."""

    hidden_dim: int
    num_layers: int
    num_heads: int
    intermediate_dim: int
    vocab_size: int
    batch_size: int
    seq_len: int

    @property
    def step_tokens(self) -> int:
        """Tokens of one step."""
        return self.batch_size * self.seq_len


SIZES = {
    "124m": ModelSize(
        hidden_dim=768,
        num_layers=12,
        num_heads=6,
        intermediate_dim=3072,
        vocab_size=50_304,
        batch_size=32,
        seq_len=1024,
    ),
    "1b": ModelSize(
        hidden_dim=2048,
        num_layers=16,
        num_heads=16,
        intermediate_dim=8192,
        vocab_size=50_304,
        batch_size=16,
        seq_len=2048,
    ),
    # A step of about a second on two cores.
    "cpu": ModelSize(
        hidden_dim=256,
        num_layers=4,
        num_heads=4,
        intermediate_dim=1024,
        vocab_size=4096,
        batch_size=16,
        seq_len=256,
    ),
}


def measured_platform() -> str:
    """The platform of this machine, cpu or gpu: nothing is known yet of any other."""
    platform = jax.default_backend()
    require(
        platform in ("cpu", "gpu"),
        f"a machine whose devices are {platform}",
        allowed="cpu or gpu, for which there are sizes and peers",
        fix="set JAX_PLATFORMS=cpu, or add sizes and a peer for it in benchmarks",
    )
    return platform


def sizes_for(platform: str) -> tuple[str, ...]:
    """Names of the sizes that are measured on a platform."""
    return ("cpu",) if platform == "cpu" else ("124m", "1b")


def document_ids(batch_size: int, seq_len: int) -> Int32[np.ndarray, "B T"]:
    """Rows cut into documents: exponential lengths of mean T/8, the last one cut at the row's end.

    Most rows hold six to twelve, of very different lengths.
    """
    random = np.random.default_rng(0)
    ids = np.zeros((batch_size, seq_len), np.int32)
    for row in ids:
        lengths = np.maximum(random.exponential(seq_len / 8, size=seq_len), 1).astype(int)
        starts = np.cumsum(lengths)
        row[starts[starts < seq_len]] = 1
        np.cumsum(row, out=row)
    return ids
