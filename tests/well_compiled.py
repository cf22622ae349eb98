"""Programs compiled as in real runs, where what a test says depends on it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

# XLA's older way to write a fused loop: loss and gradient of moe compile in 1.5 s in place of 3.3,
# with the same loss to the bit (two cores, November 2026). XLA reads it before its first program.
QUICK_FUSIONS = "--xla_cpu_use_fusion_emitters=false"


@contextmanager
def well_compiled() -> Iterator[None]:
    """With the compiler's optimizations, which `tests.conftest` turns off on a CPU.

    How fused loops are written is a matter of the process, and stays as it is.
    """
    import jax  # not before `tests.conftest` has set what JAX reads when it is imported

    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def well_compiled_environment() -> dict[str, str]:
    """This process's variables, for one that writes fused loops as real runs do."""
    flags = os.environ.get("XLA_FLAGS", "").replace(QUICK_FUSIONS, "").strip()
    return {**os.environ, "XLA_FLAGS": flags}
