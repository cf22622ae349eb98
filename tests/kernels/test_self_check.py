"""The start-up check passes right kernels and catches wrong ones, on the run's own masks."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from chomp.errors import ConfigError, KernelError
from chomp.kernels.attention import AttentionMask, attention, reference_attention
from chomp.kernels.loss import chunk_rows, linear_cross_entropy
from chomp.kernels.platform import quick_jit
from chomp.kernels.self_check import (
    Deviation,
    KernelReport,
    KernelShapes,
    attention_choice,
    attention_inputs,
    attention_pairs,
    check_kernels,
    deviation,
    length_of_several_chunks,
    loss_inputs,
    loss_pairs,
    tolerance,
)

WINDOW = 12
SHAPES = KernelShapes(
    num_heads=8,
    num_kv_heads=4,
    head_dim=8,
    hidden_dim=32,
    vocab_size=512,
    seq_len=64,
    sliding_window=WINDOW,
    logit_soft_cap=20.0,
)


def segment_ids(num_rows: int, *, length: int = 64, seed: int = 0) -> np.ndarray:
    """Rows of several documents, some longer than the window, with padding at the end."""
    random = np.random.default_rng(seed)
    ids = np.cumsum(random.random((num_rows, length)) < 0.05, axis=1, dtype=np.int32)
    ids -= ids[:, :1]
    ids[:, length - 5 :] = -1
    return ids


MASK = AttentionMask.causal(segment_ids=segment_ids(6))


# ---- Wrong kernels --------------------------------------------------------------------------

Attend = Callable[..., jax.Array]


def with_mask(**changes: Any) -> Attend:
    """Attention under another mask than it was asked for."""
    return lambda q, k, v, mask: reference_attention(q, k, v, dataclasses.replace(mask, **changes))


def heads_mapped_in_turn(q, k, v, mask):
    """Query head h with key-value head h % G, where h // R is right."""
    repeats, spec = q.shape[2] // k.shape[2], jax.typeof(q).sharding.spec
    k, v = (jax.reshard(x, P(*spec[:2], None, None)) for x in (k, v))
    k, v = (jax.reshard(jnp.concatenate([x] * repeats, axis=2), spec) for x in (k, v))
    return reference_attention(q, k, v, mask)


def steep_gradient(q, k, v, mask):
    """Right values; gradients of k and v a twentieth too large."""
    right = reference_attention(q, k, v, mask)
    more = reference_attention(jax.lax.stop_gradient(q), k, v, mask)
    return right + jnp.asarray(0.05, right.dtype) * (more - jax.lax.stop_gradient(more))


def nan_at(position: int) -> Attend:
    def attend(q, k, v, mask):
        is_there = jnp.arange(q.shape[1])[None, :, None, None] == position
        return jnp.where(is_there, jnp.nan, reference_attention(q, k, v, mask))

    return attend


@jax.custom_vjp
def nan_behind(x):
    return x


nan_behind.defvjp(lambda x: (x, None), lambda _, slope: (slope * jnp.nan,))

WRONG_ATTENTION: dict[str, Attend] = {
    "leaks across documents": with_mask(segment_ids=None),
    "sees one key too many": with_mask(sliding_window=WINDOW + 1),
    "sees one key too few": with_mask(sliding_window=WINDOW - 1),
    "ignores the window": with_mask(sliding_window=None),
    "sees the future": with_mask(is_causal=False),
    "maps heads in turn": heads_mapped_in_turn,
    "scales by the width": lambda q, k, v, mask: reference_attention(
        q * q.shape[-1] ** -0.5, k, v, mask
    ),
    "has a steep gradient": steep_gradient,
    "is NaN at one token": nan_at(20),
    "is NaN at padding": nan_at(63),
    "has a gradient of NaN": lambda q, k, v, mask: reference_attention(nan_behind(q), k, v, mask),
}


def unweighted(hidden, head, labels, weight, **how):
    return linear_cross_entropy(hidden, head, labels, jnp.ones_like(weight), **how)


def without_cap(hidden, head, labels, weight, **how):
    return linear_cross_entropy(hidden, head, labels, weight, **how | {"logit_soft_cap": None})


def z_loss_without_gradient(hidden, head, labels, weight, **how):
    plain = partial(linear_cross_entropy, labels=labels, weight=weight)
    without = plain(hidden, head, **how | {"logsumexp_weight": 0.0})
    return without + jax.lax.stop_gradient(plain(hidden, head, **how) - without)


@jax.custom_vjp
def forgets_slope(x):
    return x


forgets_slope.defvjp(lambda x: (x, None), lambda _, slope: (jnp.ones_like(slope),))

WRONG_LOSSES: dict[str, Callable[..., jax.Array]] = {
    "ignores weights": unweighted,
    "ignores the cap": without_cap,
    "has no gradient of the z-loss": z_loss_without_gradient,
    "forgets the slope": lambda *x, **how: forgets_slope(linear_cross_entropy(*x, **how)),
    "is a mean": lambda *x, **how: linear_cross_entropy(*x, **how | {"reduction": "mean"}),
    "mixes up tokens that are not summed": lambda *x, **how: (
        linear_cross_entropy(*x, **how)[..., ::-1]
        if how["reduction"] == "none"
        else linear_cross_entropy(*x, **how)
    ),
    "is NaN": lambda *x, **how: linear_cross_entropy(*x, **how) * jnp.nan,
}


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def found(request, one_device_mesh) -> tuple[str, dict[str, dict[str, Deviation]]]:
    """Deviations of every kernel above and of the right ones, from one program."""
    dtype = request.param
    heads = attention_inputs(SHAPES, MASK, "chunked", dtype=dtype, mesh=one_device_mesh)
    tokens = loss_inputs(SHAPES, dtype=dtype, mesh=one_device_mesh)
    mask = AttentionMask.causal(sliding_window=WINDOW, segment_ids=heads.segment_ids)
    kernels = {"attention": attention, **WRONG_ATTENTION}
    losses = {"loss": linear_cross_entropy, **WRONG_LOSSES}

    def compare(heads, mask, tokens):
        attended = {name: attention_pairs(kernel, heads, mask) for name, kernel in kernels.items()}
        scored = {
            name: loss_pairs(loss, tokens, SHAPES.logit_soft_cap) for name, loss in losses.items()
        }
        return {**attended, **scored}

    with jax.set_mesh(one_device_mesh):
        pairs = quick_jit(compare, "cpu")(heads, mask, tokens)
    return dtype, {
        name: {part: deviation(*pair) for part, pair in parts.items()}
        for name, parts in pairs.items()
    }


def test_right_kernels_are_within_half_of_the_tolerance(found):
    dtype, deviations = found
    allowed = tolerance(dtype, "cpu")
    half = Deviation(allowed.relative / 2, allowed.worst / 2)
    for kernel in ("attention", "loss"):
        for part, off in deviations[kernel].items():
            assert off.is_within(half), (kernel, part, off)


@pytest.mark.parametrize("name", [*WRONG_ATTENTION, *WRONG_LOSSES])
def test_a_wrong_kernel_is_out_of_tolerance(found, name):
    dtype, deviations = found
    allowed = tolerance(dtype, "cpu")
    assert not all(off.is_within(allowed) for off in deviations[name].values())


# ---- The check as a run calls it ------------------------------------------------------------


def report_of(mesh: jax.sharding.Mesh, shapes: KernelShapes = SHAPES, **how: Any) -> KernelReport:
    return check_kernels(shapes, MASK, **{"dtype": "float32", "mesh": mesh, **how})


def test_a_run_with_right_kernels_is_told_which_and_how_far_off_they_are(one_device_mesh):
    report = report_of(one_device_mesh)
    summary = report.summary()
    assert summary["kernels/attention"] == report.choice.name == "chunked"
    assert summary["kernels/loss"] == "xla"
    assert 0 <= summary["kernels/attention_deviation"] < tolerance("float32", "cpu").relative
    assert 0 < summary["kernels/loss_deviation"] < tolerance("float32", "cpu").relative
    assert summary["kernels/self_check_seconds"] == report.seconds > 0
    assert report.line().startswith("attention chunked (the fast one on cpu); off the reference by")
    lines = report.table().splitlines()
    assert len(lines) == 1 + 4 + 4 + 1
    assert all(len(line) <= 100 for line in [report.line()[:100], *lines])


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_kernels_pass_on_a_mesh_that_cuts_rows_and_heads(eight_device_mesh, dtype):
    report = report_of(eight_device_mesh, dtype=dtype)
    assert report.attention_shape[0] % 4 == 0
    assert all(off.is_within(report.tolerance) for off in report.attention.values())


@pytest.mark.parametrize(
    ("planted", "kernel", "remedy"),
    [
        (
            {"attend": lambda *x, backend: WRONG_ATTENTION["leaks across documents"](*x)},
            "attention backend chunked",
            "--attention reference",
        ),
        ({"loss_of": unweighted}, "loss kernel", "another device"),
    ],
    ids=["attention", "loss"],
)
def test_a_planted_kernel_stops_the_run_with_its_name_and_what_to_do(
    one_device_mesh, planted, kernel, remedy
):
    with pytest.raises(KernelError) as caught:
        report_of(one_device_mesh, **planted)
    assert kernel in caught.value.given
    assert "float32" in caught.value.given
    assert "7.6e-06" in caught.value.allowed
    assert remedy in caught.value.fix
    assert f"jax {jax.__version__}" in caught.value.fix


def test_the_backend_is_the_one_of_the_whole_runs_shapes(one_device_mesh):
    asked = dataclasses.replace(SHAPES, backend="reference")
    choice = attention_choice(asked, MASK, dtype="float32", mesh=one_device_mesh)
    assert (choice.name, choice.reason) == ("reference", "asked for by name")
    impossible = dataclasses.replace(SHAPES, backend="splash")
    with pytest.raises(ConfigError, match=r"splash, which cannot do this call: it needs a TPU.*"):
        report_of(one_device_mesh, impossible)


def test_sizes_the_mesh_cannot_cut_are_refused_with_those_that_work(eight_device_mesh):
    one_head = dataclasses.replace(SHAPES, num_kv_heads=1)
    with pytest.raises(
        ConfigError, match=r"model.num_kv_heads=1 with mesh.model=2.*num_kv_heads=2, .*\[1\]"
    ):
        report_of(eight_device_mesh, one_head)
    odd = dataclasses.replace(SHAPES, vocab_size=257)
    with pytest.raises(
        ConfigError, match=r"model.vocab_size=257 with mesh.model=2.*vocab_size=258, .*\[1\]"
    ):
        report_of(eight_device_mesh, odd)


# ---- What it is tried on --------------------------------------------------------------------


def heads_of(mesh: jax.sharding.Mesh, mask: AttentionMask = MASK, **changes: Any) -> Any:
    shapes = dataclasses.replace(SHAPES, **changes)
    return attention_inputs(shapes, mask, "chunked", dtype="float32", mesh=mesh)


def test_rows_are_the_runs_own_and_those_of_most_documents(one_device_mesh):
    ids = np.asarray(heads_of(one_device_mesh).segment_ids)
    documents = MASK.segment_ids.max(axis=1)
    most = np.argsort(-documents, kind="stable")[:2]
    np.testing.assert_array_equal(ids, MASK.segment_ids[most])
    free = heads_of(one_device_mesh, AttentionMask.causal())
    assert free.segment_ids is None
    assert free.q.shape[:2] == (2, 64)


def test_every_part_of_the_batch_has_rows_however_few_there_are(eight_device_mesh):
    few = AttentionMask.causal(segment_ids=segment_ids(3))
    found = np.asarray(heads_of(eight_device_mesh, few).segment_ids)
    assert found.shape == (8, 64)
    assert len(np.unique(found, axis=0)) == 3


@pytest.mark.parametrize(
    ("heads", "kv_heads", "kept"),
    [(8, 4, (4, 2)), (12, 12, (2, 2)), (6, 1, (6, 1)), (9, 3, (6, 2))],
)
def test_heads_are_few_and_keep_their_ratio_and_something_to_mix_up(
    one_device_mesh, heads, kv_heads, kept
):
    found = heads_of(one_device_mesh, num_heads=heads, num_kv_heads=kv_heads)
    assert (found.q.shape[2], found.k.shape[2]) == kept
    assert found.q.shape[3] == SHAPES.head_dim


def test_heads_are_enough_for_the_model_axis(eight_device_mesh):
    found = heads_of(eight_device_mesh, num_heads=8, num_kv_heads=2)
    assert (found.q.shape[2], found.k.shape[2]) == (8, 2)


def test_long_rows_are_cut_to_a_length_that_blocks_divide(one_device_mesh):
    mask = AttentionMask.causal(segment_ids=segment_ids(2, length=5000))
    found = heads_of(one_device_mesh, mask, seq_len=5000, num_heads=16)
    assert found.q.shape[:2] == (1, 1024)
    assert found.segment_ids.shape == (1, 1024)


def test_documents_fit_the_room_of_a_packed_kernel(one_device_mesh):
    many = AttentionMask.causal(segment_ids=np.tile(np.arange(64, dtype=np.int32), (2, 1)))
    found = attention_inputs(SHAPES, many, "cudnn_packed", dtype="float32", mesh=one_device_mesh)
    documents = 1 + np.count_nonzero(np.diff(np.asarray(found.segment_ids), axis=1), axis=1)
    assert documents.tolist() == [11, 11]  # padding would be the twelfth


@pytest.mark.parametrize("vocab", [257, 2048, 13_440])
def test_tokens_that_take_several_chunks_are_few(vocab):
    tokens = length_of_several_chunks(32, vocab)
    assert 2 <= tokens / chunk_rows(tokens, 32, vocab) <= 5
    assert tokens * vocab < 1.8 * 2**22


@pytest.mark.parametrize(("vocab_size", "hidden_dim"), [(257, 16), (2048, 128), (50_304, 2048)])
def test_the_loss_is_tried_on_a_small_vocabulary_that_ends_as_the_runs_does(
    one_device_mesh, vocab_size, hidden_dim
):
    shapes = dataclasses.replace(SHAPES, vocab_size=vocab_size, hidden_dim=hidden_dim)
    found = loss_inputs(shapes, dtype="float32", mesh=one_device_mesh)
    width, vocab = found.head.shape
    assert (width, found.hidden.shape[-1]) == (min(hidden_dim, 32),) * 2
    assert vocab <= min(vocab_size, 1 << 14)
    assert vocab % 4096 == vocab_size % 4096
    assert 0 <= np.min(found.labels) <= np.max(found.labels) < vocab
    assert set(np.unique(found.weight)) == {0.0, 0.25, 1.0}


# ---- Deviations -----------------------------------------------------------------------------


def test_a_deviation_is_relative_and_its_worst_place_counts_by_itself():
    exact = np.random.default_rng(0).standard_normal((50, 7, 16)).astype(np.float32)
    off = exact * np.float32(1.01)
    found = deviation(jnp.asarray(off), jnp.asarray(exact))
    assert found.relative == pytest.approx(0.01, rel=1e-3)
    off = exact.copy()
    off[3, 4] *= 2
    found = deviation(jnp.asarray(off), jnp.asarray(exact))
    lengths = np.linalg.norm(exact, axis=-1)
    assert found.relative == pytest.approx(lengths[3, 4] / np.linalg.norm(lengths), rel=1e-4)
    typical = np.sqrt(np.mean(lengths**2))
    assert found.worst == pytest.approx(lengths[3, 4] / max(lengths[3, 4], typical), rel=1e-4)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_never_within(wrong):
    exact = np.ones((4, 3), np.float32)
    off = exact.copy()
    off[2, 1] = wrong
    found = deviation(jnp.asarray(off), jnp.asarray(exact))
    assert not found.is_within(Deviation(1e30, 1e30))


def test_noise_where_nothing_is_expected_is_no_deviation():
    exact = jnp.zeros((4, 3))
    assert deviation(exact + 1e-9, exact).is_within(tolerance("float32", "cpu"))
    assert not deviation(exact + 1e-3, exact).is_within(tolerance("float32", "cpu"))


def test_a_tolerance_follows_the_bits_that_products_are_made_in():
    cpu, gpu, tpu = (tolerance("float32", platform).relative for platform in ("cpu", "gpu", "tpu"))
    assert cpu < gpu < tpu == tolerance("bfloat16", "gpu").relative < 0.02
    assert tolerance("float16", "cpu").relative == gpu
