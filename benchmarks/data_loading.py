"""Batches of ten components: how many tokens a second, and how soon the first one comes.

The peer is a plain Grain pipeline over the same stores (`benchmarks/peers/grain_mixture.py`), in
turn with ours. Stores are as large as their weights say, so an epoch of the mixture is one of every
component. "First" is the first epoch, in which every chunk's checksum is compared once; "warm" is
the same epoch again. Files are in the page cache in both.
"""

from collections.abc import Iterable, Mapping
from statistics import median
from time import perf_counter
from typing import Any, Literal

import jax
import numpy as np

from benchmarks.data_inputs import TOKENIZER, WEIGHTS
from benchmarks.peers.grain_mixture import grain_batches
from benchmarks.record import Figure
from benchmarks.resident_memory import BATCH_SIZE, SEQ_LEN
from benchmarks.timing import in_turn, phase
from chomp.data import (
    BatchSchedule,
    LmComponentConfig,
    LmDataConfig,
    TrainLoader,
    build_train_dataset,
    build_train_loader,
    iter_from_step,
)
from chomp.kernels.attention.mask import PAD_SEGMENT
from chomp.mesh import MeshConfig, create_mesh

FAR_STEP = 10**9
GOAL = 10.0  # M tokens/s
EPOCHS = ("first", "warm")

Stores = Mapping[str, str]


def loading(stores: Stores, rounds: int) -> list[Figure]:
    """Windows over the line of documents, as numpy arrays and on one device, beside Grain."""
    measured = _Speeds()
    for _ in range(rounds):
        loader = opened_loader(stores)
        steps = _epoch_steps(loader)
        for epoch in EPOCHS:
            measured.add(f"loader, host batches, {epoch}", map(loader.host_batch, range(steps)))
        loader = opened_loader(stores)
        for epoch in EPOCHS:
            measured.add(f"loader, on a device, {epoch}", iter_from_step(loader, 0, steps))
        sizes = {"seq_len": SEQ_LEN, "batch_size": BATCH_SIZE}
        measured.add("Grain", grain_batches(stores, WEIGHTS, **sizes))
    speeds = measured.medians()
    beside_grain = Figure(
        name="loader, on a device, first, beside Grain",
        value=speeds["loader, on a device, first"],
        unit="M tokens/s",
        better="higher",
        peer="Grain mix and batch",
        peer_value=speeds.pop("Grain"),
        goal=2.0,
        goal_on="ratio",
    )
    return [*_speed_figures(speeds), beside_grain]


def loading_packed(stores: Stores, rounds: int) -> list[Figure]:
    """Rows of whole documents; positions that hold no token do not count."""
    opened_loader(stores, "packed")  # makes the plans, which are kept
    measured = _Speeds()
    for _ in range(rounds):
        loader = opened_loader(stores, "packed")
        for epoch in EPOCHS:
            batches = map(loader.host_batch, range(_epoch_steps(loader)))
            measured.add(f"loader, packed host batches, {epoch}", batches)
    utilization = float(np.mean(loader.host_batch(0).attn_mask.segment_ids != PAD_SEGMENT))
    return _speed_figures({name: v * utilization for name, v in measured.medians().items()})


def first_batch(stores: Stores) -> list[Figure]:
    """From nothing open to the batch of a step, far into the run and at its beginning."""
    far, near = in_turn(
        5,
        lambda: opened_loader(stores).host_batch(FAR_STEP),
        lambda: opened_loader(stores).host_batch(0),
    )
    return [
        Figure(
            name="open, and the first batch at step 10^9",
            value=1e3 * far,
            unit="ms",
            better="lower",
            peer="at step 0",
            peer_value=1e3 * near,
            goal=1.5,
            goal_on="ratio",
        )
    ]


def opened_loader(
    stores: Stores, packing_mode: Literal["concat", "packed"] = "concat"
) -> TrainLoader:
    """A loader over the ten components of which nothing was read yet."""
    components = {
        name: LmComponentConfig(weight=WEIGHTS[name], train_store=path, validation_store=path)
        for name, path in stores.items()
    }
    dataset = build_train_dataset(
        LmDataConfig(components=components, packing_mode=packing_mode),
        TOKENIZER,
        seq_len=SEQ_LEN,
        seed=0,
        batches=BatchSchedule(BATCH_SIZE),
    )
    return build_train_loader(dataset, create_mesh(MeshConfig()))


def _epoch_steps(loader: TrainLoader) -> int:
    return sum(loader.dataset.num_rows.values()) // BATCH_SIZE


class _Speeds:
    """Positions a second, in millions, by name, of every round."""

    def __init__(self) -> None:
        self._all: dict[str, list[float]] = {}

    def add(self, name: str, batches: Iterable[Any]) -> None:
        """Take all batches, each of which is waited for."""
        with phase(name):
            count, begin = 0, perf_counter()
            for batch in batches:
                jax.block_until_ready(batch)
                count += 1
            speed = count * BATCH_SIZE * SEQ_LEN / (perf_counter() - begin)
        self._all.setdefault(name, []).append(speed / 1e6)

    def medians(self) -> dict[str, float]:
        """The middle speed of each name."""
        return {name: median(speeds) for name, speeds in self._all.items()}


def _speed_figures(speeds: Mapping[str, float]) -> list[Figure]:
    return [
        Figure(name=name, value=speed, unit="M tokens/s", better="higher", goal=GOAL)
        for name, speed in speeds.items()
    ]
