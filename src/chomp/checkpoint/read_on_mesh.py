"""Arrays of a checkpoint read straight into their places on a mesh.

Orbax keeps no checksum of its own, casts dtypes silently and, when it fails, leaves work that goes
on failing later. So files and shapes are compared first, and every array's hash afterwards. Through
Orbax's handler, not its Checkpointer, whose barrier would hang when one process fails alone.
"""

import errno
from collections.abc import Mapping
from typing import Any

import jax
from etils import epath  # type: ignore[import-untyped]  # the paths that Orbax's handlers take
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from chomp.checkpoint.layout import DamagedCheckpoint, StepFolder, problem_with_files, state_path
from chomp.checkpoint.receipt import receipt_of
from chomp.errors import CheckpointError

# A machine that is short of something says nothing about the files.
_SHORT_OF = {errno.ENOMEM, errno.EMFILE, errno.ENFILE}
_SHORT_OF_WORDS = ("RESOURCE_EXHAUSTED", "Cannot allocate memory", "Too many open files")
_NAMES_TOLD = 5


def placed(leaf: Any, mesh: Mesh) -> jax.ShapeDtypeStruct:
    """The abstract array with its sharding on `mesh`; replicated where it has none."""
    spec = leaf.sharding.spec if leaf.sharding is not None else PartitionSpec()
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))


def read_arrays(
    found: StepFolder, targets: Mapping[str, jax.ShapeDtypeStruct]
) -> dict[str, jax.Array]:
    """The named arrays of a checkpoint, each in its target's sharding; others are not read.

    The targets must have passed `require_same_arrays`. Not checked against the receipt yet: that
    takes all processes. Raises `DamagedCheckpoint`, and `CheckpointError` where memory ran out.
    """
    import orbax.checkpoint as ocp  # noqa: PLC0415  # 0.3 s that a plan does not need

    problem = problem_with_files(found)
    if problem is not None:
        raise DamagedCheckpoint(found.path, problem)
    path = epath.Path(state_path(found.path))
    handler = ocp.PyTreeCheckpointHandler()
    wanted = dict(targets)
    try:
        _require_as_described(handler.metadata(path), wanted)
        leaves: dict[str, jax.Array] = handler.restore(
            path,
            args=ocp.args.PyTreeRestore(
                item=wanted,
                restore_args=ocp.checkpoint_utils.construct_restore_args(wanted),
                partial_restore=True,
            ),
        )
        return leaves
    except Exception as error:  # Orbax raises bare exceptions for damaged files
        reason = f"{type(error).__name__}: {error}"
        if _is_short_of_something(error):
            raise _out_of_memory(found.path, reason) from error
        raise DamagedCheckpoint(found.path, reason) from error
    finally:
        handler.close()


def receipt_problem(found: StepFolder, leaves: Mapping[str, jax.Array]) -> str | None:
    """Which of the arrays that were read are not those that were saved; None if all are.

    Every process takes part, and all find the same.
    """
    saved = found.metadata.receipt
    changed = [name for name, digest in receipt_of(leaves).items() if saved.get(name) != digest]
    if not changed:
        return None
    told = ", ".join(changed[:_NAMES_TOLD]) + (", ..." if changed[_NAMES_TOLD:] else "")
    return f"{len(changed)} arrays differ from the receipt: {told}"


def _require_as_described(described: Any, targets: Mapping[str, jax.ShapeDtypeStruct]) -> None:
    """Orbax's own description can be damaged too, and a wrong dtype there is cast silently."""
    for name, target in targets.items():
        array = described[name]
        if (tuple(array.shape), array.dtype) != (target.shape, target.dtype):
            raise ValueError(f"{name} is described as {tuple(array.shape)} {array.dtype}")


def _is_short_of_something(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, MemoryError) or getattr(error, "errno", None) in _SHORT_OF:
            return True
        if any(words in str(error) for words in _SHORT_OF_WORDS):
            return True
        error = error.__cause__ or error.__context__
    return False


def _out_of_memory(path: str, reason: str) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {path} could not be read; it need not be damaged: {reason}",
        allowed="enough memory for the state, and enough open files for its parts",
        fix="free memory, raise `ulimit -n`, or restore on more devices",
    )
