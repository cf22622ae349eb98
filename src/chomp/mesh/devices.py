"""Settings of this process and of XLA that the devices of this machine need or profit from."""

import ctypes
import logging
import os
import re
import subprocess
from collections.abc import MutableMapping
from importlib.metadata import entry_points
from importlib.util import find_spec

import jax
from jax.sharding import Mesh

from chomp.mesh.distributed import join_processes

# XLA's own matrix products (Triton GEMM) have ended with CUDA_ERROR_OUT_OF_MEMORY on an RTX 5090.
# `compiler_options` leaves them out of train steps; this flag covers every other program.
TRITON_GEMM_OFF = "--xla_gpu_enable_triton_gemm=false"
_TRITON_GEMM = re.compile(r"(?<!\S)--xla_gpu_enable_triton_gemm(=\S*)?(?!\S)")
_PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
# Consumer Blackwell, 5000 to 5099. Workstation cards of other generations are called RTX 5000, too.
RTX_50 = re.compile(r"GeForce RTX 50\d\d(?!\d)|\bRTX 50(?!00)\d\d(?!\d)")

# Of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_LARGEST_INT = 2**31 - 1

log = logging.getLogger(__name__)


def prepare_devices() -> None:
    """Everything to be done before JAX looks for its devices; a run calls this first of all."""
    prepare_gpu()
    prepare_cpu_steps()
    join_processes()


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


def prepare_cpu_steps() -> None:
    """Make steps on CPU devices synchronous, and let the process keep the memory of a step.

    XLA allocates a step's memory anew each time. By default malloc gives it back to the system, and
    the next step waits for every page: 970 ms a step against 810 (256 wide, four layers, 4096
    tokens, two cores, November 2026). The price: the process stays as large as its largest step.
    Call it before JAX looks for its devices, whose threads keep the settings they start with.
    No-op where JAX may use other devices.
    """
    platforms = jax.config.values["jax_platforms"]
    has_others = entry_points(group="jax_plugins") or find_spec("libtpu") is not None
    if str(platforms).split(",")[0] != "cpu" if platforms else has_others:
        return
    # A step takes every core anyway, and its time would be measured as part of the next one's.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        log.info("malloc is not glibc's here: the memory of a step is freed when it ends")
        return
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, _LARGEST_INT)


def prepare_gpu(environ: MutableMapping[str, str] | None = None) -> bool:
    """Turn Triton GEMM off in XLA_FLAGS if this machine has an RTX 50xx; returns whether it has.

    Changes `environ` (default: that of this process), so call it before JAX looks for devices. A
    value that XLA_FLAGS already have for that flag is kept, which is how to prevent the change.
    """
    environ = os.environ if environ is None else environ
    # Asking the driver takes a fraction of a second, which a run on CPU need not spend.
    if environ.get("JAX_PLATFORMS", "").split(",")[0] == "cpu":
        return False
    found = next(filter(RTX_50.search, gpu_names()), None)
    if found is None:
        log.debug("no RTX 50xx here: XLA_FLAGS stay as they are")
        return False
    flags = environ.get("XLA_FLAGS", "")
    is_set = _TRITON_GEMM.search(flags) is not None
    if is_set and TRITON_GEMM_OFF not in flags.split():
        log.warning("%s here; keeping XLA_FLAGS=%r, though Triton GEMM may fail", found, flags)
    if not is_set:
        environ["XLA_FLAGS"] = f"{flags} {TRITON_GEMM_OFF}".strip()
        log.warning(
            "%s here: added %s to XLA_FLAGS, since Triton GEMM has run out of memory on it; to "
            "keep it, set XLA_FLAGS=--xla_gpu_enable_triton_gemm=true",
            *(found, TRITON_GEMM_OFF),
        )
    if environ.get(_PREALLOCATE, "").lower() not in ("false", "0"):
        log.warning(
            "%s here, and JAX will take three quarters of its memory at once; set %s=false to let "
            "it take what it needs",
            *(found, _PREALLOCATE),
        )
    return True


def gpu_names() -> list[str]:
    """Names of this machine's NVIDIA GPUs, by `nvidia-smi`; none where that does not answer."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        # A driver that hangs must not hold up the run.
        done = subprocess.run(command, capture_output=True, check=True, text=True, timeout=2.0)
    except (OSError, UnicodeError, subprocess.SubprocessError) as error:
        log.debug("nvidia-smi named no GPU: %s", error)
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]
