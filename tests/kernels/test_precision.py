"""A precision policy is read from text, or refused, and casts floating-point arrays alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chomp.errors import ConfigError
from chomp.kernels.precision import Precision


@pytest.mark.parametrize(
    ("text", "params", "compute"),
    [
        ("params=float32,compute=bfloat16", "float32", "bfloat16"),
        ("compute=bfloat16, params=bfloat16", "bfloat16", "bfloat16"),
        ("compute=bfloat16", "float32", "bfloat16"),
        ("params=bfloat16,", "bfloat16", "float32"),
    ],
)
def test_a_policy_is_read_part_by_part_and_a_part_left_out_is_float32(text, params, compute):
    assert Precision.parse(text) == Precision(params=params, compute=compute)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", ",", "="),
        *("bfloat16", "params:float32", "output=float32", "params=float32,params=bfloat16"),
    ],
)
def test_a_policy_that_cannot_be_read_is_shown_with_one_that_can(text):
    with pytest.raises(ConfigError, match=rf"^precision '{text}'\. Allowed: .* Fix: write for"):
        Precision.parse(text)


@pytest.mark.parametrize("part", ["params", "compute"])
@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "", "Float32"])
def test_another_dtype_is_refused_with_those_that_there_are(part, dtype):
    told = rf"^precision {part}={dtype}\. Allowed: float32 or bfloat16; .* Fix: .*compute=bfloat16"
    with pytest.raises(ConfigError, match=told):
        Precision.parse(f"{part}={dtype}")


def test_only_floating_point_arrays_are_cast():
    key = jax.random.key(0)
    tree = {"w": jnp.ones(2), "step": jnp.int32(3), "key": key, "name": "a", "nothing": None}
    policy = Precision(params="float32", compute="bfloat16")
    stored, computed = policy.for_params(tree), policy.for_compute(tree)
    assert (stored["w"].dtype, computed["w"].dtype) == (jnp.float32, jnp.bfloat16)
    for cast in (stored, computed):
        assert cast["step"].dtype == jnp.int32
        assert cast["key"] is key
        assert (cast["name"], cast["nothing"]) == ("a", None)


def test_gradients_come_back_in_the_dtype_of_the_parameters():
    policy = Precision(compute="bfloat16")
    gradient = jax.grad(lambda w: jnp.sum(policy.for_compute(w) ** 2).astype(jnp.float32))
    found = gradient(jnp.asarray([1.0, 2.0]))
    assert found.dtype == jnp.float32
    np.testing.assert_array_equal(found, [2.0, 4.0])


def test_time_constants_and_state_stay_float32_where_the_groups_are_told():
    tree = {name: jnp.ones(2) for name in ("w", "rate", "bias")}
    groups = {"w": "matrix", "rate": "dynamics", "bias": "state"}
    policy = Precision(params="bfloat16", compute="bfloat16")
    for cast, dtype in ((policy.for_params, jnp.bfloat16), (policy.for_compute, jnp.bfloat16)):
        found = cast(tree, groups)
        assert [found[name].dtype for name in tree] == [dtype, jnp.float32, jnp.float32]
