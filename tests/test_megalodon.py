"""The Megalodon template: documents, streams, meshes, dropout, dtypes, sizes."""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from chomp.errors import ConfigError
from chomp.evaluation import Generation, TokenChoice
from chomp.kernels.attention import AttentionMask
from chomp.kernels.precision import Precision
from chomp.mesh import BATCH_AXES, MeshConfig, create_mesh
from chomp.optim import GrugOptimizerConfig
from experiments.grug.megalodon.attention import (
    attention_with_dropout,
    chunk_attention,
    chunk_mask,
)
from experiments.grug.megalodon.config import PRESETS
from experiments.grug.megalodon.model import GrugModelConfig, Transformer

LENGTH, ROWS = 37, 2  # no multiple of a chunk
CONFIG = GrugModelConfig(
    vocab_size=64,
    model_dim=32,
    num_layers=2,
    num_heads=2,
    z_dim=16,
    value_dim=64,
    ffn_hidden_dim=48,
    cema_ndim=4,
    chunk_size=8,
    norm_num_groups=4,
    swiglu=True,
    rescale_nffn=True,
)
WINDOW = replace(CONFIG, attention_window=6)
CHUNKS_AND_WINDOW = [
    pytest.param(CONFIG, id="chunks"),
    pytest.param(WINDOW, id="window", marks=pytest.mark.slow),
]


@pytest.fixture(autouse=True)
def one_device() -> Iterator[None]:
    """Weights need a mesh to lie on; what is said of several devices sets another."""
    with jax.set_mesh(create_mesh(MeshConfig(), devices=jax.devices()[:1])):
        yield


@cache
def shaken(cfg: GrugModelConfig) -> Transformer:
    """A model without a zero: what starts as 0 would hide that it is not used."""

    def moved(x: Array) -> Array:
        return x + 0.1 * jax.random.normal(jax.random.key(x.size), x.shape)

    with jax.set_mesh(create_mesh(MeshConfig(), devices=jax.devices()[:1])):
        return jax.tree.map(moved, Transformer.init(cfg, key=jax.random.key(0)))


def tokens(length: int = LENGTH, rows: int = ROWS, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 64, (rows, length), dtype=np.int32)


@eqx.filter_jit
def logits_of(model: Transformer, ids: Array, segments: Array | None = None) -> Array:
    return model.logits(ids, AttentionMask.causal(segment_ids=segments))


@eqx.filter_jit
def loss_and_gradient(
    model: Transformer, ids: Array, weight: Array, segments: Array | None
) -> tuple[Array, Transformer]:
    def loss(model: Transformer) -> Array:
        mask = AttentionMask.causal(segment_ids=segments)
        return model.next_token_loss(ids, weight, mask=mask, reduction="sum")

    return jax.value_and_grad(loss)(model)


def largest_difference(one: Transformer, other: Transformer) -> float:
    """Of all leaves, each relative to its largest entry."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(
        float(np.max(np.abs(np.asarray(a) - np.asarray(b))) / (np.max(np.abs(b)) + 1e-9))
        for a, b in pairs
    )


# --- documents ----------------------------------------------------------------------------------


@pytest.mark.parametrize("cfg", CHUNKS_AND_WINDOW)
@settings(max_examples=8, deadline=None)
@given(start=st.integers(0, LENGTH - 1), length=st.integers(1, LENGTH))
def test_a_packed_document_equals_the_document_alone(
    cfg: GrugModelConfig, start: int, length: int
) -> None:
    ids, length = tokens(), min(length, LENGTH - start)
    segments = np.zeros((ROWS, LENGTH), np.int32)
    segments[:, start:] = 1
    segments[:, start + length :] = 2
    packed = logits_of(shaken(cfg), ids, segments)[:, start : start + length]
    # First in its row, with anything after it: what comes later nobody sees.
    first = np.concatenate([ids[:, start:], ids[:, :start]], axis=1)
    alone = logits_of(shaken(cfg), first, np.minimum(segments * 0, 0))[:, :length]
    np.testing.assert_allclose(packed, alone, atol=1e-5)


def test_gradients_of_a_packed_document_are_those_of_the_document_alone() -> None:
    ids, start = tokens(), 13
    segments = np.zeros((ROWS, LENGTH), np.int32)
    segments[:, start:] = 1
    weight = np.zeros((ROWS, LENGTH), np.float32)
    weight[:, start:-1] = 1.0
    loss, gradient = loss_and_gradient(shaken(CONFIG), ids, weight, segments)
    ids = np.concatenate([ids[:, start:], ids[:, :start]], axis=1)
    weight = np.concatenate([weight[:, start:], weight[:, :start]], axis=1)
    alone = loss_and_gradient(shaken(CONFIG), ids, weight, segments * 0)
    np.testing.assert_allclose(loss, alone[0], rtol=1e-6)
    assert largest_difference(gradient, alone[1]) < 2e-5


def test_padding_changes_nothing_and_stays_finite() -> None:
    ids, segments = tokens(), np.zeros((ROWS, LENGTH), np.int32)
    segments[0, 20:] = -1
    segments[1] = -1  # a row of padding alone
    weight = np.where(segments == 0, 1.0, 0.0).astype(np.float32)
    weight[:, 19] = 0.0
    first, gradient = loss_and_gradient(shaken(CONFIG), ids, weight, segments)
    other = ids.copy()
    other[segments < 0] = 5
    again, same = loss_and_gradient(shaken(CONFIG), other, weight, segments)
    assert float(first) == float(again)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    for name in ("token_embed", "lm_head"):
        np.testing.assert_array_equal(getattr(gradient, name), getattr(same, name))


def test_rows_without_documents_flow_on() -> None:
    """Stream semantics: what came before another document is still felt."""
    ids = tokens()
    other = ids.copy()
    other[:, 0] = (ids[:, 0] + 1) % 64
    difference = np.abs(logits_of(shaken(CONFIG), ids) - logits_of(shaken(CONFIG), other))
    assert np.all(difference.max((0, 2))[20:] > 1e-6)  # chunks later: through average and norm


@pytest.mark.parametrize("cfg", CHUNKS_AND_WINDOW)
def test_no_token_sees_a_later_one(cfg: GrugModelConfig) -> None:
    ids = tokens()
    before = logits_of(shaken(cfg), ids)
    for place in (0, 7, 8, 20, LENGTH - 1):
        other = ids.copy()
        other[:, place:] = (ids[:, place:] + 7) % 64
        after = logits_of(shaken(cfg), other)
        np.testing.assert_allclose(after[:, :place], before[:, :place], atol=1e-6)
        assert np.max(np.abs(after[:, place] - before[:, place])) > 1e-4


def test_attention_ends_with_its_chunk() -> None:
    q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 32, 1, 4))

    @jax.jit
    def attended(v: Array) -> Array:
        return chunk_attention(q, k, v, AttentionMask.causal(), 8, "chunked")[0, :, 0, 0]

    gradient = jax.jit(jax.jacobian(attended))(v)
    seen = np.asarray(gradient[:, 0, :, 0, 0]) != 0
    query, key = np.arange(32)[:, None], np.arange(32)
    np.testing.assert_array_equal(seen, (key <= query) & (key // 8 == query // 8))


# --- streams ------------------------------------------------------------------------------------

decode = eqx.filter_jit(lambda model, cache, ids: model.decode_step(cache, ids))


@pytest.mark.parametrize("cfg", CHUNKS_AND_WINDOW)
@pytest.mark.parametrize("pieces", [(37,), (5, 5, 5, 22), (1,) * 10 + (5,), (22, 5, 1, 1, 1, 5)])
def test_a_stream_cut_anywhere_gives_the_logits_of_the_whole(
    cfg: GrugModelConfig, pieces: tuple[int, ...]
) -> None:
    model, ids = shaken(cfg), tokens()
    expected = logits_of(model, ids)
    cache, done = model.init_cache(ROWS, LENGTH), 0
    for size in pieces:
        found, cache = decode(model, cache, ids[:, done : done + size])
        np.testing.assert_allclose(found, expected[:, done : done + size], atol=1e-5)
        done += size
    assert int(cache.length) == done


def test_one_text_is_read_in_pieces_as_long_as_a_chunk(one_device_mesh: Mesh) -> None:
    """Of one row in one piece more than the first, a reshape forgets where it lies."""
    model, ids = shaken(CONFIG), tokens(rows=1)
    with jax.set_mesh(one_device_mesh):
        found, cache = decode(model, model.init_cache(1, LENGTH), jnp.asarray(ids[:, :16]))
    np.testing.assert_allclose(found, logits_of(model, ids)[:, :16], atol=1e-5)
    assert int(cache.length) == 16


def test_a_cache_takes_the_same_room_however_long_texts_become() -> None:
    def size(max_len: int) -> int:
        cache = jax.eval_shape(lambda: shaken(CONFIG).init_cache(1, max_len))
        return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(cache))

    assert size(4) < size(8) == size(100) == size(1_000_000)


def test_text_written_in_two_parts_is_the_text_written_at_once(one_device_mesh: Mesh) -> None:
    def generation() -> Generation:
        return Generation(
            shaken(CONFIG),
            [tokens()[0, :11].tolist(), tokens()[1, :6].tolist()],
            mesh=one_device_mesh,
            max_tokens=20,
            end_ids=[],
            seeds=[3, 4],
            choice=TokenChoice.of(temperature=0.8),
        )

    at_once, in_parts = generation(), generation()
    at_once.advance(None)
    in_parts.advance(7)
    in_parts.advance(None)
    assert at_once.texts == in_parts.texts
    assert [len(text) for text in at_once.texts] == [20, 20]


# --- devices, dtypes, memory --------------------------------------------------------------------


@pytest.mark.slow  # every run of the contracts is on eight devices
@pytest.mark.parametrize("num_heads", [1, 2])
def test_many_devices_give_what_one_gives(num_heads: int, eight_device_mesh: Mesh) -> None:
    """Two heads are cut over `model`; of a single one, the width of its values is."""
    cfg = replace(CONFIG, num_heads=num_heads)
    ids = tokens(rows=4)
    segments = np.repeat(np.arange(37, dtype=np.int32)[None] // 15, 4, 0)
    weight = np.ones(ids.shape, np.float32)
    weight[:, -1] = 0.0
    loss, gradient = loss_and_gradient(shaken(cfg), ids, weight, segments)
    with jax.set_mesh(eight_device_mesh):
        fresh = Transformer.init(cfg, key=jax.random.key(0))
        model = jax.tree.map(lambda x, own: jax.device_put(x, own.sharding), shaken(cfg), fresh)
        rows = NamedSharding(eight_device_mesh, P(BATCH_AXES, None))
        placed = [jax.device_put(x, rows) for x in (ids, weight, segments)]
        found = loss_and_gradient(model, *placed)
    np.testing.assert_allclose(found[0], loss, rtol=1e-6)
    assert largest_difference(found[1], gradient) < 2e-5


def test_averages_and_norms_are_float32_under_bfloat16() -> None:
    model, mp = shaken(CONFIG), Precision(params="bfloat16", compute="bfloat16")
    cast = mp.for_compute(mp.for_params(model))
    groups = model.param_groups()
    for leaf, group in zip(jax.tree.leaves(cast), jax.tree.leaves(groups), strict=True):
        assert leaf.dtype == (jnp.float32 if group == "dynamics" else jnp.bfloat16)
    assert all(label == "dynamics" for label in jax.tree.leaves(groups.blocks.attn.ema))
    exact, found = (logits_of(m, tokens()) for m in (model, cast))
    assert found.dtype == jnp.float32
    assert np.max(np.abs(found - exact)) < 0.05 * np.max(np.abs(exact))


def test_dynamics_are_never_decayed() -> None:
    model = shaken(CONFIG)
    groups = model.param_groups()
    config = GrugOptimizerConfig(lr=0.1, weight_decay=0.5, warmup_steps=0)
    optimizer = config.build(10, groups)
    nothing = jax.tree.map(jnp.zeros_like, model)
    updates = jax.jit(lambda m: optimizer.update(nothing, optimizer.init(m), m)[0])(model)
    moved = {
        label: [bool(jnp.any(u != 0)) for u, g in zip(
            jax.tree.leaves(updates), jax.tree.leaves(groups), strict=True) if g == label]
        for label in ("matrix", "dynamics", "vector", "embedding")
    }  # fmt: skip
    assert all(moved["matrix"])
    assert not any(moved["dynamics"] + moved["vector"] + moved["embedding"])
    assert len(moved["dynamics"]) == 16


@pytest.mark.slow
def test_recomputing_layers_takes_less_memory_and_gives_the_same_gradients() -> None:
    """Without dropout too: the original recomputed nothing unless something was dropped."""
    ids, weight = jnp.asarray(tokens(64)), jnp.ones((ROWS, 64))
    found, memory = {}, {}
    for remat in ("none", "block"):
        model = shaken(replace(CONFIG, num_layers=6, remat=remat))
        step = jax.jit(jax.value_and_grad(lambda m: m.next_token_loss(ids, weight)))
        compiled = step.lower(model).compile()
        memory[remat] = compiled.memory_analysis().temp_size_in_bytes
        found[remat] = compiled(model)[1]
    assert memory["block"] < 0.7 * memory["none"]
    same = zip(jax.tree.leaves(found["none"]), jax.tree.leaves(found["block"]), strict=True)
    for one, other in same:
        np.testing.assert_allclose(one, other, atol=1e-6)


# --- dropout ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "is_packed"),
    [
        ("post_softmax", True),
        pytest.param("post_softmax", False, marks=pytest.mark.slow),
        pytest.param("dropkey", True, marks=pytest.mark.slow),
        pytest.param("dropkey", False, marks=pytest.mark.slow),
    ],
)
def test_attention_that_could_drop_is_attention_where_nothing_is_dropped(
    mode: str, is_packed: bool
) -> None:
    q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 37, 2, 8))
    segments = np.repeat((np.arange(37, dtype=np.int32) // 11)[None], 2, 0) if is_packed else None
    mask = AttentionMask.causal(segment_ids=segments)
    places = mask.positions(37)
    expected = chunk_attention(q, k, v, chunk_mask(mask, places, 8), 8, "chunked")

    @jax.jit
    @partial(jax.vmap, in_axes=(0, None))
    def dropped(key: Array, rate: Array) -> Array:
        return attention_with_dropout(q, k, v, places % 8, 8, rate=rate, mode=mode, key=key)

    keys = jax.random.split(jax.random.key(2), 300)
    np.testing.assert_allclose(dropped(keys[:1], 0.0)[0], expected, atol=1e-5)
    found = dropped(keys, 0.5)
    if mode == "post_softmax":  # what is kept is as much more, so the mean stays
        np.testing.assert_allclose(np.mean(found, 0), expected, atol=0.35)
    assert np.std(found, 0).max() > 0.1
    assert np.isfinite(found).all()


def test_dropout_needs_a_key_and_depends_on_nothing_else() -> None:
    cfg = replace(CONFIG, dropout=0.3, attention_dropout=0.2, hidden_dropout=0.1)
    model, ids = shaken(cfg), tokens()
    run = eqx.filter_jit(lambda model, key: model(jnp.asarray(ids), key=key))
    with_one, again = (run(model, jax.random.key(5)) for _ in range(2))
    np.testing.assert_array_equal(with_one, again)
    assert np.max(np.abs(with_one - run(model, jax.random.key(6)))) > 0.1
    plain = eqx.filter_jit(lambda model: model(jnp.asarray(ids)))
    np.testing.assert_array_equal(plain(model), plain(shaken(CONFIG)))


# --- shapes -------------------------------------------------------------------------------------

WEIGHTS = {
    "mega200m": 220_627_968,
    "mega1_3b": 1_342_832_640,
    "mega1_3b_pg19": 1_327_628_288,
    "mega7_1b": 7_117_381_632,
    "mega7_3b": 7_385_817_088,
    "paper_7b": 7_385_817_088,
}


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_the_weights_that_they_are_known_for(name: str) -> None:
    shapes = jax.eval_shape(lambda: Transformer.init(PRESETS[name], key=jax.random.key(0)))
    assert sum(math.prod(x.shape) for x in jax.tree.leaves(shapes)) == WEIGHTS[name]


def test_every_weight_begins_as_its_kind_does() -> None:
    cfg = replace(CONFIG, model_dim=256, norm_num_groups=8, num_layers=3)
    model = Transformer.init(cfg, key=jax.random.key(1))
    attn, ffn = model.blocks.attn, model.blocks.ffn
    for weight, fan_in in ((attn.w_v, 256), (attn.w_h2, 64), (ffn.w_2, 48)):
        np.testing.assert_allclose(np.std(weight), (3 * fan_in) ** -0.5, rtol=0.05)
    np.testing.assert_allclose(np.std(attn.ema.alpha), 0.2, rtol=0.05)
    np.testing.assert_allclose(np.std(attn.ema.omega), 0.25, rtol=0.1)
    np.testing.assert_allclose(np.std(model.token_embed) * 16, 0.986, rtol=0.05)
    speeds = np.sort(jax.nn.sigmoid(attn.ema.theta), axis=1)[:, ::-1]
    expected = np.exp(-np.log(256) / 256 * np.arange(1, 257))
    np.testing.assert_allclose(speeds, expected[None].repeat(3, 0), rtol=1e-4)
    assert not np.array_equal(attn.ema.theta[0], attn.ema.theta[1])
    np.testing.assert_allclose(ffn.rescale[:, 0], [0.1, 0.05, 0.025])
    zeros = (attn.b_z, attn.qk_scale, attn.norm.scale, attn.ema.gamma_im, ffn.norm_bias)
    assert not any(np.any(x) for x in zeros)


@pytest.mark.parametrize(
    ("mode", "std"),
    [
        ("xavier", (2 / (32 + 64)) ** 0.5),
        ("bert", 0.02),
        ("gaussian", 0.986),
        ("none", (3 * 32) ** -0.5),
    ],
)
def test_matrices_begin_as_the_mode_says(mode: str, std: float) -> None:
    model = Transformer.init(replace(CONFIG, init_mode=mode), key=jax.random.key(0))
    np.testing.assert_allclose(np.std(model.blocks.attn.w_v), std, rtol=0.05)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"z_dim": 15}, "num_heads"),
        ({"value_dim": 63}, "value_dim=63"),
        ({"z_dim": 6}, "z_dim=6"),
        ({"norm_num_groups": 5}, "norm_num_groups"),
        ({"norm_num_groups": 32}, "groups of two features"),
        ({"chunk_size": 0}, "chunk_size"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"hidden_dropout": -0.1}, "hidden_dropout=-0.1"),
        ({"output_size": 8}, "output_size=8"),
        ({"output_size": 128, "share_emb": True}, "share_emb=True"),
        ({"attention_window": 0}, "attention_window=0"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(change: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        replace(CONFIG, **change)


@pytest.mark.parametrize("num_heads", [1, 2, 3])
def test_the_fix_for_heads_of_odd_width_names_fields_it_has_and_works(num_heads: int) -> None:
    shape = {"num_heads": num_heads, "value_dim": 6 * num_heads}
    with pytest.raises(ConfigError) as error:
        replace(CONFIG, z_dim=5 * num_heads, **shape)
    fix = str(error.value).partition("Fix: ")[2]
    named = dict(re.findall(r"(\w+)=(\d+)", fix))
    assert named
    assert replace(CONFIG, **shape, **{name: int(value) for name, value in named.items()})


def test_operations_are_counted_as_products_are_long() -> None:
    cfg = PRESETS["mega200m"]
    d, z, e, f = 1024, 256, 2048, 2560
    layer = d * z + 2 * d * e + d * d + e * d + 2 * d * f + 6 * d * 16
    pairs = (z + e) * (2048 + 1) / 2
    assert cfg.flops_per_token(2048) == 2.0 * (12 * (layer + pairs) + d * 32_000)
    # Longer rows cost a token no more: attention ends with its chunk.
    assert cfg.flops_per_token(4 * 2048) == cfg.flops_per_token(2048)
