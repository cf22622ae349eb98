"""Splash attention in Pallas' interpreter: the masks it is given are the masks we mean."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_attention import Rows, deviations
from jax.sharding import PartitionSpec as P

from chomp.kernels.attention import AttentionMask
from chomp.kernels.attention.api import on_local_shards
from chomp.kernels.attention.splash import splash_attention
from chomp.mesh import BATCH_AXES

DOCUMENTS = ((7, 1, 130, 61), (256,))
interpreted = partial(splash_attention, is_interpreted=True)


def found_by_splash(rows: Rows, arrays: list[jax.Array]) -> dict[str, jax.Array]:
    ids = None if rows.segment_ids is None else jnp.asarray(rows.segment_ids)
    mask = AttentionMask(is_causal=rows.is_causal, sliding_window=rows.window, segment_ids=ids)
    *inputs, weight = arrays

    def total(*inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = on_local_shards(interpreted, *inputs, mask, is_checked=False)
        return jnp.sum(out * weight), out

    gradients, out = jax.jit(jax.grad(total, argnums=(0, 1, 2), has_aux=True))(*inputs)
    return {"out": out, **dict(zip("qkv", gradients, strict=True))}


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("is_causal", "window", "documents"),
    [
        (True, 37, DOCUMENTS),
        pytest.param(True, None, None, marks=SLOW),
        pytest.param(True, None, DOCUMENTS, marks=SLOW),
        pytest.param(True, 1, None, marks=SLOW),
        pytest.param(False, None, None, marks=SLOW),
        pytest.param(False, 37, DOCUMENTS, marks=SLOW),
    ],
)
def test_splash_agrees_with_float64(is_causal, window, documents):
    rows = Rows(length=256, width=64, is_causal=is_causal, window=window, documents=documents)
    found = found_by_splash(rows, [jnp.asarray(a, jnp.float32) for a in rows.arrays()])
    off = deviations(found, rows.exact())
    assert max(off.values()) < 5e-6, off


@pytest.mark.slow
def test_splash_runs_on_each_devices_own_rows_and_heads(eight_device_mesh):
    rows = Rows(batch=4, length=128, width=64, documents=((7, 1, 90),) * 4)
    with jax.set_mesh(eight_device_mesh):
        heads = P(BATCH_AXES, None, "model", None)
        arrays = [jax.reshard(np.asarray(a, np.float32), heads) for a in rows.arrays()]
        found = found_by_splash(rows, arrays)
    assert found["k"].sharding.spec == heads
    off = deviations(found, rows.exact())
    assert max(off.values()) < 5e-6, off
