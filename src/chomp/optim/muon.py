"""Muon: momentum whose matrices are made orthogonal, so that every direction moves alike.

    m <- beta m + (1 - beta) g
    u  = beta m / (1 - beta^(t+1)) + (1 - beta) g / (1 - beta^t)     after t updates, this one too
    W <- W - lr (lr_scale s O(u) + weight_decay weight_decay_mult W)

u is m / (1 - beta^t) without `nesterov`. O is Newton-Schulz. s is 1, or `consistent_rms` *
sqrt(max(rows, columns)), which gives every matrix an update of that root mean square whatever its
shape: 0.2 is what AdamW's have. Decay does not grow with `lr_scale`. Weights that are not matrices
go to AdamW. Not optax's Muon, which cannot run on an explicit mesh.

Matrices of one shape are stacked, each device works on some of them whole, and the results go back
to the shardings of the weights (`map_matrices`). The stack is the only copy that is made.

Newton-Schulz gives the nearest matrix with all singular values about 1, by products alone.
One step is X <- P X with P = a I + b A + c A A and A = X X^T, on X of Frobenius norm 1. Five steps
take singular values above 0.002 of that norm into [0.68, 1.21] (smaller ones grow by a^5 = 485) and
leave the singular vectors. Formula and coefficients are those of Muon (Jordan et al., 2024).

Steps come in blocks. Inside a block only A and the product Q of the P are kept, both small; X
itself takes part at its two ends, as A = X X^T and Q X (of a tall X: X^T X and X Q). Blocks of one
step are the textbook form.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, DTypeLike, Float, Int

from chomp.config import Config, setting
from chomp.optim.schedule import LearningRate

# Axes: N matrices, R rows, C columns; S is the smaller of both.
Stack = Float[Array, "N R C"]

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
EPS = 1e-8  # added to the norm: a gradient of zero stays zero

# An error in A grows by up to a^2 = 12 with each step of a block. In bfloat16, blocks of 3 and 2
# steps come as close to the exact result as blocks of one: relative error 0.023 against 0.025 at
# condition 1e2, 0.038 against 0.051 at 1e4 (768 x 3072; the same from 64 rows on, with 16 rows
# twice as far). 2 and 3 are three times worse; all 5 in one give singular values of 2.4 to 3.8 and
# are useless. The first block may be longer, as before it A is far below 1, and so is its error.
_FIRST_BLOCK, _NEXT_BLOCKS = 3, 2

# Axes that matrices are distributed over. Not `replica`: its links are slow, and all replicas need
# all results.
STACK_AXES = ("data", "model", "expert")


@dataclass(frozen=True, kw_only=True)
class MuonConfig(Config):
    """Muon's own knobs, and which weights it takes beside the group `matrix`."""

    lr_scale: float = setting(default=100.0, gt=0, le=1e6)  # Muon's rate over optim.lr
    # Muon's decay over optim.weight_decay: 1 decays as AdamW does, 0 not at all.
    weight_decay_mult: float = setting(default=1.0, ge=0, le=1e6)
    momentum: float = setting(default=0.95, gt=0, lt=1)
    ns_steps: int = setting(default=5, ge=1, le=100)
    nesterov: bool = True
    # 0.2 gives updates the size of AdamW's; null: of norm sqrt(rows), whatever the columns.
    consistent_rms: float | None = setting(default=None, gt=0, le=1000)
    allow_all_2d: bool = False  # whatever is a table of numbers: embeddings too
    allow_tied_embed: bool = False  # the group `embedding` too


def muon(
    config: MuonConfig, schedule: LearningRate, *, weight_decay: float, decayed: Any
) -> tuple[optax.GradientTransformation, ...]:
    """The transforms of Muon for weights that are all matrices, to be chained.

    `decayed` is a tree of booleans: what weight decay pulls on.
    """

    def scale(updates: Any, params: Any) -> Any:
        del params

        def scaled(update: Array) -> Array:
            rms = config.consistent_rms
            shape = 1.0 if rms is None else rms * math.sqrt(max(update.shape[-2:]))
            return update * (config.lr_scale * shape)

        return jax.tree.map(scaled, updates)

    return (
        scale_by_muon(momentum=config.momentum, nesterov=config.nesterov, ns_steps=config.ns_steps),
        optax.stateless(scale),
        optax.add_decayed_weights(weight_decay * config.weight_decay_mult, mask=decayed),
        optax.scale_by_learning_rate(schedule),
    )


class MuonState(NamedTuple):
    """Updates so far, and the momentum of every weight in the weight's dtype."""

    num_updates: Int[Array, ""]
    momentum: Any


def scale_by_muon(
    *, momentum: float, nesterov: bool, ns_steps: int
) -> optax.GradientTransformation:
    """Gradients to orthogonal directions: singular values about 1, whatever the gradient's size.

    Weights of one shape are orthogonalised together, distributed over the devices of their mesh;
    axes before the last two count matrices.
    """
    beta = momentum

    def init(params: Any) -> MuonState:
        return MuonState(jnp.zeros([], jnp.int32), jax.tree.map(jnp.zeros_like, params))

    def update(updates: Any, state: MuonState, params: Any = None) -> tuple[Any, MuonState]:
        del params
        num_updates = optax.safe_increment(state.num_updates)
        count = num_updates.astype(jnp.float32)

        def moved(m: Array, g: Array) -> Array:
            return (beta * m + (1.0 - beta) * g).astype(m.dtype)

        def ahead(m: Array, g: Array) -> Array:
            """Momentum that has seen this gradient twice, each part with its bias corrected."""
            own = (1.0 - beta) / (1.0 - beta**count)
            old = beta / (1.0 - beta ** (count + 1.0))
            return old * m.astype(jnp.float32) + own * g.astype(jnp.float32)

        kept = jax.tree.map(moved, state.momentum, updates)
        # Without nesterov the bias correction is a scale, which does not matter here.
        moments = jax.tree.map(ahead, kept, updates) if nesterov else kept
        leaves, structure = jax.tree.flatten(moments)
        # In bfloat16 products add up in float32, but on a CPU, which has no fast ones.
        device = jax.typeof(leaves[0]).sharding.mesh.abstract_device
        platform = jax.default_backend() if device is None else device.platform
        dtype = jnp.float32 if platform == "cpu" else jnp.bfloat16
        found = map_matrices(partial(orthogonalize, steps=ns_steps), leaves, dtype=dtype)
        directions = jax.tree.unflatten(structure, found)
        directions = jax.tree.map(lambda x, g: x.astype(g.dtype), directions, updates)
        return directions, MuonState(num_updates, kept)

    return optax.GradientTransformation(init, update)


# ---- Stacks of matrices -----------------------------------------------------------------------


def map_matrices(
    function: Callable[[Stack], Stack], arrays: Sequence[Array], *, dtype: DTypeLike
) -> list[Array]:
    """`function` of every matrix, in `dtype`, sharded like the arrays.

    A matrix is the last two axes of an array; axes before them count matrices. `function` gets
    stacks of one shape, in `dtype`. It must return zeros for a zero matrix: those pad the last
    device's part. Over several devices a matrix may reach it transposed.
    """
    alike: dict[tuple[int, ...], list[int]] = {}
    for index, array in enumerate(arrays):
        rows, columns = array.shape[-2:]
        shape = (columns, rows) if _is_transposed(array) else (rows, columns)
        alike.setdefault(shape, []).append(index)
    found: dict[int, Array] = {}
    for indices in alike.values():
        results = _map_stack(function, [arrays[index] for index in indices], dtype)
        found |= zip(indices, results, strict=True)
    return [found[index] for index in range(len(arrays))]


def _map_stack(
    function: Callable[[Stack], Stack], members: Sequence[Array], dtype: DTypeLike
) -> list[Array]:
    # The barrier keeps XLA from recomputing each piece inside the concatenation, for which it would
    # keep copies of the old momentum (0.2 ms of a step, 124M, H200, November 2026).
    members = jax.lax.optimization_barrier(list(members))
    pieces = []
    for member in members:
        whole = _reshard(member, P(*(None,) * (member.ndim - 2), *_spec(member)[-2:]))
        piece = whole.reshape(-1, *member.shape[-2:])
        pieces.append((piece.mT if _is_transposed(member) else piece).astype(dtype))
    # The stack is first sharded like its first member, as most of the others are.
    spec = _spec(pieces[0])
    count = sum(len(piece) for piece in pieces)
    devices = _num_devices(pieces[0])
    if missing := -count % devices:
        pieces.append(jnp.zeros((missing, *pieces[0].shape[1:]), dtype))
    stack = jnp.concatenate([_reshard(piece, spec) for piece in pieces])
    path = _specs_to_whole(spec)
    for each in path:
        stack = _reshard(stack, each)
    stack = function(stack)
    for each in (*path[-2::-1], spec):
        stack = _reshard(stack, each)
    results, start = [], 0
    for member, piece in zip(members, pieces, strict=False):
        result = stack[start : start + len(piece)]
        result = result.mT if _is_transposed(member) else result
        results.append(_reshard(result.reshape(member.shape), _spec(member)))
        start += len(piece)
    return results


def _is_transposed(member: Array) -> bool:
    """Whether a matrix is transposed in the stack."""
    if _num_devices(member) == 1:
        # Transposing 12 matrices of 3072 x 768, and back, took 0.5 ms (H200, November 2026).
        return False
    rows, columns = member.shape[-2:]
    if rows != columns:
        # Wide and tall ones in one stack, so that the part of one device is padded and not of two.
        return rows > columns
    # Projections in and out are sharded the other way round; transposed, square ones are alike.
    return _spec(member)[-2] == "model" and _mesh_sizes(member)["model"] > 1


def _specs_to_whole(spec: P) -> list[P]:
    """Specs on the way from `spec` to whole matrices on each device, one matrix axis at a time.

    Each step is one all-to-all; in a single step XLA would gather the whole stack on every device.
    """
    parts, taken, path = list(spec), [], []
    for axis in (1, 2):
        names = parts[axis] or ()
        names = (names,) if isinstance(names, str) else names
        taken += [name for name in names if name in STACK_AXES]
        parts[axis] = None
        path.append(P(tuple(taken) or None, *parts[1:]))
    taken += [name for name in STACK_AXES if name not in taken]
    return [*path, P(tuple(taken), None, None)]


def _mesh_sizes(x: Array) -> Mapping[str, int]:
    """The axes of an array's mesh; none unless all of them are explicit."""
    mesh = jax.typeof(x).sharding.mesh
    is_explicit = all(kind == AxisType.Explicit for kind in mesh.axis_types)
    return mesh.shape if is_explicit else {}


def _num_devices(x: Array) -> int:
    """How many devices the matrices are distributed over."""
    return math.prod(_mesh_sizes(x).get(name, 1) for name in STACK_AXES)


def _spec(x: Array) -> P:
    """The spec of an array with a part for each axis; all None without a mesh."""
    spec = jax.typeof(x).sharding.spec if _mesh_sizes(x) else ()
    return P(*spec, *(None,) * (x.ndim - len(spec)))


def _reshard(x: Array, spec: P) -> Array:
    return x if not _mesh_sizes(x) or _spec(x) == spec else jax.reshard(x, spec)


# ---- Newton-Schulz ----------------------------------------------------------------------------


def orthogonalize(
    x: Float[Array, "N R C"], *, steps: int, blocks: tuple[int, ...] | None = None
) -> Float[Array, "N R C"]:
    """Each matrix with its singular values brought to about 1, in the dtype of `x`.

    In bfloat16 the products add up in float32. No matrix needs to be scaled before; `blocks` (sums
    to `steps`) says how the steps are taken, default the way with the fewest operations.
    """
    rows, columns = x.shape[1:]
    # Over the longer side, and Q from the shorter one: turning a tall X would be a copy each way.
    gram_of = "nrs,nrc->nsc" if rows > columns else "nsc,nrc->nsr"
    moved_by = "nrs,nsc->nrc" if rows > columns else "nsr,nsc->nrc"
    # Of the norm only its square is needed, which is the trace of A: no scaled copy of x is made.
    gram = jnp.einsum(gram_of, x, x, preferred_element_type=jnp.float32)
    norm = jnp.sqrt(jnp.trace(gram, axis1=1, axis2=2))[:, None, None]
    scale = 1.0 / (norm + EPS)
    a = (gram * (scale * scale)).astype(x.dtype)
    sides = sorted((rows, columns))
    for number, length in enumerate(blocks or steps_in_blocks(steps, *sides)):
        if number > 0:
            a = jnp.einsum(gram_of, x, x)
        q = _block(a, length)
        q = (q * scale).astype(x.dtype) if number == 0 else q.astype(x.dtype)
        x = jnp.einsum(moved_by, *((x, q) if rows > columns else (q, x)))
    return x


def steps_in_blocks(steps: int, rows: int, columns: int) -> tuple[int, ...]:
    """How many steps each block takes: whatever needs the fewest operations.

    For 5 steps that is 3 and 2 from an aspect of 1.5 on, and single steps below.
    """
    left = max(steps - _FIRST_BLOCK, 0)
    short = (left % _NEXT_BLOCKS,) if left % _NEXT_BLOCKS else ()
    few = (min(steps, _FIRST_BLOCK), *(_NEXT_BLOCKS,) * (left // _NEXT_BLOCKS), *short)
    aspect = columns / rows
    return min((1,) * steps, few, key=lambda blocks: products(blocks, aspect))


def products(blocks: tuple[int, ...], aspect: float) -> float:
    """What the blocks cost, in products of two square matrices of the smaller size."""
    # Two with x a block; inside it A A in each step, Q P after the first, P A P before the last.
    return sum(2 * aspect + 4 * length - 3 for length in blocks)


def _block(a: Float[Array, "N R R"], length: int) -> Float[Array, "N R R"]:
    """The product of the P of so many steps, in float32; all are polynomials of A and commute."""
    q = p = _polynomial(a)
    for _ in range(length - 1):
        narrow = p.astype(a.dtype)
        a = _product(_product(narrow, a), narrow)
        p = _polynomial(a)
        q = _product(p.astype(a.dtype), q.astype(a.dtype)).astype(jnp.float32)
    return q


def _polynomial(a: Float[Array, "N R R"]) -> Float[Array, "N R R"]:
    first, second, third = COEFFICIENTS
    identity = jnp.eye(a.shape[1], dtype=jnp.float32)[None]
    square = _product(a, a).astype(jnp.float32)
    return first * identity + second * a.astype(jnp.float32) + third * square


def _product(left: Float[Array, "N R R"], right: Float[Array, "N R R"]) -> Float[Array, "N R R"]:
    return jnp.einsum("nij,njk->nik", left, right)
