"""What a process is told before it steps on CPU devices."""

import os
import subprocess
import sys

import pytest

# A program with 128 MiB in between, and the pages that each run of it waits for.
SCRIPT = """
import resource, sys
from chomp.mesh import prepare_cpu_steps
if sys.argv[1] == "prepared":
    prepare_cpu_steps()
import jax, jax.numpy as jnp
x = jnp.ones((4096, 4096))
run = jax.jit(lambda x: jnp.cumsum(jnp.cumsum(x, 0)[::-1], 1).sum())
run(x).block_until_ready()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(2):
    run(x).block_until_ready()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(jax.config.values["jax_cpu_enable_async_dispatch"])
"""


def pages_and_dispatch(way: str, platforms: str = "cpu") -> tuple[int, str]:
    environment = os.environ | {"JAX_PLATFORMS": platforms}
    command = [sys.executable, "-c", SCRIPT, way]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    pages, dispatch = done.stdout.split()
    return int(pages), dispatch


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts pages as Linux does, with glibc")
def test_a_step_finds_the_memory_of_the_last_one_still_there():
    plain, prepared = pages_and_dispatch("plain"), pages_and_dispatch("prepared")
    assert prepared[0] < plain[0] / 2
    assert (plain[1], prepared[1]) == ("True", "False")


def test_where_other_devices_come_first_nothing_is_changed():
    script = "from chomp.mesh import prepare_cpu_steps; import jax; prepare_cpu_steps(); "
    script += "print(jax.config.values['jax_cpu_enable_async_dispatch'])"
    environment = os.environ | {"JAX_PLATFORMS": "cuda,cpu"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
