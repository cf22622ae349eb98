"""The peer of the loader: the same stores through a plain Grain pipeline, row by row.

Each component is a random-access source that reads row i of the store's zarr3 array with
TensorStore; Grain shuffles, mixes, batches, and reads ahead with threads. It makes tokens and
segment ids, the two arrays that take reading; no loss weights, and nothing is put on a device.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import numpy as np
import tensorstore as ts
from jaxtyping import Int32

from chomp.errors import ConfigError

# Axes: T tokens of a row.

# Its best on two cores: 14.6 M tokens/s. With its own 16 threads and 500 elements ahead, which are
# batches here, it reaches 8. A cache of all chunks in memory did not make it faster (2026-11).
_THREADS, _BATCHES_AHEAD = 4, 16


def grain_package() -> Any:
    """The module `grain`, which only benchmarks need."""
    try:
        return import_module("grain")
    except ImportError as error:
        raise SystemExit(
            str(
                ConfigError(
                    "no package grain, which the loader is compared with",
                    allowed="an environment with the dependency group `bench`",
                    fix="run `uv run --group bench python -m benchmarks.data`",
                )
            )
        ) from error


class StoreRows:
    """The rows of a store as Grain asks for them: how many, and one by its number."""

    def __init__(self, path: str, seq_len: int) -> None:
        self._tokens = _opened(f"{path}/tokens/")
        # All of them in memory, which suits a store this small.
        self._ends = _opened(f"{path}/document_ends/").read().result()
        self._seq_len = seq_len

    def __len__(self) -> int:
        return int(self._tokens.shape[0]) // self._seq_len

    def __getitem__(self, row: int) -> dict[str, Int32[np.ndarray, " T"]]:
        start, stop = row * self._seq_len, (row + 1) * self._seq_len
        tokens = self._tokens[start:stop].read().result()
        first, last = np.searchsorted(self._ends, (start, stop - 1), side="right")
        begins = np.zeros(self._seq_len, np.int32)
        begins[self._ends[first:last] - start] = 1
        return {"tokens": tokens.astype(np.int32), "segment_ids": np.cumsum(begins, dtype=np.int32)}


def grain_batches(
    stores: Mapping[str, str], weights: Mapping[str, float], *, seq_len: int, batch_size: int
) -> Iterator[dict[str, Any]]:
    """One epoch of the mixture in whole batches."""
    grain = grain_package()
    parts = [
        grain.MapDataset.source(StoreRows(path, seq_len)).shuffle(seed=seed)
        for seed, path in enumerate(stores.values())
    ]
    mixed = grain.MapDataset.mix(parts, weights=[weights[name] for name in stores])
    ahead = grain.ReadOptions(num_threads=_THREADS, prefetch_buffer_size=_BATCHES_AHEAD)
    return iter(mixed.batch(batch_size, drop_remainder=True).to_iter_dataset(ahead))


def _opened(path: str) -> Any:
    return ts.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": path}}).result()
