"""Speed of a run from the loop's clock and the model's analytic operations.

It is held against two ceilings, both of the dtype the run computes in: the device's theoretical
peak (`throughput/mfu`), and what a large matrix product reached on it
(`throughput/mfu_of_measured`). Where one is not known, its metrics are absent.
"""

import logging
from collections import deque
from collections.abc import Mapping

import numpy as np

from chomp.data import TrainLoader
from chomp.tracking.metrics import (
    CHECKPOINT_TIME,
    COMPILE_TIME,
    DEVICE_KIND,
    DURATION,
    EXAMPLES_PER_SECOND,
    FIRST_STEP_COMPILE_TIME_S,
    FLOPS_PER_EXAMPLE,
    FLOPS_PER_EXAMPLE_ANALYTIC,
    FLOPS_PER_TOKEN_ANALYTIC,
    GFLOPS_PER_SECOND,
    HOOK_TIME,
    LOADING_TIME,
    MEAN_MFU,
    MEASURED_FLOPS_PER_DEVICE,
    MFU,
    MFU_OF_MEASURED,
    P10_MFU,
    P50_MFU,
    P90_MFU,
    PARAMETER_COUNT,
    THEORETICAL_FLOPS,
    THEORETICAL_FLOPS_PER_DEVICE,
    TOKENS_PER_SEC,
    TOKENS_PER_SECOND,
    TOKENS_PER_SECOND_WALL,
    TOTAL_GFLOPS,
    TOTAL_TOKENS,
)
from chomp.training.clock import LoopClock, Phase
from chomp.training.device_peak import DevicePeak, device_peak

# Rows that the closing percentiles look back on: enough that one slow row is no tenth of them,
# few enough that they tell of the run as it ended.
_ROLLING_ROWS = 500

log = logging.getLogger(__name__)


class Throughput:
    """Throughput metrics of the steps between two logged rows."""

    def __init__(
        self,
        clock: LoopClock,
        loader: TrainLoader,
        *,
        start_step: int,
        flops_per_token: float,
        compute_dtype: str | None = None,
        measured_flops_per_device: float | None = None,
        parameter_count: int | None = None,
    ) -> None:
        """`compute_dtype` as in `Precision.compute`; without it there is no peak to compare with.

        `measured_flops_per_device` is what `chomp.training.matmul_ceiling` found, if it was asked.
        """
        self._clock = clock
        self._batches = loader.batches
        self._seq_len = loader.dataset.seq_len
        # Forward plus twice that for the backward pass.
        self._flops_per_example = 3.0 * self._seq_len * flops_per_token
        self._last_step = start_step - 1
        self._is_first_row = True
        self._device_kind = loader.mesh.devices.flat[0].device_kind
        self._num_devices = loader.mesh.devices.size
        self._peak = _peak(self._device_kind, compute_dtype)
        self._measured = measured_flops_per_device
        self._parameter_count = parameter_count
        self._mfu: deque[float] = deque(maxlen=_ROLLING_ROWS)
        if self._peak.flops is None:
            log.info("no %s and no throughput/theoretical_*: %s", MFU, self._peak.reason)

    def summary(self) -> dict[str, float | str]:
        """Constants of the run and its devices; those that are not known are left out."""
        known: dict[str, float | str | None] = {
            FLOPS_PER_TOKEN_ANALYTIC: self._flops_per_example / (3 * self._seq_len),
            FLOPS_PER_EXAMPLE_ANALYTIC: self._flops_per_example,
            FLOPS_PER_EXAMPLE: self._flops_per_example,
            DEVICE_KIND: self._device_kind,
            THEORETICAL_FLOPS_PER_DEVICE: self._peak.flops,
            THEORETICAL_FLOPS: self._of_all_devices(self._peak.flops),
            MEASURED_FLOPS_PER_DEVICE: self._measured,
            PARAMETER_COUNT: self._parameter_count,
        }
        return {name: value for name, value in known.items() if value is not None}

    def metrics(self, step: int, trained_tokens: int) -> dict[str, float]:
        """Metrics of the steps since the last call; `step` is the 0-based one just completed."""
        seconds = self._clock.read()
        steps = step - self._last_step
        duration = max(seconds["step"] / steps, 1e-9)
        total_examples = self._batches.examples_before(step + 1)
        examples = total_examples - self._batches.examples_before(self._last_step + 1)
        examples_per_second = examples / steps / duration
        self._last_step = step
        # Everything counts here, compiling too: what a researcher waits for.
        wall = max(sum(seconds.values()), 1e-9)
        metrics = {
            DURATION: duration,
            EXAMPLES_PER_SECOND: examples_per_second,
            TOKENS_PER_SECOND: examples_per_second * self._seq_len,
            TOKENS_PER_SECOND_WALL: examples * self._seq_len / wall,
            TOTAL_TOKENS: float(total_examples * self._seq_len),
            TOTAL_GFLOPS: total_examples * self._flops_per_example / 1e9,
            TOKENS_PER_SEC: trained_tokens / duration / steps,
            **self._flops_metrics(examples_per_second * self._flops_per_example),
            **_phase_metrics(seconds),
        }
        if self._is_first_row:
            metrics[FIRST_STEP_COMPILE_TIME_S] = seconds["compile"]
        self._is_first_row = False
        return metrics

    def closing_summary(self) -> dict[str, float]:
        """Percentiles and mean of the last 500 rows' MFU; empty where no row had one."""
        if not self._mfu:
            return {}
        rows = np.asarray(self._mfu)
        low, middle, high = (float(value) for value in np.percentile(rows, (10, 50, 90)))
        return {
            P10_MFU: low,
            P50_MFU: middle,
            P90_MFU: high,
            MEAN_MFU: float(rows.mean()),
        }

    def _flops_metrics(self, flops_per_second: float) -> dict[str, float]:
        """The model's operations per second, and in percent of each ceiling that is known."""
        metrics = {GFLOPS_PER_SECOND: flops_per_second / 1e9}
        for name, ceiling in (
            (MFU, self._peak.flops),
            (MFU_OF_MEASURED, self._measured),
        ):
            of_all = self._of_all_devices(ceiling)
            if of_all is not None:
                metrics[name] = 100.0 * flops_per_second / of_all
        if MFU in metrics:
            self._mfu.append(metrics[MFU])
        return metrics

    def _of_all_devices(self, per_device: float | None) -> float | None:
        return None if per_device is None else per_device * self._num_devices


def _peak(device_kind: str, compute_dtype: str | None) -> DevicePeak:
    if compute_dtype is None:
        return DevicePeak(None, "the run did not say in which dtype it computes")
    return device_peak(device_kind, compute_dtype)


def _phase_metrics(seconds: Mapping[Phase, float]) -> dict[str, float]:
    return {
        LOADING_TIME: seconds["loading"],
        HOOK_TIME: seconds["hook"],
        CHECKPOINT_TIME: seconds["checkpoint"],
        COMPILE_TIME: seconds["compile"],
    }
