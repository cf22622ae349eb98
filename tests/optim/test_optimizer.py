"""AdamW does what its formula says, to the weights it is meant for, at the rate of the schedule."""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from chomp.errors import ConfigError
from chomp.optim import AdamConfig, GrugOptimizerConfig, MuonConfig

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


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (GrugOptimizerConfig, {"lr": [0.0, math.nan, 1e30], "weight_decay": [-0.1]}),
        (GrugOptimizerConfig, {"grad_clip_norm": [-1.0], "min_lr_ratio": [1.5], "cycles": [0]}),
        (GrugOptimizerConfig, {"schedule_start": [-1]}),
        (AdamConfig, {"b1": [1.0, 0.0], "b2": [1.5], "eps": [0.0]}),
        (MuonConfig, {"lr_scale": [0.0], "weight_decay_mult": [-1.0], "momentum": [1.0, 0.0]}),
        (MuonConfig, {"ns_steps": [0], "consistent_rms": [0.0]}),
    ],
)
def test_a_value_that_cannot_be_right_is_named_with_what_is_allowed(kind, wrong):
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(ConfigError) as caught:
                kind(**{name: value})
            assert caught.value.given == f"{name}={value}"
            assert caught.value.allowed
