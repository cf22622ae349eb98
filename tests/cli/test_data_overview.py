"""`chomp data inspect` and `chomp data forecast`: what stores hold, and what a run makes of it."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chomp.cli.data import histogram_lines, length_bins
from chomp.data import TokenStore
from tests.cli.conftest import Chomp
from tests.cli.small_launch import store_folder
from tests.data.number_stores import counted_documents, write_store


def test_inspecting_shows_manifest_lengths_and_first_documents(built: Path, chomp: Chomp):
    told = chomp("data", "inspect", "launch.py", "--documents", "2")
    assert (told.code, told.err) == (0, "")
    for name in ("poems", "notes"):
        for split in ("train", "validation"):
            store = TokenStore.open(f"outputs/tokens/{store_folder(built, name, split).name}")
            assert store.path in told.out
            assert f"{store.num_tokens:,}, " in told.out
            assert store.manifest.identity.tokenizer_hash[:12] in told.out
            for document in range(2):
                assert store.locations.document_id(document) in told.out
    assert r"poem 0\nroses are red" in told.out
    assert "█" in told.out


def test_a_store_by_its_folder_is_decoded_if_its_tokenizer_is_where_it_was(
    built: Path, chomp: Chomp
):
    path = str(store_folder(built, "poems", "train").relative_to(built))
    assert r"\nroses are red" in chomp("data", "inspect", path).out
    [tokenizer] = (built / "outputs/tokenizer").iterdir()
    tokenizer.rename(built / "aside")
    told = chomp("data", "inspect", path, "--documents", "1")
    assert told.code == 0
    assert "begins with the ids" in told.out
    assert " ".join(str(byte) for byte in b"poem ") in told.out
    assert "begins" not in chomp("data", "inspect", path, "--documents", "0").out


def test_control_characters_of_a_document_do_not_reach_the_terminal(folder: Path, chomp: Chomp):
    for path in (folder / "poems").iterdir():
        path.write_text("\x1b[31mred[/bold]\r" + path.name)
    assert chomp("data", "build", "launch.py").code == 0
    told = chomp("data", "inspect", "launch.py")
    assert "\x1b" not in told.out
    assert r"\x1b[31mred[/bold]\r" in told.out


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(1, 300), min_size=1, max_size=40))
def test_every_document_is_in_the_bin_of_its_length(tmp_path_factory, lengths: list[int]):
    store = write_store(tmp_path_factory.mktemp("lengths"), counted_documents(lengths))
    with_ends = [length + 1 for length in lengths]
    bins = length_bins(store)
    for item in bins:
        inside = [length for length in with_ends if item["low"] <= length <= item["high"]]
        assert item["documents"] == len(inside)
    assert sum(item["documents"] for item in bins) == len(lengths)
    assert bins[0]["documents"] > 0
    assert bins[-1]["documents"] > 0


def test_bars_are_as_long_as_their_counts_and_the_least_is_still_seen():
    counts = [1_000_000, 500_000, 0, 1]
    bins = [
        {"low": 1 << i, "high": (2 << i) - 1, "documents": count} for i, count in enumerate(counts)
    ]
    assert histogram_lines(bins) == [
        "      1 tokens " + "█" * 40 + " 1,000,000",
        " 2 to 3 tokens " + "█" * 20 + " 500,000",
        " 4 to 7 tokens  0",
        "8 to 15 tokens ▏ 1",
    ]


def test_a_forecast_is_told_by_component_with_a_warning_above_four_epochs(
    built: Path, chomp: Chomp, caplog: pytest.LogCaptureFixture
):
    told = chomp("data", "forecast", "launch.py", "-o", "train.steps=39")
    assert told.code == 0
    examples = 10 * 6 + 29 * 10
    assert f"39 steps, {examples} examples, {examples * 16:,} tokens" in told.out
    assert "poems" in told.out
    [warning] = [record.getMessage() for record in caplog.records]
    assert warning.startswith("component 'notes' is read 4.7 times")
    caplog.clear()
    assert chomp("data", "forecast", "launch.py", "-o", "train.steps=5").code == 0
    assert caplog.records == []


def test_a_forecast_refuses_what_training_would_refuse(built: Path, chomp: Chomp):
    told = chomp("data", "forecast", "launch.py", "-o", "data.stop_strategy=first_exhausted")
    assert told.code == 2
    assert "Fix: set train.steps=" in told.err


def test_the_length_of_a_stream_is_not_known(built: Path, chomp: Chomp):
    stream = ("-o", "data.components.notes.stream={}")
    assert chomp("data", "build", "launch.py", *stream).code == 0
    told = chomp("data", "forecast", "launch.py", *stream)
    assert told.code == 1
    assert "the stream 'notes'" in told.err


@pytest.mark.parametrize("command", ["forecast", "build"])
def test_a_store_is_no_config(built: Path, chomp: Chomp, command: str):
    told = chomp("data", command, str(store_folder(built, "poems", "train")))
    assert told.code == 2
    assert "verify and inspect take stores as well" in told.err
