"""Muon moves matrices along orthogonal directions, everything else as AdamW, on any mesh."""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from chomp.config import apply_overrides
from chomp.errors import ConfigError
from chomp.mesh import MeshConfig, create_mesh
from chomp.optim import AdamConfig, GrugOptimizerConfig, MuonConfig
from chomp.optim.muon import map_matrices, scale_by_muon
from tests.optim.test_newton_schulz import by_svd

STEPS = 10
GROUPS = {
    "w": "matrix",
    "down": "matrix",
    "stack": "matrix",
    "embed": "embedding",
    "norm": "vector",
}
SHAPES = {"w": (4, 6), "down": (6, 4), "stack": (2, 4, 6), "embed": (7, 4), "norm": (4,)}
CONFIG = GrugOptimizerConfig(
    name="muon",
    lr=0.1,
    weight_decay=0.3,
    grad_clip_norm=0.0,
    warmup_steps=2,
    adam=AdamConfig(b1=0.8, b2=0.95),
    muon=MuonConfig(lr_scale=2.0, momentum=0.9, weight_decay_mult=0.5),
)

Tree = dict[str, Any]


def made(seed: int, shapes: dict[str, tuple[int, ...]] = SHAPES) -> Tree:
    """Noise for each name, whatever other names there are."""
    return {
        name: np.random.default_rng([seed, *name.encode()]).normal(size=shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def trained(config: GrugOptimizerConfig, num_updates: int = 4, groups: Tree = GROUPS) -> Tree:
    """The weights after some updates with made-up gradients."""
    shapes = {name: SHAPES[name] for name in groups}
    optimizer, weights = config.build(STEPS, groups), made(99, shapes)
    state = optimizer.init(weights)

    @jax.jit
    def update(gradient: Tree, state: Any, weights: Tree) -> tuple[Tree, Any]:
        updates, state = optimizer.update(gradient, state, weights)
        return optax.apply_updates(weights, updates), state

    for step in range(num_updates):
        weights, state = update(made(step, shapes), state, weights)
    return weights


def by_hand(config: GrugOptimizerConfig, name: str, num_updates: int = 4) -> np.ndarray:
    """One matrix (or stack of them) after the same updates, in float64 and written out."""
    own, beta = config.muon, config.muon.momentum
    weight = made(99)[name].astype(np.float64)
    momentum = np.zeros_like(weight)
    for t in range(num_updates):
        gradient = made(t)[name].astype(np.float64)
        momentum = beta * momentum + (1 - beta) * gradient
        u = momentum / (1 - beta ** (t + 1))
        if own.nesterov:
            u = beta * momentum / (1 - beta ** (t + 2)) + (1 - beta) * gradient / (
                1 - beta ** (t + 1)
            )
        each = u.reshape(-1, *u.shape[-2:])
        direction = np.stack([by_svd(one, own.ns_steps) for one in each]).reshape(u.shape)
        if own.consistent_rms is not None:
            direction *= own.consistent_rms * np.sqrt(max(u.shape[-2:]))
        decay = config.weight_decay * own.weight_decay_mult * weight
        rate = float(config.schedule(STEPS)(t))
        weight = weight - rate * (own.lr_scale * direction + decay)
    return weight


@pytest.mark.parametrize(
    "changes", [{}, {"nesterov": False, "ns_steps": 3}, {"consistent_rms": 0.2}]
)
def test_updates_of_matrices_follow_muon_written_out_in_float64(changes):
    config = dataclasses.replace(CONFIG, muon=dataclasses.replace(CONFIG.muon, **changes))
    found = trained(config)
    for name in ("w", "down", "stack"):
        np.testing.assert_allclose(found[name], by_hand(config, name), atol=1e-4, err_msg=name)


def test_the_other_weights_are_updated_as_adamw_would_with_its_own_moments():
    found = trained(CONFIG)
    other = dataclasses.replace(CONFIG, name="adamw", muon=MuonConfig())
    expected = trained(other, groups={"embed": "embedding", "norm": "vector"})
    for name in ("embed", "norm"):
        np.testing.assert_allclose(found[name], expected[name], rtol=2e-6, err_msg=name)


def first_update(own: MuonConfig, gradients: Tree, **changes: Any) -> Tree:
    """The first update of a long run, at its full rate, of weights made with seed 0."""
    config = dataclasses.replace(CONFIG, warmup_steps=0, muon=own, **changes)
    optimizer, weights = config.build(10**6, GROUPS), made(0)
    updates, _ = jax.jit(optimizer.update)(gradients, optimizer.init(weights), weights)
    return updates


def test_decay_pulls_on_matrices_alone_and_does_not_grow_with_the_scale_of_the_rate():
    zeros = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    own = MuonConfig(lr_scale=50.0, weight_decay_mult=0.5, allow_tied_embed=True)
    updates = first_update(own, zeros)
    for name in ("w", "down", "stack"):
        np.testing.assert_allclose(updates[name], -0.1 * 0.3 * 0.5 * made(0)[name], rtol=1e-5)
    np.testing.assert_array_equal(updates["embed"], 0.0)
    np.testing.assert_array_equal(updates["norm"], 0.0)


def test_with_consistent_rms_updates_of_all_shapes_have_that_root_mean_square():
    own = MuonConfig(lr_scale=1.0, consistent_rms=0.2)
    updates = first_update(own, made(0), weight_decay=0.0, lr=1.0)
    for name in ("w", "down", "stack"):
        # An orthogonal matrix of R <= C has a root mean square of 1 / sqrt(C).
        rms = float(np.sqrt(np.mean(np.square(updates[name]))))
        assert 0.2 * 0.67 < rms < 0.2 * 1.21, name


CUTS = {
    "q": ((16, 16), P("data", "model")),
    "o": ((16, 16), P("model", "data")),
    "up": ((16, 32), P("data", "model")),
    "down": ((32, 16), P(None, ("data", "model"))),
    "experts": ((2, 2, 16, 32), P("model", None, "data", None)),
}


def test_any_mesh_gives_the_directions_of_none_and_each_lies_as_its_weight(
    eight_device_mesh, one_device_mesh
):
    gradients = made(3, {name: shape for name, (shape, _) in CUTS.items()})
    rule = scale_by_muon(momentum=0.95, nesterov=True, ns_steps=2)
    expected, _ = jax.jit(rule.update)(gradients, rule.init(gradients))
    for mesh in (eight_device_mesh, one_device_mesh):
        with jax.set_mesh(mesh):
            placed = {
                name: jax.reshard(jnp.asarray(g), CUTS[name][1]) for name, g in gradients.items()
            }
            state = rule.init(placed)
            program = jax.jit(rule.update).lower(placed, state).compile()
            found, state = program(placed, state)
        for name, (_, spec) in CUTS.items():
            np.testing.assert_allclose(found[name], expected[name], atol=2e-5, err_msg=name)
            if mesh is eight_device_mesh:
                assert found[name].sharding.spec == spec
                assert state.momentum[name].sharding.spec == spec


def test_matrices_reach_their_device_by_exchange_and_never_lie_on_all(eight_device_mesh):
    rule = scale_by_muon(momentum=0.95, nesterov=True, ns_steps=1)
    names = ("q", "o")
    with jax.set_mesh(eight_device_mesh):
        placed = {name: jnp.zeros(CUTS[name][0], out_sharding=CUTS[name][1]) for name in names}
        text = jax.jit(rule.update).lower(placed, rule.init(placed)).compile().as_text()
    assert re.search(r"\ball-to-all\(", text)
    assert not re.search(r"\ball-gather\(", text)


MIXED = {"a": (3, 5), "b": (5, 3), "c": (2, 3, 5), "d": (2, 1, 4, 4)}


@pytest.mark.parametrize(
    ("mesh_name", "stacks"),
    [
        ("one_device_mesh", [(3, 3, 5), (1, 5, 3), (2, 4, 4)]),
        # Over devices, tall ones lie on their side among wide ones, and zeros fill up.
        ("eight_device_mesh", [(8, 3, 5), (8, 4, 4)]),
    ],
)
def test_matrices_are_stacked_by_shape_and_come_back_as_they_were(mesh_name, stacks, request):
    arrays, seen = made(0, MIXED), []

    def negative(stack: jax.Array) -> jax.Array:
        seen.append(stack.shape)
        return -stack

    with jax.set_mesh(request.getfixturevalue(mesh_name)):
        given = [jnp.asarray(x) for x in arrays.values()]
        found = map_matrices(negative, given, dtype=jnp.float32)
    assert seen == stacks
    for given_array, result in zip(arrays.values(), found, strict=True):
        np.testing.assert_array_equal(result, -given_array)


def test_a_mesh_with_more_devices_than_matrices_gives_the_others_zeros():
    mesh = create_mesh(MeshConfig(data=4, model=2), devices=jax.devices()[:8])
    with jax.set_mesh(mesh):
        array, seen = jax.reshard(jnp.ones((4, 8)), P("data", "model")), []

        def identity(stack: jax.Array) -> jax.Array:
            seen.append(stack.shape)
            return stack

        (found,) = map_matrices(identity, [array], dtype=jnp.bfloat16)
    assert seen == [(8, 4, 8)]
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found.astype(jnp.float32), 1.0)


# Each with a group that only it gives to Muon, or values that differ from CONFIG's.
CHANGES: dict[str, Any] = {
    "lr": 0.05,
    "weight_decay": 0.1,
    "grad_clip_norm": 0.01,
    "warmup_steps": 5,
    "decay_steps": 3,
    "min_lr_ratio": 0.5,
    "lr_schedule": "linear",
    "cycles": 2,
    "schedule_start": 1,
    "adam.b1": 0.5,
    "adam.b2": 0.5,
    "adam.eps": 1.0,
    "adam.nesterov": True,
    "muon.lr_scale": 3.0,
    "muon.weight_decay_mult": 2.0,
    "muon.momentum": 0.5,
    "muon.ns_steps": 2,
    "muon.nesterov": False,
    "muon.consistent_rms": 0.2,
    "muon.allow_all_2d": True,
    "muon.allow_tied_embed": True,
    "name": "adamw",
}


def _fields(config: Any, prefix: str = "") -> set[str]:
    return {
        name
        for field in dataclasses.fields(config)
        for name in (
            _fields(getattr(config, field.name), f"{field.name}.")
            if dataclasses.is_dataclass(getattr(config, field.name))
            else {prefix + field.name}
        )
    }


def traced(config: GrugOptimizerConfig) -> str:
    """The program of one update, as text: all constants are in it."""
    groups = {name: GROUPS[name] for name in ("w", "embed", "norm")}
    weights = {name: jnp.ones(SHAPES[name]) for name in groups}
    optimizer = config.build(STEPS, groups)
    return str(jax.make_jaxpr(optimizer.update)(weights, optimizer.init(weights), weights))


def test_every_field_of_the_config_changes_the_update():
    assert set(CHANGES) == _fields(CONFIG)
    plain = traced(CONFIG)
    assert plain == traced(dataclasses.replace(CONFIG))
    for name, value in CHANGES.items():
        overrides = [f"{name}={value}", *(["muon={}"] if name == "name" else [])]
        assert traced(apply_overrides(CONFIG, overrides)) != plain, name


def test_logged_hyperparameters_are_those_of_the_step_and_are_plain_numbers():
    of_step = CONFIG.hyperparameters(STEPS)
    rate = float(CONFIG.schedule(STEPS)(0))
    assert of_step(0) == {
        "optim/learning_rate": rate,
        "optim/weight_decay": 0.3,
        "optim/muon_learning_rate": 2.0 * rate,
        "optim/muon_weight_decay": 0.15,
        "optim/muon_momentum": 0.9,
    }
    assert all(type(value) is float for value in of_step(3).values())
    adamw = GrugOptimizerConfig(lr=0.1, warmup_steps=2).hyperparameters(STEPS)
    assert set(adamw(1)) == {"optim/learning_rate", "optim/weight_decay"}
    assert adamw(1)["optim/learning_rate"] == pytest.approx(0.1)


def test_knobs_of_muon_without_muon_are_refused():
    with pytest.raises(
        ConfigError, match=r"optim\.muon\.lr_scale=1\.0 with optim\.name=adamw.*Fix: leave"
    ):
        GrugOptimizerConfig(muon=MuonConfig(lr_scale=1.0))


def test_muon_without_a_matrix_is_refused_and_not_silently_adamw():
    weights = made(0, {"norm": (4,), "embed": (7, 4)})
    optimizer = CONFIG.build(STEPS, {"norm": "vector", "embed": "embedding"})
    with pytest.raises(ConfigError, match=r"no weight for it among 2.*Fix: .*optim\.name=adamw"):
        optimizer.init(weights)


def test_a_matrix_with_one_axis_is_refused_by_its_path():
    optimizer = CONFIG.build(STEPS, {"a": {"b": "matrix"}})
    with pytest.raises(ConfigError, match=r"^a/b of shape \[4\] in the group 'matrix'.*'vector'"):
        optimizer.init({"a": {"b": jnp.ones(4)}})
