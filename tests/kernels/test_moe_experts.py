"""Tokens through their experts: against a loop over tokens, on one device and on many."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P
from jaxtyping import Array
from moe_samples import by_hand, on_mesh, sample, total

from chomp.errors import ConfigError
from chomp.kernels.moe import ExpertWeights, Routed, route, routed_experts
from chomp.kernels.moe.dispatch import capacity_of
from chomp.kernels.moe.experts import mixture_of_experts
from chomp.kernels.moe.matmul import GroupedBackend, grouped_matmul, grouped_outer
from chomp.mesh import BATCH_AXES, MeshConfig, create_mesh

BACKENDS: tuple[GroupedBackend, ...] = ("tiles", "ragged_dot")
MATMUL = jax.jit(partial(grouped_matmul, backend="tiles"))
OUTER = jax.jit(partial(grouped_outer, backend="tiles"))


def routed(
    x: Array,
    logits: Array,
    experts: ExpertWeights,
    *,
    top_k: int = 2,
    capacity_factor: float = 8.0,
    may_drop: bool = True,
    backend: GroupedBackend | None = None,
) -> Routed:
    """The sample through its experts, without a bias."""
    routing = route(logits, jnp.zeros(logits.shape[2]), top_k=top_k)
    return routed_experts(
        x,
        routing.chosen,
        routing.weights,
        experts,
        capacity_factor=capacity_factor,
        may_drop=may_drop,
        backend=backend,
    )


def formula(x: Array, logits: Array, experts: ExpertWeights, top_k: int = 2) -> Array:
    """The same by the specification."""
    routing = route(logits, jnp.zeros(logits.shape[2]), top_k=top_k)
    flat = (each.reshape(-1, each.shape[2]) for each in (x, routing.chosen, routing.weights))
    return mixture_of_experts(*flat, *experts).reshape(x.shape)


def value(*arguments: Any, **how: Any) -> tuple[Array, Routed]:
    """A number that depends on all of the output, and the output."""
    found = routed(*arguments, **how)
    return total(found.output), found


# Compiled once for all meshes that one device is compared with.
SLOPES = jax.jit(
    jax.value_and_grad(value, argnums=(0, 1, 2), has_aux=True),
    static_argnames=("capacity_factor", "may_drop"),
)


def worst(found: object, wanted: object) -> float:
    """The largest difference between two trees, in units of the largest entry of each leaf."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
    return max(
        float(np.max(np.abs(np.asarray(a) - np.asarray(b))) / max(np.max(np.abs(b)), 1e-6))
        for a, b in pairs
    )


@pytest.mark.parametrize(
    ("num_experts", "top_k", "has_gate"),
    [(8, 2, True), (4, 4, False), (1, 1, True), (5, 1, False)],
)
def test_experts_give_what_a_loop_over_tokens_gives(
    num_experts: int, top_k: int, has_gate: bool
) -> None:
    x, logits, experts = sample(num_experts, has_gate=has_gate)
    wanted = by_hand(np.asarray(x), np.asarray(logits), np.zeros(num_experts), experts, top_k)
    for backend in BACKENDS:
        found = jax.jit(partial(routed, top_k=top_k, backend=backend))(x, logits, experts)
        np.testing.assert_allclose(found.output, wanted, atol=2e-6)
        assert float(found.dropped_weight) == 0
    spelled_out = jax.jit(formula, static_argnums=3)(x, logits, experts, top_k)
    np.testing.assert_allclose(spelled_out, wanted, atol=2e-6)


@pytest.mark.parametrize("has_gate", [False, True])
def test_gradients_are_those_of_the_formula(has_gate: bool) -> None:
    arguments = sample(8, has_gate=has_gate)
    slopes = jax.grad(lambda *a: total(formula(*a)), argnums=(0, 1, 2))
    wanted = jax.jit(slopes)(*arguments)
    for backend in BACKENDS:

        def value(*a: Array, backend: GroupedBackend = backend) -> Array:
            return total(routed(*a, backend=backend).output)

        found = jax.jit(jax.grad(value, argnums=(0, 1, 2)))(*arguments)
        assert worst(found, wanted) < 1e-5


@pytest.mark.parametrize(
    "shape",
    [
        {"expert": 2, "model": 2},
        {"expert": 8},
        pytest.param({"data": 4, "model": 2}, marks=pytest.mark.slow),
        pytest.param({"expert": 4}, marks=pytest.mark.slow),
    ],
)
def test_every_mesh_gives_what_one_device_gives(shape: dict[str, int]) -> None:
    arguments = sample(8, has_gate=True)
    (_, wanted), wanted_slopes = SLOPES(*arguments)
    with jax.set_mesh(create_mesh(MeshConfig(**shape))):
        (_, found), slopes = SLOPES(*on_mesh(*arguments))
    assert worst(found.output, wanted.output) < 1e-6
    assert worst(slopes, wanted_slopes) < 1e-5
    assert float(found.dropped_weight) == 0


# How much better than the others the first experts are liked: not at all, and by all tokens.
UNEVEN = {"as drawn": 0.0, "all to one device": 20.0}


@pytest.mark.parametrize(
    "shape",
    [
        {"data": 2, "expert": 2, "model": 2},
        pytest.param({"expert": 8}, marks=pytest.mark.slow),
        pytest.param({"data": 2, "expert": 4}, marks=pytest.mark.slow),
    ],
)
def test_rounds_drop_nothing_however_little_room_there_is(shape: dict[str, int]) -> None:
    x, logits, experts = sample(8, has_gate=True)
    for name, liking in UNEVEN.items():
        liked = logits + liking * jnp.array([1.1, 1.0, *[0.0] * 6])[None, None]
        (_, wanted), wanted_slopes = SLOPES(x, liked, experts)
        with jax.set_mesh(create_mesh(MeshConfig(**shape))):
            cut = on_mesh(x, liked, experts)
            (_, found), slopes = SLOPES(*cut, capacity_factor=0.5, may_drop=False)
        assert worst(found.output, wanted.output) < 1e-6, name
        assert worst(slopes, wanted_slopes) < 1e-5, name
        assert float(found.dropped_weight) == 0, name


def test_rounds_need_room_for_a_few_times_a_device_own_rows_however_many_devices_there_are() -> (
    None
):
    devices, x = 8, jnp.zeros((8, 256, 64))
    # Wide tokens and narrow experts, so that what counts is rows on their way.
    experts = ExpertWeights(x[:, :64, :8], None, x[:, :8, :64])
    in_rounds = jax.jit(partial(routed, capacity_factor=1.25, may_drop=False))
    with jax.set_mesh(create_mesh(MeshConfig(expert=devices))):
        compiled = in_rounds.lower(*on_mesh(x, x[..., :8], experts)).compile()
    own_rows = 2 * x.nbytes / devices  # of two experts for each token
    # 4.5, 4.1 with two devices. Room for all rows of all devices at once took 24.
    assert compiled.memory_analysis().temp_size_in_bytes < 6 * own_rows


def test_what_finds_no_room_is_the_lowest_weights_of_each_sender_and_counted_by_weight() -> None:
    num_experts, devices, factor = 8, 4, 0.5
    x, logits, experts = sample(num_experts, has_gate=False)
    with jax.set_mesh(create_mesh(MeshConfig(data=2, expert=devices))):
        found = jax.jit(lambda *a: routed(*a, capacity_factor=factor))(*on_mesh(x, logits, experts))
    routing = route(logits, jnp.zeros(num_experts), top_k=2)
    chosen, weights = (np.asarray(each) for each in (routing.chosen, routing.weights))
    # Each device has one row of tokens, and sends each of the four the best that fit.
    kept = np.zeros(weights.shape, bool)
    room = capacity_of(chosen[0].size, devices, factor)
    for row in range(chosen.shape[0]):
        for device in range(devices):
            mine = np.argwhere(chosen[row] // (num_experts // devices) == device)
            best = sorted(mine.tolist(), key=lambda at: (-weights[row][tuple(at)], at))[:room]
            for at in best:
                kept[row][tuple(at)] = True
    np.testing.assert_allclose(found.dropped_weight, weights[~kept].sum(), rtol=1e-6)
    assert 0 < (~kept).sum() < kept.size
    flat = (x, routing.chosen, jnp.asarray(np.where(kept, weights, 0)))
    wanted = mixture_of_experts(*(each.reshape(-1, each.shape[2]) for each in flat), *experts)
    np.testing.assert_allclose(found.output, wanted.reshape(x.shape), atol=2e-6)


def test_rows_without_room_get_no_gradient_and_the_others_get_all_of_theirs() -> None:
    x, logits, experts = sample(4, has_gate=False)
    # All choose the first two experts, which are those of the first device.
    logits = logits + jnp.array([[[20.0, 19.0, 0.0, 0.0]]])
    with jax.set_mesh(create_mesh(MeshConfig(data=4, expert=2))):
        cut = on_mesh(x, logits, experts)
        slope = jax.jit(jax.grad(lambda x: total(routed(x, *cut[1:], capacity_factor=1.0).output)))
        by_x = np.asarray(slope(cut[0]))
    whole = jax.jit(jax.grad(lambda x: total(formula(x, logits, experts))))(x)
    # Half of the assignments have room: the first choices, which outweigh every second one.
    first = jax.jit(jax.grad(lambda x: total(_first_choice_alone(x, logits, experts))))(x)
    assert worst(by_x, first) < 1e-5
    assert worst(by_x, whole) > 1e-3


def _first_choice_alone(x: Array, logits: Array, experts: ExpertWeights) -> Array:
    routing = route(logits, jnp.zeros(4), top_k=2)
    weights = routing.weights.at[..., 1].set(0.0)
    flat = (each.reshape(-1, each.shape[2]) for each in (x, routing.chosen, weights))
    return mixture_of_experts(*flat, *experts).reshape(x.shape)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 48), min_size=5, max_size=5))
def test_groups_of_any_size_multiply_as_each_alone_would(cuts: list[int]) -> None:
    ends = [*sorted(cuts), 48]
    spans = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    random = np.random.default_rng(sum(cuts))
    rows, others = (random.standard_normal((48, width), np.float32) for width in (6, 10))
    weights = random.standard_normal((6, 6, 10), np.float32)
    sizes = jnp.asarray([span.stop - span.start for span in spans], jnp.int32)
    wanted = np.concatenate([rows[span] @ weights[i] for i, span in enumerate(spans)])
    np.testing.assert_allclose(MATMUL(rows, weights, sizes), wanted, atol=1e-5)
    wanted = np.stack([rows[span].T @ others[span] for span in spans])
    np.testing.assert_allclose(OUTER(rows, others, sizes), wanted, atol=2e-5)


def test_experts_that_the_mesh_cannot_share_out_are_refused() -> None:
    x, logits, experts = sample(6, has_gate=False)
    with (
        jax.set_mesh(create_mesh(MeshConfig(data=2, expert=4))),
        pytest.raises(ConfigError, match=r"num_experts=6 with mesh\.expert=4"),
    ):
        jax.eval_shape(
            routed, *(jax.reshard(each, P(BATCH_AXES, None, None)) for each in (x, logits)), experts
        )


@pytest.mark.parametrize("factor", [0.0, -1.0])
def test_a_capacity_of_nothing_is_refused(factor: float) -> None:
    with pytest.raises(ConfigError, match="capacity_factor"):
        capacity_of(16, 2, factor)


@pytest.mark.parametrize(("factor", "room"), [(1.0, 32), (1.2, 40), (100.0, 64), (0.01, 8)])
def test_the_room_is_a_multiple_of_an_even_share_and_at_most_everything(
    factor: float, room: int
) -> None:
    assert capacity_of(64, 2, factor) == room
