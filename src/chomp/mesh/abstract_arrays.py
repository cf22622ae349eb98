"""Arrays before they are made: their shapes, dtypes and specs, and whether a mesh can cut them."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from chomp.errors import ConfigError, divisors
from chomp.mesh.device_mesh import MeshConfig, abstract_mesh, all_devices, create_mesh

Tree = TypeVar("Tree")
AnyMesh = Mesh | AbstractMesh


class Placed(NamedTuple):
    """One array of a tree: where it stands in it, what it is, and how it is to be cut."""

    path: str
    shape: tuple[int, ...]
    dtype: Any
    spec: PartitionSpec

    def pieces(self, mesh: AnyMesh) -> int:
        """How many different pieces the devices of a mesh hold of it."""
        return math.prod(_axis_size(mesh, part) for part in self.spec)

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole array."""
        return math.prod(self.shape) * self.dtype.itemsize


def abstract_arrays(make: Callable[[], Tree]) -> Tree:
    """What `make()` would give, as shapes with dtypes and specs: nothing is computed or held.

    Traced on a mesh of one device, whatever mesh is set: on a larger one JAX itself would refuse
    sizes that do not divide, before anything could be said about them. `make` therefore makes its
    own random keys: one from outside lies on the mesh that was set there.
    """
    own = [device for device in all_devices() if device.process_index == jax.process_index()]
    with jax.set_mesh(create_mesh(MeshConfig(data=1), devices=own[:1])):
        return jax.eval_shape(make)


def planned_mesh(config: MeshConfig) -> AbstractMesh:
    """The mesh of a config without its devices; `data: null` counts those of this machine."""
    others = config.replica * config.expert * config.model
    devices = jax.device_count() if config.data is None else others * config.data
    replica, data, expert, model = config.shape(devices)
    return abstract_mesh(replica=replica, data=data, expert=expert, model=model)


def placed_arrays(tree: Any) -> Iterator[Placed]:
    """Every array of a tree, or the shape of one, with its path; one without a spec is whole."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        sharding = getattr(leaf, "sharding", None)
        spec = sharding.spec if isinstance(sharding, NamedSharding) else PartitionSpec()
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        yield Placed(name, tuple(leaf.shape), leaf.dtype, spec)


def require_divisible(tree: Any, mesh: AnyMesh) -> None:
    """Raise `ConfigError` unless the mesh can cut every array of `tree` as its spec says.

    To be asked of `abstract_arrays` before the arrays are made.
    """
    for array in placed_arrays(tree):
        for size, part in zip(array.shape, array.spec, strict=False):
            if size % _axis_size(mesh, part):
                raise _indivisible(array, size, part, mesh)


def _indivisible(array: Placed, size: int, part: Any, mesh: AnyMesh) -> ConfigError:
    axes, pieces = _axes(part), _axis_size(mesh, part)
    sizes = ", ".join(f"mesh.{axis}={mesh.shape[axis]}" for axis in axes)
    below = size // pieces * pieces
    works = [below, below + pieces] if below else [pieces]
    # Not more pieces than the machine has devices.
    fewer = [number for number in divisors(size) if number <= math.prod(mesh.shape.values())]
    return ConfigError(
        f"{array.path} of shape {list(array.shape)} on a mesh with {sizes}, which cuts its "
        f"size {size} into {pieces}",
        allowed=f"sizes that are multiples of {pieces}",
        fix=f"make the size {' or '.join(map(str, works))}, or set "
        f"{' x '.join(f'mesh.{axis}' for axis in axes)} to one of {fewer}",
    )


def _axes(part: Any) -> tuple[str, ...]:
    """The mesh axes that cut one axis of an array."""
    return () if part is None else part if isinstance(part, tuple) else (part,)


def _axis_size(mesh: AnyMesh, part: Any) -> int:
    return math.prod(mesh.shape[axis] for axis in _axes(part))
