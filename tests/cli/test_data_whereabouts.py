"""`chomp data where`: a batch names its documents, a document its batches, and both agree."""

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chomp.cli.data import RunData, run_data
from chomp.cli.load_config import GivenConfig
from chomp.cli.main import exit_code
from chomp.data import TokenStore, occurrences, row_origin
from chomp.tracking import JsonlTracker
from tests.cli.conftest import Chomp
from tests.cli.small_launch import store_folder
from tests.cli.test_config_argument import write_run_folder

PACKED = ("data.packing_mode=packed",)
STAGED = (
    "data.stages=[{start_step: 0, weights: {poems: 1, notes: 0}}, "
    "{start_step: 11, weights: {poems: 0.3, notes: 0.7}}]",
    "data.components.poems.weight=1",
    "data.components.notes.weight=1",
)


def cells(told: str) -> list[list[str]]:
    """The lines of a table."""
    lines = [line for line in told.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def rows_of_table(told: str) -> Iterator[tuple[str, str, str, str]]:
    """Row, component, epoch and document of each line; the first three stand only once."""
    head = ["", "", ""]
    for line in cells(told):
        head = line[:3] if line[0] else head
        yield (*head, line[3])


def document_ids(run: RunData) -> list[str]:
    """Every document of the train stores."""
    found = []
    for component in run.data.components.values():
        store = TokenStore.open(str(component.train_store))
        found += [store.locations.document_id(i) for i in range(len(store.documents))]
    return found


@pytest.mark.parametrize("overrides", [(), PACKED, STAGED], ids=["concat", "packed", "staged"])
def test_documents_and_batches_name_each_other(built_once: Path, overrides, monkeypatch):
    monkeypatch.chdir(built_once)
    run = run_data(GivenConfig(path="launch.py", overrides=overrides))
    dataset = run.dataset()
    seen: dict[str, set[tuple[int, int, int, str]]] = {name: set() for name in document_ids(run)}
    for step in range(run.total_steps):
        for row in range(run.batches.examples(step)):
            origin = row_origin(dataset, step, row)
            for part in origin.parts:
                seen[part.document_id].add((step, row, origin.epoch, origin.component))

    @settings(max_examples=60, deadline=None)
    @given(name=st.sampled_from(sorted(seen)))
    def agree(name: str) -> None:
        found = occurrences(dataset, name, run.total_steps)
        assert found is not None
        told = [(item.step, item.row, item.epoch, item.component) for item in found]
        assert told == sorted(told)
        assert set(told) == seen[name]
        assert len(told) == len(seen[name])

    agree()
    assert all(seen.values())  # every document is served in 40 steps


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_the_tables_agree_with_each_other(built_once: Path, data: st.DataObject):
    with contextlib.chdir(built_once):
        step = data.draw(st.integers(0, 39))
        lines = list(rows_of_table(printed("where", "launch.py", "--step", str(step))))
        row, component, epoch, document = data.draw(st.sampled_from(lines))
        sightings_told = cells(printed("where", "launch.py", "--doc", document))
        assert [str(step), row, epoch, component] in sightings_told
        other = data.draw(st.sampled_from(sightings_told))
        back = printed("where", "launch.py", "--step", other[0], "--row", other[1])
        assert (other[1], other[3], other[2], document) in set(rows_of_table(back))


def printed(*arguments: str) -> str:
    """What a data command prints. A fixture would be one for all examples of a property."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert exit_code(["data", *arguments]) == 0
    return out.getvalue()


def test_a_row_tells_its_tokens_columns_and_text(built: Path, chomp: Chomp):
    told = chomp("data", "where", "launch.py", "--step", "3", "--row", "1", "--text")
    assert told.code == 0
    assert "step 3" in told.out
    columns = 0
    for *_, document, tokens, place, text in cells(told.out):
        first, _, last, _, length = tokens.split()
        content = (built / document).read_text() if document.startswith("poems") else None
        begin, end = int(place.split()[0]), int(place.split()[2])
        assert begin == columns
        assert end - begin == int(last) - int(first)
        columns = end + 1
        if content is not None:
            assert int(length) == len(content) + 1
            assert (
                content[int(first) : int(last) + 1].replace("\n", "\\n").startswith(text.rstrip())
            )
    assert columns == 16


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        (["--step", "40"], "--step 40 of a run of 40 steps. Allowed: 0 to 39."),
        (["--step", "-1"], "--step -1 of a run of 40 steps"),
        (["--step", "0", "--row", "6"], "row 6 of step 0"),
        (["--step", "0", "--row", "-1"], "row -1 of step 0"),
    ],
)
def test_a_step_or_row_that_is_not_there_is_refused(built: Path, chomp: Chomp, flags, fault):
    told = chomp("data", "where", "launch.py", *flags)
    assert (told.code, told.out) == (2, "")
    assert fault in told.err


def test_a_held_out_document_is_never_trained_on(built: Path, chomp: Chomp):
    store = TokenStore.open(str(store_folder(built, "poems", "validation")))
    name = store.locations.document_id(0)
    told = chomp("data", "where", "launch.py", "--doc", name)
    assert (told.code, told.err) == (0, "")
    assert told.out == f"{name} (poems) is held out: never trained on.\n"


def test_an_unknown_document_is_told_what_ids_look_like(built: Path, chomp: Chomp):
    told = chomp("data", "where", "launch.py", "--doc", "poem/03.txt")
    assert (told.code, told.out) == (1, "")
    assert "has the document 'poem/03.txt'" in told.err
    assert "poems: name, as poems/" in told.err
    assert "notes: name:record, as notes.jsonl:" in told.err
    assert "Fix: choose one of the nearest: poems/03.txt" in told.err
    near = chomp("data", "where", "launch.py", "--doc", "notes.json:7")
    assert "nearest: notes.jsonl:7." in near.err
    far = chomp("data", "where", "launch.py", "--doc", "?")
    assert "`chomp data inspect launch.py --documents 20`" in far.err


def test_a_document_that_no_store_has_though_its_file_is_listed_says_why(
    folder: Path, chomp: Chomp
):
    (folder / "poems" / "empty.txt").write_text(" \n")
    assert chomp("data", "build", "launch.py").code == 0
    told = chomp("data", "where", "launch.py", "--doc", "poems/empty.txt")
    assert told.code == 1
    assert "the document is empty, or its component is a stream" in told.err


def test_a_document_that_the_run_does_not_come_to_is_told_so(built: Path, chomp: Chomp):
    run = run_data(GivenConfig(path="launch.py", overrides=("train.steps=1",)))
    told = {name: occurrences(run.dataset(), name, 1) for name in document_ids(run)}
    name = next(name for name, found in told.items() if not found)
    said = chomp("data", "where", "launch.py", "-o", "train.steps=1", "--doc", name)
    assert said.code == 0
    assert said.out.startswith(f"{name} is in a train store, but none of its tokens")


def test_a_run_folder_tells_what_was_seen_and_what_is_to_come(built: Path, chomp: Chomp):
    path = write_run_folder(run_data(GivenConfig(path="launch.py")), built / "run")
    tracker = JsonlTracker(path / "metrics.jsonl", attempt=1)
    tracker.log({"train/loss": 1.0}, step=19)
    tracker.finish()
    name = TokenStore.open(str(store_folder(built, "poems", "train"))).locations.document_id(3)
    told = chomp("data", "where", "run", "--doc", name)
    assert told.code == 0
    lines = cells(told.out)
    when = {int(line[0]): line[4] for line in lines}
    assert when == {step: "seen" if step < 20 else "to come" for step in when}
    assert set(when.values()) == {"seen", "to come"}
    seen = sum(line[4] == "seen" for line in lines)
    head = f"{name} (poems): in {len(lines)} rows of 40 steps"
    assert told.out.splitlines()[0] == f"{head}, {seen} seen and {len(lines) - seen} to come."
    assert "step 19, trained on" in chomp("data", "where", "run", "--step", "19").out
    assert "step 20, to come" in chomp("data", "where", "run", "--step", "20").out


def test_a_run_below_the_folder_it_was_started_in_is_asked_from_anywhere(
    built: Path, chomp: Chomp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = run_data(GivenConfig(path="launch.py"))
    path = write_run_folder(run, built / "run")
    here = chomp("data", "where", str(path), "--step", "3")
    assert "above the run" not in here.out
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    told = chomp("data", "where", str(path), "--step", "3")
    assert told.code == 0, told.err
    assert cells(told.out) == cells(here.out)
    store = run.data.components["poems"].train_store
    assert f"{store} is not in this folder, but above the run: {built / str(store)}" in told.out
    # A run whose stores are nowhere above it is told where to ask.
    lost = write_run_folder(run, tmp_path / "lost")
    assert (
        "in the folder the run was started from"
        in chomp("data", "where", str(lost), "--step", "3").err
    )


def test_rows_of_a_stream_say_that_nothing_is_kept_of_it(built: Path, chomp: Chomp):
    stream = ("-o", "data.components.notes.stream={}")
    assert chomp("data", "build", "launch.py", *stream).code == 0
    told = chomp("data", "where", "launch.py", *stream, "--step", "0")
    assert told.code == 0
    assert "a stream: what it has read is not kept" in told.out
    assert "poems/" in told.out


def test_every_document_of_a_component_of_weight_0_is_held_out(folder: Path, chomp: Chomp):
    command = ("launch.py", "-o", "data.components.poems.weight=0")
    assert chomp("data", "build", *command).code == 0
    assert not list((folder / "outputs" / "tokens").glob("poems-train-*"))
    store = TokenStore.open(str(store_folder(folder, "poems", "validation")))
    assert len(store.documents) == 20
    for name in ("poems/00.txt", "poems/19.txt"):
        assert "(poems) is held out" in chomp("data", "where", *command, "--doc", name).out
    assert "all documents are held out" in chomp("data", "inspect", *command).out
    assert "poems" not in chomp("data", "forecast", *command).out
