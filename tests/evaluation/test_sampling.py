"""Generated text: a prompt has one text, whatever is beside it and wherever it is computed."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from chomp.errors import ConfigError
from chomp.evaluation.generation import Generation, TokenChoice, generate, generate_batch
from chomp.mesh import BATCH_AXES, MeshConfig, create_mesh
from experiments.grug.base.model import GrugModelConfig, Transformer
from tests.evaluation.noisy_model import noisy_model

CFG = GrugModelConfig(
    vocab_size=24,
    hidden_dim=16,
    intermediate_dim=16,
    num_layers=1,
    num_heads=2,
    num_kv_heads=2,
    max_seq_len=64,
    initializer_std=0.5,
)
LENGTH = 12
NEVER = CFG.vocab_size  # an end that no model can produce
# Within a chunk of prefill, at its edge and past it.
PROMPTS = [np.random.default_rng(n).integers(0, CFG.vocab_size, n).tolist() for n in (3, 33, 45, 7)]
DRAWN = {"temperature": 1.5, "top_k": 12, "top_p": 0.95, "seed": 5}


def fresh_model(mesh: Mesh) -> Transformer:
    """The model of this file."""
    return noisy_model(CFG, mesh)


@cache
def model_on(mesh: Mesh) -> Transformer:
    """The model of this file, cut as its weights say."""
    one_device = create_mesh(MeshConfig(data=1), devices=jax.devices()[:1])

    def placed(weight: jax.Array) -> jax.Array:
        return jax.device_put(weight, NamedSharding(mesh, weight.sharding.spec))

    return jax.tree.map(placed, fresh_model(one_device))


def texts(mesh: Mesh, prompts: list[list[int]] = PROMPTS, **how: Any) -> list[list[int]]:
    how = {"max_tokens": LENGTH, "eos_id": NEVER, **how}
    return generate_batch(model_on(mesh), prompts, mesh=mesh, **how)


@pytest.fixture(scope="module")
def greedy(one_device_mesh) -> list[list[int]]:
    return texts(one_device_mesh)


@pytest.fixture(scope="module")
def drawn(one_device_mesh) -> list[list[int]]:
    return texts(one_device_mesh, **DRAWN)


def test_greedy_text_is_the_likeliest_token_of_a_whole_forward_pass_each_time(
    greedy, one_device_mesh
):
    rows = [list(prompt) for prompt in PROMPTS]
    forward = jax.jit(lambda model, ids: model.logits(ids))
    with jax.set_mesh(one_device_mesh):
        for _ in range(LENGTH):
            ids = np.asarray([row + [0] * (CFG.max_seq_len - len(row)) for row in rows], np.int32)
            logits = np.asarray(forward(model_on(one_device_mesh), ids))
            for row, row_logits in zip(rows, logits, strict=True):
                row.append(int(row_logits[len(row) - 1].argmax()))
    assert greedy == [row[-LENGTH:] for row in rows]
    assert all(len(set(text)) > 1 for text in greedy)  # else every mistake would look the same


def test_a_text_does_not_depend_on_what_is_beside_it(greedy, drawn, one_device_mesh):
    model = model_on(one_device_mesh)
    for how, expected in (({}, greedy), (DRAWN, drawn)):
        assert texts(one_device_mesh, PROMPTS[::-1], **how)[::-1] == expected
        # Alone, the first tokens of a long prompt are prefilled; beside a short one they are fed.
        for prompt, text in zip(PROMPTS, expected, strict=True):
            limits = {"max_tokens": LENGTH, "eos_id": NEVER}
            assert generate(model, prompt, mesh=one_device_mesh, **limits, **how) == text
    assert len({tuple(text) for text in (*greedy, *drawn)}) == 8


def test_eight_devices_write_what_one_writes(greedy, drawn, eight_device_mesh):
    assert texts(eight_device_mesh) == greedy
    assert texts(eight_device_mesh, **DRAWN) == drawn


def test_a_text_goes_on_as_it_would_have_when_its_beginning_is_the_prompt(drawn, one_device_mesh):
    longer = [prompt + text[:4] for prompt, text in zip(PROMPTS, drawn, strict=True)]
    rest = texts(one_device_mesh, longer, **DRAWN, max_tokens=LENGTH - 4)
    assert rest == [text[4:] for text in drawn]


def test_each_prompt_may_have_its_own_seed(drawn, one_device_mesh):
    seeds = [DRAWN["seed"], 1, 2, 1]
    four = texts(one_device_mesh, [PROMPTS[0]] * 4, **{**DRAWN, "seed": seeds})
    assert four[0] == drawn[0]
    assert four[1] == four[3]
    assert len({tuple(text) for text in four}) == 3


def test_greedy_text_depends_on_no_seed_and_on_no_cut(greedy, one_device_mesh):
    assert texts(one_device_mesh, seed=5, top_k=7, top_p=0.3) == greedy
    assert texts(one_device_mesh, **{**DRAWN, "top_k": 1}) == greedy


NUM_STATES = 23
TRACED: list[tuple[int, ...]] = []  # shapes of the tokens at each tracing of an automaton
STEPS: list[int] = []  # one entry for each step that a counted automaton has run


class Automaton(eqx.Module):
    """A template that is no transformer: its state folds all tokens seen, in their order.

    Its likeliest next token is that state, so every token lost or fed twice changes the text.
    """

    scale: jax.Array
    is_counted: bool = eqx.field(static=True, default=False)

    def init_cache(self, batch_size: int, max_len: int) -> jax.Array:
        return jnp.zeros(batch_size, jnp.int32, out_sharding=P(BATCH_AXES))

    def decode_step(self, cache: jax.Array, token_ids: jax.Array) -> tuple[jax.Array, jax.Array]:
        def fold(state: jax.Array, token: jax.Array) -> tuple[jax.Array, jax.Array]:
            state = folded(state, token)
            return state, state

        TRACED.append(token_ids.shape)
        if self.is_counted:
            jax.debug.callback(lambda: STEPS.append(1))
        state, states = jax.lax.scan(fold, cache, token_ids.T)
        return self.scale * jax.nn.one_hot(states.T, NUM_STATES), state


def folded(state: Any, token: Any) -> Any:
    return (3 * state + token + 1) % NUM_STATES


def automaton(mesh: Mesh, **how: Any) -> Automaton:
    with jax.set_mesh(mesh):
        return Automaton(jnp.float32(9.0), **how)


def expected_text(prompt: list[int], max_tokens: int, eos_id: int) -> list[int]:
    """What the automaton writes, by hand."""
    state, text = 0, []
    for token in prompt:
        state = folded(state, token)
    while len(text) < max_tokens and state != eos_id:
        text.append(state)
        state = folded(state, state)
    return text


RISING = [*range(NUM_STATES)] * 4
PROMPT = st.lists(st.integers(0, NUM_STATES - 1), min_size=1, max_size=50)


@settings(deadline=None)  # the first examples compile
@given(
    prompts=st.lists(PROMPT, min_size=1, max_size=4),
    max_tokens=st.integers(1, 14),
    eos_id=st.integers(0, NUM_STATES),
)
@example(prompts=[RISING[:32], RISING[:40]], max_tokens=9, eos_id=NUM_STATES)  # one whole chunk
@example(prompts=[RISING[:80], RISING[1:90]], max_tokens=9, eos_id=NUM_STATES)  # two and a part
def test_every_prompt_of_a_batch_is_continued_to_its_own_end(
    one_device_mesh, prompts, max_tokens, eos_id
):
    found = generate_batch(
        automaton(one_device_mesh),
        prompts,
        mesh=one_device_mesh,
        max_tokens=max_tokens,
        eos_id=eos_id,
    )
    assert found == [expected_text(prompt, max_tokens, eos_id) for prompt in prompts]


def test_text_ends_before_the_end_of_its_document_and_not_in_the_prompt(greedy, one_device_mesh):
    eos_id = greedy[0][4]
    ends = [text.index(eos_id) if eos_id in text else LENGTH for text in greedy]
    assert len(set(ends)) > 1
    assert any(eos_id in prompt for prompt in PROMPTS)
    found = texts(one_device_mesh, eos_id=eos_id)
    assert found == [text[:end] for text, end in zip(greedy, ends, strict=True)]


def test_no_step_is_taken_after_the_last_text_has_ended(one_device_mesh):
    prompts = [[3], [5, 8]]
    eos_id = expected_text(prompts[1], 3, NUM_STATES)[2]
    lengths = [len(expected_text(prompt, 60, eos_id)) for prompt in prompts]
    STEPS.clear()
    generate_batch(
        automaton(one_device_mesh, is_counted=True),
        prompts,
        mesh=one_device_mesh,
        max_tokens=60,
        eos_id=eos_id,
    )
    jax.effects_barrier()
    # A step reads a token: all of a prompt, then all of the text.
    needed = max(len(prompt) + length for prompt, length in zip(prompts, lengths, strict=True))
    assert len(STEPS) == needed < 30


def test_a_batch_size_and_a_length_are_compiled_once(one_device_mesh):
    model = automaton(one_device_mesh)

    def traced(prompts: list[list[int]], max_tokens: int, **how: Any) -> set[tuple[int, ...]]:
        TRACED.clear()
        how = {"mesh": one_device_mesh, "eos_id": NEVER, "temperature": 1.0, **how}
        generate_batch(model, prompts, max_tokens=max_tokens, **how)
        return set(TRACED)

    eight = [[token + 1] * (token + 1) for token in range(8)]
    assert traced(eight, 70) == {(8, 32), (8, 1)}
    assert traced(eight[:5], 100) == set()
    assert traced([[1] * 40] * 7, 60, seed=3, temperature=0.3, eos_id=4) == set()
    assert traced(eight, 121) == {(8, 32), (8, 1)}  # 8 + 121 tokens do not fit into 128


def stopped_texts(mesh: Mesh, *, piece: int, stopped: int) -> Iterator[list[list[int]]]:
    """Texts after each piece, where one text is stopped after the first."""
    generation = Generation(
        model_on(mesh),
        PROMPTS,
        mesh=mesh,
        max_tokens=LENGTH,
        end_ids=[NEVER],
        seeds=[0] * len(PROMPTS),
        choice=TokenChoice.of(),
    )
    generation.advance(piece)
    generation.stop(stopped)
    yield generation.texts
    while not generation.is_done:
        generation.advance(piece)
        yield generation.texts


def test_texts_can_be_read_and_stopped_while_they_grow(greedy, one_device_mesh):
    first, *others, last = stopped_texts(one_device_mesh, piece=5, stopped=0)
    # The shortest prompt grows by the piece; the longer ones are still being read, but for one.
    assert first == [greedy[0][:5], [], [], greedy[3][:1]]
    assert len(others) > 1
    assert last == [greedy[0][:5], *greedy[1:]]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"prompts": []}, "0 prompts, the shortest of 0 tokens"),
        ({"prompts": [[1], []]}, "2 prompts, the shortest of 0 tokens"),
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"max_tokens": 20}, "max_tokens=65 with model.max_seq_len=64"),
        ({"seed": [1, 2]}, "seeds [1, 2] for 4 prompts"),
        ({"seed": -1}, "seeds [-1, -1, -1, -1]"),
        ({"top_p": 2.0}, "top_p=2.0"),
        ({"temperature": -1.0}, "temperature=-1.0"),
    ],
)
def test_a_wish_that_cannot_be_met_is_refused(how, words, one_device_mesh):
    with pytest.raises(ConfigError) as caught:
        texts(one_device_mesh, **how)
    assert words in caught.value.given


def test_a_piece_has_a_token_or_more(one_device_mesh):
    growing = stopped_texts(one_device_mesh, piece=0, stopped=0)
    with pytest.raises(ConfigError) as caught:
        next(growing)
    assert "num_tokens=0" in caught.value.given
