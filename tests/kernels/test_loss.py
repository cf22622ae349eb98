"""The loss against its formula in float64: values, gradients, weights, reductions, soft cap."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from chomp.errors import ConfigError
from chomp.kernels.loss import (
    linear_cross_entropy,
    linear_cross_entropy_and_argmax,
    soft_cap,
)
from chomp.mesh import BATCH_AXES
from tests.kernels.loss_by_hand import (
    CASES,
    Case,
    Found,
    Inputs,
    asked,
    assert_near,
    by_hand,
    inputs,
)

# Axes: B batch, S sequence, D model width, V vocabulary.
B, S, D, V = 4, 5, 6, 14
BOTH = ("reference", "chunked")

WEIGHTS = {
    "ones": np.ones((B, S)),
    "zeros and ones": np.arange(B * S).reshape(B, S) % 3 > 0,
    "fractions": np.linspace(0.0, 1.7, B * S).reshape(B, S),
    "one token": np.eye(B, S)[:, ::-1] * [[0.0], [0.0], [0.25], [0.0]],
}


@partial(jax.jit, static_argnums=(1, 2))
def ask(given: Inputs, cases: tuple[Case, ...], how: str) -> list[Found]:
    return [asked(given, case, how) for case in cases]


@pytest.mark.parametrize("how", BOTH)
@pytest.mark.parametrize(
    ("dtype", "most", "mean"), [("float32", 2e-6, 5e-7), ("bfloat16", 8e-3, 1e-3)]
)
def test_losses_and_gradients_are_those_of_the_formula(dtype, most, mean, how):
    given = inputs(B, S, D, V, dtype=dtype)
    for case, found in zip(CASES, ask(given, CASES, how), strict=True):
        assert found.value.dtype == jnp.float32
        assert (found.by_hidden.dtype, found.by_head.dtype) == (dtype, dtype)
        assert_near(found, by_hand(given, case), most=most, mean=mean, note=(how, dtype, case))


@pytest.mark.parametrize("how", BOTH)
def test_weights_enter_sums_and_means_once_with_their_gradients(how):
    cases = (Case("sum", 0.1), Case("mean", 0.1))
    for name, weight in WEIGHTS.items():
        given = inputs(B, S, D, V)._replace(weight=jnp.asarray(weight, jnp.float32))
        for case, found in zip(cases, ask(given, cases, how), strict=True):
            expected = by_hand(given, case)
            assert_near(found, expected, most=2e-6, mean=5e-7, note=(how, name, case))


@pytest.mark.parametrize("how", BOTH)
def test_a_mean_over_no_token_is_zero_with_gradients_of_zero(how):
    given = inputs(B, S, D, V)._replace(weight=jnp.zeros((B, S)))
    for found in ask(given, (Case("sum", 0.1), Case("mean", 0.1)), how):
        assert float(found.value) == 0.0
        assert not np.asarray(found.by_hidden).any()
        assert not np.asarray(found.by_head).any()
        assert np.isfinite(found.by_weight).all()


@partial(jax.jit, static_argnames=("how", "cap"))
def losses_and_argmax(
    *args: jax.Array, how: str, cap: float | None = None
) -> tuple[jax.Array, ...]:
    return linear_cross_entropy_and_argmax(
        *args, reduction="none", logit_soft_cap=cap, implementation=how
    )


@pytest.mark.parametrize("how", BOTH)
def test_unreduced_losses_depend_on_neither_weights_nor_the_argmax_beside_them(how):
    hidden, head, labels, weight, _ = inputs(B, S, D, V)
    alone = partial(linear_cross_entropy, reduction="none", implementation=how)
    beside, _ = losses_and_argmax(hidden, head, labels, weight, how=how)
    found = jax.jit(alone)(hidden, head, labels, 0 * weight)
    np.testing.assert_allclose(found, beside, rtol=1e-6)


@pytest.mark.parametrize("how", BOTH)
def test_logits_too_large_to_exponentiate_still_have_a_finite_loss(how):
    hidden, head, labels, weight, _ = inputs(B, S, D, V)
    losses, _ = losses_and_argmax(hidden * 1e4, head, labels, weight, how=how)
    assert np.isfinite(losses).all()
    assert (np.asarray(losses) >= 0).all()


@pytest.mark.parametrize("how", BOTH)
def test_a_label_outside_of_the_vocabulary_leaves_every_other_token_alone(how):
    hidden, head, labels, weight, _ = inputs(B, S, D, V)
    right, _ = losses_and_argmax(hidden, head, labels, weight, how=how)
    beyond = labels.at[1, 1].set(-100).at[2, 2].set(V)
    losses, _ = losses_and_argmax(hidden, head, beyond, weight, how=how)
    differs = np.asarray(losses) != np.asarray(right)
    assert np.isfinite(losses).all()
    assert np.argwhere(differs).tolist() == [[1, 1], [2, 2]]


@pytest.mark.parametrize("how", BOTH)
@pytest.mark.parametrize("cap", [None, 3.0])
def test_the_argmax_is_the_lowest_of_the_likeliest_ids(how, cap):
    draw = np.random.default_rng(1)
    # Whole numbers, so that many logits are exactly equal.
    hidden, head = draw.integers(-1, 2, size=(B, S, D)), draw.integers(-1, 2, size=(D, V))
    logits = hidden @ head
    assert ((logits == logits.max(-1, keepdims=True)).sum(-1) > 1).any()
    labels, weight = inputs(B, S, D, V)[2:4]
    floats = (jnp.asarray(hidden, jnp.float32), jnp.asarray(head, jnp.float32))
    _, argmax = losses_and_argmax(*floats, labels, weight, how=how, cap=cap)
    assert argmax.dtype == jnp.int32
    np.testing.assert_array_equal(argmax, logits.argmax(-1))


def test_a_float32_head_under_bfloat16_states_keeps_a_float32_gradient():
    given = inputs(B, S, D, V, dtype="bfloat16")
    wide = given._replace(head=given.head.astype(jnp.float32))
    case = Case("sum", 0.1)
    (narrow_found,), (wide_found,) = (ask(g, (case,), "chunked") for g in (given, wide))
    assert wide_found.by_head.dtype == jnp.float32
    assert wide_found.by_hidden.dtype == jnp.bfloat16
    np.testing.assert_array_equal(wide_found.by_head.astype(jnp.bfloat16), narrow_found.by_head)


def test_a_soft_cap_bounds_large_logits_and_leaves_small_ones():
    capped = soft_cap(jnp.array([-1e6, -1e-3, 0.0, 1e-3, 30.0, 1e6]), 30.0)
    np.testing.assert_allclose(capped, [-30, -1e-3, 0, 1e-3, 30 * np.tanh(1), 30], rtol=1e-6)
    assert soft_cap(capped, None) is capped


@pytest.mark.parametrize("cap", [0.0, -30.0])
def test_a_soft_cap_that_bounds_nothing_is_refused(cap):
    with pytest.raises(ConfigError, match=r"logit_soft_cap=.*Allowed: numbers above 0"):
        linear_cross_entropy(*inputs(B, S, D, V)[:4], logit_soft_cap=cap)


def test_the_reference_meets_the_formula_on_a_mesh_too(eight_device_mesh):
    given, case = inputs(B, S, D, V), Case("mean", 0.1, 2.5)
    tokens = P(BATCH_AXES, None)
    specs = (P(BATCH_AXES, None, None), P(None, "model"), tokens, tokens, tokens)
    with jax.set_mesh(eight_device_mesh):
        (spread,) = ask(Inputs(*map(jax.reshard, given, specs)), (case,), "reference")
    assert_near(spread, by_hand(given, case), most=2e-6, mean=5e-7, note="mesh")
