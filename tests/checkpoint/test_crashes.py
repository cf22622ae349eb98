"""A save, a promotion or a deletion may be killed or fail anywhere: old or new, never torn.

So may a run that goes back to an old checkpoint, while it puts the newer ones aside.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "crashing_savers.py"
# In the order of the work: folders and files of Orbax's, metadata, the rename that completes the
# checkpoint, the one that begins the deletion of its predecessor, files of it, the promotion.
SOME = (2, 6, 10, 14, 17, 18, 25, 36)
WAYS = ("kill", "timer", "EIO", "ENOSPC", "sync", "limit")

Lives = dict[str, dict[str, Any]]


def lives_in(folder: Path, *numbers: int) -> dict[str, Lives]:
    """Way of failing -> which touch of the disk -> what came of it."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder), *map(str, numbers)],
        capture_output=True,
        text=True,
        timeout=500,
        env=os.environ | {"PYTHONWARNINGS": "ignore"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Lives] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module", params=["some", pytest.param("all", marks=pytest.mark.slow)])
def crashes(request, tmp_path_factory) -> dict[str, Lives]:
    numbers = SOME if request.param == "some" else ()
    return lives_in(tmp_path_factory.mktemp("crashes"), *numbers)


@pytest.fixture(params=WAYS)
def lives(request, crashes) -> Lives:
    return crashes[request.param]


def test_the_old_checkpoint_or_the_new_one_is_there_and_right(lives):
    for number, life in lives.items():
        assert life["wrong"] == [], (number, life)
        assert life["steps"][-1] in (2, 3), (number, life)


def test_a_permanent_checkpoint_stays(lives):
    for number, life in lives.items():
        assert 1 in life["steps"], (number, life)
        assert 1 in life["permanent"], (number, life)


def test_nothing_but_checkpoints_and_named_leftovers_lies_there(lives):
    allowed = {"step-1", "step-2", "step-3", "step-3.writing", "step-2.removing"}
    for number, life in lives.items():
        assert set(life["names"]) <= allowed, (number, life)


def test_the_next_save_succeeds_and_clears_what_was_left(lives):
    for number, life in lives.items():
        kept = {"step-1", "step-5"} | ({"step-3"} if 3 in life["permanent"] else set())
        assert set(life["names_after_another_save"]) == kept, (number, life)


@pytest.mark.parametrize("way", ["EIO", "ENOSPC", "sync", "limit"])
def test_a_failure_is_told_or_did_no_harm(way, crashes):
    for number, life in crashes[way].items():
        is_told = life["outcome"].startswith("failed: ") and "Fix: " in life["outcome"]
        is_warned = "an old checkpoint could not be deleted" in life["outcome"]
        is_all_done = life["permanent"] == [1, 3]
        assert is_told or is_warned or is_all_done, (number, life)
        assert is_told or life["steps"][-1] == 3, (number, life)


def test_a_full_disk_under_tensorstore_is_told_with_what_to_do(crashes):
    told = crashes["limit"]["0"]["outcome"]
    assert "step-3 could not be written: " in told
    assert "Fix: free space; earlier checkpoints are untouched" in told


def test_space_is_asked_for_only_where_it_is_missing(crashes):
    for way in ("EIO", "sync"):
        for number, life in crashes[way].items():
            assert "free space" not in life["outcome"], (way, number, life)
    told = [life["outcome"] for life in crashes["ENOSPC"].values()]
    assert all("free space" in text for text in told if text.startswith("failed: "))


def test_what_could_not_be_synced_is_not_given_the_name_of_a_checkpoint(crashes):
    ends = list(crashes["sync"].values())
    # By far the most are of the files of a checkpoint that has no name yet; the rest, of names.
    unnamed = [life for life in ends if "step-3 could not be written: " in life["outcome"]]
    assert len(unnamed) > len(ends) / 2
    assert all(life["names"] == ["step-1", "step-2"] for life in unnamed)


def test_going_back_leaves_the_newest_its_name_until_all_others_are_aside(crashes):
    # A run that is killed there and started without the path must go on from the newest.
    *died, done = crashes["fork"].values()
    assert [life["steps"] for life in died] == [[1, 2, 3, 4], [1, 3, 4], [1, 4]]
    assert done["steps"] == [1]
    asides = [f"step-{step}.forked-2" for step in (2, 3, 4)]
    assert done["names"] == ["step-1", *asides]
    assert {*asides, "step-1", "step-5"} <= set(done["names_after_another_save"])
    assert all(life["wrong"] == [] for life in (*died, done))


def test_lives_end_on_both_sides_of_each_step_of_the_work(crashes):
    # Otherwise the numbers miss what they are to hit, and nothing was tried.
    states = {(tuple(life["steps"]), tuple(life["permanent"])) for life in crashes["kill"].values()}
    assert {((1, 2), (1,)), ((1, 2, 3), (1,)), ((1, 3), (1,))} <= states
    leftovers = {name for life in crashes["kill"].values() for name in life["names"] if "." in name}
    assert leftovers == {"step-3.writing", "step-2.removing"}
    assert any(life["outcome"] == "died" for life in crashes["timer"].values())
    promoted = [life for life in crashes["kill"].values() if life["names"] == ["step-1", "step-3"]]
    assert any(life["outcome"] == "died" for life in promoted)
