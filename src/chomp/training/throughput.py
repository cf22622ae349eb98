"""Speed of a run from the loop's clock and the model's analytic operations.

It is compared with two ceilings, both for the dtype the run computes in: the device's theoretical
peak (`throughput/mfu`), and what a large matrix product reached on it
(`throughput/mfu_of_measured`). Where a ceiling is not known, its metrics are absent.
"""

import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from chomp.data import TrainLoader
from chomp.tracking import metrics
from chomp.training.device_flops import device_peak

# Closing percentiles look back on this many rows: a slow row is no tenth of them, and they still
# show the run as it ended.
_ROLLING_ROWS = 500

log = logging.getLogger(__name__)


class Throughput:
    """Throughput metrics of the steps between two logged rows."""

    def __init__(
        self,
        loader: TrainLoader,
        *,
        start_step: int,
        flops_per_token: float,
        compute_dtype: str,
        measured_flops_per_device: float | None,
        parameter_count: int,
    ) -> None:
        """`measured_flops_per_device` is what `device_flops` found, if it could be measured."""
        devices = loader.mesh.devices.flatten().tolist()
        self._batches = loader.batches
        self._seq_len = loader.dataset.seq_len
        self._flops_per_token = flops_per_token
        # The backward pass takes twice the forward pass.
        self._flops_per_example = 3.0 * self._seq_len * flops_per_token
        self._parameter_count = parameter_count
        self._last_step = start_step - 1
        self._is_first_row = True
        self._num_devices = len(devices)
        self._device_kind = devices[0].device_kind
        peak = device_peak(self._device_kind, compute_dtype)
        if peak.flops is None:
            log.info("no %s and no throughput/theoretical_*: %s", metrics.MFU, peak.reason)
        self._peak = peak.flops  # per device, as is the next
        self._measured = measured_flops_per_device
        self._mfu: deque[float] = deque(maxlen=_ROLLING_ROWS)

    def summary(self) -> dict[str, float | str]:
        """Constants of the run and its devices; unknown ones are left out."""
        values: dict[str, float | str | None] = {
            metrics.FLOPS_PER_TOKEN_ANALYTIC: self._flops_per_token,
            metrics.FLOPS_PER_EXAMPLE_ANALYTIC: self._flops_per_example,
            metrics.FLOPS_PER_EXAMPLE: self._flops_per_example,
            metrics.DEVICE_KIND: self._device_kind,
            metrics.THEORETICAL_FLOPS_PER_DEVICE: self._peak,
            metrics.THEORETICAL_FLOPS: self._peak and self._peak * self._num_devices,
            metrics.MEASURED_FLOPS_PER_DEVICE: self._measured,
            metrics.PARAMETER_COUNT: self._parameter_count,
        }
        return {name: value for name, value in values.items() if value is not None}

    def metrics(
        self, step: int, trained_tokens: int, seconds: Mapping[Any, float]
    ) -> dict[str, float]:
        """Metrics of the steps since the last call, up to the 0-based `step`.

        `seconds` by phase are those since the last call too, from `LoopClock.read`.
        """
        steps = step - self._last_step
        duration = max(seconds["step"] / steps, 1e-9)
        total_examples = self._batches.examples_before(step + 1)
        examples = total_examples - self._batches.examples_before(self._last_step + 1)
        examples_per_second = examples / steps / duration
        flops_per_second = examples_per_second * self._flops_per_example
        self._last_step = step
        # Wall-clock time counts everything, compiling too: what a researcher waits for.
        wall = max(sum(seconds.values()), 1e-9)
        row = {
            metrics.DURATION: duration,
            metrics.EXAMPLES_PER_SECOND: examples_per_second,
            metrics.TOKENS_PER_SECOND: examples_per_second * self._seq_len,
            metrics.TOKENS_PER_SECOND_WALL: examples * self._seq_len / wall,
            metrics.TOTAL_TOKENS: float(total_examples * self._seq_len),
            metrics.TOTAL_GFLOPS: total_examples * self._flops_per_example / 1e9,
            metrics.TOKENS_PER_SEC: trained_tokens / duration / steps,
            metrics.GFLOPS_PER_SECOND: flops_per_second / 1e9,
            metrics.LOADING_TIME: seconds["loading"],
            metrics.HOOK_TIME: seconds["hook"],
            metrics.CHECKPOINT_TIME: seconds["checkpoint"],
            metrics.COMPILE_TIME: seconds["compile"],
        }
        if self._peak is not None:
            row[metrics.MFU] = 100.0 * flops_per_second / (self._peak * self._num_devices)
            self._mfu.append(row[metrics.MFU])
        if self._measured is not None:
            ceiling = self._measured * self._num_devices
            row[metrics.MFU_OF_MEASURED] = 100.0 * flops_per_second / ceiling
        if self._is_first_row:
            row[metrics.FIRST_STEP_COMPILE_TIME_S] = seconds["compile"]
        self._is_first_row = False
        return row

    def closing_summary(self) -> dict[str, float]:
        """Percentiles and mean of the last 500 rows' MFU; empty where no row had one."""
        if not self._mfu:
            return {}
        rows = np.asarray(self._mfu)
        p10, p50, p90 = (float(value) for value in np.percentile(rows, (10, 50, 90)))
        return {
            metrics.P10_MFU: p10,
            metrics.P50_MFU: p50,
            metrics.P90_MFU: p90,
            metrics.MEAN_MFU: float(rows.mean()),
        }
