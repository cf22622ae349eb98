"""What every file of results says first: which weights of which step, and what computed them.

The loop and the commands write it alike, each with more that it alone can know.
"""

import time
from dataclasses import asdict
from typing import Any

from jax.sharding import Mesh

from chomp.kernels.precision import Precision
from chomp.tokenize import Tokenizer
from chomp.training.environment import environment


def result_header(
    step: int, weights: str, *, tokenizer: Tokenizer, mesh: Mesh, mp: Precision
) -> dict[str, Any]:
    """Plain values. `step` counts completed steps; `weights` is `params`, `ema` or `both`."""
    return {
        "step": step,
        "weights": weights,
        "tokenizer_hash": tokenizer.content_hash,
        # bfloat16 gives other digits than float32, and fewer.
        "precision": asdict(mp),
        # Sums over more devices round otherwise, in the last digits.
        "mesh": dict(mesh.shape),
        "time": time.time(),
        "versions": environment(),
    }
