"""Harness requests as tokens: lm-eval's boundary, an empty context, what does not fit."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lm_eval.api.model import TemplateLM

from chomp.errors import ConfigError
from chomp.evaluation.harness import GenerationSettings, Request, encoded_pairs, fitting
from chomp.tokenize import BpeTokenizer, ByteTokenizer, Tokenizer, train_bpe

PREFIX = 256


@cache
def merging() -> BpeTokenizer:
    """A tokenizer that joins letters of `abab` across any boundary, and spaces to words."""
    return train_bpe(["abab abab aab abb  ab\n\n ab abab"] * 20, vocab_size=280)


class Theirs(TemplateLM):
    """lm-eval's own way from texts to tokens, around one of our tokenizers."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.own = tokenizer

    eot_token_id = PREFIX

    def tok_encode(self, string, add_special_tokens=None, **kwargs):
        return self.own.encode_batch([string])[0]

    def _loglikelihood_tokens(self, requests, **kwargs):
        return [(before, after) for _, before, after in requests]

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        raise NotImplementedError

    def generate_until(self, requests, disable_tqdm=False):
        raise NotImplementedError


def ours(tokenizer: Tokenizer, context: str, continuation: str, **how: bool) -> Request:
    settings = {"starts_with_prefix": False, **how}
    pairs = [(context, continuation)]
    return encoded_pairs(tokenizer, pairs, prefix_id=PREFIX, **settings)[0]


texts = st.text("ab \n", max_size=8)


@given(context=texts.filter(str.strip), continuation=texts)
def test_the_boundary_is_where_the_harness_itself_puts_it(context, continuation):
    before, after = Theirs(merging())._encode_pair(context, continuation)
    tokens, start = ours(merging(), context, continuation)
    assert (list(tokens[:start]), list(tokens[start:])) == (before, after)


@pytest.mark.parametrize(
    ("context", "continuation"), [("aba", "b abab"), ("ab ", "ab"), ("a", "bab")]
)
def test_a_token_across_the_boundary_is_treated_as_the_harness_does(context, continuation):
    tokenizer = merging()
    apart = tokenizer.encode_batch([context])[0] + tokenizer.encode_batch([continuation])[0]
    before, after = Theirs(tokenizer)._encode_pair(context, continuation)
    assert before + after != apart  # otherwise nothing merges, and this tests nothing
    assert ours(tokenizer, context, continuation) == Request((*before, *after), len(before))


@pytest.mark.parametrize("context", ["", " ", "\n \n"])
def test_a_context_without_tokens_becomes_the_prefix(context):
    tokens, start = ours(ByteTokenizer(), context, "ab")
    assert start == 1
    assert tokens == (PREFIX, *(context + "ab").encode())


def test_a_prefix_for_every_context_is_put_there_once():
    assert ours(ByteTokenizer(), "a", "b", starts_with_prefix=True) == Request((PREFIX, 97, 98), 2)
    assert ours(ByteTokenizer(), "", "b", starts_with_prefix=True) == Request((PREFIX, 98), 1)


@given(
    length=st.integers(2, 40), split=st.floats(0, 1), limit=st.integers(2, 20), data=st.integers()
)
def test_what_does_not_fit_loses_its_left_end(length, split, limit, data):
    start = max(1, round(split * length))
    request = Request(tuple((data + i) % 97 for i in range(length)), start)
    (cut,), cuts = fitting([request], limit)
    assert cut.tokens == request.tokens[-limit:]
    wanted = request.tokens[start:]
    assert cut.tokens[cut.start :] == wanted[-(limit - 1) :]
    assert cuts.truncated == (length > limit)
    assert cuts.shortened == (len(wanted) > limit - 1)
    assert cuts.empty == (len(wanted) == 0)


def test_generation_settings_are_those_of_the_task():
    asked = {"until": "\n", "max_gen_toks": 8, "do_sample": True, "temperature": 0.7, "top_p": 0.9}
    assert GenerationSettings.from_request(asked) == GenerationSettings(
        max_tokens=8, temperature=0.7, top_p=0.9, until=("\n",)
    )
    assert (
        GenerationSettings.from_request({"temperature": 0.7, "do_sample": False}).temperature == 0
    )
    assert GenerationSettings(until=("ab", "", "b")).cut("xxabyb") == "xx"


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ({"temprature": 1.0}, "did you mean temperature"),
        ({"num_beams": 4}, "num_beams"),
        ({"do_sample": True}, "temperature"),
        ({"max_gen_toks": 0}, "max_gen_toks=0"),
        ({"temperature": -1.0}, "temperature=-1"),
    ],
)
def test_generation_settings_that_cannot_be_are_refused(asked, word):
    with pytest.raises(ConfigError) as caught:
        GenerationSettings.from_request(asked)
    assert word in caught.value.given
