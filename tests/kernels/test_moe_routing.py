"""Which experts a token goes to, what is counted of it, and how the counts even the experts out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moe_samples import on_mesh, sample

from chomp.errors import ConfigError
from chomp.kernels.moe import (
    balance_loss,
    balanced_bias,
    route,
    router_logits,
    router_metrics,
    router_z_loss,
)
from chomp.kernels.moe.routing import histogram, upper_quantile
from chomp.mesh import MeshConfig, create_mesh


@jax.jit
def quantile(values: jax.Array, above: jax.Array) -> jax.Array:
    """The quantile of the values, by way of their histogram."""
    return upper_quantile(histogram(values, jnp.ones(values.shape[:2], bool)), above)[0]


def logits_of(num_experts: int, *, seed: int = 0, spread: float = 1.0) -> jax.Array:
    """Logits of 8 rows of 64 tokens; some experts are better liked than others."""
    keys = jax.random.split(jax.random.key(seed), 2)
    liked = jax.random.normal(jax.random.key(99), (num_experts,))
    return liked[None, None] + spread * jax.random.normal(keys[1], (8, 64, num_experts))


def test_logits_are_float32_products_of_float32_factors_whatever_the_tokens_are_in() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (2, 8, 64), jnp.bfloat16)
    weight = jax.random.normal(keys[1], (64, 4))
    slope = jax.random.normal(keys[2], (2, 8, 4))
    found, backward = jax.vjp(router_logits, x, weight)
    # Kept for it are the tokens as they came, and no float32 copy.
    assert {each.dtype for each in jax.tree.leaves(backward) if each.shape == x.shape} == {x.dtype}
    by_x, by_weight = backward(slope)
    assert (found.dtype, by_x.dtype, by_weight.dtype) == (jnp.float32, jnp.bfloat16, jnp.float32)
    exact, table = np.asarray(x, np.float64), np.asarray(weight, np.float64)
    np.testing.assert_allclose(found, exact @ table, atol=1e-5)
    wanted = np.einsum("bsd,bse->de", exact, np.asarray(slope, np.float64))
    np.testing.assert_allclose(by_weight, wanted, atol=1e-5)
    # What a table in the tokens' dtype would give is further off than all that float32 rounds.
    rounded = np.asarray(weight.astype(jnp.bfloat16), np.float64)
    assert np.abs(exact @ rounded - exact @ table).max() > 1e-2


def test_a_router_that_was_rounded_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"router in bfloat16\. Allowed: float32\. Fix: .*dynamics"
    ):
        router_logits(jnp.ones((1, 2, 4)), jnp.ones((4, 2), jnp.bfloat16))


def test_the_bias_moves_the_choice_and_not_the_weights() -> None:
    logits = logits_of(4)
    plain = route(logits, jnp.zeros(4), top_k=4)
    pushed = route(logits, jnp.array([5.0, 0.0, 0.0, 0.0]), top_k=4)

    def by_expert(routing: object) -> np.ndarray:
        order = np.argsort(routing.chosen, axis=-1)  # type: ignore[attr-defined]
        return np.take_along_axis(np.asarray(routing.weights), order, -1)  # type: ignore[attr-defined]

    np.testing.assert_array_equal(pushed.chosen[..., 0], 0)
    np.testing.assert_allclose(by_expert(pushed), by_expert(plain), rtol=1e-6)
    slope = jax.grad(lambda b: jnp.sum(jnp.sin(route(logits, b, top_k=2).weights)))(jnp.zeros(4))
    np.testing.assert_array_equal(slope, 0)


def test_weights_add_up_to_one_and_a_single_expert_keeps_its_probability() -> None:
    logits = logits_of(6)
    np.testing.assert_allclose(
        jnp.sum(route(logits, jnp.zeros(6), top_k=3).weights, axis=-1), 1.0, rtol=1e-6
    )
    one = route(logits, jnp.zeros(6), top_k=1)
    highest = jnp.max(jax.nn.softmax(logits, axis=-1), axis=-1)
    np.testing.assert_allclose(one.weights[..., 0], highest, rtol=1e-6)


def test_padding_weighs_nothing_and_is_counted_nowhere() -> None:
    logits = logits_of(8)
    is_real = jnp.arange(64)[None] < jnp.arange(8)[:, None] * 8
    whole = route(logits, jnp.zeros(8), top_k=2, is_real=is_real)
    np.testing.assert_array_equal(whole.weights[~np.asarray(is_real)], 0)
    # The same tokens with other padding, in another place.
    other = jnp.where(is_real[..., None], logits, 7.0)
    again = route(other, jnp.zeros(8), top_k=2, is_real=is_real)
    for name, found, wanted in zip(whole.sums._fields, again.sums, whole.sums, strict=True):
        np.testing.assert_array_equal(found, wanted, err_msg=name)
    count = int(is_real.sum())
    assert float(whole.sums.tokens) == count
    assert float(whole.sums.assigned.sum()) == 2 * count
    assert int(whole.sums.margins.sum()) == 8 * count


def test_counts_are_the_same_on_every_mesh_and_add_up_over_parts() -> None:
    x, logits, experts = sample(8, has_gate=False)
    bias = jnp.linspace(-0.5, 0.5, 8)
    wanted = route(logits, bias, top_k=2).sums
    with jax.set_mesh(create_mesh(MeshConfig(data=2, expert=2, model=2))):
        _, cut, _ = on_mesh(x, logits, experts)
        found = jax.jit(lambda each: route(each, bias, top_k=2).sums)(cut)
    halves = [route(half, bias, top_k=2).sums for half in jnp.split(logits, 2)]
    added = jax.tree.map(lambda a, b: a + b, *halves)
    for sums in (found, added):
        np.testing.assert_array_equal(sums.margins, wanted.margins)
        np.testing.assert_array_equal(sums.assigned, wanted.assigned)
        np.testing.assert_allclose(sums.entropy, wanted.entropy, rtol=1e-6)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(-30, 30), min_size=16, max_size=16), st.integers(1, 15), st.integers(0, 9)
)
def test_the_quantile_has_as_many_values_above_it_as_asked(
    values: list[float], above: int, seed: int
) -> None:
    order = np.random.default_rng(seed).permutation(16)
    array = jnp.asarray(values, jnp.float32)[order].reshape(2, 8, 1)
    found = float(quantile(array, jnp.float32(above)))
    ranked = np.sort(np.asarray(values, np.float32))[::-1]
    # Between the value itself and the next, up to the width of a bin at that place.
    low, high = ranked[min(above, 15)], ranked[above - 1]
    width = 2 / 1024 * (1 + max(abs(low), abs(high), abs(found))) ** 2
    assert low - width <= found <= high + width


@pytest.mark.parametrize("top_k", [1, 2, 4])
@pytest.mark.parametrize("spread", [0.05, 1.0])
def test_the_bias_makes_any_router_even_within_a_few_steps(top_k: int, spread: float) -> None:
    @jax.jit
    def step(logits: jax.Array, bias: jax.Array) -> tuple[jax.Array, jax.Array]:
        sums = route(logits, bias, top_k=top_k).sums
        load = router_metrics(sums)["load_max"]
        return balanced_bias(bias, sums, top_k=top_k, rate=0.5), load

    bias, loads = jnp.zeros(8), []
    for seed in range(12):
        bias, load = step(logits_of(8, seed=seed, spread=spread), bias)
        loads.append(float(load))
    assert loads[0] > 1.7
    assert loads[-1] < 1.35  # 64 tokens an expert: the noise of one batch
    assert abs(float(jnp.mean(bias))) < 1e-5
    many = jnp.concatenate([logits_of(8, seed=seed, spread=spread) for seed in range(50, 80)])
    settled = router_metrics(route(many, bias, top_k=top_k).sums)
    assert float(settled["load_max"]) < 1.2


def test_a_bias_stays_where_nothing_can_be_learned_of_it() -> None:
    bias = jnp.linspace(-1.0, 1.0, 4)
    nothing = route(logits_of(4), bias, top_k=2, is_real=jnp.zeros((8, 64), bool)).sums
    np.testing.assert_array_equal(balanced_bias(bias, nothing, top_k=2, rate=1.0), bias)
    everyone = route(logits_of(4), bias, top_k=4).sums
    np.testing.assert_array_equal(balanced_bias(bias, everyone, top_k=4, rate=1.0), bias)


def test_the_balance_loss_is_one_for_even_experts_and_pushes_the_busy_down() -> None:
    even = route(jnp.eye(4)[None].repeat(8, axis=0), jnp.zeros(4), top_k=1).sums
    np.testing.assert_allclose(balance_loss(even), 1.0, rtol=1e-6)
    logits = jnp.zeros((8, 64, 4)).at[..., 0].set(2.0)
    slope = jax.grad(lambda each: balance_loss(route(each, jnp.zeros(4), top_k=1).sums))(logits)
    assert (np.asarray(slope)[..., 0] > 0).all()
    assert (np.asarray(slope)[..., 1:] < 0).all()


def test_metrics_of_the_routing_are_what_they_are_called() -> None:
    logits = jnp.zeros((8, 64, 4)).at[..., 0].set(3.0).at[..., 1].set(1.0)
    sums = route(logits, jnp.zeros(4), top_k=2).sums
    found = {name: float(value) for name, value in router_metrics(sums).items()}
    probability = np.exp([3, 1, 0, 0]) / np.exp([3, 1, 0, 0]).sum()
    assert found["load_max"] == 2.0
    assert found["load_min"] == 0.0
    assert found["max_violation"] == 1.0
    assert found["dropped_fraction"] == 0.0
    assert found["entropy"] == pytest.approx(-(probability * np.log(probability)).sum(), rel=1e-5)
    assert found["z_loss"] == pytest.approx(np.log(np.exp([3, 1, 0, 0]).sum()) ** 2, rel=1e-5)
    assert float(router_z_loss(sums)) == pytest.approx(found["z_loss"])


def test_padding_alone_leaves_experts_even_and_all_other_metrics_zero() -> None:
    nothing = route(logits_of(4), jnp.zeros(4), top_k=2, is_real=jnp.zeros((8, 64), bool)).sums
    something = route(logits_of(4), jnp.zeros(4), top_k=2).sums
    # Beside a layer that has tokens, which it must leave as it is.
    both = jax.tree.map(lambda *each: jnp.stack(each), nothing, something)
    alone = router_metrics(something)
    for name, (empty, full) in router_metrics(both).items():
        assert float(empty) == (1.0 if name in ("load_max", "load_min") else 0.0), name
        assert float(full) == float(alone[name]), name


@pytest.mark.parametrize("top_k", [1, 2])
def test_the_dropped_fraction_is_of_the_weight_that_was_given(top_k: int) -> None:
    routing = route(logits_of(8), jnp.zeros(8), top_k=top_k)
    # All of it dropped is all of it, also where the weights of a token add up to less than 1.
    sums = routing.sums._replace(dropped_weight=jnp.sum(routing.weights))
    assert float(router_metrics(sums)["dropped_fraction"]) == pytest.approx(1.0)
