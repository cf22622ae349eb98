"""What is saved comes back bit for bit on any mesh, or not at all and with the reason."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoint_samples import State, about, state_at

from chomp.checkpoint import (
    latest_checkpoint,
    list_checkpoints,
    restore_checkpoint,
    restore_latest_or_initialize,
    save_step_checkpoint,
    save_temporary_checkpoint,
)
from chomp.errors import CheckpointError, NonFiniteError, StorageError


def save(folder: Path | str, step: int, mesh: jax.sharding.Mesh, **state: Any) -> str:
    with jax.set_mesh(mesh):
        return save_step_checkpoint(str(folder), state_at(step, **state), about(step=step))


def restored(folder: Path | str, mesh: jax.sharding.Mesh, **changes: Any) -> State:
    """The newest state in the folder; what a fresh start would give is step 0."""
    state = changes.pop("state", {})
    load_checkpoint = changes.pop("load_checkpoint", None)
    with jax.set_mesh(mesh):
        return restore_latest_or_initialize(
            str(folder),
            lambda: state_at(0, **state),
            about=about(**changes),
            mesh=mesh,
            load_checkpoint=load_checkpoint,
        )[0]


def assert_same(found: State, expected: State) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for path, leaf in jax.tree.leaves_with_path(expected):
        other = dict(jax.tree.leaves_with_path(found))[path]
        name = jax.tree_util.keystr(path)
        assert other.dtype == leaf.dtype, name
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf, other = jax.random.key_data(leaf), jax.random.key_data(other)
        assert np.asarray(leaf).tobytes() == np.asarray(other).tobytes(), name


@pytest.fixture(scope="module")
def saved_on_eight(tmp_path_factory, eight_device_mesh) -> Path:
    folder = tmp_path_factory.mktemp("eight")
    save(folder, 5, eight_device_mesh)
    return folder


@pytest.fixture(scope="module")
def saved_on_one(tmp_path_factory, one_device_mesh) -> Path:
    folder = tmp_path_factory.mktemp("one")
    save(folder, 5, one_device_mesh)
    return folder


@pytest.fixture
def own_copy(saved_on_one, tmp_path) -> Path:
    """A checkpoint to do harm to."""
    shutil.copytree(saved_on_one, tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


@pytest.mark.parametrize("source", ["saved_on_one", "saved_on_eight"])
@pytest.mark.parametrize("target", ["one_device_mesh", "eight_device_mesh"])
def test_a_state_comes_back_bit_for_bit_on_any_mesh(source, target, request):
    mesh = request.getfixturevalue(target)
    found = restored(request.getfixturevalue(source), mesh)
    with jax.set_mesh(mesh):
        expected = jax.jit(lambda: state_at(5))()
    assert_same(found, expected)
    for leaf, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert leaf.sharding.is_equivalent_to(other.sharding, leaf.ndim)


def test_a_restored_random_key_draws_the_numbers_of_the_saved_one(saved_on_eight, one_device_mesh):
    key = restored(saved_on_eight, one_device_mesh).training_key
    np.testing.assert_array_equal(
        jax.random.normal(key, (4,)), jax.random.normal(jax.random.key(5), (4,))
    )


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_a_random_key_keeps_its_generator(impl, tmp_path, one_device_mesh):
    save(tmp_path, 3, one_device_mesh, impl=impl)
    key = restored(tmp_path, one_device_mesh, state={"impl": impl}).training_key
    assert key.dtype == jax.random.key(3, impl=impl).dtype


def test_a_relative_folder_is_as_good_as_an_absolute_one(tmp_path, monkeypatch, one_device_mesh):
    monkeypatch.chdir(tmp_path)
    assert save("runs/checkpoints", 2, one_device_mesh) == "runs/checkpoints/step-2"
    assert (tmp_path / "runs/checkpoints/step-2/metadata.json").is_file()
    assert int(restored("runs/checkpoints", one_device_mesh).step) == 2


def test_an_empty_folder_is_a_fresh_start(tmp_path, one_device_mesh):
    assert int(restored(tmp_path, one_device_mesh).step) == 0
    assert int(restored(tmp_path / "missing", one_device_mesh).step) == 0
    assert latest_checkpoint(str(tmp_path / "missing")) is None


def test_the_newest_checkpoint_is_the_one_of_the_highest_step(tmp_path, one_device_mesh):
    for step in (9, 10, 2):
        save(tmp_path, step, one_device_mesh)
    assert [found.metadata.step for found in list_checkpoints(str(tmp_path))] == [2, 9, 10]
    assert int(restored(tmp_path, one_device_mesh).step) == 10


def test_an_older_checkpoint_can_be_asked_for(tmp_path, one_device_mesh):
    for step in (1, 2):
        save(tmp_path, step, one_device_mesh)
    with jax.set_mesh(one_device_mesh):
        abstract = jax.eval_shape(lambda: state_at(0))
        first = list_checkpoints(str(tmp_path))[0]
        assert_same(restore_checkpoint(first, abstract, mesh=one_device_mesh), state_at(1))


def test_metadata_says_what_the_state_belongs_to(own_copy):
    metadata = list_checkpoints(str(own_copy))[0].metadata
    assert (metadata.step, metadata.run_id, metadata.config_hash) == (5, "tiny", "c0ffee")
    assert metadata.time > 0
    assert set(metadata.receipt) == {
        "step", "params/w", "params/bias", "moments/0", "moments/1", "training_key",
    }  # fmt: skip
    assert all(len(digest) == 64 for digest in metadata.receipt.values())


def test_must_load_finds_a_checkpoint_or_says_where_it_looked(tmp_path, one_device_mesh):
    with pytest.raises(CheckpointError, match=rf"{tmp_path} has no complete checkpoint.*null to"):
        restored(tmp_path, one_device_mesh, load_checkpoint=True)


def test_must_start_fresh_refuses_a_folder_with_a_checkpoint(saved_on_one, one_device_mesh):
    with pytest.raises(CheckpointError, match=r"load_checkpoint=false, but .*step-5 exists.*Fix: "):
        restored(saved_on_one, one_device_mesh, load_checkpoint=False)


def test_another_config_is_refused_with_both_values_of_each_field(saved_on_one, one_device_mesh):
    config = {"optimizer": {"lr": 0.2}, "run_id": "tiny"}
    with pytest.raises(
        CheckpointError, match=r"another config:\n  optimizer\.lr: saved 0\.1, now 0"
    ):
        restored(saved_on_one, one_device_mesh, config_hash="deadbeef", config=config)


def test_another_hash_of_equal_fields_is_refused_and_explained(saved_on_one, one_device_mesh):
    with pytest.raises(CheckpointError, match=r"another config:\n  no field; this version"):
        restored(saved_on_one, one_device_mesh, config_hash="deadbeef")


def test_other_data_is_refused_with_both_fingerprints(saved_on_one, one_device_mesh):
    with pytest.raises(CheckpointError, match=r"other data \(0123456789ab instead of fedcba987654"):
        restored(saved_on_one, one_device_mesh, data_fingerprint="fedcba9876543210")


def test_another_shape_is_refused_with_both_shapes(saved_on_one, one_device_mesh):
    words = r"params/w: saved \(64, 32\) float32, now \(64, 16\) float32"
    with pytest.raises(CheckpointError, match=words):
        restored(saved_on_one, one_device_mesh, state={"columns": 16})


def restored_into(folder: Path, change: Any, mesh: jax.sharding.Mesh) -> Any:
    """The newest state of the folder, restored into what `change` makes of it."""
    found = latest_checkpoint(str(folder))
    assert found is not None
    with jax.set_mesh(mesh):
        return restore_checkpoint(found, jax.eval_shape(lambda: change(state_at(0))), mesh=mesh)


def test_another_dtype_is_refused_and_never_cast(saved_on_one, one_device_mesh):
    def widened(state: State) -> State:
        params = {name: leaf.astype(jnp.float32) for name, leaf in state.params.items()}
        return dataclasses.replace(state, params=params)

    words = r"params/bias: saved \(32,\) bfloat16, now \(32,\) float32\nAllowed: "
    with pytest.raises(CheckpointError, match=words):
        restored_into(saved_on_one, widened, one_device_mesh)


def test_other_leaves_are_refused_with_what_lacks_and_what_is_too_many(
    saved_on_one, one_device_mesh
):
    def renamed(state: State) -> State:
        return dataclasses.replace(state, params={"w": state.params["w"], "gate": jnp.zeros(2)})

    with pytest.raises(CheckpointError, match=r"lacks \['params/gate'\] and has \['params/bias'\]"):
        restored_into(saved_on_one, renamed, one_device_mesh)


@pytest.mark.parametrize("save_state", [save_step_checkpoint, save_temporary_checkpoint])
@pytest.mark.parametrize(("leaf", "bad"), [("w", np.nan), ("bias", np.inf)])
def test_a_state_that_is_not_finite_is_refused_and_nothing_is_written(
    save_state, leaf, bad, tmp_path, one_device_mesh
):
    folder = tmp_path / "checkpoints"
    with jax.set_mesh(one_device_mesh):
        good = state_at(1)
        params = dict(good.params)
        params[leaf] = jnp.full_like(params[leaf], bad)
        state = dataclasses.replace(good, params=params)
        with pytest.raises(NonFiniteError, match=rf"infinity in params/{leaf}\. Allowed: .*Fix: "):
            save_state(str(folder), state, about(step=1))
    assert not folder.exists()


# ---- Damage that is found before any array is read ----------------------------------------------


def state_files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "step-5" / "state").rglob("*") if path.is_file())


def test_a_missing_file_is_named(own_copy, one_device_mesh):
    victim = max(state_files(own_copy), key=lambda path: path.stat().st_size)
    victim.unlink()
    with pytest.raises(CheckpointError, match=f"is damaged: state/ lacks .*{victim.name}"):
        restored(own_copy, one_device_mesh)


def test_a_file_cut_short_is_noticed(own_copy, one_device_mesh):
    for victim in state_files(own_copy):
        whole = victim.read_bytes()
        victim.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(
            CheckpointError, match=r"is damaged: state/ has [\d,]+ bytes instead of"
        ):
            restored(own_copy, one_device_mesh)
        victim.write_bytes(whole)
    assert int(restored(own_copy, one_device_mesh).step) == 5


def test_a_checkpoint_without_arrays_is_damaged(own_copy, one_device_mesh):
    shutil.rmtree(own_copy / "step-5" / "state")
    with pytest.raises(CheckpointError, match=r"is damaged: .*Fix: move .*step-5 elsewhere"):
        restored(own_copy, one_device_mesh)


def test_a_checkpoint_without_metadata_is_an_error_and_no_fresh_start(own_copy, one_device_mesh):
    (own_copy / "step-5" / "metadata.json").unlink()
    with pytest.raises(CheckpointError, match=r"step-5 without metadata\.json.*Fix: "):
        restored(own_copy, one_device_mesh)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"receipt_version": 2}, "receipt_version.*Fix: use the version of chomp that wrote it"),
        ({"step": 6}, "step-5 holds the checkpoint of step 6.*Fix: rename it to step-6"),
    ],
)
def test_metadata_that_cannot_be_is_refused(change, words, own_copy, one_device_mesh):
    path = own_copy / "step-5" / "metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=words):
        restored(own_copy, one_device_mesh)


def test_metadata_that_is_no_json_is_refused_by_its_path(own_copy, one_device_mesh):
    (own_copy / "step-5" / "metadata.json").write_text('{"step": 5,')
    with pytest.raises(StorageError, match=r"metadata\.json.*Fix: "):
        restored(own_copy, one_device_mesh)


def test_a_receipt_that_does_not_match_is_damage_with_the_leaf_named(own_copy, one_device_mesh):
    path = own_copy / "step-5" / "metadata.json"
    metadata = json.loads(path.read_text())
    metadata["receipt"]["moments/0"] = metadata["receipt"]["params/w"]
    path.write_text(json.dumps(metadata))
    with pytest.raises(CheckpointError, match=r"1 arrays differ from the receipt: \['moments/0'\]"):
        restored(own_copy, one_device_mesh)


def test_what_killed_processes_left_is_no_checkpoint(own_copy, one_device_mesh):
    shutil.copytree(own_copy / "step-5", own_copy / "step-9.writing")
    shutil.copytree(own_copy / "step-5", own_copy / "step-8.removing")
    (own_copy / "step-007").mkdir()
    (own_copy / "notes.txt").write_text("mine")
    assert [found.metadata.step for found in list_checkpoints(str(own_copy))] == [5]
    assert int(restored(own_copy, one_device_mesh).step) == 5


def test_a_folder_that_cannot_be_written_is_an_error_with_the_reason(tmp_path, one_device_mesh):
    (tmp_path / "checkpoints").write_text("a file in the way")
    with pytest.raises(StorageError, match=r"checkpoints.* is a file.*Allowed: .*Fix: "):
        save(tmp_path / "checkpoints", 1, one_device_mesh)
