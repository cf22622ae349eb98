"""Programs that run once, compiled quickly rather than well."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

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
