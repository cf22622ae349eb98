"""How many tokens a chunk of the loss holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chomp.kernels.loss import LEAST_LOGITS, LEAST_ROWS, chunk_rows


@given(
    num_tokens=st.integers(1, 2**21),
    model_width=st.integers(1, 2**14),
    vocab=st.integers(2, 2**18),
)
def test_a_chunk_takes_about_four_head_gradients_or_the_least_worth_a_chunk(
    num_tokens, model_width, vocab
):
    rows = chunk_rows(num_tokens, model_width, vocab)
    wanted = max(4 * model_width, LEAST_ROWS, -(-LEAST_LOGITS // vocab))
    assert min(num_tokens, wanted // 2) <= rows <= min(num_tokens, 1.5 * wanted)


@given(count=st.integers(1, 64), rows=st.integers(512, 1536))
def test_a_size_that_divides_the_tokens_is_taken_where_there_is_one(count, rows):
    assert (count * rows) % chunk_rows(count * rows, 256, 2**16) == 0


@pytest.mark.parametrize(
    ("shapes", "rows"),
    [
        ((16 * 256, 256, 4096), 1024),  # the quickstart's model on a CPU
        ((32 * 1024, 768, 50304), 4096),  # 124M
        ((16 * 2048, 2048, 50304), 8192),  # 1B
        ((8191, 256, 4096), 1024),  # a prime number of tokens: seven chunks and a tail of 1023
        ((100, 256, 4096), 100),
    ],
)
def test_chunks_of_known_models(shapes, rows):
    assert chunk_rows(*shapes) == rows
