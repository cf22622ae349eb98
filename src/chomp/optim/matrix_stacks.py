"""Matrices of one shape as one stack, shared out over the devices, and back again.

Working on whole matrices (products, factorisations) is fast in batches and cannot be done on
pieces. So the matrices of a shape are stacked, each device takes some of them whole, and the
results go back to where the matrices lie. The stack is the only copy that is made.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, DTypeLike, Float

# Axes: N matrices, R rows, C columns.
Stack = Float[Array, "N R C"]

# Who takes matrices. Not `replica`: its links are slow, and all replicas need all results.
STACK_AXES = ("data", "model", "expert")


def map_matrices(
    function: Callable[[Stack], Stack], arrays: Sequence[Array], *, dtype: DTypeLike
) -> list[Array]:
    """`function` of every matrix, in `dtype`, lying as the arrays do.

    A matrix is the last two axes of an array; axes before them count matrices. They reach
    `function` stacked by shape, in `dtype`. Of a zero matrix it must give zeros: those fill up the
    last device's share. Over several devices a matrix may reach it on its side.
    """
    alike: dict[tuple[int, ...], list[int]] = {}
    for index, array in enumerate(arrays):
        rows, columns = array.shape[-2:]
        shape = (columns, rows) if _is_turned(array) else (rows, columns)
        alike.setdefault(shape, []).append(index)
    found: dict[int, Array] = {}
    for indices in alike.values():
        members = [arrays[index] for index in indices]
        found |= zip(indices, _mapped_stack(function, members, dtype), strict=True)
    return [found[index] for index in range(len(arrays))]


def _mapped_stack(
    function: Callable[[Stack], Stack], members: Sequence[Array], dtype: DTypeLike
) -> list[Array]:
    # Made before they are joined: joining would else make each once more out of what it came from,
    # for which XLA keeps copies of the old momentum (0.2 ms of a step, 124M, H200, November 2026).
    members = jax.lax.optimization_barrier(list(members))
    pieces = [_piece(member).astype(dtype) for member in members]
    # How the stack lies before it is shared out: as its first member does, and so most of them.
    spec = _spec(pieces[0])
    count = sum(len(piece) for piece in pieces)
    devices = _sharers(pieces[0])
    if missing := -count % devices:
        pieces.append(jnp.zeros((missing, *pieces[0].shape[1:]), dtype))
    stack = jnp.concatenate([_resharded(piece, spec) for piece in pieces])
    path = _path_to_shares(spec)
    for stop in path:
        stack = _resharded(stack, stop)
    stack = function(stack)
    for stop in (*path[-2::-1], spec):
        stack = _resharded(stack, stop)
    results, start = [], 0
    for member, piece in zip(members, pieces, strict=False):
        results.append(_placed_like(member, stack[start : start + len(piece)]))
        start += len(piece)
    return results


def _piece(member: Array) -> Stack:
    """The matrices of one array, as they lie in the stack."""
    spec = _spec(member)
    whole = _resharded(member, P(*(None,) * (member.ndim - 2), *spec[-2:]))
    piece = whole.reshape(-1, *member.shape[-2:])
    return piece.mT if _is_turned(member) else piece


def _placed_like(member: Array, piece: Stack) -> Array:
    """The matrices of `piece` as the array they came from, cut as it is."""
    piece = piece.mT if _is_turned(member) else piece
    return _resharded(piece.reshape(member.shape), _spec(member))


def _is_turned(member: Array) -> bool:
    """Whether a matrix lies on its side in the stack."""
    if _sharers(member) == 1:
        # Turning 12 matrices of 3072 x 768, and back, took 0.5 ms (H200, November 2026).
        return False
    rows, columns = member.shape[-2:]
    if rows != columns:
        # Wide and tall ones in one stack: the share of one device is filled up, not two.
        return rows > columns
    # Projections in and out are cut the other way round: turned, square ones lie alike.
    return _spec(member)[-2] == "model" and _mesh_size(member, "model") > 1


def _path_to_shares(spec: P) -> list[P]:
    """Specs from `spec` to whole matrices shared out, one axis of the matrix at a time.

    Each is then one all-to-all; in one go XLA would collect the whole stack on every device.
    """
    parts, taken, path = list(spec), [], []
    for axis in (1, 2):
        taken += [name for name in _names(parts[axis]) if name in STACK_AXES]
        parts[axis] = None
        path.append(P(tuple(taken) or None, *parts[1:]))
    taken += [name for name in STACK_AXES if name not in taken]
    return [*path, P(tuple(taken), None, None)]


def _names(part: Any) -> tuple[str, ...]:
    return () if part is None else (part,) if isinstance(part, str) else tuple(part)


def _has_mesh(x: Array) -> bool:
    mesh = jax.typeof(x).sharding.mesh
    return not mesh.empty and all(kind == AxisType.Explicit for kind in mesh.axis_types)


def _mesh_size(x: Array, name: str) -> int:
    return jax.typeof(x).sharding.mesh.shape.get(name, 1) if _has_mesh(x) else 1


def _sharers(x: Array) -> int:
    """How many devices take matrices."""
    return math.prod(_mesh_size(x, name) for name in STACK_AXES)


def _spec(x: Array) -> P:
    """What cuts each axis of an array; nothing does without a mesh."""
    if not _has_mesh(x):
        return P(*(None,) * x.ndim)
    spec = jax.typeof(x).sharding.spec
    return P(*spec, *(None,) * (x.ndim - len(spec)))


def _resharded(x: Array, spec: P) -> Array:
    return x if not _has_mesh(x) or _spec(x) == spec else jax.reshard(x, spec)
