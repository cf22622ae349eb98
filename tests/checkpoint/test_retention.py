"""When a run saves, which checkpoints it keeps, and what it clears away."""

import dataclasses
import logging
import shutil
from pathlib import Path

import jax
import pytest
from checkpoint_samples import about, state_at
from hypothesis import given, settings
from hypothesis import strategies as st

from chomp.checkpoint import (
    CheckpointConfig,
    Checkpointer,
    KeepPolicy,
    StepFolder,
    list_checkpoints,
    read_step_folder,
    save_step_checkpoint,
    save_temporary_checkpoint,
)
from chomp.checkpoint.format import move_aside, step_path, write_metadata
from chomp.checkpoint.save import clean_up
from chomp.errors import ConfigError

KINDS = st.dictionaries(st.integers(0, 40), st.sampled_from(["permanent", "temporary"]), max_size=8)


@pytest.fixture
def _on_one_device(one_device_mesh):
    with jax.set_mesh(one_device_mesh):
        yield


def checkpointer(folder: Path, **config: object) -> Checkpointer:
    defaults = {"save_interval_s": None, "every": None}
    return Checkpointer(str(folder), CheckpointConfig(**(defaults | config)), about())


def save(saver: Checkpointer, step: int, **more: object) -> str:
    """One save, waited for."""
    path = saver.save(
        state_at(step), step=step, data_offset=4 * step, tokens_seen=32 * step, **more
    )
    saver.wait()
    return path


def kept(folder: Path) -> dict[int, str]:
    return {
        found.metadata.step: "temporary" if found.metadata.is_temporary else "permanent"
        for found in list_checkpoints(str(folder))
    }


def make(folder: Path, step: int, kind: str = "temporary", **facts: object) -> StepFolder:
    """A checkpoint without arrays."""
    path = step_path(str(folder), step)
    Path(path).mkdir(parents=True)
    write_metadata(path, about(step=step, is_temporary=kind == "temporary", **facts))
    return read_step_folder(path)


def clean(folder: Path, keep_temporary: int = 1, keep_permanent: int | None = None) -> list[int]:
    """The steps that are left."""
    clean_up(str(folder), keep_temporary=keep_temporary, keep_permanent=keep_permanent)
    return list(kept(folder))


# ---- What a config says --------------------------------------------------------------------------


def policies(*pairs: tuple[int, int | None]) -> tuple[KeepPolicy, ...]:
    return tuple(KeepPolicy(every=every, until=until) for every, until in pairs)


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        ({}, []),
        ({"every": 4}, [4, 8, 12, 16, 20]),
        ({"keep": policies((4, None))}, [4, 8, 12, 16, 20]),
        ({"keep": policies((2, 6), (10, None))}, [2, 4, 6, 10, 20]),
        ({"keep": policies((2, 6), (5, 12))}, [2, 4, 6, 10]),
        ({"keep": policies((3, 3), (7, 8), (20, None))}, [3, 7, 20]),
    ],
)
def test_the_first_policy_that_reaches_a_step_says_whether_it_is_kept(config, kept, tmp_path):
    saver = checkpointer(tmp_path, **config)
    assert [step for step in range(1, 21) if saver.is_permanent(step)] == kept
    assert [step for step in range(1, 21) if saver.is_due(step)] == kept  # without a clock


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"every": 5, "keep": policies((5, None))}, "checkpoint.every=5 with checkpoint.keep="),
        ({"keep": policies((5, None), (9, None))}, "keep with until=[None, None]"),
        ({"keep": policies((5, 9), (5, 9))}, "keep with until=[9, 9]"),
        ({"keep": policies((5, 9), (5, 3))}, "keep with until=[9, 3]"),
        # No step that is kept.
        ({"keep": policies((10, 9))}, "keep with every=10 after 0, until=9"),
        ({"keep": policies((5, 12), (10, 19))}, "keep with every=10 after 12, until=19"),
        ({"save_interval_s": 0.0}, "save_interval_s=0.0"),
        ({"save_interval_s": -1.0}, "save_interval_s=-1.0"),
        ({"every": 0}, "every=0"),
        ({"keep_temporary": 0}, "keep_temporary=0"),
        ({"max_staged_bytes": 0}, "max_staged_bytes=0"),
    ],
)
def test_a_config_that_cannot_be_is_refused_by_its_fields(config, words):
    with pytest.raises(ConfigError) as caught:
        CheckpointConfig(**config)
    assert words in caught.value.given


@pytest.mark.parametrize("wrong", [{"every": 0}, {"every": 5, "until": 0}])
def test_a_policy_of_no_steps_is_refused(wrong):
    with pytest.raises(ConfigError) as caught:
        KeepPolicy(**wrong)
    assert caught.value.given == f"{list(wrong)[-1]}=0"
    assert caught.value.allowed.startswith("at least 1 and below")


@pytest.mark.parametrize(
    "config",
    [
        {"save_interval_s": None},
        {"save_interval_s": None, "every": 2, "keep_permanent": 1},
        {"save_interval_s": 1e-9, "keep_temporary": 3},
        {"save_interval_s": 1e-9, "every": 5, "keep_permanent": 1, "keep_temporary": 1},
        {"save_interval_s": 1e-9, "keep": policies((1, 3), (6, None))},
    ],
)
def test_the_most_checkpoints_at_once_are_known_before_the_run(tmp_path, config):
    config, steps, seen = CheckpointConfig(**config), 9, 0
    for step in range(1, steps + 1):
        is_permanent = config.is_permanent(step) or step == steps
        if is_permanent or config.save_interval_s:
            seen = max(seen, 1 + len(kept(tmp_path)))  # and the one that is written now
            make(tmp_path, step, "permanent" if is_permanent else "temporary")
            clean(tmp_path, config.keep_temporary, config.keep_permanent)
    assert sum(config.most_on_disk(steps)) == seen


# ---- Saves of a run ------------------------------------------------------------------------------


@pytest.mark.usefixtures("_on_one_device")
def test_temporary_checkpoints_are_due_by_the_clock(tmp_path):
    assert checkpointer(tmp_path, save_interval_s=1e-9).is_due(1)
    saver = checkpointer(tmp_path, save_interval_s=3600.0)
    assert not saver.is_due(1)
    saver._last_save -= 3601
    assert saver.is_due(1)
    save(saver, 1)
    assert not saver.is_due(2)


@pytest.mark.usefixtures("_on_one_device")
def test_temporary_checkpoints_go_as_newer_ones_come_and_the_last_is_permanent(tmp_path):
    save_temporary_checkpoint(str(tmp_path), state_at(1), about(step=1, run_id="an earlier name"))
    for step in range(2, 7):  # by as many attempts
        assert save(checkpointer(tmp_path, every=4), step) == str(tmp_path / f"step-{step}")
        two = {s: "permanent" if s == 4 else "temporary" for s in (step - 1, step)}
        assert kept(tmp_path) == ({4: "permanent"} if step > 4 else {}) | two
    save(checkpointer(tmp_path, keep_temporary=1), 7, is_final=True)
    assert kept(tmp_path) == {4: "permanent", 7: "permanent"}


@pytest.mark.usefixtures("_on_one_device")
def test_a_temporary_checkpoint_is_made_permanent_without_being_written_again_and_never_back(
    tmp_path,
):
    path = Path(save_temporary_checkpoint(str(tmp_path), state_at(3), about(step=3)))
    files = {file: file.stat().st_mtime_ns for file in (path / "state").rglob("*")}
    before = read_step_folder(str(path)).metadata
    assert save_step_checkpoint(str(tmp_path), state_at(3), about(step=3)) == str(path)
    save_temporary_checkpoint(str(tmp_path), state_at(3), about(step=3))
    assert {file: file.stat().st_mtime_ns for file in (path / "state").rglob("*")} == files
    after = read_step_folder(str(path)).metadata
    assert after == dataclasses.replace(before, is_temporary=False)


@pytest.mark.usefixtures("_on_one_device")
def test_metadata_has_what_its_save_was_told(tmp_path):
    told = {"skipped_steps": 1, "stream_states": {"web": {"at": 3}}}
    save(checkpointer(tmp_path), 5, **told, next_batches=lambda: ("a", "b"))
    metadata = list_checkpoints(str(tmp_path))[0].metadata
    assert metadata.next_batches == ["a", "b"]
    assert (metadata.step, metadata.data_offset, metadata.tokens_seen) == (5, 20, 160)
    assert {name: getattr(metadata, name) for name in told} == told


@pytest.mark.usefixtures("_on_one_device")
def test_what_killed_processes_left_goes_with_the_next_save_and_nothing_else(tmp_path):
    for name in ("step-4.writing", "step-9.writing", "step-2.removing"):
        (tmp_path / name / "state").mkdir(parents=True)
        (tmp_path / name / "state" / "array").write_bytes(b"half")
    (tmp_path / "step-9.writing.txt").write_text("mine")
    path = Path(save(checkpointer(tmp_path), 4))
    assert not (path / "state" / "array").exists()  # written anew
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-4", "step-9.writing.txt"]


# ---- What is deleted -----------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)  # it makes folders
@given(KINDS, st.integers(1, 3), st.none() | st.integers(1, 4))
def test_the_newest_stay_and_permanent_ones_and_no_other(
    tmp_path_factory, kind_of, keep_temporary, keep_permanent
):
    folder = tmp_path_factory.mktemp("kept")
    for step, kind in kind_of.items():
        make(folder, step, kind)
    newest = sorted(kind_of)[-keep_temporary:]
    permanent = [step for step in sorted(kind_of) if kind_of[step] == "permanent"]
    if keep_permanent is not None:
        permanent = permanent[-keep_permanent:]
    temporary = [step for step in newest if kind_of[step] == "temporary"]
    assert clean(folder, keep_temporary, keep_permanent) == sorted(permanent + temporary)
    shutil.rmtree(folder)


def test_a_checkpoint_that_is_permanent_or_gone_since_it_was_listed_is_left_alone(
    tmp_path, monkeypatch
):
    listed = [make(tmp_path, step) for step in (1, 2, 3, 4)]
    # Before the one that is gone, where it would be deleted if it were taken for temporary.
    write_metadata(listed[0].path, dataclasses.replace(listed[0].metadata, is_temporary=False))
    shutil.rmtree(listed[1].path)
    monkeypatch.setattr("chomp.checkpoint.save.list_checkpoints", lambda folder: listed)
    assert clean(tmp_path) == [1, 4]


def test_none_goes_while_the_newest_is_not_whole(tmp_path):
    make(tmp_path, 2), make(tmp_path, 3, "permanent")
    make(tmp_path, 4, "permanent", state_files={"d/0": 30})  # a file of it is missing
    assert clean(tmp_path, keep_permanent=1) == [2, 3, 4]
    make(tmp_path, 5)
    assert clean(tmp_path) == [3, 4, 5]


def test_damaged_and_other_folders_are_never_deleted(tmp_path):
    make(tmp_path, 1, state_files={"d/0": 30})
    (tmp_path / "step-3").mkdir()
    (tmp_path / "step-4").write_text("a file")
    move_aside(make(tmp_path, 5).path, why="forked", attempt=2)
    (tmp_path / "mine").mkdir()
    make(tmp_path, 6), make(tmp_path, 7)
    before = {path.name for path in tmp_path.iterdir()}
    clean(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == before - {"step-6"}
    assert "step-5.forked-2" in before


def test_what_cannot_be_deleted_is_warned_of_and_costs_nothing_else(tmp_path, caplog):
    make(tmp_path, 2), make(tmp_path, 4)
    # A deletion begins with a rename to this name, which a link that leads nowhere blocks.
    (tmp_path / "step-2.removing").symlink_to(tmp_path / "nowhere")
    with caplog.at_level(logging.WARNING):
        assert clean(tmp_path) == [2, 4]
    assert "an old checkpoint could not be deleted: " in caplog.text
