"""How fast a device can be: by its maker's figures, and by a matrix product measured here and now.

Both are for the dtype a run computes in. A device or dtype that is not in the table has no
theoretical peak, and a run on it no MFU: a guess would be read as a measurement.
"""

import re
import time
from collections.abc import Sequence
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec
from jaxtyping import Array, Float

from chomp.mesh import compiler_options

# Axes: P devices of this process, N rows and columns of a square matrix.

# Wide enough that arithmetic is the limit: 1.1 TFLOP from 400 MB of bfloat16. On cores, widths of
# 512, 1024 and 1536 reach the same within 5 % (two cores, November 2026).
WIDTH = 8192
CPU_WIDTH = 512
_PRODUCTS = 8  # in one program, so that the time of starting it does not count
_TIMED_RUNS = 3
_BUDGET_S = 0.1  # no run is started after it
_AXIS = "measured"

# Peak TFLOP/s of a device in bfloat16, float16 and float32, at JAX's default precision; None: no
# figure. The first pattern that is found in a device kind counts: narrow above wide.
# NVIDIA: data sheets and architecture white papers. They print most figures with the sparsity that
# a dense product does not have, so those are halved here; the L4's 242 is such a figure, too.
# GeForce: with float32 accumulation, which XLA asks for. TPU: Google's system architecture pages;
# v2, v3 and 7x have two JAX devices on a chip.
# Float32 on tensor cores is TF32. Volta and Turing emulate bfloat16, so a peak of it would mean
# nothing. On a TPU float32 takes one to six passes of bfloat16, by the precision asked for.
_PEAKS: tuple[tuple[str, float | None, float | None, float | None], ...] = (
    (r"\bGB200\b", 2500, 2500, 1250),
    (r"\bB200\b", 2250, 2250, 1100),
    (r"\bGB10\b", 100, 100, None),
    (r"\bH[12]00 NVL\b", 835.5, 835.5, 417.5),
    (r"\bH100 PCIe\b", 756.5, 756.5, 378),
    (r"\b(G?H200|H100|H800)\b", 989.5, 989.5, 494.7),
    (r"\bA[18]00\b", 312, 312, 156),
    (r"\bA10G\b", 70, 70, 35),  # Amazon's, with fewer tensor operations than the A10
    (r"\bA10\b", 125, 125, 62.5),
    (r"\bL40S\b", 366.5, 366.5, 183),
    (r"\bL4\b", 121, 121, 60),
    (r"\bRTX 5090\b", 209.5, 209.5, 104.8),
    (r"\bRTX 4090\b", 165.2, 165.2, 82.6),
    (r"\bRTX 3090\b", 71, 71, 35.6),
    (r"\bV100-SXM", None, 125, 15.7),
    (r"\bV100\b", None, 112, 14),
    (r"\bT4\b", None, 65, 8.1),
    (r"\bTPU ?7x\b", 1153.5, None, None),
    (r"\bTPU v6( lite|e)\b", 918, None, None),
    (r"\bTPU v5( lite|e)\b", 197, None, None),
    (r"\bTPU v5p?\b", 459, None, None),
    (r"\bTPU v4$", 275, None, None),
    (r"\bTPU v3\b", 61.5, None, None),
    (r"\bTPU v2\b", 23, None, None),
)


def peak_flops(device_kind: str) -> dict[str, float]:
    """The peak of a device in FLOP/s by dtype; empty for an unknown device.

    `device_kind` is JAX's name for it (`jax.Device.device_kind`): "NVIDIA H200", "TPU v5 lite".
    """
    for pattern, *peaks in _PEAKS:
        if re.search(pattern, device_kind):
            names = ("bfloat16", "float16", "float32")
            return {name: peak * 1e12 for name, peak in zip(names, peaks, strict=True) if peak}
    return {}


def measured_flops_per_device(devices: Sequence[jax.Device], dtype: str) -> float | None:
    """FLOP/s of one device in a large product of `dtype`, all of this process's at work together.

    None where this process has none of them. Measured once in a process, in about 0.1 s; frees its
    memory before it returns. A theoretical peak assumes a clock that no device holds under load.
    """
    local = tuple(device for device in devices if device.process_index == jax.process_index())
    if not local:
        return None
    return matmul_flops(local, dtype, CPU_WIDTH if local[0].platform == "cpu" else WIDTH)


@cache
def matmul_flops(devices: tuple[jax.Device, ...], dtype: str, width: int) -> float:
    """FLOP/s of one device in a product of two `width` x `width` matrices: the best of a few runs.

    At JAX's default precision, as a model's own products are.
    """
    mesh = Mesh(np.asarray(devices, dtype=object), (_AXIS,), axis_types=(AxisType.Explicit,))
    seconds: list[float] = []
    with jax.set_mesh(mesh):  # the run's own mesh is set again afterwards
        matrices = _random_matrices(len(devices), width, dtype)
        program = _powers.lower(matrices).compile(compiler_options={**compiler_options(mesh)})
        jax.block_until_ready(program(matrices))  # the first run also loads the program
        while len(seconds) < _TIMED_RUNS and sum(seconds) < _BUDGET_S:
            start = time.perf_counter()
            jax.block_until_ready(program(matrices))
            seconds.append(time.perf_counter() - start)
    return 2.0 * width**3 * _PRODUCTS / min(seconds)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _random_matrices(count: int, width: int, dtype: str) -> Float[Array, "P N N"]:
    # Random enough: a device that multiplies zeros draws less power and is faster than in a model.
    # Their powers keep their size. Drawing each number would take longer to compile than the rest.
    rows, columns = 30 * np.random.default_rng(0).standard_normal((2, width), np.float32)
    one = jnp.cos(jnp.outer(rows, columns)) * np.float32((2 / width) ** 0.5)
    out_sharding = PartitionSpec(_AXIS)
    return jnp.broadcast_to(one.astype(dtype), (count, width, width), out_sharding=out_sharding)


@jax.jit
def _powers(x: Float[Array, "P N N"]) -> Float[Array, "P N N"]:
    """Each product feeds the next, so that none can be left out."""
    return jax.lax.fori_loop(0, _PRODUCTS, lambda _, left: left @ x, x)
