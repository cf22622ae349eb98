"""Documents of a batch as starts and lengths: complete, in order, and never silently short."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chomp.kernels.attention import documents_of_rows, max_segments
from chomp.kernels.attention.mask import document_table

ROWS, LENGTH = 3, 40
ROOM = ROWS * max_segments(LENGTH)
table_of = jax.jit(document_table)


@st.composite
def rows(draw: st.DrawFn) -> list[int]:
    """Documents of any number and length, then padding; often more than the table holds."""
    longest = draw(st.sampled_from([1, 2, 9, LENGTH]))
    lengths = draw(st.lists(st.integers(1, longest), min_size=1, max_size=LENGTH))
    ids = [i for i, length in enumerate(lengths) for _ in range(length)][:LENGTH]
    return ids + [-1] * (LENGTH - len(ids))


def runs(batch: list[list[int]]) -> list[int]:
    """Lengths of the runs of equal ids, row after row."""
    return [len(list(run)) for row in batch for _, run in itertools.groupby(row)]


def of_runs(*counts: int) -> list[list[int]]:
    """Rows of that many documents."""
    return [[min(i, count - 1) for i in range(LENGTH)] for count in counts]


@settings(max_examples=60, deadline=None)
@given(st.lists(rows(), min_size=ROWS, max_size=ROWS))
# All room in one row and its neighbours, then one document too many.
@example(of_runs(1, ROOM - 2, 1))
@example(of_runs(1, ROOM - 2, 2))
# Equal ids on both sides of a row's end are two documents.
@example([[5] * LENGTH] * ROWS)
def test_the_table_holds_every_document_or_says_that_it_does_not(batch):
    starts, lengths, fits = map(np.asarray, table_of(jnp.asarray(batch, jnp.int32)))
    expected = runs(batch)
    assert starts.shape == lengths.shape == (ROOM,)
    assert fits == (len(expected) <= ROOM)
    begins = np.cumsum([0, *expected[:-1]])[:ROOM].tolist()
    assert starts.tolist() == begins + [ROWS * LENGTH] * (ROOM - len(begins))
    assert lengths.tolist() == (expected + [0] * ROOM)[:ROOM]


@settings(max_examples=60, deadline=None)
@given(st.lists(rows(), min_size=ROWS, max_size=ROWS))
@example(of_runs(1, ROOM - 2, 1))
@example(of_runs(1, ROOM - 2, 2))
def test_the_host_counts_what_the_table_holds(batch):
    counts = documents_of_rows(np.asarray(batch, np.int32))
    assert counts.tolist() == [len(runs([row])) for row in batch]
    assert bool(table_of(jnp.asarray(batch, jnp.int32)).fits) == (counts.sum() <= ROOM)


@pytest.mark.parametrize(("seq_len", "room"), [(1, 12), (1024, 12), (2048, 16), (8192, 64)])
def test_longer_rows_have_room_for_more_documents_and_short_ones_for_more_than_one(seq_len, room):
    # With room for one alone, cuDNN would take the row for a whole one.
    assert max_segments(seq_len) == room
    sizes = [max_segments(seq_len, documents) for documents in (room, room + 1, 4 * room)]
    assert sizes == [room, 2 * room, 4 * room]
