"""What lies in a folder of checkpoints, and what each of them says about itself."""

import dataclasses
import json
import random
import shutil
from pathlib import Path

import pytest
from checkpoint_samples import about

from chomp.checkpoint import (
    CheckpointPlace,
    StepFolder,
    latest_checkpoint,
    list_checkpoints,
    read_step_folder,
)
from chomp.checkpoint.format import (
    Unreadable,
    checkpoints_at,
    leftovers,
    move_aside,
    moved_aside,
    open_checkpoint,
    problem_with_files,
    signed,
    state_file_sizes,
    step_path,
    write_metadata,
)
from chomp.checkpoint.save import clean_up
from chomp.errors import CheckpointError
from chomp.storage import read_json

FILES = {"d/0": 30, "manifest": 4}


def make(folder: Path, step: int, **facts: object) -> Path:
    """A checkpoint without arrays: what this room's files say, and files of the sizes they say."""
    path = Path(step_path(str(folder), step))
    for name, size in FILES.items():
        (path / "state" / name).parent.mkdir(parents=True, exist_ok=True)
        (path / "state" / name).write_bytes(b"x" * size)
    write_metadata(str(path), about(step=step, state_files=FILES, **facts))
    return path


def spoil(path: Path, **changes: object) -> None:
    """Change what the metadata says, as if it had been written so; None takes a field out."""
    file = path / "metadata.json"
    fields = json.loads(file.read_text()) | changes | {"metadata_hash": None}
    kept = {key: fields[key] for key in fields if key not in changes or changes[key] is not None}
    del kept["metadata_hash"]
    file.write_text(json.dumps(signed(kept)))


def look(folder: Path) -> tuple[list[int], list[Unreadable]]:
    """The steps that can be read, and the others; oldest first."""
    found = checkpoints_at(CheckpointPlace(folder=str(folder)))[::-1]
    steps = [item.metadata.step for item in found if isinstance(item, StepFolder)]
    assert steps == [item.metadata.step for item in list_checkpoints(str(folder))]
    return steps, [item for item in found if isinstance(item, Unreadable)]


def test_metadata_reads_back_as_it_was_written(tmp_path):
    full = about(
        step=4,
        stream_states={"web": {"position": 7}},
        continues={"path": "runs/a/checkpoints/step-2", "run_id": "a", "attempt": 1, "step": 2},
        arrays={"w": {"shape": [2, 3], "dtype": "float32"}},
        receipt={"w": "00ff"},
        next_batches=["12ab", "34cd"],
        state_files=FILES,
        time=3.5,
    )
    (tmp_path / "step-4").mkdir()
    write_metadata(str(tmp_path / "step-4"), full)
    assert read_step_folder(str(tmp_path / "step-4")).metadata == full
    assert full.state_bytes == 34


def test_checkpoints_are_listed_by_their_steps(tmp_path):
    for step in (10, 9, 100, 2):
        make(tmp_path, step)
    assert look(tmp_path) == ([2, 9, 10, 100], [])
    assert latest_checkpoint(str(tmp_path)) == list_checkpoints(str(tmp_path))[-1]
    assert look(tmp_path / "missing") == ([], [])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": None}, "it has format 1, and this version of chomp reads 2"),
        ({"format": 3}, "it has format 3, and this version of chomp reads 2"),
        ({"colour": "red"}, "metadata.json: colour: "),
        ({"run_id": None}, "metadata.json: run_id: "),
        ({"tokens_seen": "many"}, "metadata.json: tokens_seen: "),
        ({"step": True}, "metadata.json: step: "),
        ({"state_files": ["d/0"]}, "metadata.json: state_files: "),
        ({"step": 6}, "it holds the checkpoint of step 6"),
    ],
)
def test_metadata_that_cannot_be_is_told_and_hides_no_neighbour(changes, words, tmp_path):
    make(tmp_path, 4)
    spoil(make(tmp_path, 5), **changes)
    make(tmp_path, 7)
    steps, (other,) = look(tmp_path)
    assert steps == [4, 7]
    assert other.path == str(tmp_path / "step-5")
    assert words in other.reason
    with pytest.raises(CheckpointError) as caught:
        read_step_folder(other.path)
    assert "step-5" in caught.value.given


def test_a_flipped_bit_anywhere_in_the_metadata_is_noticed(tmp_path):
    path = make(tmp_path, 5, time=3.5)
    text, chance = (path / "metadata.json").read_bytes(), random.Random(5)
    for at in chance.sample(range(len(text)), 100):
        flipped = text[:at] + bytes([text[at] ^ (1 << chance.randrange(8))]) + text[at + 1 :]
        (path / "metadata.json").write_bytes(flipped)
        # No JSON any more, or not what was written.
        assert isinstance(open_checkpoint(str(path)), Unreadable), at


def test_what_is_no_checkpoint_is_told_or_not_looked_at(tmp_path):
    (tmp_path / "step-5").mkdir()
    (tmp_path / "step-6").write_text("a file")
    (make(tmp_path, 7) / "metadata.json").write_text('{"step": 7,')
    (tmp_path / "step-8").symlink_to("elsewhere")
    for name in ("step-007", "step-5.writing", "step-5.removing", "step-5.damaged-2", "notes"):
        (tmp_path / name).mkdir()
    steps, others = look(tmp_path)
    assert steps == []
    reasons = [other.reason for other in others]
    assert "is not JSON" in reasons.pop(2)
    assert reasons == ["it has no metadata.json", "it is no folder", "it is no folder"]


def test_what_is_deleted_while_others_are_looked_at_is_passed_over(tmp_path, monkeypatch):
    for step in (4, 5, 6):
        make(tmp_path, step)

    def read_and_delete(path: str) -> object:
        shutil.rmtree(tmp_path / "step-5", ignore_errors=True)
        return read_json(path)

    monkeypatch.setattr("chomp.checkpoint.format.read_json", read_and_delete)
    assert look(tmp_path) == ([4, 6], [])


def test_files_are_known_by_their_names_and_sizes(tmp_path):
    path = make(tmp_path, 5)
    found = read_step_folder(str(path))
    assert state_file_sizes(str(path)) == FILES
    assert problem_with_files(found) is None
    (path / "state" / "manifest").write_bytes(b"xy")
    assert problem_with_files(found) == "state/manifest has 2 bytes instead of 4"
    (path / "state" / "more").write_bytes(b"")
    assert problem_with_files(found) == "state/ lacks nothing and has more besides"
    (path / "state" / "d" / "0").unlink()
    assert problem_with_files(found) == "state/ lacks d/0 and has more besides"


def test_a_checkpoint_without_its_state_lacks_every_file(tmp_path):
    found = StepFolder(str(tmp_path), about(state_files={f"d/{i}": 1 for i in range(9)}))
    problem = "state/ lacks d/0, d/1, d/2, d/3, d/4 and 4 more and has nothing besides"
    assert problem_with_files(found) == problem


def test_what_is_moved_aside_is_kept_whole_and_never_written_over(tmp_path):
    first = move_aside(str(make(tmp_path, 5)), why="damaged", attempt=2)
    second = move_aside(str(make(tmp_path, 5, tokens_seen=9)), why="damaged", attempt=2)
    third = move_aside(str(make(tmp_path, 5)), why="forked", attempt=3)
    names = ["step-5.damaged-2", "step-5.damaged-2.2", "step-5.forked-3"]
    assert [Path(path).name for path in (first, second, third)] == names
    assert moved_aside(str(tmp_path)) == [first, second, third]
    assert json.loads((Path(second) / "metadata.json").read_text())["tokens_seen"] == 9
    assert list_checkpoints(str(tmp_path)) == []
    clean_up(str(tmp_path), keep_temporary=1, keep_permanent=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_leftovers_are_told_apart_from_everything_else(tmp_path):
    for name in ("step-3.writing", "step-2.removing", "step-3.writing.txt", "step-3.kept"):
        (tmp_path / name).mkdir()
    names = [Path(path).name for path in leftovers(str(tmp_path))]
    assert names == ["step-2.removing", "step-3.writing"]


def test_metadata_is_replaced_in_one_step(tmp_path):
    path = make(tmp_path, 5, is_temporary=True)
    found = read_step_folder(str(path))
    write_metadata(found.path, dataclasses.replace(found.metadata, is_temporary=False))
    assert not read_step_folder(found.path).metadata.is_temporary
    assert sorted(item.name for item in path.iterdir()) == ["metadata.json", "state"]
