"""Streams: every token of an epoch once, exact resume, and reads that fail without harm."""

import io
import json
import logging
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
from fsspec.spec import AbstractFileSystem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chomp.data import (
    Document,
    JsonlSource,
    LmComponentConfig,
    LmDataConfig,
    PackingConfig,
    Permutation,
    PrebuiltFormat,
    RowBatch,
    StreamConfig,
    StreamRows,
    TextFormat,
    cut_documents,
    is_held_out,
)
from chomp.data import stream as stream_module
from chomp.errors import DataError
from chomp.tokenize import ByteTokenizer

T = 16
EOS = ByteTokenizer.eos_id
# From shorter than a row to several rows long; each one is found only once in them.
TEXTS = [f"{chr(65 + i)}{'-' * (i * 7 % 23)}{i}" for i in range(25)]
WEIGHTED = PrebuiltFormat(ids_key="ids", loss_weights_key="weights")
# Of fixtures that are the same for every example: files, and a network between failures.
law = settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def lines_of(texts: list[str]) -> str:
    """A JSON line a text, which is there as ids with weights too."""
    records = [
        {
            "text": text,
            "ids": [*text.encode()],
            "weights": [weight_of(text, place) for place in range(len(text))],
        }
        for text in texts
    ]
    return "".join(json.dumps(record) + "\n" for record in records)


def weight_of(text: str, place: int) -> float:
    """A weight of its own for every token."""
    return 0.1 * ord(text[0]) + 0.01 * place


@pytest.fixture
def source(tmp_path: Path) -> JsonlSource:
    """Two files of texts, with a blank line and a last line without an end."""
    (tmp_path / "a.jsonl").write_text(lines_of(TEXTS[:11]) + "\n" + lines_of(TEXTS[11:13]))
    (tmp_path / "b.jsonl").write_text(lines_of(TEXTS[13:]).rstrip("\n"))
    return JsonlSource(paths=(str(tmp_path / "*.jsonl"),))


def stream_of(
    source: JsonlSource,
    mode: str,
    *,
    name: str = "web",
    format: Any = None,
    seq_len: int = T,
    seed: int = 3,
    long_documents: str = "split",
    validation_fraction: float = 0.0,
    **config: Any,
) -> StreamRows:
    stream = StreamConfig(**{"window_documents": 7, "retry_delay_s": 0.0, **config})
    format = format or TextFormat()
    packing = PackingConfig(max_documents_per_row=3, long_documents=long_documents)
    data = LmDataConfig(
        components={name: LmComponentConfig(source=source, format=format, stream=stream)},
        packing_mode=mode,
        packing=packing if mode == "packed" else None,
        validation_fraction=validation_fraction,
    )
    return StreamRows(name, data, ByteTokenizer(), seq_len=seq_len, seed=seed)


def segments_of(rows: RowBatch) -> list[list[int]]:
    """The tokens of every segment, row after row."""
    return [
        row[ids == segment].tolist()
        for row, ids in zip(rows.tokens, rows.segment_ids, strict=True)
        for segment in range(ids.max() + 1)
    ]


def epoch_of(stream: StreamRows) -> RowBatch:
    """The rows that the first epoch fills."""
    rows = [stream.read(1)]
    while stream.epoch == 0:
        rows.append(stream.read(1))
    return joined(rows[:-1])


def joined(parts: list[RowBatch]) -> RowBatch:
    weights = [part.loss_weights for part in parts if part.loss_weights is not None]
    return RowBatch(
        tokens=np.concatenate([part.tokens for part in parts]),
        segment_ids=np.concatenate([part.segment_ids for part in parts]),
        loss_weights=np.concatenate(weights) if weights else None,
    )


def assert_same_rows(one: RowBatch, other: RowBatch) -> None:
    np.testing.assert_array_equal(one.tokens, other.tokens)
    np.testing.assert_array_equal(one.segment_ids, other.segment_ids)
    assert (one.loss_weights is None) == (other.loss_weights is None)
    if one.loss_weights is not None and other.loss_weights is not None:
        np.testing.assert_array_equal(one.loss_weights, other.loss_weights)


def documents_in(line: list[int]) -> list[str]:
    """The texts in a line of tokens, each up to its end; what is cut off counts as one."""
    return [bytes(part).decode() for part in split_at_ends(line)]


def split_at_ends(line: list[int]) -> Iterator[list[int]]:
    start = 0
    for end in [i for i, token in enumerate(line) if token == EOS]:
        yield line[start:end]
        start = end + 1
    yield line[start:]


@pytest.mark.parametrize("shuffle", [False, True])
def test_concat_rows_are_one_line_of_every_document_once_up_to_what_is_carried(source, shuffle):
    stream = stream_of(source, "concat", shuffle=shuffle)
    rows = epoch_of(stream)
    line = rows.tokens.ravel().tolist()
    assert (rows.segment_ids >= 0).all()
    assert rows.loss_weights is None
    found = documents_in(line)
    whole, cut = found[:-1], found[-1]
    missing = set(TEXTS) - set(whole)
    assert Counter(whole) + Counter(missing) == Counter(TEXTS)
    # Less than a row of tokens is left for the next epoch, which begins with it.
    assert sum(len(text) + 1 for text in missing) - len(cut) < T
    assert any(text.startswith(cut) for text in missing) or not cut
    if not shuffle:
        assert whole == TEXTS[: len(whole)]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("rule", ["split", "truncate", "drop"])
def test_packed_rows_hold_every_piece_of_an_epoch_once(source, rule, shuffle):
    stream = stream_of(source, "packed", long_documents=rule, shuffle=shuffle)
    rows = epoch_of(stream)
    lines = [[*text.encode(), EOS] for text in TEXTS]
    pieces = zip(*cut_documents(np.asarray([len(line) for line in lines]), T, rule), strict=True)
    expected = [lines[document][start : start + length] for document, start, length in pieces]
    assert sorted(segments_of(rows)) == sorted(expected)
    assert rows.segment_ids.max(axis=1).max() < 3
    is_padding = rows.segment_ids == -1
    assert not rows.tokens[is_padding].any()
    # Padding is the end of a row, never a gap.
    assert (np.diff(is_padding.astype(int), axis=1) >= 0).all()
    stream = stream_of(source, "packed", long_documents=rule, shuffle=shuffle, window_documents=25)
    stream.read(1)
    assert stream.dropped_tokens == sum(map(len, lines)) - sum(map(len, expected))
    assert stream.documents_read == len(TEXTS)


@pytest.mark.parametrize("mode", ["concat", "packed"])
def test_segments_of_a_row_count_its_documents_from_0(source, mode):
    rows = stream_of(source, mode, long_documents="truncate").read(40)
    for row, ids in zip(rows.tokens, rows.segment_ids, strict=True):
        num_tokens = int((ids >= 0).sum())
        if mode == "concat":
            expected = np.cumsum([0, *(row[: num_tokens - 1] == EOS)])
            assert ids[:num_tokens].tolist() == expected.tolist()
        assert ids[0] == 0
        assert set(np.diff(ids[:num_tokens])) <= {0, 1}


@pytest.mark.parametrize(
    ("format", "shuffle"), [(TextFormat(), True), (WEIGHTED, False)], ids=["text", "weighted"]
)
@pytest.mark.parametrize("mode", ["concat", "packed"])
def test_a_restored_stream_goes_on_with_the_rows_of_the_unbroken_one(source, mode, format, shuffle):
    given = {"format": format, "shuffle": shuffle, "validation_fraction": 0.1}
    unbroken = stream_of(source, mode, **given)
    states, rows = [json.dumps(unbroken.state())], []
    # Past two epoch edges, which each state is taken before, at or after.
    while unbroken.epoch < 2 or len(rows) < 40:
        rows.append(unbroken.read(1))
        states.append(json.dumps(unbroken.state()))
    for cut in range(len(rows)):
        resumed = stream_of(source, mode, **given)
        resumed.restore(json.loads(states[cut]))
        count = min(5, len(rows) - cut)
        assert_same_rows(resumed.read(count), joined(rows[cut : cut + count]))
        assert json.dumps(resumed.state()) == states[cut + count]


@law
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.sampled_from(["concat", "packed"]))
def test_rows_do_not_depend_on_how_many_are_read_at_once(source, counts, mode):
    # Closed, since a thread that is still at work takes random numbers (for beartype) from under
    # hypothesis, which then finds that its next example was drawn differently.
    with closing(stream_of(source, mode)) as stream, closing(stream_of(source, mode)) as other:
        found = joined([stream.read(count) for count in counts])
        assert_same_rows(found, other.read(sum(counts)))


def test_a_state_between_two_windows_does_not_read_the_first_of_them_again(source):
    stream = stream_of(source, "packed")
    places = []
    for _ in range(40):
        stream.read(1)
        places.append((stream.state()["cursor"]["window"], stream.state()["served"]))
    assert {(1, 0), (2, 0), (3, 0), (0, 0)} <= set(places)


def test_an_epoch_that_ends_with_a_window_is_followed_by_the_next(source):
    # Five windows of five documents, and a sixth without any.
    stream = stream_of(source, "concat", shuffle=False, window_documents=5)
    total = sum(len(text) + 1 for text in TEXTS)
    line = stream.read(3 * total // T).tokens.ravel().tolist()
    texts = documents_in(line)[:-1]
    assert texts == (TEXTS * 3)[: len(texts)]
    assert stream.epoch == 2


def test_the_state_is_small_and_does_not_grow_with_the_stream(source):
    stream = stream_of(source, "concat")
    sizes = []
    for _ in range(100):
        stream.read(1)
        sizes.append(len(json.dumps(stream.state())))
    assert max(sizes) < 1200
    assert stream.epoch > 2


def test_each_epoch_has_an_order_of_its_own_and_documents_stay_in_their_window(source):
    stream = stream_of(source, "concat", seq_len=2, window_documents=10)
    total = sum(len(text) + 1 for text in TEXTS)
    # Rows of two tokens, over two epochs: the line is whole.
    texts = documents_in(stream.read(total).tokens.ravel().tolist())[:-1]
    first, second = texts[:25], texts[25:]
    assert sorted(first) == sorted(second) == sorted(TEXTS)
    assert first != second
    for window in (TEXTS[:10], TEXTS[10:20], TEXTS[20:]):
        start = TEXTS.index(window[0])
        assert sorted(first[start : start + len(window)]) == sorted(window)
        assert first[start : start + len(window)] != window


def test_packed_rows_are_shuffled_as_well_as_their_documents(source):
    # A plan puts its first document in the first row; unshuffled, every epoch would begin with it.
    first_rows = []
    for seed in range(6):
        first = int(Permutation(len(TEXTS), f"{seed}/web/0/0")(np.zeros(1, np.int64))[0])
        row = stream_of(source, "packed", seed=seed, window_documents=25, seq_len=64).read(1)
        first_rows.append([*TEXTS[first].encode(), EOS] in segments_of(row))
    assert not all(first_rows)


def test_a_name_or_a_seed_of_its_own_gives_a_stream_another_order(source):
    rows = [
        stream_of(source, "concat", **given).read(10).tokens.tolist()
        for given in ({}, {"name": "books"}, {"seed": 4})
    ]
    assert rows[0] != rows[1] != rows[2] != rows[0]


def test_documents_that_are_held_out_are_never_served(source):
    held_out = {text for text in TEXTS if is_held_out(Document(id="", text=text), 0.3)}
    assert 0 < len(held_out) < len(TEXTS)
    stream = stream_of(source, "packed", long_documents="drop", validation_fraction=0.3, seq_len=64)
    found = {bytes(tokens[:-1]).decode() for tokens in segments_of(epoch_of(stream))}
    assert found == set(TEXTS) - held_out


def test_a_line_shorter_than_a_row_goes_on_over_epochs(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines_of(["abc"]))
    stream = stream_of(JsonlSource(paths=(str(tmp_path / "a.jsonl"),)), "concat")
    rows = stream.read(2)
    assert rows.tokens.ravel().tolist() == [*b"abc", EOS] * 8
    assert rows.segment_ids.tolist() == [[i // 4 for i in range(T)]] * 2
    assert (stream.epoch, stream.documents_read) == (7, 8)


def test_loss_weights_follow_their_tokens(source):
    rows = epoch_of(stream_of(source, "packed", format=WEIGHTED, seq_len=64))
    assert rows.loss_weights is not None
    assert not rows.loss_weights[rows.segment_ids == -1].any()
    for row, ids, weights in zip(rows.tokens, rows.segment_ids, rows.loss_weights, strict=True):
        for segment in range(ids.max() + 1):
            text = bytes(row[ids == segment][:-1].tolist()).decode()
            expected = [weight_of(text, place) for place in range(len(text))]
            assert weights[ids == segment].tolist() == np.float32([*expected, 0.0]).tolist()


def test_a_window_of_long_documents_ends_before_it_fills_the_memory(source, monkeypatch):
    monkeypatch.setattr(stream_module, "WINDOW_CHARACTERS", 30)
    stream = stream_of(source, "packed", window_documents=25)
    stream.read(1)
    assert 1 < stream.documents_read < 10
    assert Counter(map(tuple, segments_of(epoch_of(stream_of(source, "packed"))))) == Counter(
        tuple([*text.encode(), EOS][start : start + T])
        for text in TEXTS
        for start in range(0, len(text) + 1, T)
    )


def test_an_epoch_without_a_training_document_is_an_error_that_names_the_component(source):
    with pytest.raises(DataError) as caught:
        stream_of(source, "concat", validation_fraction=0.999999).read(1)
    assert "component 'web': " in caught.value.given
    with pytest.raises(DataError) as caught:
        stream_of(source, "packed", long_documents="drop", seq_len=2, window_documents=3).read(1)
    assert re.search(r"\d\d+ tokens", caught.value.given)


def test_a_state_of_other_settings_or_other_files_is_refused(source, tmp_path):
    stream = stream_of(source, "concat")
    stream.read(3)
    state = json.loads(json.dumps(stream.state()))
    with pytest.raises(DataError) as caught:
        stream_of(source, "concat", seq_len=8, seed=5).restore(state)
    assert "component 'web'" in caught.value.given
    assert "(seq_len=16, now 8), (seed=3, now 5" in caught.value.given
    with pytest.raises(DataError) as caught:
        stream.restore({**state, "version": 0})
    assert "settings" in caught.value.given
    (tmp_path / "aa.jsonl").write_text(lines_of(["new"]))
    resumed = stream_of(source, "concat")
    resumed.restore(state)
    with pytest.raises(DataError) as caught:
        resumed.read(1)
    assert "component 'web': " in caught.value.given


def test_a_state_of_more_rows_than_its_window_has_now_is_refused(source, tmp_path):
    stream = stream_of(source, "concat", window_documents=25)
    stream.read(10)
    (tmp_path / "b.jsonl").write_text("")
    (tmp_path / "a.jsonl").write_text(lines_of(["short"]))
    resumed = stream_of(source, "concat", window_documents=25)
    resumed.restore(stream.state())
    with pytest.raises(DataError) as caught:
        resumed.read(1)
    assert "10 rows" in caught.value.given


@pytest.mark.parametrize(
    ("shuffle", "words"), [(True, "ONLY WITHIN WINDOWS of 7 documents"), (False, "NOT SHUFFLED")]
)
def test_a_stream_says_how_little_it_is_shuffled_and_what_to_use_instead(
    source, caplog, shuffle, words
):
    stream_of(source, "concat", shuffle=shuffle)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert words in record.message
    assert "component 'web'" in record.message
    assert "token store" in record.message


# A network whose connection breaks.


class BrokenFile(io.RawIOBase):
    """A file behind a connection that breaks at the reads it is told to."""

    def __init__(self, content: bytes) -> None:
        self._content = io.BytesIO(content)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        FlakyNetwork.reads += 1
        if FlakyNetwork.reads in FlakyNetwork.failing or FlakyNetwork.is_down:
            raise ConnectionResetError(f"connection lost at read {FlakyNetwork.reads}")
        # Few bytes at once, so that breaks fall between and inside of records.
        return self._content.readinto(memoryview(buffer)[:300])


class FlakyNetwork(AbstractFileSystem):
    """Files in memory, under `flaky://web`, over such connections."""

    protocol = "flaky"
    cachable = False
    files: ClassVar[dict[str, bytes]] = {}
    opened: ClassVar[list[BrokenFile]] = []
    reads: ClassVar[int] = 0
    failing: ClassVar[frozenset[int]] = frozenset()
    is_down: ClassVar[bool] = False

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        found = [
            {"name": name, "size": len(content), "type": "file"}
            for name, content in self.files.items()
            if name == path or name.startswith(path.rstrip("/") + "/")
        ]
        return found if detail else [each["name"] for each in found]

    def _open(self, path: str, mode: str = "rb", **_: Any) -> BrokenFile:
        self.opened.append(BrokenFile(self.files[path]))
        return self.opened[-1]


@pytest.fixture
def flaky() -> Iterator[JsonlSource]:
    """The same texts behind a network that works until a test says otherwise."""
    fsspec.register_implementation("flaky", FlakyNetwork, clobber=True)
    FlakyNetwork.files = {
        "web/a.jsonl": lines_of(TEXTS[:13]).encode(),
        "web/b.jsonl": lines_of(TEXTS[13:]).encode(),
    }
    FlakyNetwork.opened.clear()
    break_at(set())
    yield JsonlSource(paths=("flaky://web/a.jsonl", "flaky://web/b.jsonl"))
    break_at(set())


def rows_of(stream: StreamRows, count: int) -> RowBatch:
    """The next rows of a stream, which then reads no further."""
    rows = stream.read(count)
    stream.close()
    return rows


def break_at(reads: set[int], *, is_down: bool = False) -> None:
    FlakyNetwork.reads, FlakyNetwork.failing = 0, frozenset(reads)
    FlakyNetwork.is_down = is_down


@law
@given(st.sets(st.integers(1, 70), max_size=3), st.sampled_from(["concat", "packed"]))
def test_reads_that_fail_neither_lose_nor_repeat_a_document_nor_end_an_epoch(flaky, failing, mode):
    break_at(set())
    unbroken = stream_of(flaky, mode)
    expected = rows_of(unbroken, 40)
    assert unbroken.retries == 0
    break_at(failing)
    stream = stream_of(flaky, mode)
    assert_same_rows(rows_of(stream, 40), expected)
    assert stream.retries == len({read for read in failing if read <= FlakyNetwork.reads})
    assert stream.state() == unbroken.state()


def test_retries_count_anew_after_every_document_and_are_logged(flaky, caplog):
    expected = rows_of(stream_of(flaky, "concat"), 40)
    caplog.clear()
    # Far enough apart for a document in between, though each retry reads a file from its start.
    break_at({1, 8, 20, 40})
    stream = stream_of(flaky, "concat", max_retries=1)
    assert_same_rows(rows_of(stream, 40), expected)
    assert FlakyNetwork.reads > 40
    assert stream.retries == 4
    retried = [record.message for record in caplog.records if "retry" in record.message]
    assert len(retried) == 4
    assert "component 'web': reading failed at part 0, record 0, retry 1 of 1" in retried[0]
    assert "connection lost at read 1" in retried[0]


@pytest.mark.parametrize("max_retries", [0, 2])
def test_a_network_that_stays_down_is_an_error_after_the_last_retry(flaky, max_retries):
    expected = rows_of(stream_of(flaky, "concat", window_documents=5), 20)
    stream = stream_of(flaky, "concat", max_retries=max_retries, window_documents=5)
    first = stream.read(2)
    state = stream.state()
    break_at(set(), is_down=True)
    with pytest.raises(DataError) as caught:
        stream.read(18)
    assert re.search(r"component 'web': .* part \d, record \d+ ", caught.value.given)
    assert f"{max_retries} retries (StorageError: " in caught.value.given
    assert "connection lost" in caught.value.given
    assert stream.retries >= max_retries
    # Nothing of the failed read counts: once the network is back the rows go on.
    assert stream.state() == state
    break_at(set())
    assert_same_rows(joined([first, stream.read(18)]), expected)


def test_a_closed_stream_reads_no_further_and_leaves_no_file_open(flaky):
    stream = stream_of(flaky, "concat")
    stream.read(1)
    stream.close()
    assert FlakyNetwork.opened
    assert all(file.closed for file in FlakyNetwork.opened)
    with pytest.raises(RuntimeError, match="after shutdown"):
        stream.read(100)


def test_without_retries_epochs_still_follow_each_other(flaky):
    stream = stream_of(flaky, "packed", max_retries=0)
    stream.read(100)
    assert stream.epoch >= 2


def test_a_broken_record_is_no_end_of_the_source_and_is_not_retried(flaky):
    FlakyNetwork.files["web/b.jsonl"] += b"not JSON\n"
    stream = stream_of(flaky, "concat", window_documents=100)
    for _ in range(2):
        with pytest.raises(DataError) as caught:
            stream.read(1)
        assert "component 'web': " in caught.value.given
        assert "flaky://web/b.jsonl:12" in caught.value.given
    assert (stream.retries, stream.epoch) == (0, 0)
