"""Attention forward and backward by backend, with and without documents, and how exact it is.

    uv run python -m benchmarks.attention [--quick]

Rows hold documents of mean length T/8. On a GPU, in bfloat16: packed documents beside the dense
mask that JAX offers in public, and beside unmasked causal attention. On a CPU, in float32: the
chunked form beside the formula. Errors are those of the first row, of whichever of the output and
the three gradients is furthest off, against the formula in float32 at full precision.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array

from benchmarks.device_programs import Program, milliseconds
from benchmarks.model_sizes import document_ids, measured_platform
from benchmarks.peers.dense_mask_attention import dense_mask_attention
from benchmarks.record import Figure, record
from benchmarks.timing import note
from chomp.kernels.attention import AttentionMask, attention, reference_attention

Attend = Callable[[Array, Array, Array, AttentionMask], Array]


@dataclass(frozen=True)
class Shape:
    """Sizes of one call."""

    batch_size: int
    seq_len: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    # Whether packed documents were promised to be no slower here than no documents.
    has_goal: bool = False

    def __str__(self) -> str:
        heads = f"{self.num_heads}/{self.num_kv_heads} heads of {self.head_dim}"
        return f"{self.batch_size} x {self.seq_len}, {heads}"

    @property
    def num_scores(self) -> int:
        """Entries of the score matrices that only the formula holds."""
        return self.batch_size * self.num_heads * self.seq_len**2


GPU_SHAPES = (
    Shape(16, 2048, 16, 16, 128, has_goal=True),  # the 1b model
    Shape(32, 1024, 6, 6, 128, has_goal=True),  # the 124m model
    Shape(16, 2048, 16, 4, 128),
    Shape(4, 8192, 16, 16, 128),
)
CPU_SHAPES = (Shape(16, 256, 4, 4, 64), Shape(4, 1024, 8, 2, 64), Shape(2, 2048, 8, 8, 64))
# Of 4 GiB in float32, and a few such arrays are there at once.
MAX_REFERENCE_SCORES = 2**30


class Error(NamedTuple):
    """|found - exact| over |exact|: by the norms of the arrays, and by their largest numbers."""

    norm: float
    largest: float


@dataclass(frozen=True)
class Found:
    """Milliseconds, and errors where documents were masked, of each way to attend."""

    milliseconds: dict[str, float]
    errors: dict[str, Error]


def ways(shape: Shape, platform: str) -> dict[str, tuple[Attend, bool]]:
    """What is timed: how to attend, and whether to documents."""
    found: dict[str, tuple[Attend, bool]] = {
        "chunked": (partial(attention, backend="chunked"), True),
    }
    if platform == "cpu":
        found["chunked, no documents"] = (partial(attention, backend="chunked"), False)
    else:
        found["cudnn_packed"] = (partial(attention, backend="cudnn_packed"), True)
        found["dense mask"] = (dense_mask_attention, True)
        found["cudnn, no documents"] = (partial(attention, backend="cudnn"), False)
    if shape.num_scores <= MAX_REFERENCE_SCORES:
        found["reference"] = (reference_attention, True)
        if platform == "cpu":
            found["reference, no documents"] = (reference_attention, False)
    return found


def measured(shape: Shape, platform: str, *, rounds: int, calls: int) -> Found:
    """All ways of one shape, timed in turn."""
    arrays = _inputs(shape, jnp.float32 if platform == "cpu" else jnp.bfloat16)
    ids = jnp.asarray(document_ids(shape.batch_size, shape.seq_len))
    attends = ways(shape, platform)
    programs = {
        name: Program.of(partial(_forward_and_backward, attend), *arrays, ids if masked else None)
        for name, (attend, masked) in attends.items()
    }
    times = milliseconds(rounds, calls, *programs.values())
    with jax.default_matmul_precision("highest"):
        first = (*(array[:1].astype(jnp.float32) for array in arrays), ids[:1])
        exact = Program.of(partial(_forward_and_backward, reference_attention), *first).result()
    errors = {
        name: _error(programs[name].result(), exact)
        for name, (_, masked) in attends.items()
        if masked
    }
    found = Found(dict(zip(programs, times, strict=True)), errors)
    for name, taken in found.milliseconds.items():
        error = f", error {errors[name].norm:.1e}" if name in errors else ""
        note(f"{shape}: {name} {taken:.3f} ms{error}")
    return found


def gpu_figures(shape: Shape, found: Found) -> list[Figure]:
    """Packed documents beside the two peers; the fallback beside what it stands in for."""
    figures = [
        _time(shape, found, "cudnn_packed", peer="dense mask"),
        _time(
            shape,
            found,
            "cudnn_packed",
            peer="cudnn, no documents",
            goal=1.0 if shape.has_goal else None,
        ),
        *_errors(shape, found, "cudnn_packed", peer="dense mask"),
        _time(shape, found, "chunked", peer="dense mask"),
        *_errors(shape, found, "chunked", peer="dense mask"),
    ]
    if "reference" in found.milliseconds:
        figures.append(_time(shape, found, "chunked", peer="reference"))
    return figures


def cpu_figures(shape: Shape, found: Found) -> list[Figure]:
    """The chunked form beside the formula."""
    return [
        _time(shape, found, "chunked", peer="reference"),
        _time(shape, found, "chunked, no documents", peer="reference, no documents"),
        *_errors(shape, found, "chunked"),
    ]


def _inputs(shape: Shape, dtype: DTypeLike) -> tuple[Array, ...]:
    """Queries, keys, values, and the cotangent of the output."""
    heads = (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads, shape.num_heads)
    keys = jax.random.split(jax.random.key(0), 4)
    rows = (shape.batch_size, shape.seq_len)
    return tuple(
        jax.random.normal(key, (*rows, count, shape.head_dim), dtype)
        for key, count in zip(keys, heads, strict=True)
    )


def _forward_and_backward(
    attend: Attend, q: Array, k: Array, v: Array, slope: Array, ids: Array | None
) -> tuple[Array, ...]:
    mask = AttentionMask.causal(segment_ids=ids)
    out, pull_back = jax.vjp(lambda *heads: attend(*heads, mask), q, k, v)
    return (out, *pull_back(slope))


def _error(found: Any, exact: Any) -> Error:
    """Of the output and the gradients in the first row, what is furthest off."""
    pairs = [(a[:1].astype(jnp.float32), b) for a, b in zip(found, exact, strict=True)]
    return Error(
        max(float(jnp.linalg.norm(a - b) / jnp.linalg.norm(b)) for a, b in pairs),
        max(float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b))) for a, b in pairs),
    )


def _time(shape: Shape, found: Found, name: str, *, peer: str, goal: float | None = None) -> Figure:
    return Figure(
        name=f"{shape}: {name}, beside {peer}",
        value=found.milliseconds[name],
        unit="ms",
        better="lower",
        peer=peer,
        peer_value=found.milliseconds[peer],
        goal=goal,
        goal_on="ratio",
    )


def _errors(shape: Shape, found: Found, name: str, *, peer: str | None = None) -> list[Figure]:
    kinds = {"relative error": 0, "largest error": 1}
    return [
        Figure(
            name=f"{shape}: {name}, {kind}",
            value=1e6 * found.errors[name][at],
            unit="ppm",
            better="lower",
            peer=peer,
            peer_value=1e6 * found.errors[peer][at] if peer else None,
        )
        for kind, at in kinds.items()
    ]


def main() -> None:
    """Measure the shapes of this device."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few calls; nothing is written")
    quick, platform = parser.parse_args().quick, measured_platform()
    rounds = 1 if quick else 5
    calls = 1 if platform == "cpu" else 5 if quick else 20
    shapes, figures_of = (
        (CPU_SHAPES, cpu_figures) if platform == "cpu" else (GPU_SHAPES, gpu_figures)
    )
    figures: list[Figure] = []
    for shape in shapes:
        figures += figures_of(shape, measured(shape, platform, rounds=rounds, calls=calls))
    record("attention", figures, is_quick=quick)


if __name__ == "__main__":
    main()
