"""The device a program is traced for, and a quick way to compile programs that run once."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jaxtyping import Array

# Compute capabilities of NVIDIA's generations.
AMPERE, HOPPER = (8, 0), (9, 0)


def platform_of(x: Array) -> str:
    """cpu, gpu or tpu: of the mesh `x` lies on; without one or its devices, JAX's default."""
    device = jax.typeof(x).sharding.mesh.abstract_device
    name = jax.default_backend() if device is None else device.platform
    return "gpu" if name in ("cuda", "rocm") else name


def compute_capability() -> tuple[int, int] | None:
    """Of the NVIDIA GPU in this machine, as (9, 0) for Hopper; None where there is none."""
    # An AMD GPU answers with its chip's name; no GPU at all is a program lowered for elsewhere.
    gpus = [device for device in jax.devices() if device.platform == "gpu"]
    numbers = str(getattr(gpus[0], "compute_capability", "")).split(".") if gpus else []
    if len(numbers) != 2 or not all(number.isdigit() for number in numbers):
        return None
    return int(numbers[0]), int(numbers[1])


# ---- Quick compilation --------------------------------------------------------------------------


Options = Mapping[str, Any]

# On a CPU the compiler is most of the time of a small program. Without its MLIR fusions and LLVM's
# passes, attention and loss with their references took 0.2 s in place of 0.9 (two cores, JAX 0.10,
# November 2026). On a GPU much of it is trying out algorithms for products that run once.
_QUICK: dict[str, tuple[Options, ...]] = {
    "cpu": ({"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False},),
    "gpu": ({"xla_gpu_enable_triton_gemm": False, "xla_gpu_autotune_level": 0},),
}
# These are XLA's own switches, which come and go with its versions.
_UNKNOWN = "No such compile option"


def quick_jit(
    function: Callable[..., Any], platform: str, *, options: Sequence[Options] | None = None
) -> Callable[..., Any]:
    """`function`, jitted with the quickest options that this version of XLA knows.

    `options` are tried in turn, by default those for the platform, and after them none at all.
    """
    found = _QUICK.get(platform, ()) if options is None else options
    programs = [jax.jit(function, compiler_options=dict(each)) for each in found]

    def run(*arguments: Any) -> Any:
        for program in programs:
            try:
                return program(*arguments)
            except jax.errors.JaxRuntimeError as error:
                if _UNKNOWN not in str(error):
                    raise
        return plain(*arguments)

    plain = jax.jit(function)
    return run
