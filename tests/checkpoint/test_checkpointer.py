"""When a run saves, what it keeps, and what it clears away."""

from pathlib import Path

import jax
import pytest
from checkpoint_samples import about, state_at

from chomp.checkpoint import (
    CheckpointConfig,
    Checkpointer,
    KeepPolicy,
    list_checkpoints,
    save_step_checkpoint,
    save_temporary_checkpoint,
)
from chomp.errors import ConfigError


@pytest.fixture(autouse=True)
def _on_one_device(one_device_mesh):
    with jax.set_mesh(one_device_mesh):
        yield


def checkpointer(folder: Path, **config: object) -> Checkpointer:
    defaults = {"save_interval_s": None, "every": None}
    return Checkpointer(str(folder), CheckpointConfig(**(defaults | config)), about())


def save(saver: Checkpointer, step: int, *, is_final: bool = False, **more: object) -> str:
    """One save, waited for."""
    where = {"step": step, "data_offset": 4 * step, "tokens_seen": 32 * step}
    path = saver.save(state_at(step), **where, is_final=is_final, **more)
    saver.wait()
    return path


def kept(folder: Path) -> dict[int, str]:
    return {
        found.metadata.step: "temporary" if found.metadata.is_temporary else "permanent"
        for found in list_checkpoints(str(folder))
    }


def test_permanent_checkpoints_are_due_by_completed_steps(tmp_path):
    saver = checkpointer(tmp_path, every=3)
    assert [step for step in range(1, 10) if saver.is_due(step)] == [3, 6, 9]


def test_temporary_checkpoints_are_due_by_the_clock(tmp_path):
    assert checkpointer(tmp_path, save_interval_s=1e-9).is_due(1)
    assert not checkpointer(tmp_path, save_interval_s=3600.0).is_due(1)


def test_without_a_period_nothing_is_due(tmp_path):
    assert not any(checkpointer(tmp_path).is_due(step) for step in range(1, 100))


def test_the_clock_starts_again_at_each_save(tmp_path):
    # Longer than a save takes on a machine that has much else to do.
    saver = checkpointer(tmp_path, save_interval_s=1.5)
    while not saver.is_due(1):
        pass
    save(saver, 1)
    assert not saver.is_due(2)


def test_of_temporary_checkpoints_the_newest_is_kept_and_of_permanent_ones_all(tmp_path):
    saver = checkpointer(tmp_path, every=4, keep_temporary=1)
    for step in range(1, 7):
        save(saver, step)
        newest = {step: "permanent" if step % 4 == 0 else "temporary"}
        assert kept(tmp_path) == ({4: "permanent"} if step > 4 else {}) | newest


@pytest.mark.parametrize(
    "settings",
    [
        {"save_interval_s": None},
        {"save_interval_s": None, "every": 2, "keep_permanent": 1},
        {"save_interval_s": 1e-9, "keep_temporary": 3},
        {"save_interval_s": 1e-9, "every": 5, "keep_permanent": 1, "keep_temporary": 1},
        {"save_interval_s": 1e-9, "keep": ({"every": 1, "until": 3}, {"every": 6})},
    ],
)
def test_the_most_checkpoints_at_once_are_known_before_the_run(tmp_path, settings):
    policies = tuple(KeepPolicy(**policy) for policy in settings.get("keep", ()))
    config = CheckpointConfig(**{**settings, "keep": policies})
    saver, steps, seen = Checkpointer(str(tmp_path), config, about()), 9, 0
    for step in range(1, steps + 1):
        if saver.is_due(step) or step == steps:
            seen = max(seen, 1 + len(kept(tmp_path)))  # and the one that is written now
            save(saver, step, is_final=step == steps)
    assert sum(config.most_on_disk(steps)) == seen


def test_there_is_an_older_checkpoint_to_fall_back_to_unless_asked_otherwise(tmp_path):
    saver = checkpointer(tmp_path)
    for step in range(1, 5):
        save(saver, step)
    assert kept(tmp_path) == {3: "temporary", 4: "temporary"}


def test_the_last_checkpoint_is_permanent_and_ends_the_temporary_ones(tmp_path):
    saver = checkpointer(tmp_path, keep_temporary=1)
    save(saver, 5)
    path = save(saver, 6, is_final=True)
    assert kept(tmp_path) == {6: "permanent"}
    assert path == str(tmp_path / "step-6")


def test_temporary_checkpoints_of_earlier_attempts_are_cleared_too(tmp_path):
    for step in (3, 5, 7):
        save(checkpointer(tmp_path), step)
    assert kept(tmp_path) == {5: "temporary", 7: "temporary"}


def test_temporary_checkpoints_from_before_the_run_was_renamed_are_cleared_too(tmp_path):
    save_temporary_checkpoint(str(tmp_path), state_at(3), about(step=3, run_id="old name"))
    save(checkpointer(tmp_path, keep_temporary=1), 5)
    assert kept(tmp_path) == {5: "temporary"}


def test_a_temporary_checkpoint_is_made_permanent_without_being_written_again(tmp_path):
    path = Path(save_temporary_checkpoint(str(tmp_path), state_at(3), about(step=3)))
    files = {file: file.stat().st_mtime_ns for file in (path / "state").rglob("*")}
    receipt = list_checkpoints(str(tmp_path))[0].metadata.receipt
    assert save_step_checkpoint(str(tmp_path), state_at(3), about(step=3)) == str(path)
    assert kept(tmp_path) == {3: "permanent"}
    assert {file: file.stat().st_mtime_ns for file in (path / "state").rglob("*")} == files
    assert list_checkpoints(str(tmp_path))[0].metadata.receipt == receipt


def test_a_permanent_checkpoint_never_becomes_temporary(tmp_path):
    save_step_checkpoint(str(tmp_path), state_at(3), about(step=3))
    save_temporary_checkpoint(str(tmp_path), state_at(3), about(step=3))
    save(checkpointer(tmp_path), 4)
    assert kept(tmp_path) == {3: "permanent", 4: "temporary"}


def test_metadata_has_what_its_save_was_told(tmp_path):
    told = {"skipped_steps": 1, "stream_states": {"web": {"at": 3}}}
    save(checkpointer(tmp_path), 5, **told, next_batches=lambda: ("a", "b"))
    metadata = list_checkpoints(str(tmp_path))[0].metadata
    assert metadata.next_batches == ["a", "b"]
    assert (metadata.step, metadata.data_offset, metadata.tokens_seen) == (5, 20, 160)
    assert {name: getattr(metadata, name) for name in told} == told


def test_what_killed_processes_left_goes_with_the_next_save_and_nothing_else(tmp_path):
    for name in ("step-9.writing", "step-2.removing"):
        (tmp_path / name / "state").mkdir(parents=True)
        (tmp_path / name / "state" / "array").write_bytes(b"half")
    (tmp_path / "step-9.writing.txt").write_text("mine")
    save(checkpointer(tmp_path), 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-4", "step-9.writing.txt"]


def test_an_unfinished_checkpoint_of_the_same_step_is_written_anew(tmp_path):
    (tmp_path / "step-4.writing" / "state").mkdir(parents=True)
    (tmp_path / "step-4.writing" / "state" / "array").write_bytes(b"half")
    path = Path(save(checkpointer(tmp_path), 4))
    assert not (path / "state" / "array").exists()
    assert kept(tmp_path) == {4: "temporary"}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"save_interval_s": 0.0}, "save_interval_s=0.0"),
        ({"save_interval_s": -1.0}, "save_interval_s=-1.0"),
        ({"every": 0}, "every=0"),
        ({"keep_temporary": 0}, "keep_temporary=0"),
        ({"max_staged_bytes": 0}, "max_staged_bytes=0"),
    ],
)
def test_a_period_that_cannot_be_is_refused_by_its_field(wrong, words):
    with pytest.raises(ConfigError) as caught:
        CheckpointConfig(**wrong)
    assert words in caught.value.given
