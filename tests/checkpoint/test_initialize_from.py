"""Weights of another run, and the average that is switched on or off on the way."""

import dataclasses
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from restore_samples import (
    HARMS,
    assert_same,
    begun,
    change_metadata,
    run,
    save,
    snapshot,
    step_of,
)

from chomp.checkpoint import read_step_folder
from chomp.errors import CheckpointError, ConfigError

SIZES = {"w": (8, 4), "bias": (4,)}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """The parts that a template's state has, as small as can be."""

    step: jax.Array
    params: dict[str, jax.Array]
    opt_state: dict[str, jax.Array]
    ema_params: dict[str, jax.Array] | None
    training_key: jax.Array


def state_at(step: int, *, is_averaged: bool = False, dtype: str = "float32") -> State:
    """A state whose every leaf tells its step; weights, moments and average differ."""

    def filled(value: float, dtype: str = "float32") -> dict[str, jax.Array]:
        return {name: jnp.full(shape, value, dtype) for name, shape in SIZES.items()}

    average = filled(step + 0.25) if is_averaged else None
    weights = filled(step + 0.5, dtype)
    key = jax.random.key(step)
    return State(jnp.int32(step), weights, filled(step + 0.75), average, key)


def fresh(**kind: object) -> Callable[[], State]:
    return lambda: state_at(0, **kind)


@pytest.fixture
def mesh(one_device_mesh) -> Iterator[jax.sharding.Mesh]:
    with jax.set_mesh(one_device_mesh):
        yield one_device_mesh


@pytest.fixture(scope="module")
def other_run(tmp_path_factory, one_device_mesh) -> Path:
    """A run of another config on other data, with steps 3 and 5."""
    path = tmp_path_factory.mktemp("other")
    with jax.set_mesh(one_device_mesh):
        for step in (3, 5):
            other = run({"kind": "another"}, steps=99)
            state = state_at(step, is_averaged=True)
            save(path / "checkpoints", step, state, config=other, data_fingerprint="other")
    return path


def expected(step: int, *, is_averaged: bool) -> State:
    """A fresh state with the weights of a step, and its average at those weights."""
    weights = state_at(step).params
    average = weights if is_averaged else None
    return dataclasses.replace(state_at(0), params=weights, ema_params=average)


@pytest.mark.parametrize("is_averaged", [False, True])
@pytest.mark.parametrize(
    ("place", "step"), [("", 5), ("checkpoints", 5), ("checkpoints/step-3", 3)]
)
def test_weights_of_any_run_begin_a_new_one(place, step, is_averaged, other_run, tmp_path, mesh):
    config = run(initialize_from=str(other_run / place))
    beginning = begun(tmp_path, mesh, config, initialize=fresh(is_averaged=is_averaged))
    assert_same(beginning.state, expected(step, is_averaged=is_averaged))
    assert beginning.found is None
    path = str(other_run / "checkpoints" / f"step-{step}")
    assert beginning.continues is not None
    assert (beginning.continues["initialize_from"], beginning.continues["step"]) == (path, step)


def test_the_average_is_a_copy_in_float32_that_can_be_donated_beside_the_weights(tmp_path, mesh):
    save(tmp_path / "other", 3, state_at(3, dtype="bfloat16"))
    config = run(initialize_from=str(tmp_path / "other"))
    for dtype in ("bfloat16", "float32"):
        if dtype == "float32":
            save(tmp_path / "other", 4, state_at(4))
        initialize = fresh(is_averaged=True, dtype=dtype)
        state = begun(tmp_path / "own", mesh, config, initialize=initialize).state
        assert state.params["w"].dtype == dtype
        assert state.ema_params["w"].dtype == jnp.float32
        assert (state.ema_params["w"] == state.params["w"].astype(jnp.float32)).all()
        doubled = jax.jit(lambda s: jax.tree.map(jnp.copy, s), donate_argnums=0)(state)
        assert jax.tree.structure(doubled) == jax.tree.structure(state)


def test_a_run_s_own_checkpoint_comes_first(other_run, tmp_path, mesh):
    config = run(initialize_from=str(other_run))
    first = begun(tmp_path, mesh, config, initialize=fresh())
    save(tmp_path, 1, state_at(1), continues=first.continues, config=config)
    second = begun(tmp_path, mesh, config, initialize=fresh())
    assert_same(second.state, state_at(1))
    assert second.continues is not None
    # How the line began is handed on.
    assert second.continues["path"] == str(tmp_path / "step-1")
    assert second.continues["initialize_from"] == str(other_run / "checkpoints/step-5")


def test_only_weights_are_read(other_run, tmp_path, mesh):
    # With a hash that fits nothing, whatever else is read would be damage.
    copy = tmp_path / "copy"
    shutil.copytree(other_run, copy)
    metadata = read_step_folder(str(copy / "checkpoints/step-5")).metadata
    wrong = {name: "0" * 32 for name in metadata.receipt if not name.startswith("params/")}
    change_metadata(copy / "checkpoints/step-5", receipt=metadata.receipt | wrong)
    config = run(initialize_from=str(copy / "checkpoints/step-5"))
    state = begun(tmp_path / "own", mesh, config, initialize=fresh()).state
    assert_same(state, expected(5, is_averaged=False))


def change_a_weight(step_folder: Path) -> None:
    receipt = read_step_folder(str(step_folder)).metadata.receipt
    change_metadata(step_folder, receipt=receipt | {"params/w": "0" * 32})


@pytest.mark.parametrize(
    "harm", [HARMS["cut a file"][0], HARMS["lose metadata"][0], change_a_weight]
)
def test_damaged_weights_are_passed_over_or_refused_and_stay(harm, other_run, tmp_path, mesh):
    copy = tmp_path / "copy"
    shutil.copytree(other_run, copy)
    harm(copy / "checkpoints/step-5")
    before = snapshot(copy)
    config = run(initialize_from=str(copy))
    beginning = begun(tmp_path / "own", mesh, config, initialize=fresh())
    assert_same(beginning.state, expected(3, is_averaged=False))
    config = run(initialize_from=str(copy / "checkpoints/step-5"))
    with pytest.raises(CheckpointError) as caught:
        begun(tmp_path / "own", mesh, config, initialize=fresh())
    assert "step-5" in caught.value.given
    assert snapshot(copy) == before


@pytest.mark.parametrize("weights", ["current", "ema"])
def test_weights_of_another_shape_are_refused_with_both_shapes_and_the_fields(
    weights, other_run, tmp_path, mesh
):
    config = run({"columns": 64}, initialize_from=str(other_run), initialize_weights=weights)

    def wider() -> State:
        state = state_at(0)
        return dataclasses.replace(state, params={**state.params, "w": jnp.zeros((8, 6))})

    with pytest.raises(CheckpointError) as refused:
        begun(tmp_path, mesh, config, initialize=wider)
    told = str(refused.value)
    field = {"current": "params", "ema": "ema_params"}[weights]
    assert re.search(rf"{field}/w +\(8, 4\) float32 +\(8, 6\) float32\n", told)
    assert f"{field}/bias" not in told
    assert "model.columns=32" in told.partition("Fix: ")[2]
    assert "optimizer" not in told
    assert "template" not in told
    if weights == "current":  # an average has a dtype of its own
        with pytest.raises(CheckpointError) as caught:
            begun(tmp_path, mesh, config, initialize=fresh(dtype="bfloat16"))
        assert re.search(r"params/w +\(8, 4\) float32 +\(8, 4\) bfloat16\n", caught.value.given)


@pytest.mark.parametrize("is_averaged", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_averaged_weights_begin_a_run(is_averaged, dtype, other_run, tmp_path, mesh):
    config = run(initialize_from=str(other_run), initialize_weights="ema")
    initialize = fresh(is_averaged=is_averaged, dtype=dtype)
    beginning = begun(tmp_path, mesh, config, initialize=initialize)
    average = state_at(5, is_averaged=True).ema_params
    assert average is not None
    weights = {name: leaf.astype(dtype) for name, leaf in average.items()}
    wanted = dataclasses.replace(
        state_at(0), params=weights, ema_params=average if is_averaged else None
    )
    assert_same(beginning.state, wanted)
    assert beginning.continues is not None
    assert beginning.continues["initialize_weights"] == "ema"


def test_averaged_weights_that_are_not_there_are_an_error(without_average, tmp_path, mesh):
    config = run(initialize_from=str(without_average), initialize_weights="ema")
    with pytest.raises(ConfigError) as caught:
        begun(tmp_path, mesh, config, initialize=fresh())
    assert "without0/step-5" in caught.value.given
    with pytest.raises(ConfigError) as caught:
        begun(tmp_path, mesh, run(initialize_weights="ema"), initialize=fresh())
    assert "initialize_weights=ema" in caught.value.given


@pytest.mark.parametrize(
    "before",
    [{}, {"initialize_from": "elsewhere"}, {"initialize_weights": "ema"}],
)
def test_a_run_with_other_first_weights_is_another_run(before, other_run, tmp_path, mesh):
    source = {"initialize_from": str(other_run)}
    save(tmp_path, 1, state_at(1), config=run(**({**source, **before} if before else {})))
    saved = snapshot(tmp_path)
    for asked in ({}, {"load_checkpoint_path": str(tmp_path)}):
        with pytest.raises(CheckpointError) as caught:
            begun(tmp_path, mesh, run(**source, **asked), initialize=fresh())
        assert re.search(r"initialize_.* identity\n", caught.value.given)
    assert snapshot(tmp_path) == saved


def test_a_run_goes_back_to_a_step_of_its_own_with_its_first_weights_named(
    other_run, tmp_path, mesh
):
    config = run(initialize_from=str(other_run))
    for step in (1, 2):
        save(tmp_path, step, state_at(step), config=config)
    back = dataclasses.replace(
        config.trainer, load_checkpoint=True, load_checkpoint_path=str(tmp_path / "step-1")
    )
    beginning = begun(tmp_path, mesh, dataclasses.replace(config, trainer=back), initialize=fresh())
    assert_same(beginning.state, state_at(1))


def test_weights_of_another_tokenizer_are_told_loudly(other_run, tmp_path, mesh, caplog):
    config = run(initialize_from=str(other_run))
    begun(tmp_path, mesh, config, initialize=fresh())
    assert "TOKENIZER" not in caplog.text
    begun(tmp_path, mesh, config, initialize=fresh(), tokenizer_hash="5eed")
    assert "ANOTHER TOKENIZER (fedcba9876543210 there, 5eed here)" in caplog.text


def test_a_place_without_checkpoints_is_an_error(tmp_path, mesh):
    (tmp_path / "empty/checkpoints").mkdir(parents=True)
    for place in ("empty", "missing"):
        with pytest.raises((CheckpointError, ConfigError)) as caught:
            begun(tmp_path / "own", mesh, run(initialize_from=str(tmp_path / place)))
        assert place in caught.value.given


# ---- The average, switched on or off at restore --------------------------------------------------


@pytest.fixture(scope="module")
def with_average(tmp_path_factory, one_device_mesh) -> Path:
    folder = tmp_path_factory.mktemp("with")
    with jax.set_mesh(one_device_mesh):
        save(folder, 5, state_at(5, is_averaged=True), config=run(ema_beta=0.9))
    return folder


@pytest.fixture(scope="module")
def without_average(tmp_path_factory, one_device_mesh) -> Path:
    folder = tmp_path_factory.mktemp("without")
    with jax.set_mesh(one_device_mesh):
        save(folder, 5, state_at(5), config=run())
    return folder


def test_an_average_switched_on_starts_at_the_restored_weights(without_average, mesh):
    averaged = fresh(is_averaged=True)
    with pytest.raises(CheckpointError) as caught:
        begun(without_average, mesh, run(ema_beta=0.9), initialize=averaged)
    assert "--allow trainer.ema_beta" in caught.value.fix
    config = run(ema_beta=0.9, allow_changes=("train.ema_beta",))
    beginning = begun(without_average, mesh, config, initialize=averaged)
    saved = state_at(5)
    assert_same(beginning.state, dataclasses.replace(saved, ema_params=saved.params))
    assert step_of(beginning) == 5


def test_an_average_switched_off_is_not_read(with_average, mesh):
    with pytest.raises(CheckpointError) as caught:
        begun(with_average, mesh, run(), initialize=fresh())
    assert "--allow trainer.ema_beta" in caught.value.fix
    config = run(allow_changes=("trainer.ema_beta",))
    assert_same(begun(with_average, mesh, config, initialize=fresh()).state, state_at(5))


def test_another_weight_of_the_average_keeps_it(with_average, mesh):
    config = run(ema_beta=0.5, allow_changes=("trainer.ema_beta",))
    beginning = begun(with_average, mesh, config, initialize=fresh(is_averaged=True))
    assert_same(beginning.state, state_at(5, is_averaged=True))
