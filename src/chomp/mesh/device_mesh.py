"""The device mesh: four named axes, always all of them, all explicit; and batches placed on it.

A length-1 axis is kept, so a `PartitionSpec` written for a cluster also runs on one device. The
specs of weights stand beside the weights, in the model.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int

from chomp.config import Config, setting
from chomp.errors import ConfigError, divisors, require

# replica: whole copies of the model; data: batch rows and parameter shards (FSDP);
# expert: batch rows and experts; model: heads, MLP width, vocabulary (tensor parallel).
AXES = ("replica", "data", "expert", "model")
BATCH_AXES = ("replica", "data", "expert")

Tree = TypeVar("Tree")


@dataclass(frozen=True, kw_only=True)
class MeshConfig(Config):
    """Size of each mesh axis. `data: null` takes every device the other axes leave."""

    replica: int = setting(default=1, ge=1, le=2**20)
    data: int | None = setting(default=None, ge=1, le=2**20)
    expert: int = setting(default=1, ge=1, le=2**20)
    model: int = setting(default=1, ge=1, le=2**20)
    # False: a run that would take the CPU is refused, as where a driver does not load.
    allow_cpu: bool = setting(default=True, also=("train.allow_cpu",), mark="cosmetic")

    def shape(self, num_devices: int) -> tuple[int, int, int, int]:
        """Axis sizes in the order of `AXES` for that many devices; they must use all of them."""
        wanted = self.replica, self.expert, self.model
        data = self.data if self.data is not None else max(num_devices // math.prod(wanted), 1)
        used = math.prod(wanted) * data
        if used == num_devices:
            return (self.replica, data, self.expert, self.model)
        fits = [
            sizes
            for sizes in itertools.product(divisors(num_devices), repeat=3)
            if num_devices % math.prod(sizes) == 0
        ]

        def distance(sizes: tuple[int, ...]) -> float:
            return sum(abs(math.log2(a / b)) for a, b in zip(sizes, wanted, strict=True))

        nearest = sorted(fits, key=lambda sizes: (distance(sizes), sizes))[:5]
        works = [
            f"replica={r} data={num_devices // (r * e * m)} expert={e} model={m}"
            for r, e, m in nearest
        ]
        raise ConfigError(
            f"mesh replica={self.replica} data={data} expert={self.expert} model={self.model} "
            f"({used} devices) on a machine with {num_devices}",
            allowed=f"sizes whose product is {num_devices}",
            fix="use one of: " + "; ".join(works),
        )


def create_mesh(config: MeshConfig, *, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The explicit mesh of `config` over `devices` (default: all). Enter it with `jax.set_mesh`."""
    devices = all_devices() if devices is None else list(devices)
    require(
        config.allow_cpu or devices[0].platform != "cpu",
        "mesh.allow_cpu=false (train.allow_cpu) where JAX finds no device but CPUs",
        allowed="a GPU or TPU that JAX can use",
        fix="see what `python -c 'import jax; jax.devices()'` says of the accelerator, or set "
        "train.allow_cpu=true",
    )
    grid = np.asarray(devices, dtype=object).reshape(config.shape(len(devices)))
    return Mesh(grid, AXES, axis_types=(AxisType.Explicit,) * len(AXES))


def all_devices() -> Sequence[jax.Device]:
    """`jax.devices()`; `ConfigError` where JAX cannot start what JAX_PLATFORMS names."""
    try:
        return jax.devices()
    # JAX raises AssertionError if it has no plugin for JAX_PLATFORMS=cuda.
    except (RuntimeError, AssertionError) as error:
        wanted = jax.config.values["jax_platforms"]
        raise ConfigError(
            f"JAX_PLATFORMS={wanted}, where JAX finds no such device"
            if wanted
            else f"a machine on which JAX cannot start ({error})",
            allowed="a platform that is installed and has a device: cpu, cuda or tpu",
            fix="set JAX_PLATFORMS=cpu, unset it to take what there is, or install what the "
            "device needs (`uv sync --extra gpu` for NVIDIA GPUs)",
        ) from error


def abstract_mesh(
    *, replica: int = 1, data: int = 1, expert: int = 1, model: int = 1
) -> AbstractMesh:
    """A mesh without devices, for lowering a program that this machine cannot run."""
    return AbstractMesh(
        (replica, data, expert, model), AXES, axis_types=(AxisType.Explicit,) * len(AXES)
    )


def planned_mesh(config: MeshConfig) -> AbstractMesh:
    """The mesh of a config without its devices; `data: null` counts those of this machine."""
    others = config.replica * config.expert * config.model
    devices = jax.device_count() if config.data is None else others * config.data
    replica, data, expert, model = config.shape(devices)
    return abstract_mesh(replica=replica, data=data, expert=expert, model=model)


def batch_shards(mesh: Mesh | AbstractMesh) -> int:
    """How many pieces the batch axis is cut into."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def batch_spec(num_axes: int, *, batch_axis: int = 0) -> PartitionSpec:
    """Spec of an array whose axis `batch_axis` is the batch and whose other axes are whole."""
    parts: list[Any] = [None] * num_axes
    parts[batch_axis] = BATCH_AXES
    return PartitionSpec(*parts)


def local_rows(mesh: Mesh, batch_size: int) -> Int[np.ndarray, " K"]:
    """The rows of a batch that the devices of this process hold, in order."""
    sharding = NamedSharding(mesh, batch_spec(1))
    cuts = sharding.addressable_devices_indices_map((batch_size,)).values()
    held = [np.arange(batch_size)[index] for index in cuts if index is not None]
    return np.unique(np.concatenate(held))


def place_rows(
    tree: Tree, mesh: Mesh, *, rows: Int[np.ndarray, " K"], batch_size: int, batch_axis: int
) -> Tree:
    """`tree` of host arrays, which hold those rows of a batch, as global device arrays."""

    def place(leaf: Any) -> jax.Array:
        shape = (*leaf.shape[:batch_axis], batch_size, *leaf.shape[batch_axis + 1 :])
        sharding = NamedSharding(mesh, batch_spec(leaf.ndim, batch_axis=batch_axis))

        def held(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None  # the mesh has devices of this process
            start, stop, _ = index[batch_axis].indices(batch_size)
            # A device's rows are next to each other, and all of them are among this process's.
            first = int(np.searchsorted(rows, start))
            here = slice(first, first + stop - start)
            return leaf[(*index[:batch_axis], here, *index[batch_axis + 1 :])]

        return jax.make_array_from_callback(shape, sharding, held)

    return jax.tree.map(place, tree)


def place_batch(tree: Tree, mesh: Mesh, *, batch_axis: int) -> Tree:
    """`tree` of host arrays as global device arrays, cut along `batch_axis`.

    Every process passes the whole batch; its devices take the rows that are theirs.
    """
    size = jax.tree.leaves(tree)[0].shape[batch_axis]
    return place_rows(tree, mesh, rows=np.arange(size), batch_size=size, batch_axis=batch_axis)
