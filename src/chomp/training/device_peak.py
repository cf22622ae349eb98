"""How fast a device could be by its maker's figures, for the dtype a run computes in.

Figures are of dense matrix products, per device as JAX counts them. A device or dtype that is not
in the table has no peak here, and so a run on it no MFU: a guess would be read as a measurement.
"""

import re
from dataclasses import dataclass
from typing import TypeAlias

# FLOP/s by dtype, at JAX's default precision; a dtype that is absent has no figure.
Figures: TypeAlias = dict[str, float]


@dataclass(frozen=True)
class DevicePeak:
    """The peak of one device in FLOP/s, or None and the reason why there is none."""

    flops: float | None
    reason: str = ""


def _tensor_cores(half: float, tf32: float) -> Figures:
    # JAX's default precision multiplies float32 in TF32 where there are tensor cores for it.
    return {"bfloat16": half, "float16": half, "float32": tf32}


def _without_bfloat16(half: float, single: float) -> Figures:
    # Volta and Turing: bfloat16 is emulated, so a peak of it would mean nothing; no TF32 either.
    return {"float16": half, "float32": single}


def _tpu(bfloat16: float) -> Figures:
    # Float32 takes one to six passes of bfloat16, depending on the precision asked for.
    return {"bfloat16": bfloat16}


# The first pattern that is found in a device kind counts, so narrow ones stand above wide ones.
# NVIDIA: the data sheets and architecture white papers. They print most figures with the sparsity
# that a dense product does not have, so those are halved here; the L4's 242 is such a figure, too.
# GeForce: with float32 accumulation, which XLA asks for. TPU: Google's system architecture pages;
# v2, v3 and 7x have two JAX devices on a chip.
_TABLE: tuple[tuple[str, Figures], ...] = (
    (r"\bGB200\b", _tensor_cores(2500e12, 1250e12)),
    (r"\bB200\b", _tensor_cores(2250e12, 1100e12)),
    (r"\bGB10\b", {"bfloat16": 100e12, "float16": 100e12}),
    (r"\bH[12]00 NVL\b", _tensor_cores(835.5e12, 417.5e12)),
    (r"\bH100 PCIe\b", _tensor_cores(756.5e12, 378e12)),
    (r"\b(G?H200|H100|H800)\b", _tensor_cores(989.5e12, 494.7e12)),
    (r"\bA[18]00\b", _tensor_cores(312e12, 156e12)),
    # Amazon's A10G has fewer tensor operations than the A10: 70 by its own data sheet.
    (r"\bA10G\b", _tensor_cores(70e12, 35e12)),
    (r"\bA10\b", _tensor_cores(125e12, 62.5e12)),
    (r"\bL40S\b", _tensor_cores(366.5e12, 183e12)),
    (r"\bL4\b", _tensor_cores(121e12, 60e12)),
    (r"\bRTX 5090\b", _tensor_cores(209.5e12, 104.8e12)),
    (r"\bRTX 4090\b", _tensor_cores(165.2e12, 82.6e12)),
    (r"\bRTX 3090\b", _tensor_cores(71e12, 35.6e12)),
    (r"\bV100-SXM", _without_bfloat16(125e12, 15.7e12)),
    (r"\bV100\b", _without_bfloat16(112e12, 14e12)),
    (r"\bT4\b", _without_bfloat16(65e12, 8.1e12)),
    (r"\bTPU ?7x\b", _tpu(1153.5e12)),
    (r"\bTPU v6( lite|e)\b", _tpu(918e12)),
    (r"\bTPU v5( lite|e)\b", _tpu(197e12)),
    (r"\bTPU v5p?\b", _tpu(459e12)),
    (r"\bTPU v4$", _tpu(275e12)),
    (r"\bTPU v3\b", _tpu(61.5e12)),
    (r"\bTPU v2\b", _tpu(23e12)),
)


def device_peak(device_kind: str, dtype: str) -> DevicePeak:
    """The peak of a device in FLOP/s for matrix products of `dtype`, such as "bfloat16".

    `device_kind` is what JAX calls it (`jax.Device.device_kind`): "NVIDIA H200", "TPU v5 lite".
    """
    found = next((figures for pattern, figures in _TABLE if re.search(pattern, device_kind)), None)
    if found is None:
        return DevicePeak(None, f"no theoretical peak is known for the device {device_kind!r}")
    if dtype not in found:
        known = ", ".join(sorted(found))
        reason = f"{device_kind!r} has no theoretical peak for {dtype}, only for {known}"
        return DevicePeak(None, reason)
    return DevicePeak(found[dtype])
