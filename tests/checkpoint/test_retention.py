"""Which checkpoints are permanent, and which are deleted once a newer one is complete."""

import dataclasses
import logging
import shutil
from pathlib import Path

import pytest
from checkpoint_samples import about
from hypothesis import given, settings
from hypothesis import strategies as st

from chomp.checkpoint import (
    CheckpointConfig,
    KeepPolicy,
    StepFolder,
    list_checkpoints,
    step_path,
    write_metadata,
)
from chomp.checkpoint.checkpointer import (
    clean_up,
    is_kept,
    remove_if_unchanged,
    superseded,
)
from chomp.checkpoint.format import move_aside
from chomp.errors import ConfigError

kinds = st.sampled_from(["permanent", "temporary"])


def make(folder: Path, step: int, kind: str = "temporary", **facts: object) -> StepFolder:
    """A checkpoint without arrays."""
    path = step_path(str(folder), step)
    Path(path).mkdir(parents=True)
    metadata = about(step=step, is_temporary=kind == "temporary", **facts)
    write_metadata(path, metadata)
    return StepFolder(path, metadata)


def steps(folder: Path) -> list[int]:
    return [item.metadata.step for item in list_checkpoints(str(folder))]


def clean(folder: Path, keep_temporary: int = 1) -> list[int]:
    """The steps that are left."""
    clean_up(str(folder), keep_temporary=keep_temporary)
    return steps(folder)


@pytest.mark.parametrize(
    ("policies", "kept"),
    [
        ((), []),
        (((4, None),), [4, 8, 12, 16, 20]),
        (((2, 6), (10, None)), [2, 4, 6, 10, 20]),
        (((2, 6), (5, 12)), [2, 4, 6, 10]),
        (((3, 3), (7, 8), (20, None)), [3, 7, 20]),
    ],
)
def test_the_first_policy_that_reaches_a_step_says_whether_it_is_kept(policies, kept):
    rules = tuple(KeepPolicy(every=every, until=until) for every, until in policies)
    assert [step for step in range(1, 21) if is_kept(rules, step)] == kept


def test_every_is_short_for_one_policy_without_an_end():
    assert CheckpointConfig(every=5).policies == (KeepPolicy(every=5),)
    assert CheckpointConfig().policies == ()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"every": 5, "keep": (KeepPolicy(every=5),)}, "checkpoint.every=5 with checkpoint.keep="),
        ({"keep": (KeepPolicy(every=5), KeepPolicy(every=9))}, "keep with until=[None, None]"),
        (
            {"keep": (KeepPolicy(every=5, until=9), KeepPolicy(every=5, until=9))},
            "keep with until=[9, 9]",
        ),
        (
            {"keep": (KeepPolicy(every=5, until=9), KeepPolicy(every=5, until=3))},
            "keep with until=[9, 3]",
        ),
        # No step that is kept.
        ({"keep": (KeepPolicy(every=10, until=9),)}, "keep with every=10 after 0, until=9"),
        (
            {"keep": (KeepPolicy(every=5, until=12), KeepPolicy(every=10, until=19))},
            "keep with every=10 after 12, until=19",
        ),
    ],
)
def test_policies_that_cannot_be_are_refused(config, words):
    with pytest.raises(ConfigError) as caught:
        CheckpointConfig(**config)
    assert words in caught.value.given


@pytest.mark.parametrize("wrong", [{"every": 0}, {"every": 5, "until": 0}])
def test_a_policy_of_no_steps_is_refused(wrong):
    with pytest.raises(ConfigError) as caught:
        KeepPolicy(**wrong)
    assert caught.value.given == f"{list(wrong)[-1]}=0"
    assert caught.value.allowed.startswith("at least 1 and below")


@settings(deadline=None, max_examples=50)  # it makes folders
@given(st.dictionaries(st.integers(0, 40), kinds, max_size=8), st.integers(1, 3))
def test_permanent_checkpoints_and_the_newest_stay_and_no_other(
    tmp_path_factory, kind_of, keep_temporary
):
    folder = tmp_path_factory.mktemp("kept")
    for step, kind in kind_of.items():
        make(folder, step, kind)
    newest = sorted(kind_of)[-keep_temporary:]
    expected = [step for step in sorted(kind_of) if kind_of[step] == "permanent" or step in newest]
    assert clean(folder, keep_temporary) == expected
    shutil.rmtree(folder)


def test_a_checkpoint_made_permanent_meanwhile_stays(tmp_path):
    make(tmp_path, 2), make(tmp_path, 4)
    (doomed,) = superseded(str(tmp_path), keep_temporary=1)
    write_metadata(doomed.path, dataclasses.replace(doomed.metadata, is_temporary=False))
    assert not remove_if_unchanged(doomed)
    assert steps(tmp_path) == [2, 4]


def test_a_checkpoint_that_is_gone_meanwhile_is_no_trouble(tmp_path):
    make(tmp_path, 2), make(tmp_path, 4)
    (doomed,) = superseded(str(tmp_path), keep_temporary=1)
    shutil.rmtree(doomed.path)
    assert not remove_if_unchanged(doomed)


def test_the_one_that_was_restored_stays_until_a_newer_one_is_whole(tmp_path):
    make(tmp_path, 2)
    make(tmp_path, 4, state_files={"d/0": 30})  # a file of it is missing
    assert clean(tmp_path) == [2, 4]
    make(tmp_path, 5)
    assert clean(tmp_path) == [4, 5]


def test_what_the_run_saved_under_an_earlier_name_is_its_own(tmp_path):
    make(tmp_path, 2, run_id="old name"), make(tmp_path, 3, "permanent", run_id="old name")
    make(tmp_path, 4)
    assert clean(tmp_path) == [3, 4]


def test_damaged_and_other_folders_are_never_deleted(tmp_path):
    make(tmp_path, 1, state_files={"d/0": 30})
    (tmp_path / "step-3").mkdir()
    (tmp_path / "step-4").write_text("a file")
    aside = move_aside(make(tmp_path, 5).path, why="forked", attempt=2)
    (tmp_path / "mine").mkdir()
    make(tmp_path, 6), make(tmp_path, 7)
    before = {path.name for path in tmp_path.iterdir()}
    clean(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == before - {"step-6"}
    assert Path(aside).is_dir()


def test_what_cannot_be_deleted_is_warned_of_and_costs_nothing_else(tmp_path, caplog):
    make(tmp_path, 2), make(tmp_path, 4)
    # A deletion begins with a rename to this name, which a link that leads nowhere blocks.
    (tmp_path / "step-2.removing").symlink_to(tmp_path / "nowhere")
    with caplog.at_level(logging.WARNING):
        assert clean(tmp_path) == [2, 4]
    assert "an old checkpoint could not be deleted: " in caplog.text


@settings(max_examples=25, deadline=None)
@given(
    kind_of=st.dictionaries(st.integers(0, 30), kinds, min_size=1, max_size=8),
    keep_permanent=st.integers(1, 4),
)
def test_of_permanent_checkpoints_the_newest_stay_and_temporary_ones_are_not_counted(
    tmp_path_factory, kind_of, keep_permanent
):
    folder = tmp_path_factory.mktemp("checkpoints")
    for step, kind in kind_of.items():
        make(folder, step, kind)
    permanent = sorted(step for step, kind in kind_of.items() if kind == "permanent")
    doomed = superseded(str(folder), keep_temporary=99, keep_permanent=keep_permanent)
    assert [item.metadata.step for item in doomed] == permanent[:-keep_permanent]
    clean_up(str(folder), keep_temporary=99, keep_permanent=keep_permanent)
    assert steps(folder) == sorted(set(kind_of) - set(permanent[:-keep_permanent]))


def test_no_permanent_checkpoint_goes_while_the_newest_is_not_whole(tmp_path):
    for step in (2, 4):
        make(tmp_path, step, "permanent")
    newest = make(tmp_path, 6, "permanent", state_files={"d/0": 30})
    assert superseded(str(tmp_path), keep_temporary=1, keep_permanent=1) == []
    assert Path(newest.path).is_dir()
