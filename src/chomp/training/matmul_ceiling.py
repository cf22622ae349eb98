"""How fast the run's devices really multiply matrices: a ceiling that was measured, not printed.

A device's theoretical peak assumes a clock it does not hold under load. What one large product
reaches here and now is what a model can be compared with, and shows a device that is slow today.
"""

import time
from collections.abc import Callable, Sequence
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec
from jaxtyping import Array, Float

from chomp.mesh import compiler_options

# Axes: P devices of this process, N rows and columns of a square matrix.

# Wide enough that a product is bound by arithmetic: 1.1 TFLOP from 400 MB of bfloat16.
WIDTH = 8192
# Of cores: there 512, 1024 and 1536 reach the same within 5 % (two cores, November 2026).
CPU_WIDTH = 512
# In one program, so that the time of starting it does not count.
_PRODUCTS = 8
_TIMED_RUNS = 3
# After it no further run is begun: a slow device has told enough.
_BUDGET_S = 0.1
_AXIS = "measured"


def measured_flops_per_device(devices: Sequence[jax.Device], dtype: str) -> float | None:
    """FLOP/s of one device in a large product of `dtype`, all of this process's at work together.

    None where this process has none of them. Measured once in a process, in a tenth of a second on
    cores too. Frees its memory before it returns.
    """
    here = tuple(device for device in devices if device.process_index == jax.process_index())
    return _measured_once(here, dtype) if here else None


@cache
def _measured_once(devices: tuple[jax.Device, ...], dtype: str) -> float:
    is_cpu = devices[0].platform == "cpu"
    return matmul_flops(devices, dtype, width=CPU_WIDTH if is_cpu else WIDTH)


def matmul_flops(devices: Sequence[jax.Device], dtype: str, *, width: int) -> float:
    """FLOP/s of one device in a product of two `width` x `width` matrices: the best of a few runs.

    At JAX's default precision, as a model's own products are.
    """
    mesh = Mesh(np.asarray(devices, dtype=object), (_AXIS,), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):  # the run's own mesh is set again afterwards
        matrices = _matrices(len(devices), width, dtype)
        program = _products.lower(matrices).compile(compiler_options={**compiler_options(mesh)})
        seconds = _best_seconds(lambda: program(matrices))
    return 2.0 * width**3 * _PRODUCTS / seconds


@partial(jax.jit, static_argnums=(0, 1, 2))
def _matrices(count: int, width: int, dtype: str) -> Float[Array, "P N N"]:
    # As good as random: a device draws less power for zeros, and then is faster than it ever will
    # be. Their powers have numbers of the same size. Drawing each number would take longer to
    # compile than all the rest.
    rows, columns = 30 * np.random.default_rng(0).standard_normal((2, width), np.float32)
    one = jnp.cos(jnp.outer(rows, columns)) * np.float32((2 / width) ** 0.5)
    out_sharding = PartitionSpec(_AXIS)
    return jnp.broadcast_to(one.astype(dtype), (count, width, width), out_sharding=out_sharding)


@jax.jit
def _products(x: Float[Array, "P N N"]) -> Float[Array, "P N N"]:
    """Powers of `x`: each product feeds the next, so that none can be left out."""
    return jax.lax.fori_loop(0, _PRODUCTS, lambda _, left: left @ x, x)


def _best_seconds(run: Callable[[], Array]) -> float:
    jax.block_until_ready(run())  # the first one also loads the program
    seconds: list[float] = []
    while len(seconds) < _TIMED_RUNS and sum(seconds) < _BUDGET_S:
        start = time.perf_counter()
        jax.block_until_ready(run())
        seconds.append(time.perf_counter() - start)
    return min(seconds)
