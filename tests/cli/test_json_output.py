"""`--json`: commands that print a table print the same as data, and nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Chomp
from tests.cli.small_launch import store_folder

ROOT = Path(__file__).parents[2]


def printed(chomp: Chomp, *words: str) -> Any:
    """What a command prints, read as JSON."""
    told = chomp(*words, "--json")
    assert told.code == 0, told.err
    return json.loads(told.out)


def test_the_commands_about_data_print_what_stores_hold(built: Path, chomp: Chomp):
    stores = printed(chomp, "data", "build", "launch.py")
    assert {(row["component"], row["split"]) for row in stores} == {
        (name, split) for name in ("poems", "notes") for split in ("train", "validation")
    }
    assert all(row["tokens"] > 0 and row["size"] > 0 for row in stores)
    store = str(store_folder(built, "poems", "train").relative_to(built))
    (shown,) = printed(chomp, "data", "inspect", store, "--documents", "2")
    assert sum(item["documents"] for item in shown["lengths"]) >= 2
    assert len(shown["first_documents"]) == 2
    forecast = printed(chomp, "data", "forecast", "launch.py", "-o", "train.steps=5")
    assert "poems" in json.dumps(forecast)


def test_a_batch_and_a_document_are_traced_to_each_other(built: Path, chomp: Chomp):
    batch = printed(chomp, "data", "where", "launch.py", "--step", "3", "--row", "1")
    part = batch["rows"][0]
    assert (batch["step"], part["row"]) == (3, 1)
    found = printed(chomp, "data", "where", "launch.py", "--doc", part["document"])
    assert {"step": 3, "row": 1} in [
        {key: row[key] for key in ("step", "row")} for row in found["rows"]
    ]
    assert found["held_out"] is False


def test_the_commands_about_a_run_print_its_record_and_its_checkpoints(trained: Path, chomp: Chomp):
    record = printed(chomp, "metrics", "show", str(trained), "--rows", "2")
    assert [row["step"] for row in record["rows"]] == [10, 11]
    checkpoints = printed(chomp, "checkpoint", "list", str(trained))
    assert [row["step"] for row in checkpoints] == ["6", "12"]
    assert all(row["size"] > 0 and row["state"] == "complete" for row in checkpoints)
    steps = [str(trained / "checkpoints" / f"step-{row['step']}") for row in checkpoints]
    difference = printed(chomp, "checkpoint", "diff", *steps)
    assert {"metadata": "step", "A": 6, "B": 12} in difference["metadata"]
    assert all(item["kind"] != "equal" for item in difference["arrays"])
    page = printed(chomp, "report", str(trained), "--out", "page")
    assert Path(page["page"]).is_file()


def test_two_configs_print_the_fields_that_differ(chomp: Chomp, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    sides = ["configs/debug_smoke.yaml", "configs/muon_smoke.yaml"]
    found = {item["path"]: item for item in printed(chomp, "config", "diff", *sides)}
    assert (found["optimizer.name"]["before"], found["optimizer.name"]["after"]) == (
        "adamw",
        "muon",
    )
    assert printed(chomp, "config", "diff", sides[0], sides[0]) == []


def test_the_variants_of_a_checkout_are_listed(chomp: Chomp, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    rows = printed(chomp, "variant", "list")
    assert rows[0]["variant"] == "base"
    assert {"megalodon", "moe"} <= {row["variant"] for row in rows}
