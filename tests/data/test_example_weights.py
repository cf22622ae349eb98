"""Which predictions count: the rules as tables."""

import numpy as np
import pytest

from chomp.data import GrugLmExample

EOS = 9

# Two documents and padding. The weight under a token scores the prediction of the token after it.
TOKENS = [5, 6, EOS, 7, EOS, 0, 0]
SEGMENTS = [0, 0, 0, 1, 1, -1, -1]


def weights(tokens: list[int], segments: list[int], **rules: bool) -> list[int]:
    example = GrugLmExample.from_rows(
        np.asarray([tokens], np.int32), np.asarray([segments], np.int32), eos_id=EOS, **rules
    )
    assert example.loss_weight.dtype == np.float32
    return example.loss_weight[0].astype(int).tolist()


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        #                                           5  6  E  7  E  -  -
        ({}, [1, 1, 0, 1, 0, 0, 0]),
        ({"mask_boundary_loss": False}, [1, 1, 1, 1, 0, 0, 0]),
        ({"train_on_eos": False}, [1, 0, 0, 0, 0, 0, 0]),
        ({"mask_boundary_loss": False, "train_on_eos": False}, [1, 0, 1, 0, 0, 0, 0]),
    ],
)
def test_ends_boundaries_and_padding_count_as_the_rules_say(rules, expected):
    assert weights(TOKENS, SEGMENTS, **rules) == expected
    # Padding in front of a document counts for nothing either.
    assert weights([0, 0, 5, 6, 0], [-1, -1, 0, 0, -1], **rules) == [0, 0, 1, 0, 0]


@pytest.mark.parametrize(
    ("tokens", "segments", "expected"),
    [
        ([5, 6, 7, 8], [0, 0, 0, 0], [1, 1, 1, 0]),  # one document, cut by the row
        ([EOS, 5, 6, 7], [0, 1, 1, 1], [0, 1, 1, 0]),  # the row starts with an end
        ([5, 6, 7, EOS], [0, 0, 0, 0], [1, 1, 1, 0]),  # the row ends with one
        ([EOS, EOS, EOS], [0, 1, 2], [0, 0, 0]),  # empty documents
        ([0, 0, 0], [-1, -1, -1], [0, 0, 0]),  # nothing but padding
        ([0, 0, 5, 6], [-1, -1, 0, 0], [0, 0, 1, 0]),  # padding in front
        ([5], [0], [0]),
    ],
)
def test_weights_of_single_rows(tokens, segments, expected):
    assert weights(tokens, segments) == expected


def test_an_example_is_causal_within_its_documents():
    tokens, segments = np.asarray([TOKENS]), np.asarray([SEGMENTS])
    example = GrugLmExample.from_rows(tokens, segments, eos_id=EOS)
    assert example.attn_mask.is_causal
    assert example.attn_mask.sliding_window is None
    np.testing.assert_array_equal(example.attn_mask.segment_ids, segments)
    np.testing.assert_array_equal(example.tokens, tokens)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        #                      5    6    E    7    E    -    -
        ({}, [0.5, 2.0, 0.0, 1.0, 0.0, 0.0, 0.0]),
        ({"mask_boundary_loss": False}, [0.5, 2.0, 3.0, 1.0, 0.0, 0.0, 0.0]),
        ({"train_on_eos": False}, [0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_the_weights_of_documents_multiply_what_the_rules_leave(rules, expected):
    own = np.asarray([[0.5, 2.0, 3.0, 1.0, 9.0, 9.0, 9.0]], np.float32)
    rows = np.asarray([TOKENS], np.int32), np.asarray([SEGMENTS], np.int32)
    example = GrugLmExample.from_rows(*rows, eos_id=EOS, loss_weights=own, **rules)
    assert example.loss_weight[0].tolist() == expected


def test_documents_that_are_not_isolated_keep_their_weights_and_lose_their_walls():
    rows = np.asarray([TOKENS], np.int32), np.asarray([SEGMENTS], np.int32)
    example = GrugLmExample.from_rows(*rows, eos_id=EOS, isolate_documents=False)
    assert example.attn_mask.segment_ids is None
    assert example.loss_weight[0].astype(int).tolist() == weights(TOKENS, SEGMENTS)
