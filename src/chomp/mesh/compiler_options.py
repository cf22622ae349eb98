"""What XLA is asked for beside the program: settings of the training step, by device."""

from jax.sharding import Mesh


def compiler_options(mesh: Mesh, *, is_reproducible: bool = False) -> dict[str, str | bool]:
    """Options for `lowered.compile(compiler_options=...)` of a program on this mesh's devices.

    `is_reproducible`: two runs on such devices give the same bits. On a CPU they do anyway.
    """
    if mesh.devices.flat[0].platform != "gpu":
        return {}
    # XLA's own matrix products are tried against cuBLAS's for every shape, which took half of the
    # time to the first step and won nothing: 18.2 against 11.6 s, 327.5 and 326.2 ms a step (1B on
    # an H200, November 2026).
    options: dict[str, str | bool] = {"xla_gpu_enable_triton_gemm": False}
    if is_reproducible:
        # No sums in whatever order threads arrive, and no choice of algorithm by a stopwatch. The
        # attention kernel has to fit (`training.with_sums_in_one_order`): cuDNN's fails under this.
        options["xla_gpu_deterministic_ops"] = True
    return options
