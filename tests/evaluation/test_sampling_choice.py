"""Which token is chosen: exactly the allowed ones, as often as their probabilities say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from chomp.errors import ConfigError
from chomp.evaluation.generation import TokenChoice, kept_ranks

V = 12
NUM_SEEDS = 8192  # the same everywhere: one program for each kind of choice
# Halves, so that equal logits are common.
LOGITS = st.lists(st.integers(-8, 8).map(lambda half: half / 2), min_size=V, max_size=V)


_kept = jax.jit(kept_ranks)


@jax.jit
def _draw(choice: TokenChoice, logits: jax.Array, seeds: jax.Array, position: int) -> jax.Array:
    rows = jnp.broadcast_to(logits[None], (seeds.shape[0], logits.shape[0]))
    return choice(rows, seeds, jnp.asarray(position, jnp.int32))


def draws(mesh: jax.sharding.Mesh, logits: list[float], *, position: int = 0, **how) -> np.ndarray:
    """One token for each seed, all from the same logits."""
    how = {"temperature": 1.0, **how}
    with jax.set_mesh(mesh):
        seeds = np.arange(NUM_SEEDS, dtype=np.uint32)
        return np.asarray(
            _draw(TokenChoice.of(**how), np.asarray(logits, np.float32), seeds, position)
        )


def softmax(logits: list[float], temperature: float) -> np.ndarray:
    weights = np.exp((np.asarray(logits) - max(logits)) / temperature)
    return weights / weights.sum()


def reference_set(logits, temperature, top_k, top_p) -> list[int]:
    """The allowed tokens, likeliest first."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))[:top_k]
    weights = softmax(logits, temperature)[order]
    reached, kept = 0.0, []
    for token, probability in zip(order, weights / weights.sum(), strict=True):
        if top_p is not None and reached >= top_p:
            break
        kept.append(token)
        reached += probability
    return kept


def is_near_a_sum(logits, temperature, top_k, top_p) -> bool:
    """Whether rounding could decide which token is the one that reaches `top_p`."""
    order = reference_set(logits, temperature, top_k, None)
    weights = softmax(logits, temperature)[order]
    return bool(np.any(np.abs(np.cumsum(weights) / weights.sum() - top_p) < 1e-5))


@settings(deadline=None)  # the first example compiles
@given(
    logits=LOGITS,
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
    top_k=st.integers(1, V + 3),
    top_p=st.floats(0.01, 0.99),
)
@example(logits=[0.0] * V, temperature=1.0, top_k=5, top_p=0.9)
@example(logits=[0.0, 1.0] * (V // 2), temperature=1.0, top_k=V, top_p=0.5)
def test_tokens_come_from_exactly_the_set_that_top_k_and_top_p_leave(
    one_device_mesh, logits, temperature, top_k, top_p
):
    assume(not is_near_a_sum(logits, temperature, top_k, top_p))
    how = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    allowed = reference_set(logits, **how)
    falling = np.sort(np.asarray([logits], np.float32))[:, ::-1] / np.float32(temperature)
    kept = np.asarray(_kept(falling, np.int32(top_k), np.float32(top_p)))[0]
    assert kept.tolist() == [rank < len(allowed) for rank in range(V)]
    drawn = set(draws(one_device_mesh, logits, **how).tolist())
    weights = softmax(logits, temperature)[allowed]
    # 8192 draws miss a token of at least 0.005 once in 1e17 times.
    likely = {t for t, p in zip(allowed, weights / weights.sum(), strict=True) if p > 0.005}
    assert likely <= drawn <= set(allowed)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        # Four tokens of a quarter each; the rest have nothing.
        ({"top_p": 0.5}, {0, 1}),  # reached exactly: no third
        ({"top_p": 0.5001}, {0, 1, 2}),  # the token that crosses is in
        ({"top_p": 1e-9}, {0}),
        ({"top_p": 1.0}, {0, 1, 2, 3}),
        ({"top_k": 2}, {0, 1}),  # of equals, the lower ids
        ({"top_k": 2, "top_p": 0.5}, {0}),  # half of what top_k left
        ({"top_k": 10**12}, {0, 1, 2, 3}),
        ({"temperature": 1e-30}, {0, 1, 2, 3}),
        ({"temperature": 0.0}, {0}),
        ({"temperature": 0.0, "top_k": 3, "top_p": 0.9}, {0}),
    ],
)
def test_the_token_that_reaches_top_p_is_the_last_one_in(one_device_mesh, how, expected):
    logits = [3.0] * 4 + [-1e9] * (V - 4)
    assert set(draws(one_device_mesh, logits, **how).tolist()) == expected


def chi_square(drawn: np.ndarray, probabilities: np.ndarray) -> float:
    expected = probabilities * drawn.size
    counts = np.bincount(drawn, minlength=probabilities.size)
    return float(np.sum((counts - expected) ** 2 / expected))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_tokens_are_as_frequent_as_the_softmax_at_that_temperature_says(
    one_device_mesh, temperature
):
    logits = [0.25 * token for token in range(V)]
    drawn = draws(one_device_mesh, logits, temperature=temperature)
    # Eleven degrees of freedom: above 40 once in 30 000 times, and these seeds are fixed. The same
    # bound has to tell another temperature apart, else it would be no test.
    assert chi_square(drawn, softmax(logits, temperature)) < 40
    assert chi_square(drawn, softmax(logits, 1.5 * temperature)) > 40


def test_draws_at_two_positions_have_nothing_to_do_with_each_other(one_device_mesh):
    logits = [0.0] * V
    first, second = (draws(one_device_mesh, logits, position=p) for p in (7, 8))
    joint = np.full(V * V, 1 / V**2)
    assert chi_square(first * V + second, joint) < 143 + 5 * np.sqrt(2 * 143)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"temperature": float("inf")}, "temperature=inf"),
        ({"top_k": 0}, "top_k=0"),
        ({"top_k": -3}, "top_k=-3"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"top_p": 1.5}, "top_p=1.5"),
        ({"top_p": float("nan")}, "top_p=nan"),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(how, words):
    with pytest.raises(ConfigError) as caught:
        TokenChoice.of(**how)
    assert words in caught.value.given
