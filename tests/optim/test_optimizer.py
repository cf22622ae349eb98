"""AdamW does what its formula says, to the weights it is meant for, at the rate of the schedule."""

import dataclasses
import math
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from chomp.errors import ConfigError
from chomp.optim import AdamConfig, GrugOptimizerConfig, LearningRate

STEPS = 20
GROUPS = {"w": "matrix", "embed": "embedding", "norm": "vector", "decay": "dynamics"}


def params() -> dict[str, jax.Array]:
    return {
        "w": jnp.asarray([[0.5, -1.0], [2.0, 0.25]]),
        "embed": jnp.asarray([[1.0, -0.5]]),
        "norm": jnp.asarray([1.0, 1.5]),
        "decay": jnp.asarray([0.9]),
    }


def gradients(step: int) -> dict[str, np.ndarray]:
    """Gradients that grow, so that clipping at 1 begins to matter on the way."""
    noise = np.random.default_rng(step)
    return {name: noise.normal(size=p.shape) * 0.2 * 3**step for name, p in params().items()}


def by_hand(config: GrugOptimizerConfig, num_updates: int) -> dict[str, np.ndarray]:
    """The weights after some updates of AdamW, in float64 and written out."""
    weights = {name: np.asarray(p, np.float64) for name, p in params().items()}
    first = {name: np.zeros_like(p) for name, p in weights.items()}
    second = {name: np.zeros_like(p) for name, p in weights.items()}
    adam = config.adam
    for step in range(num_updates):
        gradient = gradients(step)
        norm = math.sqrt(sum(float((g**2).sum()) for g in gradient.values()))
        clip = config.grad_clip_norm
        shrink = min(1.0, clip / norm) if clip > 0 else 1.0
        rate = rate_by_hand(config, step)
        for name, g in gradient.items():
            first[name] = adam.b1 * first[name] + (1 - adam.b1) * g * shrink
            second[name] = adam.b2 * second[name] + (1 - adam.b2) * (g * shrink) ** 2
            mean = first[name] / (1 - adam.b1 ** (step + 1))
            square = second[name] / (1 - adam.b2 ** (step + 1))
            update = mean / (np.sqrt(square) + adam.eps)
            if GROUPS[name] == "matrix":
                update = update + config.weight_decay * weights[name]
            weights[name] = weights[name] - rate * update
    return weights


def rate_by_hand(config: GrugOptimizerConfig, step: int) -> float:
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    length = config.decay_steps or STEPS - config.warmup_steps
    progress = min((step + 1 - config.warmup_steps) / length, 1.0)
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return config.lr * (config.min_lr_ratio + (1 - config.min_lr_ratio) * cosine)


def updated(config: GrugOptimizerConfig, num_updates: int) -> dict[str, jax.Array]:
    optimizer, weights = config.build(STEPS, GROUPS), params()
    state = optimizer.init(weights)

    @jax.jit
    def update(gradient, state, weights):
        updates, state = optimizer.update(gradient, state, weights)
        return optax.apply_updates(weights, updates), state

    for step in range(num_updates):
        gradient = {name: g.astype(np.float32) for name, g in gradients(step).items()}
        weights, state = update(gradient, state, weights)
    return weights


@pytest.mark.parametrize("grad_clip_norm", [1.0, 0.0])
def test_updates_follow_adamw_written_out_in_float64(grad_clip_norm):
    config = GrugOptimizerConfig(
        lr=0.1,
        weight_decay=0.3,
        grad_clip_norm=grad_clip_norm,
        warmup_steps=2,
        min_lr_ratio=0.1,
        adam=AdamConfig(b1=0.8, b2=0.95),
    )
    expected, found = by_hand(config, 4), updated(config, 4)
    for name, weights in expected.items():
        np.testing.assert_allclose(found[name], weights, rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_clip_norm_of_zero_is_no_clipping_and_not_a_gradient_of_zero():
    config = GrugOptimizerConfig(grad_clip_norm=0.0, warmup_steps=0, weight_decay=0.0)
    clipped = updated(dataclasses.replace(config, grad_clip_norm=1e-3), 3)
    free = updated(config, 3)
    assert not np.array_equal(free["w"], params()["w"])
    assert not np.allclose(free["w"], clipped["w"], rtol=1e-6, atol=0)


def test_only_matrices_decay():
    config = GrugOptimizerConfig(lr=0.1, weight_decay=0.5, warmup_steps=0, decay_steps=10**6)
    optimizer, before = config.build(STEPS, GROUPS), params()
    zeros = jax.tree.map(jnp.zeros_like, before)
    updates, _ = jax.jit(optimizer.update)(zeros, optimizer.init(before), before)
    after = optax.apply_updates(before, updates)
    np.testing.assert_allclose(after["w"], before["w"] * (1 - 0.1 * 0.5), rtol=1e-5)
    for name in ("embed", "norm", "decay"):
        np.testing.assert_array_equal(after[name], before[name])


class Model(eqx.Module):
    """A model that can be called, as all are: its tree of groups can be called too."""

    w: jax.Array
    scale: jax.Array

    def __call__(self) -> None:
        raise AssertionError("an optimizer has no business calling the model")


@pytest.mark.parametrize(("name", "num_moments"), [("adamw", 2), ("muon", 1)])
def test_groups_may_be_a_model_on_a_mesh_and_the_updates_lie_where_the_weights_do(
    eight_device_mesh, name, num_moments
):
    with jax.set_mesh(eight_device_mesh):
        model = Model(jax.reshard(jnp.ones((8, 4)), P("data", "model")), jnp.ones(4))
        config = GrugOptimizerConfig(
            name=name, lr=0.1, weight_decay=0.5, warmup_steps=0, decay_steps=10**6
        )
        optimizer = config.build(STEPS, Model("matrix", "vector"))
        zeros = jax.tree.map(jnp.zeros_like, model)
        updates, state = jax.jit(optimizer.update)(zeros, optimizer.init(model), model)
    assert updates.w.sharding.spec == P("data", "model")
    np.testing.assert_allclose(updates.w, -0.05, rtol=1e-5)
    np.testing.assert_array_equal(updates.scale, 0.0)
    moments = [leaf for leaf in jax.tree.leaves(state) if leaf.shape == (8, 4)]
    assert len(moments) == num_moments
    assert all(leaf.sharding.spec == P("data", "model") for leaf in moments)


def test_an_unknown_group_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"parameter groups \['bias'\].*'matrix', 'embedding'"):
        GrugOptimizerConfig().build(STEPS, {"w": "bias"})


def test_the_first_update_counts_and_warmup_ends_at_the_full_rate():
    at = LearningRate(lr=2.0, warmup_steps=4, decay_steps=16, min_lr_ratio=0.1)
    np.testing.assert_allclose([at(n) for n in range(4)], [0.5, 1.0, 1.5, 2.0], rtol=1e-6)


def test_after_warmup_the_rate_only_falls_and_the_last_step_is_at_the_least():
    config = GrugOptimizerConfig(lr=2.0, warmup_steps=4, min_lr_ratio=0.1)
    rates = [float(config.schedule(STEPS)(n)) for n in range(STEPS + 5)]
    np.testing.assert_allclose(
        rates[:STEPS], [rate_by_hand(config, n) for n in range(STEPS)], rtol=1e-5
    )
    assert all(a > b for a, b in pairwise(rates[3:STEPS]))
    assert rates[4 + 7] == pytest.approx(0.5 * (2.0 + 0.2), rel=1e-5)  # half way down
    np.testing.assert_allclose(rates[STEPS - 1 :], 0.2, rtol=1e-5)


def test_without_warmup_no_update_has_a_rate_of_zero_but_the_last():
    config = GrugOptimizerConfig(lr=1.0, warmup_steps=0)
    rates = [float(config.schedule(STEPS)(n)) for n in range(STEPS)]
    assert min(rates[:-1]) > 0
    assert rates[0] > 0.99
    assert rates[-1] == pytest.approx(0.0, abs=1e-6)


def test_decay_steps_end_the_decay_before_the_run_ends():
    config = GrugOptimizerConfig(lr=1.0, warmup_steps=2, decay_steps=6, min_lr_ratio=0.5)
    rates = [float(config.schedule(STEPS)(n)) for n in range(STEPS)]
    assert rates[6] > 0.5
    np.testing.assert_allclose(rates[7:], 0.5, rtol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "given"),
    [
        ({"lr": 0.0}, "lr=0.0"),
        ({"lr": math.nan}, "lr=nan"),
        ({"lr": 1e30}, "lr=1e+30"),
        ({"weight_decay": -0.1}, "weight_decay=-0.1"),
        ({"grad_clip_norm": -1.0}, "grad_clip_norm=-1.0"),
        ({"warmup_steps": -1}, "optim.warmup_steps=-1"),
        ({"min_lr_ratio": 1.5}, "min_lr_ratio=1.5"),
        ({"decay_steps": 0}, "optim.decay_steps=0"),
    ],
)
def test_a_value_that_cannot_be_right_is_named_with_what_is_allowed(wrong, given):
    with pytest.raises(ConfigError) as caught:
        GrugOptimizerConfig(**wrong)
    assert caught.value.given == given
    assert caught.value.allowed


@pytest.mark.parametrize("wrong", [{"b1": 1.0}, {"b2": 1.5}, {"b1": 0.0}, {"eps": 0.0}])
def test_moments_of_adam_that_cannot_be_right_are_refused(wrong):
    with pytest.raises(ConfigError, match=rf"{next(iter(wrong))}=.*Allowed: .* Fix: "):
        AdamConfig(**wrong)


def test_a_warmup_as_long_as_the_run_is_refused_with_one_that_is_not():
    config = GrugOptimizerConfig(warmup_steps=STEPS)
    with pytest.raises(ConfigError, match=r"20 in a run of 20 steps.*set optim\.warmup_steps to 2"):
        config.schedule(STEPS)
