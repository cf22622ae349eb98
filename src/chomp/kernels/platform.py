"""Which kind of device a program is traced for: what a static choice of kernel goes by."""

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
