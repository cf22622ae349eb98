"""Packed rows of a store: whole documents side by side, planned once and kept beside the tokens."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from number_stores import EOS, NUMBERS, counted_documents, number_identity, write_store

from chomp.data import (
    Document,
    EncodedBatch,
    PackedRows,
    PackingRule,
    RowBatch,
    StoreWriter,
    TokenStore,
    encode_documents,
    verify_store,
)
from chomp.errors import ConfigError, DataError


def rule(row_len: int = 12, max_documents: int = 3, long_documents: str = "split") -> PackingRule:
    return PackingRule(row_len=row_len, max_documents=max_documents, long_documents=long_documents)


def all_rows(rows: PackedRows) -> RowBatch:
    return rows.read(np.arange(rows.num_rows))


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=30),
    row_len=st.sampled_from([2, 5, 12, 41]),
    max_documents=st.integers(1, 4),
)
def test_every_token_is_in_one_row_and_documents_of_a_row_are_told_apart(
    lengths: list[int], row_len: int, max_documents: int
):
    documents = counted_documents(lengths)
    with tempfile.TemporaryDirectory() as folder:
        store = write_store(Path(folder) / "store", documents)
        rows = PackedRows(store, rule(row_len, max_documents))
        found = all_rows(rows)
        is_token = found.segment_ids >= 0
        expected = sorted(token for document in documents for token in [*document, EOS])
        assert sorted(found.tokens[is_token].tolist()) == expected
        assert not found.tokens[~is_token].any()
        assert rows.figures["kept_tokens"] == is_token.sum()
        assert found.segment_ids.max() < max_documents
        for tokens, segments in zip(found.tokens, found.segment_ids, strict=True):
            length = int((segments >= 0).sum())
            # Segments go up by one, padding comes last, and a segment is a piece of a document.
            assert set(np.diff(segments[:length])) <= {0, 1}
            assert (segments[length:] == -1).all()
            for segment in range(int(segments.max()) + 1):
                piece = tokens[segments == segment]
                assert (np.diff(piece[piece != EOS]) == 1).all()
                assert EOS not in piece[:-1].tolist()


def test_pieces_say_what_a_row_is_made_of(tmp_path: Path):
    store = write_store(tmp_path / "store", counted_documents([4, 30, 6, 2, 9, 11]))
    rows = PackedRows(store, rule())
    found = all_rows(rows)
    for row in range(rows.num_rows):
        for piece in rows.pieces(row):
            line = store.read(np.asarray([piece.start]), np.asarray([piece.length]))
            in_row = found.tokens[row, piece.column : piece.column + piece.length]
            assert line.tolist() == in_row.tolist()
            assert row in rows.rows_with(piece.start, piece.start + piece.length)
    assert rows.rows_with(0, store.num_tokens) == list(range(rows.num_rows))


@pytest.mark.parametrize(
    ("long_documents", "kept", "dropped"), [("split", 39, 0), ("truncate", 20, 19), ("drop", 8, 31)]
)
def test_long_documents_are_split_truncated_or_dropped_and_counted(
    tmp_path: Path, long_documents, kept, dropped
):
    # With their ends: 8 and 31 tokens, for rows of 12.
    store = write_store(tmp_path / "store", counted_documents([7, 30]))
    rows = PackedRows(store, rule(long_documents=long_documents))
    assert (rows.figures["kept_tokens"], rows.figures["dropped_tokens"]) == (kept, dropped)
    assert rows.figures["long_documents"] == 1
    assert (all_rows(rows).segment_ids >= 0).sum() == kept


def test_a_plan_is_made_once_and_read_again(tmp_path: Path):
    store = write_store(tmp_path / "store", counted_documents([4, 30, 6, 2, 9, 11]))
    first = all_rows(PackedRows(store, rule()))
    (folder,) = (tmp_path / "store/packing").iterdir()
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    again = all_rows(PackedRows(TokenStore.open(store.path), rule()))
    np.testing.assert_array_equal(first.tokens, again.tokens)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == times
    PackedRows(store, rule(max_documents=2))
    assert len(list((tmp_path / "store/packing").iterdir())) == 2


# Root may write anywhere, so it becomes another user, once all is imported that it may not read.
READER = """
import json, logging, os, sys
import numpy as np
from chomp.data import PackedRows, PackingRule, TokenStore

logging.basicConfig(level=logging.WARNING)
rule = PackingRule(row_len=12, max_documents=3, long_documents="split")

def tokens(folder):
    rows = PackedRows(TokenStore.open(folder), rule)
    return rows.read(np.arange(rows.num_rows)).tokens.tolist()

writable, read_only = sys.argv[1:]
expected = tokens(writable)
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
print(json.dumps([expected, tokens(read_only)]))
"""


def test_a_store_that_may_not_be_written_has_the_same_rows():
    # A folder that every user can reach, which pytest's own are not.
    with tempfile.TemporaryDirectory() as name:
        folder, temporary = Path(name), Path(name, "temporary")
        folder.chmod(0o755)
        temporary.mkdir()
        temporary.chmod(0o777)
        write_store(folder / "store", counted_documents([4, 30, 6, 2, 9, 11]))
        shutil.copytree(folder / "store", folder / "writable")
        for each in [folder / "store", *(folder / "store").rglob("*")]:
            each.chmod(0o555)
        read = subprocess.run(
            [sys.executable, "-c", READER, str(folder / "writable"), str(folder / "store")],
            env={**os.environ, "TMPDIR": str(temporary)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert read.returncode == 0, read.stderr
        expected, found = json.loads(read.stdout)
        assert found == expected
        assert not (folder / "store/packing").exists()
        assert str(folder / "store") in read.stderr  # that nothing is kept is said
        assert list(temporary.iterdir()) == []
        for each in [folder / "store", *(folder / "store").rglob("*")]:
            each.chmod(0o755)


def test_a_plan_that_was_not_finished_is_made_anew(tmp_path: Path):
    store = write_store(tmp_path / "store", counted_documents([4, 30, 6, 2, 9, 11]))
    expected = all_rows(PackedRows(store, rule()))
    (folder,) = (tmp_path / "store/packing").iterdir()
    folder.rename(folder.with_name(f"{folder.name}-1"))  # as a killed process leaves it
    np.testing.assert_array_equal(all_rows(PackedRows(store, rule())).tokens, expected.tokens)


def test_a_plan_does_not_outlive_the_tokens_it_is_of(tmp_path: Path):
    PackedRows(write_store(tmp_path / "store", counted_documents([4, 30, 6])), rule())
    (tmp_path / "store/manifest.json").unlink()
    other = write_store(tmp_path / "store", counted_documents([9, 2, 11, 25]))
    rows = PackedRows(other, rule())
    assert rows.figures["kept_tokens"] == other.num_tokens
    assert len(list((tmp_path / "store/packing").iterdir())) == 1


def flip_bit_of_plan(plan: Path) -> None:
    content = json.loads((plan / "plan.json").read_text())
    (plan / "plan.json").write_text(json.dumps({**content, "num_rows": content["num_rows"] ^ 1}))


def flip_bit_of_array(plan: Path) -> None:
    content = bytearray((plan / "piece_starts/c/0").read_bytes())
    content[3] ^= 1
    (plan / "piece_starts/c/0").write_bytes(content)


def swap_arrays(plan: Path) -> None:
    (plan / "piece_starts").rename(plan / "other")
    (plan / "piece_lengths").rename(plan / "piece_starts")
    (plan / "other").rename(plan / "piece_lengths")


def take_array_of_another_store(plan: Path) -> None:
    (other,) = (plan.parents[2] / "other/packing").iterdir()
    shutil.rmtree(plan / "piece_lengths")
    shutil.copytree(other / "piece_lengths", plan / "piece_lengths")


def take_plan_of_another_store(plan: Path) -> None:
    (other,) = (plan.parents[2] / "other/packing").iterdir()
    shutil.rmtree(plan)
    shutil.copytree(other, plan)


def empty(plan: Path) -> None:
    (plan / "plan.json").write_text("")


@pytest.mark.parametrize(
    "harm",
    [flip_bit_of_plan, flip_bit_of_array, swap_arrays, take_array_of_another_store,
     take_plan_of_another_store, empty],
)  # fmt: skip
def test_a_plan_that_is_not_as_it_was_written_is_found_and_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, harm
):
    store = write_store(tmp_path / "store", counted_documents([4, 30, 6, 2, 9, 11]))
    # As many rows and pieces as the first store has.
    other = write_store(tmp_path / "other", counted_documents([5, 29, 7, 2, 8, 11]))
    rows, _ = PackedRows(store, rule()), PackedRows(other, rule())
    expected = all_rows(rows)
    (plan,) = (tmp_path / "store/packing").iterdir()
    assert verify_store(store.path) == []
    harm(plan)
    problems = verify_store(store.path)
    assert problems
    assert all(problem.startswith(str(plan)) for problem in problems)
    again = PackedRows(store, rule())
    np.testing.assert_array_equal(all_rows(again).tokens, expected.tokens)
    assert again.figures == rows.figures
    assert str(plan) in caplog.text
    assert verify_store(store.path) == []
    assert list((tmp_path / "store/packing").iterdir()) == [plan]


def test_a_plan_without_checksums_is_whole_and_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    store = write_store(tmp_path / "store", counted_documents([4, 30, 6, 2, 9, 11]))
    figures = PackedRows(store, rule()).figures
    (plan,) = (tmp_path / "store/packing").glob("*/plan.json")
    # As earlier versions wrote it.
    plan.write_text(json.dumps({name: figures[name] for name in figures if "_" in name}))
    assert verify_store(store.path) == []
    assert PackedRows(store, rule()).figures == figures
    assert str(plan) in caplog.text


def test_weights_go_with_their_tokens(tmp_path: Path):
    writer = StoreWriter(str(tmp_path / "s"), number_identity(), NUMBERS, has_loss_weights=True)
    documents = [Document(id="x", text=NUMBERS.decode(ids)) for ids in counted_documents([5, 3, 8])]
    plain = encode_documents(documents, NUMBERS)
    # Each token's weight tells which token it is of.
    weights = plain.ids.astype(np.float32) / 2
    batch = EncodedBatch(ids=plain.ids, lengths=plain.lengths, loss_weights=weights)
    writer.append(np.arange(3), batch)
    writer.finish(("x",), has_whole_parts=False)
    found = all_rows(PackedRows(TokenStore.open(str(tmp_path / "s")), rule(row_len=11)))
    assert found.loss_weights is not None
    np.testing.assert_array_equal(found.loss_weights, found.tokens / 2)


def test_a_store_of_which_every_document_is_dropped_is_refused(tmp_path: Path):
    store = write_store(tmp_path / "store", counted_documents([50]))
    with pytest.raises(DataError) as caught:
        PackedRows(store, rule(long_documents="drop"))
    assert "component 'numbers'" in caught.value.given
    with pytest.raises(ConfigError) as caught:
        PackedRows(store, rule(row_len=1))
    assert "rows of 1 tokens" in caught.value.given
