"""Reading a checkpoint back: checked before arrays are read, proven after.

Orbax keeps no checksum of its own, casts dtypes silently and, when it fails, leaves work that goes
on failing later. So files, shapes and dtypes are compared first, and every leaf's hash afterwards.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding

from chomp.checkpoint.layout import (
    CheckpointMetadata,
    StepFolder,
    files_of_state,
    latest_checkpoint,
    state_path,
)
from chomp.checkpoint.leaves import named_leaves, receipt_of, with_leaves
from chomp.config import config_difference
from chomp.errors import CheckpointError, message

State = TypeVar("State")


def restore_latest_or_initialize(
    folder: str,
    initialize: Callable[[], State],
    *,
    about: CheckpointMetadata,
    mesh: Mesh,
    load_checkpoint: bool | None,
) -> tuple[State, StepFolder | None]:
    """The newest state in `folder`, or a fresh one; and the checkpoint it came from, if any.

    `about` is the run as it is now; a checkpoint of another config or other data is refused.
    `load_checkpoint`: None takes what is there, True must find one, False starts fresh and refuses
    a folder that has any. A checkpoint that cannot be used is an error, never a fresh start.
    """
    found = latest_checkpoint(folder)
    if found is None and load_checkpoint is True:
        raise CheckpointError(
            message(
                given=f"trainer.load_checkpoint=true, but {folder} has no complete checkpoint",
                allowed="a folder with at least one step-N",
                fix="correct the path, or set trainer.load_checkpoint=null to start from scratch",
            )
        )
    if found is not None and load_checkpoint is False:
        raise CheckpointError(
            message(
                given=f"trainer.load_checkpoint=false, but {found.path} exists",
                allowed="a fresh start in a folder without checkpoints",
                fix="set trainer.load_checkpoint=null to continue, or use another output folder",
            )
        )
    if found is None:
        # Not under one jit: XLA would compile the same random program for every weight of a shape,
        # which at 124M took longer than compiling the training step did (H200, November 2026).
        return initialize(), None
    _require_same_run(found, about)
    return restore_checkpoint(found, jax.eval_shape(initialize), mesh=mesh), found


def restore_checkpoint(found: StepFolder, abstract_state: State, *, mesh: Mesh) -> State:
    """The state of a checkpoint, each array read straight into its place on the mesh.

    `abstract_state` is the state's `jax.eval_shape`; its shardings are those of the result.
    """
    targets = {name: _placed(leaf, mesh) for name, leaf in named_leaves(abstract_state).items()}
    _require_same_names(found, targets)
    _require_files(found)
    path = state_path(found.path)
    try:
        with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
            _require_same_arrays(found, checkpointer.metadata(path).item_metadata, targets)
            leaves = checkpointer.restore(path, args=ocp.args.StandardRestore(targets))
    except CheckpointError:
        raise
    except Exception as error:  # Orbax raises bare exceptions for damaged files
        raise _damaged(found, f"{type(error).__name__}: {error}") from error
    _require_receipt(found, leaves)
    state: State = with_leaves(abstract_state, leaves)
    return state


def _placed(leaf: Any, mesh: Mesh) -> jax.ShapeDtypeStruct:
    spec = leaf.sharding.spec if leaf.sharding is not None else jax.sharding.PartitionSpec()
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))


def _require_same_run(found: StepFolder, about: CheckpointMetadata) -> None:
    metadata = found.metadata
    if metadata.config_hash != about.config_hash:
        told = [
            f"{d.path}: saved {d.before!r}, now {d.after!r}"
            for d in config_difference(metadata.config, about.config)
        ]
        told = told or ["no field; this version of chomp counts other fields as part of a run"]
        raise CheckpointError(
            message(
                given=f"{found.path} was saved by another config:\n  " + "\n  ".join(told) + "\n",
                allowed="continuing a run with the config it was started with",
                fix="undo the change, or start a new run in another folder",
            )
        )
    if metadata.data_fingerprint != about.data_fingerprint:
        raise CheckpointError(
            message(
                given=f"{found.path} was trained on other data ({metadata.data_fingerprint[:12]} "
                f"instead of {about.data_fingerprint[:12]})",
                allowed="continuing a run on the tokens it was started with",
                fix="bring back the token stores of that run, or start a new run",
            )
        )


def _require_same_names(found: StepFolder, targets: dict[str, Any]) -> None:
    missing = sorted(set(targets) - set(found.metadata.receipt))
    extra = sorted(set(found.metadata.receipt) - set(targets))
    if missing or extra:
        raise CheckpointError(
            message(
                given=f"{found.path} lacks {missing[:5]} and has {extra[:5]} besides",
                allowed="a checkpoint of exactly this model and optimizer",
                fix="restore with the template that saved it (the run folder's template/)",
            )
        )


def _require_files(found: StepFolder) -> None:
    wanted = (found.metadata.state_files, found.metadata.state_bytes)
    names, num_bytes = files_of_state(found.path)
    missing, extra = (sorted(set(a) - set(b)) for a, b in ((wanted[0], names), (names, wanted[0])))
    if missing or extra:
        raise _damaged(found, f"state/ lacks {missing[:5]} and has {extra[:5]} besides")
    if num_bytes != wanted[1]:
        raise _damaged(found, f"state/ has {num_bytes:,} bytes instead of {wanted[1]:,}")


def _require_same_arrays(found: StepFolder, saved: Any, targets: dict[str, Any]) -> None:
    if saved is None:
        raise _damaged(found, "the shapes of its arrays cannot be read")
    told = [
        f"{name}: saved {tuple(saved[name].shape)} {saved[name].dtype}, "
        f"now {target.shape} {target.dtype}"
        for name, target in targets.items()
        if (tuple(saved[name].shape), saved[name].dtype) != (target.shape, target.dtype)
    ]
    if told:
        raise CheckpointError(
            message(
                given=f"{found.path} holds other shapes or dtypes:\n  " + "\n  ".join(told) + "\n",
                allowed="a checkpoint of exactly this model and optimizer",
                fix="restore with the model config that saved it",
            )
        )


def _require_receipt(found: StepFolder, leaves: dict[str, Any]) -> None:
    receipt = receipt_of(leaves)
    changed = [name for name, digest in found.metadata.receipt.items() if receipt[name] != digest]
    if changed:
        raise _damaged(found, f"{len(changed)} arrays differ from the receipt: {changed[:5]}")


def _damaged(found: StepFolder, reason: str) -> CheckpointError:
    return CheckpointError(
        message(
            given=f"checkpoint {found.path} is damaged: {reason}",
            allowed="files as they were saved",
            fix=f"move {found.path} elsewhere to continue from the checkpoint before it",
        )
    )
