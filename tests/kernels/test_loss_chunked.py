"""The chunked loss: no trace of the chunks in its numbers, none of all logits in its program."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chomp.kernels.loss import (
    LossTerms,
    chunk_rows,
    chunked_losses,
    chunked_sum,
    linear_cross_entropy,
)
from tests.kernels.loss_by_hand import (
    ALL_CASES,
    Case,
    Found,
    Inputs,
    asked,
    assert_near,
    by_hand,
    inputs,
)

Z_AND_CAP = (Case("none", 0.1, 2.5), Case("mean", 0.1, 2.5))


@partial(jax.jit, static_argnums=(1, 2))
def ask(given: Inputs, cases: tuple[Case, ...], splits: tuple[int | str, ...]) -> list[Found]:
    return [asked(given, case, rows) for case in cases for rows in splits]


def test_losses_and_gradients_do_not_depend_on_how_the_tokens_are_split():
    given, splits = inputs(3, 7, 6, 13), (1, 4, 7, 20)
    found = iter(ask(given, Z_AND_CAP, splits))
    for case in Z_AND_CAP:
        for rows in splits:
            expected = by_hand(given, case)
            assert_near(next(found), expected, most=2e-6, mean=5e-7, note=(rows, case))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    batch=st.integers(1, 5),
    length=st.integers(1, 9),
    rows=st.integers(1, 45),
    seed=st.integers(0, 99),
)
def test_any_split_of_any_number_of_tokens_gives_the_same_mean(batch, length, rows, seed):
    tokens = inputs(batch, length, 5, 11, seed=seed)
    tokens = tokens._replace(weight=tokens.weight + 0.1)  # so that there is a mean
    case, rows = Case("mean", 0.1), min(rows, batch * length)
    (found,) = ask(tokens, (case,), (rows,))
    assert_near(found, by_hand(tokens, case), most=3e-6, mean=1e-6, note=(rows, case))


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 2), (2, 129, 33, 257), (5, 67, 64, 1001), (3, 300, 17, 130)]
)
@pytest.mark.parametrize(
    ("dtype", "most", "mean"), [("float32", 3e-6, 5e-7), ("bfloat16", 8e-3, 5e-3)]
)
def test_odd_sizes_meet_the_formula_in_every_case(shape, dtype, most, mean):
    given = inputs(*shape, dtype=dtype)
    # Logits of about 1: by the square root of the width, their rounding errors would grow with it.
    given = given._replace(head=(given.head * shape[2] ** -0.5).astype(dtype))
    rows = max(1, shape[0] * shape[1] // 3)
    for case, found in zip(ALL_CASES, ask(given, ALL_CASES, (rows,)), strict=True):
        assert_near(found, by_hand(given, case), most=most, mean=mean, note=(shape, dtype, case))


# Small numbers of everything but logits: three chunks by the library's own rule.
B, S, D, V = 3, 256, 8, 16411


@pytest.fixture(scope="module")
def many_logits() -> Inputs:
    assert chunk_rows(B * S, D, V) * 3 == B * S
    return inputs(B, S, D, V)


def operations(function: Callable[..., Any], *args: Any) -> list[Any]:
    """Every operation of a program, those of its inner programs included."""

    def walk(jaxpr: Any) -> Iterator[Any]:
        for equation in jaxpr.eqns:
            yield equation
            parts = jax.tree.leaves(equation.params, is_leaf=lambda leaf: hasattr(leaf, "eqns"))
            for inner in (getattr(part, "jaxpr", part) for part in parts):
                yield from walk(inner) if hasattr(inner, "eqns") else ()

    return list(walk(jax.make_jaxpr(function)(*args).jaxpr))


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_no_array_of_the_program_holds_all_logits(many_logits, reduction):
    case = Case(reduction, 0.1, 30.0)

    def largest(how: str) -> int:
        found = operations(lambda given: asked(given, case, how), many_logits)
        return max(made.aval.size for operation in found for made in operation.outvars)

    assert largest("chunked") == B * S * V // 3
    assert largest("reference") == B * S * V


def test_by_the_default_split_too_gradients_are_those_of_the_formula(many_logits):
    case = Case("mean", 1e-3, 5.0)
    compiled = ask.lower(many_logits, (case,), ("chunked",)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * B * S * V
    (found,) = compiled(many_logits)
    assert_near(found, by_hand(many_logits, case), most=5e-6, mean=5e-7, note=case)


def test_an_evaluation_costs_one_product_a_sum_three_and_unreduced_gradients_four():
    hidden, head, labels, weight, _ = inputs(2, 6, 4, 7)
    total = partial(chunked_sum, labels=labels, weight=weight, terms=LossTerms(), rows=3)

    def by_token(hidden: jax.Array, head: jax.Array) -> jax.Array:
        return jnp.sum(chunked_losses(hidden, head, labels, LossTerms(), 3)[0] * weight)

    def products(function: Callable[..., Any]) -> int:
        found = operations(function, hidden, head)
        return sum(operation.primitive.name == "dot_general" for operation in found)

    assert products(total) == 1
    assert products(jax.value_and_grad(total, argnums=(0, 1))) == 3
    assert products(jax.value_and_grad(by_token, argnums=(0, 1))) == 4


def test_micro_batches_in_a_scan_and_a_checkpoint_around_it_change_nothing():
    given = inputs(4, 6, 5, 9)
    halves = jax.tree.map(lambda a: a.reshape(2, 2, *a.shape[1:]), given[2:4])

    def loss(hidden, head, labels, weight):
        return linear_cross_entropy(hidden, head, labels, weight, reduction="sum")

    @jax.jit
    def by_halves(hidden, head):
        def step(sums, half):
            found = jax.value_and_grad(jax.checkpoint(loss), argnums=1)(half[0], head, *half[1:])
            return jax.tree.map(jnp.add, sums, found), None

        halved = hidden.reshape(2, 2, *hidden.shape[1:])
        start = (jnp.float32(0), jnp.zeros_like(head))
        return jax.lax.scan(step, start, (halved, *halves))[0]

    value, by_head = by_halves(given.hidden, given.head)
    expected = by_hand(given, Case("sum")).found
    assert float(value) == pytest.approx(float(expected.value), rel=1e-6)
    np.testing.assert_allclose(by_head, expected.by_head, rtol=1e-4, atol=1e-5)
