"""What the data did up to a step: stage, shares, epochs and counts of every component."""

import os
from typing import Any

import tensorstore as ts

from chomp.data import TrainLoader
from chomp.errors import require
from chomp.tracking import metrics

_EVERY_VARIABLE = "LEVANTER_LOG_TENSORSTORE_METRICS_EVERY"


def data_metrics(loader: TrainLoader, step: int) -> dict[str, Any]:
    """The mixture once a step (0-based) is completed; counts are what was served, exactly."""
    dataset, last = loader.dataset, loader.batches.examples_before(step + 1) - 1
    mixture = dataset.mixture
    row: dict[str, Any] = {
        metrics.MIXTURE_STAGE: mixture.stage_at(last),
        metrics.PACKING_MODE: dataset.config.packing_mode,
    }
    if (utilization := loader.utilization(step)) is not None:
        row[metrics.PACKING_UTILIZATION] = utilization
    for name, weight in mixture.weights_at(last).items():
        row[metrics.name_from(metrics.MIXTURE_WEIGHT, name)] = weight
    for name, count in zip(mixture.names, mixture.counts_before(last + 1), strict=True):
        row[metrics.name_from(metrics.MIXTURE_EXAMPLES, name)] = count
        row[metrics.name_from(metrics.MIXTURE_TOKENS, name)] = count * dataset.seq_len
    for name, epochs in dataset.epochs(last + 1).items():
        row[metrics.name_from(metrics.MIXTURE_EPOCH, name)] = epochs
    return row


class TensorStoreCounters:
    """TensorStore's own counters, every n steps, as an environment variable asks for.

    Reads of chunks that were checked before go past TensorStore and are not among them.
    """

    def __init__(self) -> None:
        text = os.environ.get(_EVERY_VARIABLE) or "0"
        require(
            text.isdecimal(),
            f"{_EVERY_VARIABLE}={text}",
            allowed="a number of steps, or nothing",
            fix=f"set {_EVERY_VARIABLE}=100, or unset it",
        )
        self._every = int(text)
        self._periods = 0

    def metrics(self, step: int) -> dict[str, float]:
        """The counters, if a period has ended since the last row that carried them."""
        if not self._every or (step + 1) // self._every == self._periods:
            return {}
        self._periods = (step + 1) // self._every
        found: dict[str, float] = {}
        for metric in ts.experimental_collect_matching_metrics("/tensorstore/"):
            name = metric["name"].removeprefix("/tensorstore/")
            for value in metric["values"]:
                if isinstance(number := value.get("value", value.get("count")), int | float):
                    key = metrics.name_from(metrics.TENSORSTORE, name)
                    found[key] = found.get(key, 0.0) + number
        return found
