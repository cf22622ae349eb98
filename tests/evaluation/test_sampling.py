"""Generated text: deterministic, ended by the end of a document, the same on any mesh."""

from functools import cache

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from chomp.errors import ConfigError
from chomp.evaluation import generate
from experiments.grug.base.model import GrugModelConfig, Transformer

CFG = GrugModelConfig(
    vocab_size=24,
    hidden_dim=16,
    intermediate_dim=16,
    num_layers=1,
    num_heads=2,
    num_kv_heads=2,
    max_seq_len=32,
    initializer_std=0.5,
)
PROMPT = [3, 1, 4]
LENGTH = 12
NEVER = CFG.vocab_size  # an end that no model can produce


@cache
def model_on(mesh: Mesh) -> Transformer:
    """A model whose attention and MLP do something, unlike a fresh one's."""

    def make() -> Transformer:
        def noisy(weight: jax.Array) -> jax.Array:
            spec, key = jax.typeof(weight).sharding.spec, jax.random.key(1)
            return weight + 0.2 * jax.random.normal(key, weight.shape, out_sharding=spec)

        return jax.tree.map(noisy, Transformer.init(CFG, key=jax.random.key(0)))

    with jax.set_mesh(mesh):
        return jax.jit(make)()


def text(
    mesh: Mesh, *, prompt: list[int] = PROMPT, eos_id: int = NEVER, **how: object
) -> list[int]:
    with jax.set_mesh(mesh):
        return generate(model_on(mesh), prompt, mesh=mesh, max_tokens=LENGTH, eos_id=eos_id, **how)


@pytest.fixture(scope="module")
def greedy(one_device_mesh) -> list[int]:
    return text(one_device_mesh, temperature=0.0)


def test_greedy_text_is_the_likeliest_token_of_the_forward_pass_each_time(greedy, one_device_mesh):
    with jax.set_mesh(one_device_mesh):
        ids = np.asarray([PROMPT + greedy], np.int32)
        logits = jax.jit(lambda model, ids: model.logits(ids))(model_on(one_device_mesh), ids)
    likeliest = np.asarray(logits)[0].argmax(-1)
    assert len(greedy) == LENGTH
    assert greedy == likeliest[len(PROMPT) - 1 : -1].tolist()
    assert len(set(greedy)) > 1  # else every mistake would look the same


def test_greedy_text_depends_on_no_seed(greedy, one_device_mesh):
    assert text(one_device_mesh, temperature=0.0, seed=5) == greedy


def test_drawing_from_the_likeliest_token_alone_is_greedy(greedy, one_device_mesh):
    assert text(one_device_mesh, top_k=1, seed=3) == greedy


def test_the_same_seed_gives_the_same_text_and_another_seed_another(one_device_mesh):
    first, again, other = (text(one_device_mesh, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_tokens_are_drawn_from_the_k_likeliest(one_device_mesh):
    drawn = text(one_device_mesh, top_k=3, temperature=5.0)
    with jax.set_mesh(one_device_mesh):
        ids = np.asarray([PROMPT + drawn], np.int32)
        logits = jax.jit(lambda model, ids: model.logits(ids))(model_on(one_device_mesh), ids)
    ranks = (-np.asarray(logits)[0]).argsort(-1).argsort(-1)
    found = [int(ranks[len(PROMPT) - 1 + i, token]) for i, token in enumerate(drawn)]
    assert set(found) <= {0, 1, 2}
    assert len(set(found)) > 1


def test_more_than_the_vocabulary_to_draw_from_is_all_of_it(one_device_mesh):
    assert text(one_device_mesh, top_k=10**6, seed=1) == text(one_device_mesh, seed=1)


def test_text_ends_before_the_end_of_its_document(greedy, one_device_mesh):
    eos_id = greedy[4]
    expected = greedy[: greedy.index(eos_id)]
    assert text(one_device_mesh, temperature=0.0, eos_id=eos_id) == expected


def test_an_end_in_the_prompt_ends_nothing(greedy, one_device_mesh):
    assert PROMPT[0] not in greedy
    assert text(one_device_mesh, temperature=0.0, eos_id=PROMPT[0]) == greedy


def test_eight_devices_write_what_one_writes(greedy, one_device_mesh, eight_device_mesh):
    assert text(eight_device_mesh, temperature=0.0) == greedy
    assert text(eight_device_mesh, seed=1) == text(one_device_mesh, seed=1)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"prompt": []}, "a prompt of 0 tokens"),
        ({"temperature": -1.0}, "temperature=-1.0 and top_k=None"),
        ({"top_k": 0}, "temperature=1.0 and top_k=0"),
        ({"top_k": -3}, "top_k=-3"),
    ],
)
def test_a_wish_that_cannot_be_met_is_refused(how, words, one_device_mesh):
    with pytest.raises(ConfigError, match=rf"{words}.*Allowed: .* Fix: "):
        text(one_device_mesh, **how)
