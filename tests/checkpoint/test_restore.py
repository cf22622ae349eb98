"""What a run begins with: its newest whole checkpoint, the place it is told, or a fresh state."""

import dataclasses
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoint_samples import State, state_at
from restore_samples import (
    HARMS,
    assert_state_of,
    begun,
    run,
    save,
    snapshot,
    step_of,
)

from chomp.checkpoint import StepFolder, latest_checkpoint, list_checkpoints, restore_checkpoint
from chomp.errors import CheckpointError, ConfigError, StorageError


@pytest.fixture(scope="module")
def saved(tmp_path_factory, one_device_mesh) -> Path:
    """Steps 2, 9 and 10, of which the names sort otherwise."""
    folder = tmp_path_factory.mktemp("saved") / "checkpoints"
    with jax.set_mesh(one_device_mesh):
        for step in (9, 10, 2):
            save(folder, step)
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---- The run's own folder --------------------------------------------------------------------


def test_the_newest_state_comes_back_bit_for_bit_and_nothing_changes_on_disk(saved, mesh):
    before = snapshot(saved)
    beginning = begun(saved, mesh, data_offset_at=lambda step: 4 * step)
    assert beginning.found is not None
    assert beginning.found.path == str(saved / "step-10")
    assert_state_of(beginning, 10, mesh)
    assert beginning.continues == {
        "path": str(saved / "step-10"), "run_id": "tiny", "attempt": 1, "step": 10,
    }  # fmt: skip
    state, draw = beginning.state, lambda key: np.asarray(jax.random.normal(key, (4,)))
    np.testing.assert_array_equal(draw(state.training_key), draw(jax.random.key(10)))
    stepped = jax.jit(lambda s: dataclasses.replace(s, step=s.step + 1), donate_argnums=0)(state)
    assert int(stepped.step) == 11  # it can be donated
    assert snapshot(saved) == before


def test_a_folder_without_checkpoints_is_a_fresh_start(tmp_path, mesh):
    assert step_of(begun(tmp_path, mesh)) == 0
    beginning = begun(tmp_path / "missing", mesh)
    assert (step_of(beginning), beginning.continues) == (0, None)
    assert latest_checkpoint(str(tmp_path / "missing")) is None


def test_a_relative_folder_is_as_good_as_an_absolute_one(tmp_path, monkeypatch, mesh):
    monkeypatch.chdir(tmp_path)
    assert save("runs/checkpoints", 2) == "runs/checkpoints/step-2"
    assert step_of(begun("runs/checkpoints", mesh)) == 2
    config = run(load_checkpoint_path="runs/checkpoints/step-2")
    assert step_of(begun(tmp_path / "runs/checkpoints", mesh, config)) == 2


def test_must_load_finds_a_checkpoint_or_says_where_it_looked(tmp_path, saved, mesh):
    assert step_of(begun(saved, mesh, run(load_checkpoint=True))) == 10
    with pytest.raises(CheckpointError) as caught:
        begun(tmp_path, mesh, run(load_checkpoint=True))
    assert str(tmp_path) in caught.value.given
    assert "trainer.load_checkpoint=null" in caught.value.fix


def test_must_start_fresh_refuses_a_folder_with_a_checkpoint(folder, mesh):
    with pytest.raises(CheckpointError) as caught:
        begun(folder, mesh, run(load_checkpoint=False))
    assert "step-10" in caught.value.given
    assert "load_checkpoint=false" in caught.value.given
    HARMS["lose metadata"][0](folder / "step-10")  # unreadable is not the same as absent
    with pytest.raises(CheckpointError) as caught:
        begun(folder, mesh, run(load_checkpoint=False))
    assert "step-10" in caught.value.given
    assert "load_checkpoint=false" in caught.value.given


def test_leftovers_alone_are_a_fresh_start_that_names_them_and_stay(folder, tmp_path, mesh, caplog):
    asides = ("step-12.writing", "step-8.removing", "step-7.damaged-1", "step-11.forked-1")
    for name in asides:
        shutil.copytree(folder / "step-9", folder / name)
        shutil.copytree(folder / "step-9", tmp_path / "alone" / name)
    (folder / "step-007").mkdir()
    (folder / "notes.txt").write_text("mine")
    before = snapshot(tmp_path)
    assert step_of(begun(folder, mesh)) == 10
    assert not caplog.text
    assert step_of(begun(tmp_path / "alone", mesh)) == 0
    assert all(name in caplog.text for name in asides)
    assert snapshot(tmp_path) == before


def test_another_run_is_an_error_and_no_older_checkpoint_is_tried(folder, tmp_path, mesh):
    with jax.set_mesh(mesh):
        save(folder, 11, config=run({"columns": 64}))
    before = snapshot(folder)
    for own, config in (
        (folder, run()),
        (tmp_path / "own", run(load_checkpoint_path=str(folder))),  # there the rules hold too
    ):
        with pytest.raises(CheckpointError) as caught:
            begun(own, mesh, config)
        assert "step-11 was saved by another run" in caught.value.given
    assert snapshot(folder) == before


def test_a_schedule_may_change_when_it_is_allowed_and_moves_no_data(saved, tmp_path, mesh, caplog):
    with pytest.raises(CheckpointError) as caught:
        begun(saved, mesh, run(steps=50))
    assert "--allow trainer.steps" in caught.value.fix
    config = run(steps=50, allow_changes=("train.steps",))
    assert step_of(begun(saved, mesh, config)) == 10
    assert "trainer.steps  10     50   schedule" in caplog.text
    with pytest.raises(CheckpointError) as caught:
        begun(saved, mesh, config, data_offset_at=lambda step: 8 * step)
    assert "examples before step 10  40     80   identity" in caught.value.given
    # Before anything is looked at:
    with pytest.raises(ConfigError) as unknown:
        begun(tmp_path, mesh, run(allow_changes=("*",)))
    assert "--allow *" in unknown.value.given


def test_another_shape_or_dtype_is_refused_with_both_and_never_cast(saved, mesh):
    def widened() -> State:
        state = state_at(0)
        params = {name: leaf.astype(jnp.float32) for name, leaf in state.params.items()}
        return dataclasses.replace(state, params=params)

    for initialize, row in (
        (lambda: state_at(0, columns=16), r"params/w +\(64, 32\) float32 +\(64, 16\) float32\n"),
        (widened, r"params/bias +\(32,\) bfloat16 +\(32,\) float32\n"),
    ):
        with pytest.raises(CheckpointError) as caught:
            begun(saved, mesh, initialize=initialize)
        assert re.search(row, caught.value.given)
        newest = list_checkpoints(str(saved))[-1]
        with pytest.raises(CheckpointError) as caught:
            restore_checkpoint(newest, jax.eval_shape(initialize), mesh=mesh)
        assert re.search(row, caught.value.given)


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_a_random_key_keeps_its_generator(impl, tmp_path, mesh):
    save(tmp_path, 3, state_at(3, impl=impl))
    key = begun(tmp_path, mesh, initialize=lambda: state_at(0, impl=impl)).state.training_key
    assert key.dtype == jax.random.key(3, impl=impl).dtype


# ---- Going back, and going on elsewhere --------------------------------------------------------


def test_going_back_to_an_older_step_moves_the_newer_ones_aside(folder, mesh, caplog):
    before = snapshot(folder)
    config = run(load_checkpoint_path=str(folder / "step-2"))
    beginning = begun(folder, mesh, config, attempt=3)
    assert_state_of(beginning, 2, mesh)
    assert names(folder) == ["step-10.forked-3", "step-2", "step-9.forked-3"]
    moved = {name.replace(".forked-3", ""): content for name, content in snapshot(folder).items()}
    assert moved == before
    assert "what is newer is moved aside" in caplog.text
    assert beginning.continues is not None
    assert beginning.continues["load_checkpoint_path"] == "step-2"


def test_a_killed_run_that_went_back_goes_on_from_its_own_newest(folder, mesh, caplog):
    # The same command again and again, as a launcher restarts it: it must not begin at 2 for ever.
    config = run(load_checkpoint_path=str(folder / "step-2"))
    first = begun(folder, mesh, config, attempt=2)
    save(folder, 4, continues=first.continues)
    second = begun(folder, mesh, config, attempt=3)
    assert step_of(second) == 4
    assert "continues from its own newest checkpoint" in caplog.text
    save(folder, 6, continues=second.continues)
    shutil.rmtree(folder / "step-4")  # a temporary one: the line must hold without it
    assert step_of(begun(folder, mesh, config, attempt=4)) == 6
    # Another step than the one the line began with is another fork.
    elsewhere = run(load_checkpoint_path=str(folder / "step-6"))
    third = begun(folder, mesh, elsewhere, attempt=5)
    save(folder, 8, continues=third.continues)
    assert step_of(begun(folder, mesh, config, attempt=6)) == 2
    assert names(folder)[1:] == [
        "step-2", "step-6.forked-6", "step-8.forked-6", "step-9.forked-2",
    ]  # fmt: skip


def test_nothing_is_moved_before_the_next_batches_are_proven(folder, mesh):
    HARMS["lose a file"][0](folder / "step-10")
    before = snapshot(folder)
    seen: list[int] = []

    def refused(found: StepFolder) -> None:
        seen.append(found.metadata.step)
        raise CheckpointError("other batches")

    for config in (run(), run(load_checkpoint_path=str(folder / "step-2"))):
        with pytest.raises(CheckpointError) as caught:
            begun(folder, mesh, config, proof=refused)
        assert "other batches" in caught.value.given
        assert snapshot(folder) == before
    assert seen == [9, 2]  # an error, and no damage: none of them was passed over for an older one

    there: list[list[str]] = []
    config = run(load_checkpoint_path=str(folder / "step-2"))
    beginning = begun(folder, mesh, config, proof=lambda found: there.append(names(folder)))
    assert step_of(beginning) == 2
    assert there == [["step-10", "step-2", "step-9"]]
    assert names(folder) == ["step-10.forked-2", "step-2", "step-9.forked-2"]


def test_the_newest_is_the_last_to_be_moved_aside(folder, mesh):
    # A file cannot be moved like a folder: this is as far as a run came that was killed there.
    (folder / "step-11").write_text("mine")
    with pytest.raises(StorageError) as caught:
        begun(folder, mesh, run(load_checkpoint_path=str(folder / "step-2")))
    assert "step-11" in caught.value.given
    assert names(folder) == ["step-10.forked-2", "step-11", "step-2", "step-9.forked-2"]


def test_naming_the_newest_step_or_the_own_folder_moves_nothing(folder, mesh):
    before = snapshot(folder)
    for place in (folder / "step-10", folder, folder.parent):
        assert step_of(begun(folder, mesh, run(load_checkpoint_path=str(place)))) == 10
    assert snapshot(folder) == before


def test_a_step_that_is_asked_for_and_damaged_is_an_error_without_a_substitute(folder, mesh):
    HARMS["lose a file"][0](folder / "step-9")
    before = snapshot(folder)
    config = run(load_checkpoint_path=str(folder / "step-9"), allow_fresh_start=True)
    with pytest.raises(CheckpointError) as caught:
        begun(folder, mesh, config)
    assert "step-9: state/ lacks" in caught.value.given
    assert snapshot(folder) == before


@pytest.mark.parametrize("inside", ["", "checkpoints", "checkpoints/step-9"])
def test_a_run_without_checkpoints_goes_on_from_the_place_it_is_told(
    inside, saved, tmp_path, mesh, caplog
):
    before = snapshot(saved)
    own, step = tmp_path / "own", 9 if inside.endswith("9") else 10
    config = run(load_checkpoint_path=str(saved.parent / inside))
    first = begun(own, mesh, config)
    assert_state_of(first, step, mesh)
    assert f"going on from {saved}/step-{step}, not from {own}" in caplog.text
    # From then on its own win, or a restart would lose what was done since.
    save(own, 12, continues=first.continues)
    assert step_of(begun(own, mesh, config)) == 12
    assert snapshot(saved) == before


def test_another_run_s_damaged_checkpoint_is_passed_over_and_stays_where_it_is(
    folder, tmp_path, mesh
):
    HARMS["cut a file"][0](folder / "step-10")
    before = snapshot(folder)
    config = run(load_checkpoint_path=str(folder))
    assert step_of(begun(tmp_path / "own", mesh, config)) == 9
    assert snapshot(folder) == before


@pytest.fixture
def own(folder, tmp_path, mesh) -> Path:
    """Checkpoints of a run that began at a place, all of them damaged since."""
    config = run(load_checkpoint_path=str(folder))
    for step in (12, 14):
        save(tmp_path / "own", step, continues=begun(tmp_path / "own", mesh, config).continues)
    for step in (12, 14):
        HARMS["lose a file"][0](tmp_path / f"own/step-{step}")
    return tmp_path / "own"


def test_a_run_whose_own_are_all_damaged_may_begin_once_more_where_it_began(
    own, folder, mesh, caplog
):
    before, there = snapshot(own), snapshot(folder)
    with pytest.raises(CheckpointError) as caught:
        begun(own, mesh, run(load_checkpoint_path=str(folder)))
    assert "allow_fresh_start=true" in caught.value.fix
    config = run(load_checkpoint_path=str(folder), allow_fresh_start=True)
    with pytest.raises(CheckpointError) as caught:
        begun(own, mesh, config, proof=raising(CheckpointError("other batches")))
    assert "other batches" in caught.value.given
    assert snapshot(own) == before
    beginning = begun(own, mesh, config, attempt=5)
    assert_state_of(beginning, 10, mesh)
    assert f"starting again from {folder}" in caplog.text
    assert names(own) == ["step-12.damaged-5", "step-14.damaged-5"]
    assert snapshot(folder) == there
    save(own, 12, continues=beginning.continues)
    assert step_of(begun(own, mesh, config)) == 12


def test_who_names_a_place_never_begins_with_random_weights(own, folder, tmp_path, mesh):
    for step in (2, 9, 10):
        HARMS["lose a file"][0](folder / f"step-{step}")
    before = snapshot(tmp_path)
    config = run(load_checkpoint_path=str(folder), allow_fresh_start=True)
    for place, steps in ((own, (14, 12, 10, 9, 2)), (tmp_path / "new", (10, 9, 2))):
        with pytest.raises(CheckpointError) as caught:
            begun(place, mesh, config)
        assert "no checkpoint can be restored" in caught.value.given
        told = str(caught.value)
        assert [f"step-{step}: " in told for step in steps] == [True] * len(steps)
        assert "allow_fresh_start" not in told
    with pytest.raises(CheckpointError) as caught:
        begun(folder, mesh, config)
    assert "no checkpoint can be restored" in caught.value.given
    assert snapshot(tmp_path) == before


def raising(error: Exception) -> Callable[[StepFolder], None]:
    def proof(found: StepFolder) -> None:
        raise error

    return proof


def test_a_checkpoint_that_is_deleted_while_it_is_read_is_looked_for_again(
    folder, tmp_path, mesh, caplog
):
    # As the run that it belongs to does: a newer one is there by then.
    newer = Path(save(tmp_path / "later", 12))

    def offset(step: int) -> int:
        if step == 10:
            shutil.rmtree(folder / "step-10")
            newer.rename(folder / "step-12")
        return 4 * step

    config = run(load_checkpoint_path=str(folder))
    beginning = begun(tmp_path / "own", mesh, config, data_offset_at=offset)
    assert_state_of(beginning, 12, mesh)
    assert "looking again" in caplog.text
    assert "is damaged" not in caplog.text


def test_looking_again_has_an_end(folder, tmp_path, mesh):
    def offset(step: int) -> int:
        shutil.rmtree(folder / f"step-{step}")
        return 4 * step

    save(folder, 1)
    config = run(load_checkpoint_path=str(folder))
    with pytest.raises(CheckpointError) as caught:
        begun(tmp_path / "own", mesh, config, data_offset_at=offset)
    assert "step-2" in caught.value.given


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("step-010", "step-10"),
        ("step-9.forked-2", "step-9"),
        ("step-9.damaged-2.2", "step-9"),
    ],
)
def test_a_step_under_another_name_is_told_how_to_get_its_own(name, fix, folder, tmp_path, mesh):
    (folder / "step-9").rename(folder / name)
    before = snapshot(folder)
    for own in (folder, tmp_path / "own"):
        for setting in ("load_checkpoint_path", "initialize_from"):
            if own is folder and setting == "initialize_from":
                continue  # its own checkpoints come first
            with pytest.raises(ConfigError) as caught:
                begun(own, mesh, run(**{setting: str(folder / name)}))
            assert name in caught.value.given
            assert fix in caught.value.fix
    assert snapshot(folder) == before


def test_a_place_is_refused_by_a_run_whose_checkpoints_did_not_come_from_there(
    saved, tmp_path, mesh
):
    save(tmp_path / "own", 1)
    with pytest.raises(CheckpointError) as caught:
        begun(tmp_path / "own", mesh, run(load_checkpoint_path=str(saved)))
    assert "own/step-1" in caught.value.given


def test_a_place_that_leads_nowhere_is_never_a_fresh_start(saved, tmp_path, mesh):
    (tmp_path / "checkpoints").mkdir()
    for place in (saved / "step-3", tmp_path / "missing", tmp_path):
        with pytest.raises((CheckpointError, ConfigError)) as caught:
            begun(tmp_path / "own", mesh, run(load_checkpoint_path=str(place)))
        assert str(place) in caught.value.given


def test_settings_of_which_one_would_be_ignored_are_refused(saved, tmp_path, mesh):
    config = run(load_checkpoint_path=str(saved), load_checkpoint=False)
    with pytest.raises(ConfigError) as caught:
        begun(tmp_path, mesh, config)
    assert "load_checkpoint_path=" in caught.value.given
