"""What XLA is asked for beside the program: settings that cost nothing and save something."""

from jax.sharding import Mesh


def compiler_options(mesh: Mesh) -> dict[str, bool]:
    """Options for `lowered.compile(compiler_options=...)` of a program on this mesh's devices."""
    if mesh.devices.flat[0].platform != "gpu":
        return {}
    # XLA's own matrix products are tried against cuBLAS's for every shape, which took half of the
    # time to the first step and won nothing: 18.2 against 11.6 s, 327.5 and 326.2 ms a step (1B on
    # an H200, November 2026).
    return {"xla_gpu_enable_triton_gemm": False}
