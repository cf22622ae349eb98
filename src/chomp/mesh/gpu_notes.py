"""What a GeForce RTX 50xx needs of the environment before JAX looks for its devices.

XLA's own matrix products (Triton GEMM) have ended with CUDA_ERROR_OUT_OF_MEMORY on an RTX 5090.
`compiler_options` leaves them out of train steps; the flag set here covers every other program.
Other GPUs are left alone.
"""

import logging
import os
import re
import subprocess
from collections.abc import MutableMapping

TRITON_GEMM_OFF = "--xla_gpu_enable_triton_gemm=false"
_TRITON_GEMM = re.compile(r"(?<!\S)--xla_gpu_enable_triton_gemm(=\S*)?(?!\S)")
_PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
# 5000 to 5099. A workstation card of an older generation is called RTX 5000, too.
_RTX_50 = re.compile(r"\bRTX 50\d\d(?!\d)")
_RTX_5000 = re.compile(r"\bRTX 5000(?!\d)")
# A driver that hangs must not hold up the run.
_TIMEOUT_S = 2.0

log = logging.getLogger(__name__)


def prepare_gpu(environ: MutableMapping[str, str] | None = None) -> bool:
    """Whether this machine has an RTX 50xx; XLA_FLAGS then leave Triton GEMM out.

    Changes `environ` (default: that of this process), so it is to be called before JAX looks for
    devices. A value that XLA_FLAGS already have for that flag stands: it is the way to forbid this.
    """
    environ = os.environ if environ is None else environ
    # Asking the driver takes a fraction of a second, which a run on CPU need not spend.
    if environ.get("JAX_PLATFORMS", "").split(",")[0] == "cpu":
        return False
    found = next(filter(is_rtx_50, gpu_names()), None)
    if found is None:
        log.debug("no RTX 50xx here: XLA_FLAGS stay as they are")
        return False
    _leave_out_triton_gemm(environ, found)
    if environ.get(_PREALLOCATE, "").lower() not in ("false", "0"):
        log.warning(
            "%s here, and JAX will take three quarters of its memory at once; set %s=false to let "
            "it take what it needs",
            found,
            _PREALLOCATE,
        )
    return True


def gpu_names() -> list[str]:
    """Names of this machine's NVIDIA GPUs, by `nvidia-smi`; none where that does not answer."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            check=True,
            encoding="utf-8",
            errors="replace",
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError) as error:
        log.debug("nvidia-smi named no GPU: %s", error)
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def is_rtx_50(name: str) -> bool:
    """Whether a GPU of that name is a GeForce RTX 50xx (consumer Blackwell)."""
    if _RTX_5000.search(name):
        return "GeForce" in name
    return _RTX_50.search(name) is not None


def _leave_out_triton_gemm(environ: MutableMapping[str, str], name: str) -> None:
    flags = environ.get("XLA_FLAGS", "")
    if TRITON_GEMM_OFF in flags.split():
        return
    if _TRITON_GEMM.search(flags):
        log.warning("%s here; XLA_FLAGS=%r stands, though Triton GEMM may fail on it", name, flags)
        return
    environ["XLA_FLAGS"] = f"{flags} {TRITON_GEMM_OFF}".strip()
    log.warning(
        "%s here: added %s to XLA_FLAGS, since Triton GEMM has run out of memory on it; "
        "to keep it, set XLA_FLAGS=--xla_gpu_enable_triton_gemm=true",
        name,
        TRITON_GEMM_OFF,
    )
