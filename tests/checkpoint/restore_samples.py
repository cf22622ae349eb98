"""A run with fields of every mark, whose states are saved, harmed and restored by the tests."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from checkpoint_samples import state_at

from chomp.checkpoint import (
    CheckpointMetadata,
    LoadOptions,
    StepFolder,
    restore_latest_or_initialize,
    save_step_checkpoint,
)
from chomp.checkpoint.format import signed
from chomp.checkpoint.resume import Resume
from chomp.config import Config, config_hash, config_to_mapping, setting

BATCH = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSample(Config):
    """What makes another run."""

    columns: int = 32
    kind: str = "plain"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainerSample(Config):
    """One field of each mark, and all that `LoadOptions` asks for."""

    steps: int = setting(default=10, mark="schedule")
    batch_size: int | tuple[tuple[int, int], ...] = setting(default=BATCH, mark="schedule")
    ema_beta: float | None = setting(default=None, mark="schedule")
    seed: int = 0
    log_every: int = setting(default=1, mark="cosmetic")
    load_checkpoint: bool | None = setting(default=None, mark="cosmetic")
    load_checkpoint_path: str | None = setting(default=None, mark="cosmetic")
    initialize_from: str | None = None
    initialize_weights: Literal["current", "ema"] = "current"
    allow_changes: tuple[str, ...] = setting(default=(), mark="cosmetic")
    allow_fresh_start: bool = setting(default=False, mark="cosmetic")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSample(Config):
    """A whole config."""

    model: ModelSample = dataclasses.field(default_factory=ModelSample)
    trainer: TrainerSample = setting(default_factory=TrainerSample, aliases=("train",))
    mesh: dict[str, int] = setting(default_factory=dict, mark="cosmetic")
    run_id: str = setting(default="tiny", mark="cosmetic")


def run(model: dict[str, Any] | None = None, **trainer: Any) -> RunSample:
    """A config that differs from the default in what is given."""
    return RunSample(model=ModelSample(**(model or {})), trainer=TrainerSample(**trainer))


def about(config: RunSample | None = None, **changes: Any) -> CheckpointMetadata:
    """What a checkpoint of such a run says, at a step if one is given."""
    config = config or RunSample()
    step = changes.get("step", 0)
    facts: dict[str, Any] = {
        "step": 0,
        "run_id": "tiny",
        "attempt": 1,
        "config_hash": config_hash(config),
        "config": config_to_mapping(config),
        "data_fingerprint": "0123456789abcdef",
        "tokenizer_hash": "fedcba9876543210",
        "data_offset": BATCH * step,
        "tokens_seen": 8 * BATCH * step,
    }
    return CheckpointMetadata(**(facts | changes))


def save(folder: Path | str, step: int, state: Any = None, **changes: Any) -> str:
    """Save the sample's state of a step, on the mesh that is set."""
    state = state_at(step) if state is None else state
    return save_step_checkpoint(str(folder), state, about(step=step, **changes))


def begun(
    folder: Path | str,
    mesh: jax.sharding.Mesh,
    config: RunSample | None = None,
    /,  # so that what is now said of the mesh can be given by its name
    *,
    initialize: Callable[[], Any] = lambda: state_at(0),
    data_offset_at: Callable[[int], int] | None = None,
    proof: Callable[[StepFolder], None] | None = None,
    **changes: Any,
) -> Resume[Any]:
    """What a run with this config begins with; a fresh start gives step 0."""
    config = config or RunSample()
    with jax.set_mesh(mesh):
        return restore_latest_or_initialize(
            str(folder),
            initialize,
            about=about(config, **({"attempt": 2} | changes)),
            mesh=mesh,
            config=config,
            options=LoadOptions.of(config.trainer),
            data_offset_at=data_offset_at,
            proof=proof,
        )


def step_of(beginning: Resume[Any]) -> int:
    """The step a run begins at, on which state and checkpoint must agree."""
    step = int(beginning.state.step)
    assert step == (0 if beginning.found is None else beginning.found.metadata.step)
    return step


def assert_same(found: Any, expected: Any) -> None:
    """Every leaf has the same dtype and bits."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    others = dict(jax.tree.leaves_with_path(found))
    for path, leaf in jax.tree.leaves_with_path(expected):
        other, name = others[path], jax.tree_util.keystr(path)
        assert other.dtype == leaf.dtype, name
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf, other = jax.random.key_data(leaf), jax.random.key_data(other)
        assert np.asarray(leaf).tobytes() == np.asarray(other).tobytes(), name


def assert_state_of(beginning: Resume[Any], step: int, mesh: jax.sharding.Mesh) -> None:
    """The run begins with exactly the sample's state of that step."""
    with jax.set_mesh(mesh):
        assert_same(beginning.state, state_at(step))


# ---- Harm ------------------------------------------------------------------------------------


def state_files(step_folder: Path) -> list[Path]:
    """The files that hold its arrays."""
    return sorted(path for path in (step_folder / "state").rglob("*") if path.is_file())


def change_metadata(step_folder: Path, **changes: Any) -> None:
    """Write other values into what a checkpoint says of itself, as if it had been saved so."""
    path = step_folder / "metadata.json"
    fields = json.loads(path.read_text()) | changes
    del fields["metadata_hash"]
    path.write_text(json.dumps(signed(fields)))


def _cut_a_file(step_folder: Path) -> None:
    victim = max(state_files(step_folder), key=lambda path: path.stat().st_size)
    victim.write_bytes(victim.read_bytes()[: victim.stat().st_size // 2])


def _lose_a_file(step_folder: Path) -> None:
    state_files(step_folder)[0].unlink()


def _change_a_hash(step_folder: Path) -> None:
    # As a flipped byte shows: the arrays and the receipt no longer agree.
    receipt = json.loads((step_folder / "metadata.json").read_text())["receipt"]
    change_metadata(step_folder, receipt=receipt | {"moments/0": receipt["params/w"]})


def _change_a_number(step_folder: Path) -> None:
    path = step_folder / "metadata.json"
    fields = json.loads(path.read_text())
    path.write_text(json.dumps(fields | {"tokens_seen": fields["tokens_seen"] + 1}))


def _take_for_another_step(step_folder: Path) -> None:
    change_metadata(step_folder, step=77)


def _make_state_unreadable(step_folder: Path) -> None:
    # What nobody can look into, not even root.
    (step_folder / "state").rename(step_folder / "elsewhere")
    (step_folder / "state").symlink_to("state")


def _put_a_file_for_state(step_folder: Path) -> None:
    (step_folder / "state").rename(step_folder / "elsewhere")
    (step_folder / "state").write_text("mine")


def _make_metadata_unreadable(step_folder: Path) -> None:
    (step_folder / "metadata.json").rename(step_folder / "elsewhere.json")
    (step_folder / "metadata.json").mkdir()


# Each way to harm a checkpoint, with words of the reason it is then passed over for.
HARMS: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut a file": (_cut_a_file, r"bytes instead of"),
    "lose a file": (_lose_a_file, r"state/ lacks"),
    "lose all arrays": (lambda path: shutil.rmtree(path / "state"), r"state/ lacks"),
    "unreadable arrays": (_make_state_unreadable, r"state/ cannot be looked at: .*symbolic links"),
    "a file for arrays": (_put_a_file_for_state, r"state/ lacks"),
    "change a hash": (_change_a_hash, r"1 arrays differ from the receipt: moments/0"),
    "lose metadata": (lambda path: (path / "metadata.json").unlink(), r"it has no metadata\.json"),
    "cut metadata": (
        lambda path: (path / "metadata.json").write_text('{"step": 5,'),
        r"metadata\.json .*is not JSON",
    ),
    "deep metadata": (
        lambda path: (path / "metadata.json").write_text('{"config": ' * 900 + "1" + "}" * 900),
        r"metadata\.json .*nested",
    ),
    "bottomless metadata": (
        lambda path: (path / "metadata.json").write_text('{"config": ' * 100_000),
        r"metadata\.json .*nested",
    ),
    "unreadable metadata": (_make_metadata_unreadable, r"metadata\.json"),
    "change a number": (_change_a_number, "not as it was written"),
    "unknown field": (lambda path: change_metadata(path, receipt_version=2), "receipt_version"),
    "wrong type": (lambda path: change_metadata(path, data_offset="many"), "data_offset"),
    "metadata of another step": (_take_for_another_step, "holds the checkpoint of step 77"),
}


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below a folder and what it holds."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def step_folder(path: str = "run/checkpoints/step-6", **changes: Any) -> StepFolder:
    """A checkpoint that is nowhere on disk: enough for what only reads metadata."""
    return StepFolder(path, about(**({"step": 6} | changes)))
