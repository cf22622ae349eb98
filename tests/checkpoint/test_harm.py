"""Damaged checkpoints: an older whole one is taken, or none; no wrong state, nothing lost."""

import re
import shutil
import tempfile
from pathlib import Path

import jax
import pytest
from checkpoint_samples import state_at
from hypothesis import given, settings
from hypothesis import strategies as st
from restore_samples import (
    HARMS,
    assert_state_of,
    begun,
    change_metadata,
    run,
    save,
    snapshot,
    state_files,
    step_of,
)

from chomp.checkpoint import DamagedCheckpoint, list_checkpoints, place_of, restore_checkpoint
from chomp.checkpoint.format import Unreadable, checkpoints_at
from chomp.errors import CheckpointError, StorageError

STEPS = (2, 4, 6, 8)


@pytest.fixture(scope="module")
def saved(tmp_path_factory, one_device_mesh) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    with jax.set_mesh(one_device_mesh):
        for step in STEPS:
            save(folder, step)
    return folder


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_checkpoint_is_passed_over_with_the_reason_and_kept_aside(
    harm, folder, mesh, caplog
):
    do_harm, reason = HARMS[harm]
    do_harm(folder / "step-8")
    before = snapshot(folder)
    beginning = begun(folder, mesh, attempt=3)
    assert_state_of(beginning, 6, mesh)
    told = [r.getMessage() for r in caplog.records if "passed over" in r.getMessage()]
    assert len(told) == 1
    assert re.search(f"step-8 is damaged and passed over: .*{reason}", told[0], re.DOTALL)
    # Its name is free for the step to be saved again, and not a byte is lost.
    after = {name.replace(".damaged-3", ""): content for name, content in snapshot(folder).items()}
    assert after == before


@pytest.mark.parametrize("harm", ["lose a file", "cut metadata", "change a hash"])
def test_the_only_checkpoint_damaged_is_an_error_and_never_a_fresh_start(
    harm, saved, tmp_path, mesh
):
    do_harm, reason = HARMS[harm]
    shutil.copytree(saved / "step-8", tmp_path / "step-8")
    do_harm(tmp_path / "step-8")
    before = snapshot(tmp_path)
    for config in (run(), run(load_checkpoint=True)):
        with pytest.raises(CheckpointError) as caught:
            begun(tmp_path, mesh, config)
        assert re.search(rf"step-8: .*{reason}", caught.value.given, re.DOTALL)
        assert "allow_fresh_start=true" in caught.value.fix
    with pytest.raises(CheckpointError) as caught:
        begun(tmp_path, mesh, run(load_checkpoint=True, allow_fresh_start=True))
    assert re.search(reason, caught.value.given)
    assert snapshot(tmp_path) == before


def test_every_damaged_checkpoint_is_listed_with_its_own_reason(folder, mesh):
    for step, harm in zip(STEPS, HARMS, strict=False):
        HARMS[harm][0](folder / f"step-{step}")
    with pytest.raises(CheckpointError) as caught:
        begun(folder, mesh)
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0].rpartition("/")[2] for line in lines[1:5]] == [
        "step-8", "step-6", "step-4", "step-2",
    ]  # fmt: skip


def test_a_fresh_start_that_is_allowed_is_made_once_none_is_whole_and_keeps_all_aside(
    folder, mesh, caplog
):
    def contents() -> dict[str, bytes]:
        return {name.replace(".damaged-2", ""): file for name, file in snapshot(folder).items()}

    for step, next_older in ((8, 6), (6, 4), (4, 2), (2, 0)):
        assert "starting at step 0" not in caplog.text
        HARMS["lose a file"][0](folder / f"step-{step}")
        before = contents()
        assert step_of(begun(folder, mesh, run(allow_fresh_start=True))) == next_older
        assert contents() == before
    assert "starting at step 0" in caplog.text
    assert sorted(path.name for path in folder.iterdir()) == [
        f"step-{step}.damaged-2" for step in STEPS
    ]


@settings(max_examples=12, deadline=None)
@given(harms=st.lists(st.sampled_from([None, *HARMS]), min_size=4, max_size=4))
def test_of_any_checkpoints_the_newest_whole_one_wins(harms, saved, one_device_mesh):
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "checkpoints"
        shutil.copytree(saved, folder)
        for step, harm in zip(STEPS, harms, strict=True):
            if harm is not None:
                HARMS[harm][0](folder / f"step-{step}")
        before = snapshot(folder)
        whole = [step for step, harm in zip(STEPS, harms, strict=True) if harm is None]
        if whole:
            assert_state_of(begun(folder, one_device_mesh), whole[-1], one_device_mesh)
        else:
            with pytest.raises(CheckpointError) as caught:
                begun(folder, one_device_mesh)
            assert "no checkpoint can be restored" in caught.value.given
        # Whatever came of it, every file is still there, under its own name or aside.
        assert sorted(snapshot(folder).values()) == sorted(before.values())


def test_metadata_of_another_run_is_never_restored_with_these_arrays(folder, tmp_path, mesh):
    # The same config and step, other numbers: only files and hashes can tell.
    other = Path(save(tmp_path / "other", 8, state_at(9)))
    shutil.copy(other / "metadata.json", folder / "step-8" / "metadata.json")
    assert_state_of(begun(folder, mesh), 6, mesh)


def test_metadata_of_another_config_is_an_error_that_says_so(folder, mesh):
    another = {"model": {"columns": 99}}
    change_metadata(folder / "step-8", config=another, config_hash="0123", run_id="another")
    before = snapshot(folder)
    with pytest.raises(CheckpointError) as caught:
        begun(folder, mesh)
    assert "step-8" in caught.value.given
    assert "model.columns" in caught.value.given
    assert snapshot(folder) == before


def test_a_reason_says_what_is_wrong_and_gives_no_advice(folder, mesh, caplog):
    for step, harm in ((8, "unreadable arrays"), (6, "unreadable metadata"), (4, "cut metadata")):
        HARMS[harm][0](folder / f"step-{step}")
    found = checkpoints_at(place_of(str(folder)))
    others = [item for item in found if isinstance(item, Unreadable)]
    assert len(others) == 2
    assert step_of(begun(folder, mesh)) == 2
    told = [r.getMessage() for r in caplog.records if "passed over" in r.getMessage()]
    assert len(told) == 3
    for text in [*told, *(other.reason for other in others)]:
        assert not re.search("Allowed: |Fix: ", text), text


def test_a_file_in_a_checkpoint_s_place_is_never_taken_for_one(folder, mesh):
    shutil.rmtree(folder / "step-8")
    (folder / "step-8").write_text("mine")
    # It cannot be moved like a folder, and a save of step 8 would meet it: so it is told at once.
    with pytest.raises(StorageError) as caught:
        begun(folder, mesh)
    assert "step-8" in caught.value.given
    assert (folder / "step-8").read_text() == "mine"


def test_one_checkpoint_that_is_asked_for_and_damaged_is_told_by_its_reason(folder, mesh):
    HARMS["change a hash"][0](folder / "step-4")
    found = list_checkpoints(str(folder))[1]
    abstract = jax.eval_shape(lambda: state_at(0))
    with pytest.raises(DamagedCheckpoint) as caught:
        restore_checkpoint(found, abstract, mesh=mesh)
    assert "step-4" in caught.value.given
    assert caught.value.reason.startswith("1 arrays differ")


def test_a_flipped_byte_never_gives_a_wrong_state_and_is_found_in_the_arrays(folder, mesh):
    files = state_files(folder / "step-8")
    assert len(files) >= 5
    for path in files:
        content = path.read_bytes()
        for part in (1, 3, 5):
            place = part * len(content) // 6
            flipped = content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :]
            path.write_bytes(flipped)
            beginning = begun(folder, mesh)
            step = step_of(beginning)
            assert_state_of(beginning, step, mesh)
            # The arrays of the sample are random and do not compress: their files are large.
            assert step == 6 or (step == 8 and len(content) < 4000), path
            if step == 6:
                (folder / "step-8.damaged-2").rename(folder / "step-8")
        path.write_bytes(content)
