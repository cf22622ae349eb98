"""Watched numbers: right on every mesh, there when they are due, and no burden to the step."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from chomp.config import config_from_mapping
from chomp.errors import ConfigError
from chomp.tracking import JsonlTracker, read_metrics
from chomp.tracking.metrics import metric_of
from chomp.tracking.record import histograms_of
from chomp.training.watch import (
    MOMENTS,
    NUM_BINS,
    WatchConfig,
    is_watched,
    watch_metrics,
    watched_row,
)

ALL = ("grads", "params", "updates", "opt_state")
# Momentum, and a counter that is no number to watch.
OPTIMIZER = optax.chain(optax.trace(0.9), optax.scale_by_schedule(lambda _: -0.1))
SPECS = {"blocks": [{"w": PartitionSpec("data", "model")}], "gain": PartitionSpec()}


def small_model():
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(8, 4)).astype(np.float32)
    return {"blocks": [{"w": matrix}], "gain": np.ones(6, np.float32)}


def placed(mesh, tree):
    if mesh is None:
        return jax.tree.map(jnp.asarray, tree)
    return jax.tree.map(
        lambda leaf, spec: jax.device_put(leaf, NamedSharding(mesh, spec)), tree, SPECS
    )


def make_step(config):
    @partial(jax.jit, donate_argnums=0)
    def step(state):
        count, params, opt_state = state
        grads = jax.tree.map(lambda p: 2.0 * p + 0.5, params)
        updates, opt_state = OPTIMIZER.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        watched = watch_metrics(
            config, step=count, grads=grads, params=params, updates=updates, opt_state=opt_state
        )
        return (count + 1, params, opt_state), {"train/loss": jnp.float32(1.0)} | watched

    return step


def fresh(mesh):
    params = placed(mesh, small_model())
    return jnp.int32(0), params, OPTIMIZER.init(params)


@pytest.fixture(params=["no mesh", "one_device_mesh", "eight_device_mesh"])
def mesh(request):
    """Everywhere a step may run; set while the test does."""
    if request.param == "no mesh":
        yield None
        return
    found = request.getfixturevalue(request.param)
    with jax.set_mesh(found):
        yield found


def test_norms_and_histograms_are_those_of_the_arrays_on_any_mesh(mesh):
    config = WatchConfig(targets=ALL, include_histograms=True, interval=2)
    state = fresh(mesh)
    step = make_step(config).lower(state).compile()  # so there is no second program
    state, first = step(state)
    before = jax.device_get(state[1])
    state, second = step(state)
    assert all(not np.any(first[name]) for name in first if is_watched(name))
    assert watched_row(config, 0, first) == {}

    row = watched_row(config, 1, second)
    after, momentum = jax.device_get(state[1]), jax.device_get(state[2])[0].trace
    grads = jax.tree.map(lambda p: 2.0 * p + 0.5, before)
    updates = jax.tree.map(lambda new, old: new - old, after, before)
    watched = {
        "grad": grads,
        "params": after,
        "updates": updates,
        "opt_state": {"0": {"trace": momentum}},
    }
    for prefix, tree in watched.items():
        flat = jax.tree_util.tree_flatten_with_path(tree)[0]
        leaves = {jax.tree_util.keystr(p, simple=True, separator="."): leaf for p, leaf in flat}
        for path, leaf in leaves.items():
            norm = np.linalg.norm(leaf.astype(np.float64))
            assert row.pop(f"{prefix}/norm/{path}") == pytest.approx(norm, rel=1e-4)
            _check_histogram(row, f"{prefix}/hist/{path}", leaf)
        total = np.sqrt(sum(np.sum(leaf.astype(np.float64) ** 2) for leaf in leaves.values()))
        assert row.pop(f"{prefix}/norm/total") == pytest.approx(total, rel=1e-4)
    assert row == {}  # the optimizer's counter has no norm


def _check_histogram(row, key, leaf):
    found = {moment: row.pop(f"{key}/{moment}") for moment in MOMENTS}
    expected = {
        "min": leaf.min(),
        "max": leaf.max(),
        "mean": leaf.mean(),
        "rms": np.sqrt(np.mean(np.square(leaf))),
    }
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-6)
    told = {key: row.pop(key), f"{key}/min": found["min"], f"{key}/max": found["max"]}
    histogram = histograms_of(told)[key]
    counts, edges = histogram.counts, histogram.edges
    assert (len(counts), len(edges), sum(counts)) == (NUM_BINS, NUM_BINS + 1, leaf.size)
    if found["min"] < found["max"]:
        np.testing.assert_allclose(counts, np.histogram(leaf, bins=edges)[0], atol=1)


@jax.jit
def _watch_one(values):
    config = WatchConfig(targets=("params",), include_histograms=True, interval=1)
    return watch_metrics(
        config, step=jnp.int32(0), grads=None, params={"w": values}, updates=None, opt_state=None
    )


# Numbers in the middle of the bins of 0 to 31, where no rounding of an edge can move them.
@settings(deadline=None)  # the first example compiles
@given(st.lists(st.integers(0, NUM_BINS - 1), min_size=14, max_size=14), st.floats(0.01, 100))
def test_every_number_is_counted_in_the_bin_it_lies_in(bins, scale):
    middle = [bin + 0.5 for bin in bins]
    values = np.float32(scale) * np.asarray([0.0, *middle, NUM_BINS], np.float32)
    config = WatchConfig(targets=("params",), include_histograms=True, interval=1)
    row = watched_row(config, 0, _watch_one(values))
    expected = np.bincount([0, *bins, NUM_BINS - 1], minlength=NUM_BINS)
    assert json.loads(row["params/hist/w"]) == expected.tolist()


def test_a_constant_tensor_has_a_histogram_and_one_with_nan_is_told_as_such():
    config = WatchConfig(targets=("params",), include_histograms=True, interval=1)
    row = watched_row(config, 0, _watch_one(np.full(16, 3.0, np.float32)))
    assert json.loads(row["params/hist/w"]) == [0] * (NUM_BINS - 1) + [16]
    broken = watched_row(config, 0, _watch_one(np.asarray([np.nan, *[1.0] * 15], np.float32)))
    assert np.isnan([broken["params/norm/w"], broken["params/hist/w/min"]]).all()


def test_watching_changes_no_bit_of_the_state(eight_device_mesh):
    with jax.set_mesh(eight_device_mesh):
        plain, watched = fresh(eight_device_mesh), fresh(eight_device_mesh)
        plain_step, watched_step = make_step(None), make_step(WatchConfig(targets=ALL, interval=2))
        for _ in range(3):
            plain, told = plain_step(plain)
            watched, _ = watched_step(watched)
        assert not any(map(is_watched, told))
    for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(watched), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("changed", "kinds"),
    [
        ({}, {"grad/norm/total", "grad/norm/blocks.0.w", "params/norm/gain"}),
        ({"include_per_parameter_norms": False}, {"grad/norm/total", "params/norm/total"}),
        ({"targets": ("updates",), "include_norms": False}, {"updates/norm/blocks.0.w"}),
    ],
)
def test_a_run_gets_the_keys_it_asked_for_and_no_others(changed, kinds):
    config = WatchConfig(interval=1, **changed)
    params = placed(None, small_model())
    traced = jax.eval_shape(
        lambda: watch_metrics(
            config, step=jnp.int32(0), grads=params, params=params, updates=params, opt_state=()
        )
    )
    row = watched_row(config, 0, {key: np.zeros(like.shape) for key, like in traced.items()})
    assert kinds <= set(row)
    told = {"grads": "grad"}
    assert {key.split("/")[0] for key in row} == {told.get(t, t) for t in config.targets}
    assert any(key.endswith("norm/total") for key in row) == config.include_norms
    assert any(key.endswith("norm/gain") for key in row) == config.include_per_parameter_norms


def test_a_watched_row_can_be_recorded_and_read_back_under_known_names(tmp_path):
    config = WatchConfig(targets=("params",), include_histograms=True, interval=1)
    row = watched_row(config, 0, _watch_one(np.arange(16, dtype=np.float32)))
    tracker = JsonlTracker(tmp_path / "metrics.jsonl", attempt=1)
    tracker.log(row, step=0)
    tracker.finish()
    (read,) = read_metrics(tmp_path / "metrics.jsonl")
    assert {key: read[key] for key in row} == row
    assert all(metric_of(key) is not None for key in row)
    assert sum(json.loads(read["params/hist/w"])) == 16


@pytest.mark.parametrize(("interval", "due"), [(1, [0, 1, 2, 3, 4, 5]), (2, [1, 3, 5]), (4, [3])])
def test_a_step_is_watched_after_every_interval_of_completed_steps(interval, due):
    config, metrics = WatchConfig(interval=interval), {"watch/grad/norm/total": jnp.float32(1)}
    assert [step for step in range(6) if watched_row(config, step, metrics)] == due


def test_numbers_that_are_not_due_are_not_even_fetched():
    metrics = {"watch/grad/norm/total": jax.ShapeDtypeStruct((), jnp.float32)}
    assert watched_row(WatchConfig(interval=10), 4, metrics) == {}
    assert watched_row(None, 9, metrics) == {}


@pytest.mark.parametrize(
    "changed",
    [
        {"targets": []},
        {"targets": ["grads", "grads"]},
        {"include_norms": False, "include_per_parameter_norms": False},
    ],
)
def test_a_watch_that_cannot_be_is_refused(changed):
    with pytest.raises(ConfigError, match="Fix:"):
        config_from_mapping(WatchConfig, changed)
