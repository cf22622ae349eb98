"""What cuDNN is asked for, without a GPU: the lowered call, and our side of the packed contract.

The library's own numbers are in `test_attention_gpu.py`. Stood in for here: JAX's questions about
the machine (version, chip), and in one test its packed form, by its documented contract.
"""

import json
import re
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_attention import Rows, deviations
from jax._src.cudnn import fused_attention_stablehlo as fused
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from chomp.errors import ConfigError
from chomp.kernels.attention import AttentionMask
from chomp.kernels.attention.api import LocalAttention, on_local_shards
from chomp.kernels.attention.cudnn import cudnn_attention, cudnn_packed_attention
from chomp.kernels.attention.mask import max_segments
from chomp.mesh import BATCH_AXES

# Axes: B batch, S positions, H query heads, G key-value heads, K head width.

GARBAGE = 777.0  # what memory may hold where nothing was written


@pytest.fixture
def _hopper(monkeypatch):
    """JAX believes that this machine has a Hopper GPU and cuDNN 9.19."""
    version = SimpleNamespace(cudnn_get_version=lambda: 91900)
    monkeypatch.setattr(fused, "cuda_versions", version)
    monkeypatch.setattr(fused, "check_compute_capability", lambda capability: True)


def calls_of(run: LocalAttention, mask: AttentionMask, shardings: list[Any]) -> list[dict]:
    """The calls into cuDNN in forward and backward, as lowered for CUDA: name, operands, mask."""

    def total(q: jax.Array, k: jax.Array, v: jax.Array, ids: jax.Array | None) -> jax.Array:
        out = on_local_shards(run, q, k, v, mask.with_segment_ids(ids))
        return jnp.sum(out.astype(jnp.float32))

    heads, rows = shardings
    q, k = (
        jax.ShapeDtypeStruct((8, 48, count, 64), jnp.bfloat16, sharding=heads) for count in (4, 2)
    )
    ids = jax.ShapeDtypeStruct((8, 48), jnp.int32, sharding=rows)
    traced = jax.jit(jax.grad(total, argnums=(0, 1, 2))).trace(
        q, k, k, ids if run is cudnn_packed_attention else None
    )
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    pattern = r'@__cudnn\$(\w+)\(.*?backend_config = "(.*?)", operand_layouts.*? : \((.*?)\) ->'
    found = []
    for name, config, operands in re.findall(pattern, text):
        told = json.loads(config.replace("\\22", '"'))["cudnn_fmha_backend_config"]
        names = ("mask_type", "sliding_window_length", "max_seg_per_batch", "fmha_scale")
        found.append({"name": name, "operands": operands} | {n: told[n] for n in names})
    return found


@pytest.mark.usefixtures("_hopper")
@pytest.mark.parametrize(
    ("run", "mask", "kind", "window"),
    [
        (cudnn_attention, AttentionMask.causal(), "CAUSAL", 0),
        (cudnn_attention, AttentionMask.causal(sliding_window=9), "CAUSAL", 9),
        (cudnn_attention, AttentionMask(is_causal=False), "NO_MASK", 0),
        (cudnn_packed_attention, AttentionMask.causal(), "PADDING_CAUSAL", 0),
        (cudnn_packed_attention, AttentionMask.causal(sliding_window=9), "PADDING_CAUSAL", 9),
        (cudnn_packed_attention, AttentionMask(is_causal=False), "PADDING", 0),
    ],
)
def test_the_library_is_told_the_mask_in_both_directions(run, mask, kind, window):
    forward, backward = calls_of(run, mask, [None, None])
    assert forward["name"] == "fmhaSoftmax"
    assert backward["name"] == "fmhaSoftmaxBackward"
    for call in (forward, backward):
        assert (call["mask_type"], call["sliding_window_length"]) == (kind, window)
        assert call["fmha_scale"] == 0.125
        assert call["max_seg_per_batch"] == (12 if run is cudnn_packed_attention else 1)
        heads = [f"tensor<8x48x{count}x64xbf16>" for count in (4, 2, 2)]
        assert call["operands"].split(", ")[:3] == heads


@pytest.mark.usefixtures("_hopper")
@pytest.mark.parametrize("run", [cudnn_attention, cudnn_packed_attention])
def test_each_device_calls_the_library_with_its_own_rows_and_heads(run, eight_device_mesh):
    with jax.set_mesh(eight_device_mesh):
        specs = P(BATCH_AXES, None, "model", None), P(BATCH_AXES, None)
        shardings = [NamedSharding(eight_device_mesh, spec) for spec in specs]
        calls = calls_of(run, AttentionMask.causal(), shardings)
    assert [call["name"] for call in calls] == ["fmhaSoftmax", "fmhaSoftmaxBackward"]
    # Eight rows over four, four heads over two.
    assert all(call["operands"].startswith("tensor<2x48x2x64xbf16>") for call in calls)


class LibraryByContract:
    """cuDNN's packed form as its documentation has it; what no document covers is garbage.

    Heads lie as they do in memory, and a document is so many tokens from an offset in numbers.
    """

    def __init__(self, room):
        self.room = room

    def bind(self, q, k, v, bias, lengths, kv_lengths, starts, kv_starts, *pages, **told):
        assert bias.size == 0
        assert all(page.size == 0 for page in pages)
        assert (lengths.dtype, starts.dtype) == (jnp.int32, jnp.int32)
        assert lengths.shape == (q.shape[0], self.room)
        assert starts.shape == kv_starts.shape == (lengths.shape[0], lengths.shape[1] + 1)
        assert told["mask_type"] is fused.MaskType.PADDING_CAUSAL
        np.testing.assert_array_equal(lengths, kv_lengths)
        out = np.full((q.shape[0] * q.shape[1], *q.shape[2:]), GARBAGE)
        lines = [np.asarray(heads, np.float64).reshape(-1, *heads.shape[2:]) for heads in (q, k, v)]
        strides = [line[0].size for line in lines]
        for i, length in enumerate(np.asarray(lengths).reshape(-1)):
            first = int(starts.reshape(-1)[i]), int(kv_starts.reshape(-1)[i])
            assert first[0] % strides[0] == first[1] % strides[1] == 0
            at = [first[0] // strides[0], *[first[1] // strides[1]] * 2]
            here = [line[a : a + length] for line, a in zip(lines, at, strict=True)]
            out[at[0] : at[0] + length] = self.document(*here, **told)
        return [jnp.asarray(out.reshape(q.shape), jnp.float32)]

    def document(self, q, k, v, *, scale, sliding_window_length, **_):
        k, v = (np.repeat(heads, q.shape[1] // heads.shape[1], axis=1) for heads in (k, v))
        scores = np.einsum("qhk,thk->hqt", q, k) * scale
        distance = np.subtract.outer(np.arange(len(q)), np.arange(len(q)))
        is_seen = (distance >= 0) & (distance < (sliding_window_length or len(q) + 1))
        shares = np.exp(np.where(is_seen, scores, -np.inf))
        return np.einsum("hqt,thk->qhk", shares / shares.sum(-1, keepdims=True), v)


@pytest.mark.parametrize("window", [None, 5])
def test_documents_reach_the_packed_form_whole_and_too_many_of_them_are_nan(monkeypatch, window):
    length, usual = 80, max_segments(80)
    room, packed = 3 * usual, "_dot_product_attention_fwd_p"
    # The second row has more documents than a row's room, out of what the others leave.
    many = ((7, 1, 30, 20), (1,) * (room - 4), (40, 40))
    for documents, asked, fits in (
        (((7, 1, 30, 22), (1,) * (room - 7), ()), None, True),
        (many, None, False),
        (many, 2 * usual, True),
    ):
        monkeypatch.setattr(fused, packed, LibraryByContract(asked or usual))
        rows = Rows(batch=3, length=length, window=window, documents=documents)
        q, k, v, _ = (jnp.asarray(array, jnp.float32) for array in rows.arrays())
        ids = jnp.asarray(rows.segment_ids)
        mask = AttentionMask.causal(sliding_window=window, segment_ids=ids)
        mask = mask.with_max_segments(asked)
        found = cudnn_packed_attention(q, k, v, mask)
        if fits:
            off = deviations({"out": found}, {"out": rows.exact()["out"]})
            assert off["out max"] < 2e-6
        else:
            assert np.isnan(found[0]).all()


def test_rows_whose_offsets_would_not_fit_32_bits_are_refused_with_what_fits():
    q, k = (jax.ShapeDtypeStruct((600, 8192, h, 128), jnp.bfloat16) for h in (32, 8))
    ids = jax.ShapeDtypeStruct((600, 8192), jnp.int32)
    with pytest.raises(ConfigError, match=r"600 rows on a device, .*at most 63 such rows"):
        jax.eval_shape(
            lambda q, k, ids: cudnn_packed_attention(
                q, k, k, AttentionMask.causal(segment_ids=ids)
            ),
            q,
            k,
            ids,
        )
