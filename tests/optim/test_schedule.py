"""Every schedule is its closed form, at the steps that matter, on a device and on the host."""

import math
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chomp.config import apply_overrides, config_from_mapping, config_to_mapping
from chomp.errors import ConfigError
from chomp.optim import GrugOptimizerConfig

STEPS, WARMUP = 100, 20
SHAPES = ["cosine", "linear", "constant", "wsd", "inverse_sqrt"]


def config(shape: str, **changes: object) -> GrugOptimizerConfig:
    fields = {"lr": 2.0, "warmup_steps": WARMUP, "min_lr_ratio": 0.1, "lr_schedule": shape}
    if shape == "constant":
        del fields["min_lr_ratio"]
    return GrugOptimizerConfig(**(fields | changes))


def rates(config: GrugOptimizerConfig, num_steps: int = STEPS) -> list[float]:
    """The rate of every step of a run, and of ten steps after it."""
    schedule = config.schedule(num_steps)
    return [float(schedule(step)) for step in range(num_steps + 10)]


@pytest.mark.parametrize(
    ("shape", "middle", "last", "after"),
    [
        # The middle of the 80 steps after the warmup, the last step, and five steps later.
        ("cosine", 0.1 + 0.9 * 0.5, 0.1, 0.1),
        ("linear", 0.1 + 0.9 * 0.5, 0.1, 0.1),
        ("constant", 1.0, 1.0, 1.0),
        ("wsd", 1.0, 0.1, 0.1),
        ("inverse_sqrt", math.sqrt(20 / 60), math.sqrt(20 / 100), math.sqrt(20 / 105)),
    ],
)
def test_landmarks_of_each_shape_are_its_closed_form(shape, middle, last, after):
    found = rates(config(shape))
    assert found[0] == pytest.approx(2.0 * 1 / 20, rel=1e-6)  # the first update counts
    assert found[WARMUP - 1] == pytest.approx(2.0, rel=1e-6)
    assert found[WARMUP + 40 - 1] == pytest.approx(2.0 * middle, rel=1e-6)
    assert found[STEPS - 1] == pytest.approx(2.0 * last, rel=1e-6)
    assert found[STEPS + 4] == pytest.approx(2.0 * after, rel=1e-6)
    assert all(a >= b for a, b in pairwise(found[WARMUP - 1 :]))


def test_wsd_is_stable_until_its_decay_and_then_falls_in_a_line():
    found = rates(config("wsd", decay_steps=10))
    np.testing.assert_allclose(found[WARMUP - 1 : 90], 2.0, rtol=1e-6)
    line = [2.0 * (0.1 + 0.9 * (1 - k / 10)) for k in range(1, 11)]
    np.testing.assert_allclose(found[90:100], line, rtol=1e-5)


def test_wsd_decays_over_the_last_fifth_unless_told_otherwise():
    found = rates(config("wsd"))
    assert found[79] == pytest.approx(2.0)
    assert found[80] < 2.0
    # Or over all that a long warmup leaves.
    assert config("wsd", warmup_steps=90).schedule(STEPS).decay_steps == 10


def test_an_inverse_square_root_does_not_fall_below_its_floor():
    found = rates(config("inverse_sqrt", min_lr_ratio=0.9))
    assert found[-1] == pytest.approx(1.8, rel=1e-6)
    assert rates(config("inverse_sqrt", warmup_steps=0))[0] == pytest.approx(2.0)


@pytest.mark.parametrize("shape", ["cosine", "linear", "wsd"])
def test_cycles_begin_again_at_the_full_rate_and_end_at_the_least(shape):
    given_steps = {"decay_steps": 5} if shape == "wsd" else {}
    found = rates(config(shape, cycles=4, **given_steps))
    one = rates(config(shape, warmup_steps=0, **given_steps), num_steps=20)[:20]
    for cycle in range(4):
        start = WARMUP + 20 * cycle
        np.testing.assert_allclose(found[start : start + 20], one, rtol=1e-5)
    np.testing.assert_allclose(found[STEPS:], 0.2, rtol=1e-6)


def test_cycles_of_a_given_length_may_end_before_the_run_does():
    found = rates(config("linear", cycles=2, decay_steps=10))
    np.testing.assert_allclose(found[WARMUP + 9 :: 10][:2], 0.2, rtol=1e-6)
    np.testing.assert_allclose(found[WARMUP + 20 :], 0.2, rtol=1e-6)
    assert found[WARMUP + 10] == pytest.approx(2.0 * (0.1 + 0.9 * 0.9), rel=1e-6)


@given(
    shape=st.sampled_from(SHAPES),
    num_steps=st.integers(2, 10**6),
    warmup=st.floats(0, 0.9),
    where=st.floats(0, 1),
    cycles=st.integers(1, 3),
)
def test_no_step_is_above_the_rate_or_below_the_least_and_the_first_is_not_zero(
    shape, num_steps, warmup, where, cycles
):
    warmup_steps = int(warmup * (num_steps - 1))
    most = max((num_steps - warmup_steps) // 2, 1)
    cycles = min(cycles, most) if shape in ("cosine", "linear") else 1
    schedule = config(shape, warmup_steps=warmup_steps, cycles=cycles).schedule(num_steps)
    assert float(schedule(0)) > 0
    step = int(where * (num_steps + 10))
    rate = float(schedule(step))
    least = 0.0 if step < schedule.warmup_steps else 0.2
    assert least * (1 - 1e-6) <= rate <= 2.0 * (1 + 1e-6)


def test_a_device_and_the_host_agree_to_rounding_and_the_host_uses_no_device():
    steps = jnp.arange(STEPS + 10)
    for given_config in (config("cosine", cycles=3), config("wsd"), config("inverse_sqrt")):
        schedule = given_config.schedule(STEPS)
        on_device = jax.jit(jax.vmap(schedule))(steps)
        assert not isinstance(schedule(3), jax.Array)
        np.testing.assert_allclose(on_device, rates(given_config), rtol=2e-6)


def test_cycles_end_on_a_device_where_they_end_on_the_host():
    # A quotient on a device may lie just above a whole number: 112 steps in 4 cycles did.
    for cycles, num_steps in ((2, 30), (4, 112), (4, 1000), (7, 49), (9, 900), (13, 2600)):
        given_config = config("linear", warmup_steps=0, cycles=cycles, min_lr_ratio=0.0)
        schedule = given_config.schedule(num_steps)
        steps = jnp.arange(num_steps)
        host = [float(schedule(step)) for step in range(num_steps)]
        np.testing.assert_allclose(jax.jit(jax.vmap(schedule))(steps), host, atol=1e-5)
        assert sum(rate < 1e-5 for rate in host) == cycles


@pytest.mark.parametrize("shape", ["cosine", "linear", "wsd"])
def test_the_only_step_of_a_run_changes_something(shape):
    assert float(config(shape, warmup_steps=0, min_lr_ratio=0.0).schedule(1)(0)) == 2.0


@pytest.mark.parametrize(
    ("given_length", "num_steps", "expected"),
    [
        (1, 100, 1),
        (7, 100, 7),
        ("5%", 100, 5),
        ("2.5%", 200, 5),
        (" 10 % ", 50, 5),
        ("1%", 20, 1),
        ("0%", 9, 0),
    ],
)
def test_an_integer_is_steps_and_a_percentage_is_a_share_of_the_run(
    given_length, num_steps, expected
):
    schedule = config("cosine", warmup_steps=given_length).schedule(num_steps)
    assert schedule.warmup_steps == expected
    assert schedule.decay_steps == num_steps - expected
    assert config("linear", decay_steps="50%").schedule(STEPS).decay_steps == 50


@pytest.mark.parametrize(
    ("value", "fix"),
    [(0.05, "100 for steps, or to '5%'"), (1.0, "1 for steps, or to '100%'"), (1000.0, "1000 for")],
)
def test_a_float_is_refused_with_both_spellings_from_python_a_mapping_or_an_override(value, fix):
    words = rf"warmup_steps={value}\. Allowed: .* Fix: set optim\.warmup_steps to {fix}"
    with pytest.raises(ConfigError, match=words):
        GrugOptimizerConfig(warmup_steps=value)
    with pytest.raises(ConfigError, match=words):
        config_from_mapping(GrugOptimizerConfig, {"warmup_steps": value})
    with pytest.raises(ConfigError, match=words):
        apply_overrides(GrugOptimizerConfig(), [f"warmup_steps={value}"])


def test_an_override_gives_steps_or_a_share_and_both_are_read_back_from_a_file():
    found = apply_overrides(GrugOptimizerConfig(), ["warmup_steps=5%", "decay_steps=7"])
    assert (found.warmup_steps, found.decay_steps) == ("5%", 7)
    assert config_from_mapping(GrugOptimizerConfig, config_to_mapping(found)) == found


@pytest.mark.parametrize(
    "wrong",
    [
        {"warmup_steps": "five"},
        {"warmup_steps": "101%"},
        {"warmup_steps": "-5%"},
        {"warmup_steps": -1},
        {"warmup_steps": True},
        {"warmup_steps": math.inf},
        {"decay_steps": "0%"},
        {"decay_steps": 0},
        {"decay_steps": 0.5},
        {"lr_schedule": "constant", "decay_steps": 5},
        {"lr_schedule": "constant", "min_lr_ratio": 0.1},
        {"lr_schedule": "constant", "cycles": 2},
        {"lr_schedule": "inverse_sqrt", "decay_steps": "5%"},
        {"lr_schedule": "inverse_sqrt", "cycles": 2},
    ],
)
def test_what_cannot_be_or_would_not_be_used_is_refused_in_three_parts(wrong):
    with pytest.raises(ConfigError) as caught:
        GrugOptimizerConfig(**wrong)
    assert caught.value.given.removeprefix("optim.").startswith(f"{list(wrong)[-1]}=")
    assert caught.value.allowed
    assert caught.value.fix


@pytest.mark.parametrize(
    "wrong",
    [
        {"warmup_steps": STEPS},
        {"warmup_steps": "100%"},
        {"lr_schedule": "wsd", "warmup_steps": 90, "decay_steps": 11},
        {"lr_schedule": "wsd", "warmup_steps": 0, "decay_steps": 101},
        {"cycles": 3, "decay_steps": 40},
        {"cycles": 91},
        {"cycles": 10, "lr_schedule": "wsd", "decay_steps": "20%"},
        {"schedule_start": STEPS},
    ],
)
def test_lengths_that_do_not_fit_the_run_are_refused_with_the_run(wrong):
    with pytest.raises(ConfigError, match=r"a run of 100.*Allowed: .*Fix: "):
        GrugOptimizerConfig(**wrong).schedule(STEPS)


@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("cycles", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_from_its_start_a_schedule_is_that_of_a_run_of_the_steps_that_are_left(shape, cycles, name):
    if cycles > 1 and shape in ("constant", "inverse_sqrt"):
        return  # refused
    changes = {"warmup_steps": "10%", "cycles": cycles, "name": name}
    if shape in ("linear", "wsd"):
        changes["decay_steps"] = "15%"
    whole = config(shape, **changes).hyperparameters(STEPS)
    later = config(shape, **changes, schedule_start=400).hyperparameters(400 + STEPS)
    for step in range(STEPS + 5):
        assert later(400 + step) == whole(step)
    # On a device too; before it comes nothing, only updates that skipped steps have delayed.
    schedule = config(shape, **changes, schedule_start=400).schedule(400 + STEPS)
    plain = config(shape, **changes).schedule(STEPS)
    for step in (0, 5, 50, STEPS - 1):
        assert schedule(jnp.int32(400 + step)) == plain(jnp.int32(step))
    assert schedule(jnp.int32(397)) == schedule(jnp.int32(400)) == plain(jnp.int32(0))


def test_lengths_that_do_not_fit_the_steps_that_are_left_are_refused_with_those():
    wrong = GrugOptimizerConfig(schedule_start=95, warmup_steps=5)
    with pytest.raises(ConfigError, match=r"5 steps from optim\.schedule_start=95.*Fix: "):
        wrong.schedule(STEPS)
