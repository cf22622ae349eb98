"""Programs compiled as in real runs, where what a test says depends on it."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax


@contextmanager
def well_compiled() -> Iterator[None]:
    """With all of the compiler's optimizations, which `tests.conftest` turns off on a CPU."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)
