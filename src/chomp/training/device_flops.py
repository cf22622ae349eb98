"""How fast a device can be: by its maker's figures, and by a matrix product measured here and now.

Both are for the dtype a run computes in. A device or dtype that is not in the table has no
theoretical peak, and a run on it no MFU: a guess would be read as a measurement.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec
from jaxtyping import Array, Float

from chomp.mesh import compiler_options

# Axes: P devices of this process, N rows and columns of a square matrix.

# FLOP/s by dtype, at JAX's default precision; a dtype that is absent has no figure.
Figures: TypeAlias = dict[str, float]

# Wide enough that arithmetic is the limit: 1.1 TFLOP from 400 MB of bfloat16. On cores, widths of
# 512, 1024 and 1536 reach the same within 5 % (two cores, November 2026).
WIDTH = 8192
CPU_WIDTH = 512
_PRODUCTS = 8  # in one program, so that the time of starting it does not count
_TIMED_RUNS = 3
_BUDGET_S = 0.1  # no run is started after it
_AXIS = "measured"


@dataclass(frozen=True)
class DevicePeak:
    """The peak of one device in FLOP/s, or None and the reason why there is none."""

    flops: float | None
    reason: str = ""


def _tensor_cores(half: float, tf32: float) -> Figures:
    # JAX's default precision multiplies float32 in TF32 where there are tensor cores for it.
    return {"bfloat16": half, "float16": half, "float32": tf32}


def _without_bfloat16(half: float, single: float) -> Figures:
    # Volta and Turing emulate bfloat16, so a peak of it would mean nothing; they have no TF32.
    return {"float16": half, "float32": single}


def _tpu(bfloat16: float) -> Figures:
    # Float32 takes one to six passes of bfloat16, depending on the precision asked for.
    return {"bfloat16": bfloat16}


# The first pattern that is found in a device kind counts, so narrow ones stand above wide ones.
# NVIDIA: data sheets and architecture white papers. They print most figures with the sparsity
# that a dense product does not have, so those are halved here; the L4's 242 is such a figure, too.
# GeForce: with float32 accumulation, which XLA asks for. TPU: Google's system architecture pages;
# v2, v3 and 7x have two JAX devices on a chip.
_TABLE: tuple[tuple[str, Figures], ...] = (
    (r"\bGB200\b", _tensor_cores(2500e12, 1250e12)),
    (r"\bB200\b", _tensor_cores(2250e12, 1100e12)),
    (r"\bGB10\b", {"bfloat16": 100e12, "float16": 100e12}),
    (r"\bH[12]00 NVL\b", _tensor_cores(835.5e12, 417.5e12)),
    (r"\bH100 PCIe\b", _tensor_cores(756.5e12, 378e12)),
    (r"\b(G?H200|H100|H800)\b", _tensor_cores(989.5e12, 494.7e12)),
    (r"\bA[18]00\b", _tensor_cores(312e12, 156e12)),
    # Amazon's A10G has fewer tensor operations than the A10: 70 by its own data sheet.
    (r"\bA10G\b", _tensor_cores(70e12, 35e12)),
    (r"\bA10\b", _tensor_cores(125e12, 62.5e12)),
    (r"\bL40S\b", _tensor_cores(366.5e12, 183e12)),
    (r"\bL4\b", _tensor_cores(121e12, 60e12)),
    (r"\bRTX 5090\b", _tensor_cores(209.5e12, 104.8e12)),
    (r"\bRTX 4090\b", _tensor_cores(165.2e12, 82.6e12)),
    (r"\bRTX 3090\b", _tensor_cores(71e12, 35.6e12)),
    (r"\bV100-SXM", _without_bfloat16(125e12, 15.7e12)),
    (r"\bV100\b", _without_bfloat16(112e12, 14e12)),
    (r"\bT4\b", _without_bfloat16(65e12, 8.1e12)),
    (r"\bTPU ?7x\b", _tpu(1153.5e12)),
    (r"\bTPU v6( lite|e)\b", _tpu(918e12)),
    (r"\bTPU v5( lite|e)\b", _tpu(197e12)),
    (r"\bTPU v5p?\b", _tpu(459e12)),
    (r"\bTPU v4$", _tpu(275e12)),
    (r"\bTPU v3\b", _tpu(61.5e12)),
    (r"\bTPU v2\b", _tpu(23e12)),
)


def device_peak(device_kind: str, dtype: str) -> DevicePeak:
    """The peak of a device in FLOP/s for matrix products of `dtype`, such as "bfloat16".

    `device_kind` is JAX's name for it (`jax.Device.device_kind`): "NVIDIA H200", "TPU v5 lite".
    """
    figures = next((row for pattern, row in _TABLE if re.search(pattern, device_kind)), None)
    if figures is None:
        return DevicePeak(None, f"no theoretical peak is known for the device {device_kind!r}")
    if dtype not in figures:
        known = ", ".join(sorted(figures))
        reason = f"{device_kind!r} has no theoretical peak for {dtype}, only for {known}"
        return DevicePeak(None, reason)
    return DevicePeak(figures[dtype])


def measured_flops_per_device(devices: Sequence[jax.Device], dtype: str) -> float | None:
    """FLOP/s of one device in a large product of `dtype`, all of this process's at work together.

    None where this process has none of them. Measured once in a process, in about 0.1 s; frees its
    memory before it returns. A theoretical peak assumes a clock that no device holds under load.
    """
    local = tuple(device for device in devices if device.process_index == jax.process_index())
    return _measure_once(local, dtype) if local else None


@cache
def _measure_once(devices: tuple[jax.Device, ...], dtype: str) -> float:
    is_cpu = devices[0].platform == "cpu"
    return matmul_flops(devices, dtype, width=CPU_WIDTH if is_cpu else WIDTH)


def matmul_flops(devices: Sequence[jax.Device], dtype: str, *, width: int) -> float:
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
