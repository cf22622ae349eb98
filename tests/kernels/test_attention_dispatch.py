"""The way into attention: which backend runs, what is refused, and that meshes change nothing."""

import logging
import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_attention import Rows, deviations
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from chomp.errors import ConfigError
from chomp.kernels.attention import (
    AttentionCall,
    AttentionMask,
    Backend,
    attention,
    choose_backend,
    reference_attention,
)
from chomp.kernels.attention.api import log_choice
from chomp.kernels.platform import platform_of
from chomp.mesh import AXES, BATCH_AXES, MeshConfig, create_mesh

HEADS = P(BATCH_AXES, None, "model", None)
DOCUMENTS = ((5, 1, 11, 3), (24,))

GPU = AttentionCall(
    platform="gpu",
    dtype="bfloat16",
    head_dim=128,
    num_heads=8,
    num_kv_heads=2,
    seq_len=1024,
    compute_capability=(9, 0),
)
CPU = replace(GPU, platform="cpu", dtype="float32", compute_capability=None)
TPU = replace(GPU, platform="tpu", compute_capability=None)

# Call, the backend that `auto` takes, and for a fallback what its reason says.
CHOICES = {
    "cpu": (CPU, "chunked", None),
    "cpu, documents in a window": (
        replace(CPU, has_documents=True, has_window=True),
        "chunked",
        None,
    ),
    "gpu": (GPU, "cudnn", None),
    "gpu, float16": (replace(GPU, dtype="float16"), "cudnn", None),
    "gpu, a window": (replace(GPU, has_window=True), "cudnn", None),
    "gpu, not causal": (replace(GPU, is_causal=False), "cudnn", None),
    "gpu, an odd length": (replace(GPU, seq_len=1023), "chunked", "an even length, not 1023"),
    "gpu, documents, an odd length": (
        replace(GPU, seq_len=1023, has_documents=True),
        "cudnn_packed",
        None,
    ),
    "gpu, wide heads": (replace(GPU, head_dim=256), "cudnn", None),
    "gpu, documents": (replace(GPU, has_documents=True), "cudnn_packed", None),
    "older gpu": (replace(GPU, compute_capability=(8, 0)), "cudnn", None),
    "gpu, float32": (replace(GPU, dtype="float32"), "chunked", "bfloat16 and float16, not float32"),
    "gpu, odd heads": (replace(GPU, head_dim=100), "chunked", r"head_dim of 8, 16, \.\. 256"),
    "gpu, window to the future": (
        replace(GPU, is_causal=False, has_window=True),
        "chunked",
        "it would show the future",
    ),
    "gpu, too wide heads": (replace(GPU, head_dim=264), "chunked", "not 264"),
    "older gpu, wide heads": (
        replace(GPU, compute_capability=(8, 6), head_dim=256),
        "chunked",
        r"head_dim of 8, 16, \.\. 128, not 256",
    ),
    "older gpu, documents": (
        replace(GPU, compute_capability=(8, 9), has_documents=True),
        "chunked",
        r"cudnn_packed cannot do this call: .* 9\.0 or more",
    ),
    "old gpu": (replace(GPU, compute_capability=(7, 5)), "chunked", r"this GPU has 7\.5"),
    "gpu of another make": (replace(GPU, compute_capability=None), "chunked", "an NVIDIA GPU"),
    "tpu": (TPU, "splash", None),
    "tpu, documents": (replace(TPU, has_documents=True, dtype="float32"), "splash", None),
    "tpu, an odd length": (replace(TPU, seq_len=1000), "chunked", "multiple of 128 tokens"),
    "tpu, float16": (replace(TPU, dtype="float16"), "chunked", "not float16"),
    "tpu, small heads": (replace(TPU, head_dim=32), "chunked", "multiple of 64, not 32"),
    "another platform": (replace(TPU, platform="npu"), "chunked", "the platform npu"),
}


@pytest.mark.parametrize(("call", "name", "limit"), CHOICES.values(), ids=CHOICES.keys())
def test_auto_takes_the_fast_backend_or_says_why_not(call, name, limit):
    choice = choose_backend(call)
    assert (choice.name, choice.is_fallback) == (name, limit is not None)
    if limit is None:
        assert choice.reason == f"the fast one on {call.platform}"
        assert choose_backend(call, choice.name).name == choice.name
    else:
        assert re.search(limit, choice.reason), choice.reason


@pytest.mark.parametrize(
    ("call", "requested", "words"),
    [
        (
            CPU,
            "cudnn",
            r"NVIDIA GPU, and this program is for cpu\. Allowed: .* reference, chunked\.",
        ),
        (CPU, "cudnn_packed", "takes rows of documents"),
        (CPU, "splash", "needs a TPU"),
        (GPU, "cudnn_packed", r"\(cudnn does without\)\. Allowed: .*: reference, chunked, cudnn\."),
        (replace(GPU, has_documents=True), "cudnn", r"\(cudnn_packed does\)"),
        (replace(GPU, head_dim=20), "cudnn", r"head_dim of 8, 16, \.\. 256, not 20"),
        (replace(TPU, seq_len=100), "splash", "multiple of 128 tokens, not 100"),
    ],
)
def test_a_backend_asked_for_by_name_runs_or_is_refused_with_those_that_would(
    call, requested, words
):
    with pytest.raises(ConfigError, match=f"^attention backend {requested}, .*{words}"):
        choose_backend(call, requested)
    for name in ("reference", "chunked"):
        choice = choose_backend(call, name)
        assert (choice.name, choice.is_fallback) == (name, False)


def test_a_choice_is_logged_once_and_a_fallback_loudly(caplog):
    log_choice.cache_clear()
    with caplog.at_level(logging.INFO, logger="chomp"):
        for call in (CPU, CPU, replace(GPU, dtype="float32"), replace(GPU, dtype="float32")):
            log_choice(choose_backend(call))
    (calm, loud) = caplog.records
    assert (calm.levelname, calm.getMessage()) == (
        "INFO",
        "attention backend chunked: the fast one on cpu",
    )
    assert loud.levelname == "WARNING"
    assert "not float32" in loud.getMessage()
    assert "Set model.attention to" in loud.getMessage()


def masked(rows: Rows) -> AttentionMask:
    return AttentionMask(
        is_causal=rows.is_causal, sliding_window=rows.window, segment_ids=rows.segment_ids
    )


@partial(jax.jit, static_argnames=("backend",))
def result_and_gradients(
    arrays: tuple[jax.Array, ...], mask: AttentionMask, backend: Backend
) -> dict[str, jax.Array]:
    *inputs, weight = arrays

    def total(*inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = attention(*inputs, mask, backend=backend)
        return jnp.sum((out * weight).astype(jnp.float32)), out

    gradients, out = jax.grad(total, argnums=(0, 1, 2), has_aux=True)(*inputs)
    return {"out": out, **dict(zip("qkv", gradients, strict=True))}


def arrays_of(rows: Rows, dtype: str = "float32") -> tuple[jax.Array, ...]:
    return tuple(jnp.asarray(array, jnp.dtype(dtype)) for array in rows.arrays())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_every_backend_of_the_cpu_agrees_with_float64(backend, dtype):
    rows = Rows(window=7, documents=DOCUMENTS)
    found = result_and_gradients(arrays_of(rows, dtype), masked(rows), backend)
    off = deviations(found, rows.exact())
    print(backend, dtype, {name: f"{value:.1e}" for name, value in off.items()})
    # bfloat16 has steps of 2^-8, and the gradients of shares sum a few of them.
    assert max(off.values()) < (2e-6 if dtype == "float32" else 2e-2), off


GRID = [
    Rows(length=131, kv_heads=kv_heads, is_causal=is_causal, window=window, documents=documents)
    for kv_heads in (4, 1)
    for is_causal in (True, False)
    for window in (None, 1, 7)
    for documents in (None, DOCUMENTS)
]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("backend", ["reference", "chunked"])
@pytest.mark.parametrize("rows", GRID, ids=str)
def test_the_whole_grid_agrees_with_float64(rows, backend, dtype):
    found = result_and_gradients(arrays_of(rows, dtype), masked(rows), backend)
    off = deviations(found, rows.exact())
    assert max(off.values()) < (5e-6 if dtype == "float32" else 3e-2), off


@pytest.mark.parametrize(
    ("data", "model"),
    [
        *[(1, 1), (8, 1), (1, 4), (4, 2)],
        *[pytest.param(*cut, marks=pytest.mark.slow) for cut in [(2, 1), (1, 2), (4, 1), (2, 4)]],
    ],
)
def test_rows_and_heads_cut_over_any_mesh_give_what_one_device_gives(data, model):
    rows = Rows(batch=8, heads=8, kv_heads=4, window=7, documents=DOCUMENTS * 4)
    mesh = create_mesh(MeshConfig(data=data, model=model), devices=jax.devices()[: data * model])
    with jax.set_mesh(mesh):
        arrays = tuple(jax.reshard(array, HEADS) for array in arrays_of(rows))
        # The ids come as the loader leaves them, and as one that forgot to place them.
        ids = rows.segment_ids if model == 1 else jax.reshard(rows.segment_ids, P("data", None))
        mask = AttentionMask.causal(sliding_window=rows.window, segment_ids=ids)
        found = result_and_gradients(arrays, mask, "auto")
    assert all(array.sharding.spec == HEADS for array in found.values())
    off = deviations(found, rows.exact())
    assert max(off.values()) < 2e-6, off


def test_keys_that_are_whole_are_cut_like_the_queries(eight_device_mesh):
    rows = Rows(batch=4, documents=DOCUMENTS[:1])
    q, k, v, _ = arrays_of(rows)
    rows = replace(rows, documents=DOCUMENTS[:1] * 4)
    with jax.set_mesh(eight_device_mesh):
        # One row of ids stands for all.
        mask = AttentionMask.causal(segment_ids=rows.segment_ids[:1])
        found = jax.jit(attention)(jax.reshard(q, HEADS), k, v, mask)
    assert found.sharding.spec == HEADS
    assert deviations({"out": found}, {"out": rows.exact()["out"]})["out max"] < 2e-6


@pytest.mark.parametrize(
    ("queries", "offset", "kind"),
    [(2, 0, int), (2, 3, int), (24, 3, int), (24, 3, jnp.int32), (24, 0, jnp.int32)],
)
def test_decoding_is_the_references_whatever_is_asked_for(queries, offset, kind):
    q, k, v, _ = arrays_of(Rows())
    mask = AttentionMask.causal(sliding_window=5)
    # cuDNN would be refused on this machine, and has no offset anywhere.
    found = attention(q[:, :queries], k, v, mask, query_offset=kind(offset), backend="cudnn")
    expected = reference_attention(q[:, :queries], k, v, mask, query_offset=offset)
    np.testing.assert_array_equal(found, expected)


def test_key_value_heads_that_a_mesh_cannot_cut_are_refused_with_sizes_that_work(
    eight_device_mesh,
):
    q, k, v, _ = arrays_of(Rows(batch=4, heads=6, kv_heads=3))
    with (
        jax.set_mesh(eight_device_mesh),
        pytest.raises(
            ConfigError, match=r"num_kv_heads=3 .* into 2 over model\. .* mesh.model to .*\[1, 3\]"
        ),
    ):
        attention(jax.reshard(q, HEADS), k, v, AttentionMask.causal())


def test_rows_cut_along_their_length_are_refused(eight_device_mesh):
    q, k, v, _ = arrays_of(Rows())
    with (
        jax.set_mesh(eight_device_mesh),
        pytest.raises(ConfigError, match=r"queries cut as .*'model'.* Allowed: cuts of the batch"),
    ):
        attention(jax.reshard(q, P(None, "model", None, None)), k, v, AttentionMask.causal())


def test_a_backend_that_cannot_run_here_is_refused_before_anything_is_compiled():
    q, k, v, _ = arrays_of(Rows())
    with pytest.raises(ConfigError, match=r"attention backend splash, .*this program is for cpu"):
        attention(q, k, v, AttentionMask.causal(), backend="splash")


def test_the_platform_is_that_of_the_mesh_a_program_is_traced_for():
    chip = jax.sharding.AbstractDevice(device_kind="TPU v6 lite", num_cores=1, platform="tpu")
    mesh = AbstractMesh(
        (1, 2, 1, 1), AXES, axis_types=(AxisType.Explicit,) * 4, abstract_device=chip
    )
    seen = []
    x = jax.ShapeDtypeStruct((2, 4), jnp.float32, sharding=NamedSharding(mesh, P("data", None)))
    with jax.sharding.use_abstract_mesh(mesh):
        jax.eval_shape(lambda x: seen.append(platform_of(x)), x)
    assert seen == ["tpu"]
    assert platform_of(jnp.ones(1)) == "cpu"
