"""Scores of harness requests: packed as unpacked, in any order, on any mesh."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chomp.errors import ConfigError
from chomp.evaluation.harness import (
    GenerationSettings,
    HarnessModel,
    Request,
    RequestScorer,
    sampler,
    scores_from_logits,
)
from chomp.mesh import MeshConfig, create_mesh
from chomp.tokenize import ByteTokenizer
from tests.evaluation.harness_model import (
    CFG,
    EOS,
    Args,
    by_hand,
    greedy_ids,
    model_on,
    scorer_on,
    scores_of,
)

ROW = CFG.max_seq_len


@st.composite
def requests(draw: st.DrawFn) -> Request:
    length = draw(st.one_of(st.integers(2, 12), st.integers(2, ROW)))
    ids = np.random.default_rng(draw(st.integers(0, 2**32))).integers(0, CFG.vocab_size, length)
    return Request(tuple(ids.tolist()), draw(st.integers(1, length - 1)))


def some_requests(count: int) -> list[Request]:
    random = np.random.default_rng(7)
    lengths = random.integers(2, 20, count)
    return [Request(tuple(random.integers(0, 256, n).tolist()), int(n) // 2) for n in lengths]


@pytest.fixture(scope="module")
def mesh():
    return create_mesh(MeshConfig(data=1), devices=jax.devices()[:1])


@pytest.fixture
def harness(mesh) -> HarnessModel:
    return HarnessModel(model_on(mesh), scorer_on(mesh), tokenizer=ByteTokenizer())


@settings(max_examples=15, deadline=None)
@given(asked=st.lists(requests(), min_size=1, max_size=40))
def test_packed_requests_have_the_scores_they_have_alone(asked):
    mesh = create_mesh(MeshConfig(data=1), devices=jax.devices()[:1])
    packed = scorer_on(mesh).scores(model_on(mesh), asked)
    alone = by_hand(mesh, asked)
    for one, other in zip(packed, alone, strict=True):
        np.testing.assert_allclose(one.log_likelihood, other.log_likelihood, rtol=1e-5, atol=1e-5)
        assert one.is_greedy == other.is_greedy


def test_neither_order_nor_repetition_changes_a_score(mesh):
    asked = some_requests(60)
    expected = dict(zip(asked, scorer_on(mesh).scores(model_on(mesh), asked), strict=True))
    order = np.random.default_rng(1).integers(0, len(asked), 150)
    again = [*(asked[i] for i in order), *asked]
    assert scorer_on(mesh).scores(model_on(mesh), again) == [expected[item] for item in again]


def test_a_greedy_continuation_is_said_to_be_one(mesh):
    prompt = tuple(b"After one")
    likeliest = greedy_ids(mesh, prompt, 5)
    other = [*likeliest[:-1], (likeliest[-1] + 1) % CFG.vocab_size]
    asked = [Request((*prompt, *ids), len(prompt)) for ids in (likeliest, other)]
    found = scorer_on(mesh).scores(model_on(mesh), asked)
    assert [score.is_greedy for score in found] == [True, False]


def test_scores_are_the_same_on_eight_devices_and_by_way_of_all_logits(mesh, eight_device_mesh):
    asked = some_requests(30)
    by_logits = scores_from_logits(lambda model, batch: model.logits(batch.tokens, batch.attn_mask))
    scorer = RequestScorer(
        by_logits, mesh=eight_device_mesh, batch_size=3, row_len=ROW, pad_id=EOS, max_requests=5
    )
    found = scorer.scores(model_on(eight_device_mesh), asked)
    expected = scorer_on(mesh).scores(model_on(mesh), asked)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.log_likelihood, other.log_likelihood, rtol=1e-5, atol=1e-5)
        assert one.is_greedy == other.is_greedy


@pytest.mark.parametrize("counts_documents", [False, True])
def test_one_program_serves_all_requests_and_rows_are_nearly_full(mesh, counts_documents):
    seen, shapes = [], []

    def toy_scores(params, batch):
        shapes.append((batch.tokens.shape, batch.attn_mask.max_segments))  # once a compilation
        jax.debug.callback(lambda ids: seen.append(np.asarray(ids)), batch.attn_mask.segment_ids)
        return batch.tokens.astype(jnp.float32), batch.tokens < 100

    scorer = RequestScorer(
        toy_scores,
        mesh=mesh,
        batch_size=4,
        row_len=ROW,
        pad_id=0,
        counts_documents=counts_documents,
    )
    asked = some_requests(200)
    scorer.scores(None, asked[:3])
    seen.clear()
    found = scorer.scores(None, asked)
    # The toy's loss of a position is its token, so a score is a sum over the tokens before.
    for (tokens, start), score in zip(asked, found, strict=True):
        assert score.log_likelihood == -sum(tokens[start - 1 : -1])
        assert score.is_greedy == all(token < 100 for token in tokens[start - 1 : -1])
    jax.effects_barrier()
    assert shapes == [((4, ROW), 12 if counts_documents else None)]
    ids = np.concatenate(seen)
    used = ids[(ids >= 0).any(axis=1)]
    assert (used >= 0).mean() > 0.95


def test_the_rest_of_a_batch_of_short_requests_makes_room_in_the_tables(mesh):
    rooms = []

    def toy_scores(params, batch):
        rooms.append(batch.attn_mask.max_segments)
        return batch.tokens.astype(jnp.float32), batch.tokens < 100

    scorer = RequestScorer(
        toy_scores, mesh=mesh, batch_size=1, row_len=ROW, pad_id=0, counts_documents=True
    )
    scorer.scores(None, [Request((1, token), 1) for token in range(32)])
    assert rooms == [48]  # 32 in a row, where there is usually room for 12


def test_likelihoods_are_those_of_the_texts_tokens(mesh, harness):
    pairs = [("After one", " comes two"), ("", "After"), ("After two ", "comes"), ("x", "")]
    expected = by_hand(
        mesh,
        [
            Request(tuple(b"After one comes two"), 9),
            Request((EOS, *b"After"), 1),
            Request(tuple(b"After two comes"), 9),
        ],
    )
    found = harness.loglikelihood([Args(pair) for pair in pairs])
    for one, other in zip(found, expected, strict=False):
        np.testing.assert_allclose(one[0], other.log_likelihood, rtol=1e-5)
        assert one[1] == other.is_greedy
    assert found[3] == (0.0, True)  # nothing was asked
    assert harness.cuts.empty == 1


def test_an_over_long_request_keeps_its_right_end_and_is_counted(mesh, harness, caplog):
    context, continuation = "0123456789" * 9, " and so on"
    whole = tuple((context + continuation).encode())
    asked = [Args((context, continuation)), Args(("short", " one")), Args(("a", "b" * 100))]
    with caplog.at_level(logging.WARNING):
        found = harness.loglikelihood(asked)
    (expected,) = by_hand(mesh, [Request(whole[-ROW:], ROW - len(continuation))])
    np.testing.assert_allclose(found[0][0], expected.log_likelihood, rtol=1e-5)
    assert (harness.cuts.truncated, harness.cuts.shortened) == (2, 1)
    (record,) = caplog.records
    assert "2 of 3 requests" in record.getMessage()


@pytest.mark.parametrize("length", [0, 1, ROW - 1, ROW, 3 * ROW + 5])
def test_a_rolling_likelihood_scores_every_token_once_with_all_context_that_fits(
    mesh, harness, length
):
    text = "".join(chr(97 + (i * i) % 26) for i in range(length))
    ids = tuple(text.encode())
    window = ROW - 1  # inputs of a row: its last token is only predicted
    asked = [Request((EOS, *ids[:window]), 1)] if length else []
    for first in range(window, length, window):
        last = min(first + window, length)
        asked.append(Request(ids[last - window - 1 : last], first - last + window + 1))
    (found,) = harness.loglikelihood_rolling([Args((text,))])
    assert sum(len(item.tokens) - item.start for item in asked) == length
    expected = sum(score.log_likelihood for score in by_hand(mesh, asked))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_generated_text_comes_back_in_order_grouped_by_its_settings_and_cut(mesh):
    calls = []

    def generate(prompts, *, max_tokens, seed, until, **how):
        calls.append((len(prompts), max_tokens, seed, until, how["temperature"]))
        return [[*reversed(prompt), 46, 48 + seed] for prompt in prompts]

    model = HarnessModel(None, scorer_on(mesh), tokenizer=ByteTokenizer(), generate=generate)
    short = {"until": ["."], "max_gen_toks": 4}
    drawn = {"until": [], "max_gen_toks": 4, "temperature": 1.0}
    asked = [
        ("ab", short),
        ("cd", drawn),
        ("abc", short),
        ("cd", drawn),
        ("ab", short),
        ("", short),
    ]
    found = model.generate_until([Args(args) for args in asked])
    assert found == ["ba", "dc.0", "cba", "dc.1", "ba", ""]
    # Equal greedy requests are generated once, equal sampled ones with seeds of their own.
    expected = [(3, 4, 0, (".",), 0.0), (1, 4, 0, (), 1.0), (1, 4, 1, (), 1.0)]
    assert sorted(calls, key=str) == sorted(expected, key=str)


def test_a_long_prompt_is_cut_from_the_left_and_an_impossible_length_refused(mesh):
    def generate(prompts, **how):
        return [list(prompt) for prompt in prompts]

    model = HarnessModel(None, scorer_on(mesh), tokenizer=ByteTokenizer(), generate=generate)
    prompt = "0123456789" * 8
    (found,) = model.generate_until([Args((prompt, {"max_gen_toks": 14}))])
    assert found == prompt[-(ROW - 14) :]
    assert model.cuts.truncated == 1
    with pytest.raises(ConfigError) as caught:
        model.generate_until([Args((prompt, {"max_gen_toks": 64}))])
    assert "max_gen_toks=64" in caught.value.given


def test_the_sampler_writes_the_likeliest_text_and_stops_where_a_text_says(mesh):
    tokenizer, prompts = ByteTokenizer(), [list(b"After one"), list(b"1 + 2"), list(b"Q")]
    write = sampler(model_on(mesh), mesh=mesh, tokenizer=tokenizer, batch_size=2)
    how = {"max_tokens": 40, "temperature": 0.0, "top_k": None, "top_p": None, "seed": 0}
    whole = write(prompts, **how, until=())
    for prompt, ids in zip(prompts, whole, strict=True):
        likeliest = [*greedy_ids(mesh, tuple(prompt), 40), EOS]
        assert ids == likeliest[: likeliest.index(EOS)]
    end = tokenizer.decode(whole[0])[2:4]
    short = write(prompts, **how, until=(end,))
    cut = GenerationSettings(until=(end,)).cut
    assert len(short[0]) < len(whole[0])
    for one, other in zip(short, whole, strict=True):
        assert cut(tokenizer.decode(one)) == cut(tokenizer.decode(other))


def test_a_model_without_a_sampler_says_so(harness):
    with pytest.raises(ConfigError) as caught:
        harness.generate_until([Args(("a", {}))])
    assert "sampler" in caught.value.given


def test_rows_in_which_nothing_can_be_scored_are_refused(mesh):
    with pytest.raises(ConfigError) as caught:
        RequestScorer(scores_of, mesh=mesh, batch_size=1, row_len=1, pad_id=0)
    assert "2 tokens" in caught.value.allowed
