"""Quick programs compute what others do, under whatever options the compiler knows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chomp.kernels.platform import quick_jit


def softmax_of_product(a: jax.Array, b: jax.Array) -> jax.Array:
    return jax.nn.softmax(a @ b, axis=-1)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_a_quick_program_gives_what_a_slow_one_gives(platform):
    a, b = jnp.arange(6.0).reshape(2, 3), jnp.ones((3, 4)).at[1, 1].set(0.5)
    found = quick_jit(softmax_of_product, platform)(a, b)
    np.testing.assert_allclose(found, softmax_of_product(a, b), rtol=1e-6)


def test_options_that_this_compiler_does_not_know_are_passed_over():
    options = [{"xla_no_such_switch": True}, {"xla_backend_optimization_level": 0}]
    assert quick_jit(jnp.sin, "cpu", options=options)(jnp.float32(0)) == 0
    assert quick_jit(jnp.sin, "cpu", options=options[:1])(jnp.float32(0)) == 0


def test_an_error_of_the_program_itself_is_not_passed_over():
    def refuse(_):
        raise RuntimeError("not today")

    def refusing(x):
        return jax.pure_callback(refuse, jax.ShapeDtypeStruct((), jnp.float32), x)

    with pytest.raises(Exception, match="not today"):
        jax.block_until_ready(quick_jit(refusing, "cpu")(jnp.float32(1)))
