"""`chomp data build`: what is built, what is left alone, and what is said when it is missing."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from chomp.cli.data import run_data
from chomp.cli.load_config import GivenConfig, load_launch
from chomp.data import TokenStore
from chomp.executor import plan_steps
from chomp.executor.status import started_status, write_status
from chomp.storage import make_folder
from tests.cli.conftest import Chomp
from tests.cli.small_launch import store_folder
from tests.cli.test_config_argument import write_run_folder

STORES = [(name, split) for name in ("poems", "notes") for split in ("train", "validation")]


def times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_building_makes_every_store_and_lists_it_and_again_changes_nothing(
    folder: Path, chomp: Chomp
):
    told = chomp("data", "build", "launch.py")
    assert (told.code, told.err) == (0, "")
    for name, split in STORES:
        path = store_folder(folder, name, split)
        manifest = TokenStore.open(str(path)).manifest
        [line] = [line for line in told.out.splitlines() if f"outputs/tokens/{path.name}" in line]
        cells = [cell.strip() for cell in line.strip("│").split("│")]
        counts = [f"{manifest.num_documents:,}", f"{manifest.num_tokens:,}"]
        assert cells[:5] == [name, split, *counts, "uint16"]
        assert f"tokens/{name}-{split}" in told.out
    before = times(folder / "outputs")
    again = chomp("data", "build", "launch.py")
    assert (again.code, again.err) == (0, "")
    assert "tokenize" not in again.out
    assert times(folder / "outputs") == before
    assert not list((folder / "outputs").glob("small-*"))  # the training step


def test_building_packed_data_writes_the_plans_that_a_run_opens(folder: Path, chomp: Chomp):
    packed = ("-o", "data.packing_mode=packed")
    assert chomp("data", "build", "launch.py", *packed).code == 0
    for name, split in STORES:
        plans = list(store_folder(folder, name, split).glob("packing/*/plan.json"))
        assert len(plans) == (split == "train")
    before = times(folder / "outputs/tokens")
    assert chomp("data", "forecast", "launch.py", *packed).code == 0
    assert times(folder / "outputs/tokens") == before
    for plans in (folder / "outputs/tokens").glob("*/packing"):
        shutil.rmtree(plans)
    assert chomp("data", "build", "launch.py", *packed).code == 0  # of stores that are there
    assert len(list((folder / "outputs/tokens").glob("*/packing/*/plan.json"))) == 2


def test_only_the_named_components_are_built(folder: Path, chomp: Chomp):
    told = chomp("data", "build", "launch.py", "--only", "notes")
    assert told.code == 0
    assert "poems" not in told.out
    assert TokenStore.open(str(store_folder(folder, "notes", "train"))).num_tokens > 0
    assert not list((folder / "outputs/tokens").glob("poems-*"))
    wrong = chomp("data", "build", "launch.py", "--only", "note")
    assert wrong.code == 2
    assert "--only note (did you mean notes?)" in wrong.err


def test_a_deleted_store_is_built_again_though_the_run_that_used_it_is_done(
    built: Path, chomp: Chomp
):
    [*_, run] = plan_steps(load_launch(GivenConfig(path="launch.py")).steps(), prefix="outputs")
    make_folder(run.path)
    status = started_status(None, run.identity.hash)
    write_status(run.path, replace(status, state="SUCCESS"))
    path = store_folder(built, "notes", "train")
    manifest = (path / "manifest.json").read_text()
    path.rename(built / "aside")
    told = chomp("data", "build", "launch.py")
    assert told.code == 0
    assert "tokens/notes-train" in told.out
    assert (path / "manifest.json").read_text() == manifest


def test_a_source_that_cannot_be_read_fails_by_name_and_the_others_are_built(
    folder: Path, chomp: Chomp
):
    (folder / "notes.jsonl").write_text('{"txt": "no text"}\n')
    told = chomp("data", "build", "launch.py")
    assert told.code == 1
    assert "component 'notes', train split: " in told.err
    assert "Traceback" not in told.err
    assert TokenStore.open(str(store_folder(folder, "poems", "train"))).num_tokens > 0
    assert "┃" not in told.out  # no table of stores that are not there


@pytest.mark.parametrize(
    "command", [["forecast"], ["verify"], ["inspect"], ["where", "--step", "0"]], ids=lambda c: c[0]
)
def test_what_needs_stores_says_which_are_missing_and_what_builds_them(
    folder: Path, chomp: Chomp, command: list[str]
):
    told = chomp("data", *command, "launch.py")
    assert (told.code, told.out) == (1, "")
    assert "the tokenizer (outputs/tokenizer/byte-" in told.err
    assert "notes, train split (outputs/tokens/notes-train-" in told.err
    assert "`chomp data build launch.py`" in told.err


def test_a_run_folder_lists_its_stores_and_cannot_build_them_again(built: Path, chomp: Chomp):
    write_run_folder(run_data(GivenConfig(path="launch.py")), built / "run")
    told = chomp("data", "build", "run", "--only", "poems")
    assert told.code == 0
    assert "poems" in told.out
    assert "notes" not in told.out
    store_folder(built, "poems", "train").rename(built / "aside")
    missing = chomp("data", "build", "run")
    assert missing.code == 1
    assert "poems, train split" in missing.err
    assert "in the folder the run was started from" in missing.err
