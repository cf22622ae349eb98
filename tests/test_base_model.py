"""The base model: documents keep to themselves, decoding equals the forward pass, meshes agree."""

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from chomp.errors import ConfigError
from chomp.kernels.attention import AttentionMask
from chomp.kernels.precision import Precision
from chomp.mesh import MeshConfig, create_mesh, place_batch
from experiments.grug.base.model import (
    GrugModelConfig,
    Transformer,
)

# Grouped heads, and every size can be cut into four by `data` and into two by `model`.
TINY = GrugModelConfig(
    vocab_size=24,
    hidden_dim=16,
    intermediate_dim=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    max_seq_len=16,
)
SHORT = replace(TINY, num_layers=1, sliding_window=3, mlp="swiglu", qk_norm=False, head_dim=8)
B, S = 4, 12


def trained(cfg: GrugModelConfig) -> Transformer:
    """A model on the current mesh whose every weight matters; a fresh one has zeros in half."""

    def make() -> Transformer:
        model = Transformer.init(cfg, key=jax.random.key(0))
        leaves, tree = jax.tree.flatten(model)
        keys = jax.random.split(jax.random.key(1), len(leaves))
        noise = [
            0.3 * jax.random.normal(key, leaf.shape, out_sharding=jax.typeof(leaf).sharding.spec)
            for key, leaf in zip(keys, leaves, strict=True)
        ]
        return jax.tree.unflatten(tree, [a + b for a, b in zip(leaves, noise, strict=True)])

    return jax.jit(make)()


@cache
def tiny_on(mesh: Mesh) -> Transformer:
    with jax.set_mesh(mesh):
        return trained(TINY)


def with_config(**changes: Any) -> Transformer:
    """The tiny model's weights on one device under a changed config."""
    with jax.set_mesh(one := create_mesh(MeshConfig(data=1), devices=jax.devices()[:1])):
        model = tiny_on(one)
        config = replace(TINY, **changes)
        abstract = jax.eval_shape(lambda: Transformer.init(config, key=jax.random.key(0)))
    return jax.tree.unflatten(jax.tree.structure(abstract), jax.tree.leaves(model))


@cache
def fresh_on(mesh: Mesh) -> Transformer:
    with jax.set_mesh(mesh):
        return jax.jit(lambda: Transformer.init(TINY, key=jax.random.key(0)))()


def rows(batch: int = B, length: int = S) -> np.ndarray:
    """Random token ids."""
    shape = (batch, length)
    return np.random.default_rng(0).integers(0, TINY.vocab_size, shape, dtype=np.int32)


def fractions() -> np.ndarray:
    """Loss weights of every size, the last of a row 0."""
    weight = np.linspace(0.0, 1.5, B * S, dtype=np.float32).reshape(B, S)
    weight[:, -1] = 0.0
    return weight


@jax.jit
def loss_and_gradient(
    model: Transformer, tokens: jax.Array, weight: jax.Array
) -> tuple[jax.Array, Transformer]:
    return jax.value_and_grad(
        lambda model: model.next_token_loss(tokens, weight, logsumexp_weight=1e-2)
    )(model)


# Three documents in one row, and each at the start of a row of its own, padding behind it. Rows of
# padding stand below the one, so that a single program takes both.
LENGTHS = (3, 5, 4)
TOGETHER = np.full((3, S), -1, np.int32)
TOGETHER[0] = np.repeat(np.arange(3), LENGTHS)
ALONE = np.stack([np.where(np.arange(S) < n, 0, -1) for n in LENGTHS]).astype(np.int32)


def apart(row: np.ndarray) -> np.ndarray:
    """What the row holds of each document, in rows of their own."""
    found = np.zeros((3, S), row.dtype)
    for i, n in enumerate(LENGTHS):
        found[i, :n] = row[0, TOGETHER[0] == i]
    return found


def inner_weight(segment_ids: np.ndarray) -> np.ndarray:
    """1 where the next token is of the same document."""
    same = (segment_ids[:, 1:] == segment_ids[:, :-1]) & (segment_ids[:, 1:] >= 0)
    return np.pad(same, ((0, 0), (0, 1))).astype(np.float32)


@pytest.mark.parametrize("document_positions", [False, True])
def test_packed_documents_have_the_losses_and_gradients_they_have_alone(
    document_positions, one_device_mesh
):
    @jax.jit
    def results(model, tokens, weight, segment_ids):
        def total(model):
            mask = AttentionMask.causal(segment_ids=segment_ids)
            each = model.next_token_loss(tokens, weight, mask=mask, reduction="none")
            return jnp.sum(each * weight), each

        return jax.value_and_grad(total, has_aux=True)(model)

    with jax.set_mesh(one_device_mesh):
        model, packed = with_config(document_positions=document_positions), rows(3)
        (_, losses), gradient = results(model, packed, inner_weight(TOGETHER), TOGETHER)
        (_, losses_alone), alone = results(model, apart(packed), inner_weight(ALONE), ALONE)
    mine = apart(np.asarray(losses)) * inner_weight(ALONE)
    np.testing.assert_allclose(mine, losses_alone * inner_weight(ALONE), rtol=1e-5, atol=1e-5)
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_positions_begin_again_with_each_document_only_if_asked(one_device_mesh):
    def program(**changes: bool) -> str:
        def hidden(model: Transformer) -> jax.Array:
            return model(jnp.zeros((3, S), jnp.int32), AttentionMask.causal(segment_ids=TOGETHER))

        return str(jax.make_jaxpr(hidden)(with_config(**changes)))

    with jax.set_mesh(one_device_mesh):
        assert "cummax" in program(document_positions=True)
        assert "cummax" not in program()


def test_a_soft_cap_bounds_logits_and_losses_alike(one_device_mesh):
    with jax.set_mesh(one_device_mesh):
        model, tokens = with_config(logit_soft_cap=0.5), jnp.asarray(rows(2))
        logits, losses = jax.jit(
            lambda model: (
                model.logits(tokens),
                model.next_token_loss(tokens, jnp.ones((2, S)), reduction="none"),
            )
        )(model)
        free = jax.jit(lambda model: model.logits(tokens))(tiny_on(one_device_mesh))
    logits, free = np.asarray(logits), np.asarray(free)
    assert np.abs(free).max() > 1.0
    np.testing.assert_allclose(logits, 0.5 * np.tanh(free / 0.5), rtol=1e-5, atol=1e-5)
    total = np.log(np.exp(logits[:, :-1]).sum(-1))
    label = np.take_along_axis(logits[:, :-1], tokens[:, 1:, None], -1)[..., 0]
    np.testing.assert_allclose(losses[:, :-1], total - label, rtol=1e-5, atol=1e-5)


def test_tying_the_head_to_the_embedding_takes_one_line(eight_device_mesh):
    class Tied(Transformer):
        def _head(self):
            return jax.reshard(self.token_embed.T, P(None, "model"))

    with jax.set_mesh(eight_device_mesh):
        free = tiny_on(eight_device_mesh)
        # One block is enough to show it, and compiles in half the time.
        blocks, cfg = free.blocks[:1], replace(free.cfg, num_layers=1)
        fields = (free.token_embed, blocks, free.final_norm, free.lm_head, cfg)
        batch = place_batch((rows(), np.ones((B, S), np.float32)), eight_device_mesh, batch_axis=0)
        hidden, logits, gradient = jax.jit(
            lambda model, tokens, weight: (
                model(tokens),
                model.logits(tokens),
                jax.grad(lambda model: model.next_token_loss(tokens, weight))(model),
            )
        )(Tied(*fields), *batch)
    expected = np.asarray(hidden) @ np.asarray(free.token_embed).T
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
    assert not np.asarray(gradient.lm_head).any()
    # Every row gets a gradient, ids that are not in the batch too: from the head.
    assert np.abs(np.asarray(gradient.token_embed)).max(axis=1).min() > 0


def test_without_documents_a_token_sees_the_whole_prefix_and_nothing_after(one_device_mesh):
    with jax.set_mesh(one_device_mesh):
        model, tokens = tiny_on(one_device_mesh), rows(1)
        hidden = jax.jit(lambda tokens: model(tokens))
        before = np.asarray(hidden(tokens))
        changed = tokens.copy()
        changed[0, 5] = (changed[0, 5] + 1) % TINY.vocab_size
        differs = np.abs(np.asarray(hidden(changed)) - before).max(-1)[0]
    np.testing.assert_array_equal(differs[:5], 0.0)
    assert (differs[5:] > 1e-6).all()


@pytest.mark.parametrize("cfg", [TINY, SHORT], ids=["whole prefix", "window, swiglu, wide heads"])
def test_decoding_after_a_prefill_gives_the_logits_of_the_forward_pass(cfg, one_device_mesh):
    prefill = 5
    with jax.set_mesh(one_device_mesh):
        model = tiny_on(one_device_mesh) if cfg is TINY else trained(cfg)
        tokens = rows(2)
        whole = np.asarray(jax.jit(lambda tokens: model.logits(tokens))(tokens))
        step = jax.jit(lambda cache, tokens: model.decode_step(cache, tokens))
        first, kept = step(model.init_cache(2, S), tokens[:, :prefill])
        pieces = [first]
        for i in range(prefill, S):
            logits, kept = step(kept, tokens[:, i : i + 1])
            pieces.append(logits)
    assert int(kept[0].length) == S
    np.testing.assert_allclose(np.concatenate(pieces, 1), whole, rtol=1e-5, atol=1e-5)


def test_eight_devices_give_the_loss_and_gradients_of_one(one_device_mesh, eight_device_mesh):
    found = []
    for mesh in (one_device_mesh, eight_device_mesh):
        with jax.set_mesh(mesh):
            batch = place_batch((rows(), fractions()), mesh, batch_axis=0)
            found.append(loss_and_gradient(tiny_on(mesh), *batch))
    (one, gradient), (eight, spread) = found
    assert float(eight) == pytest.approx(float(one), rel=1e-5)
    for path, alone in jax.tree.leaves_with_path(gradient):
        together = dict(jax.tree.leaves_with_path(spread))[path]
        np.testing.assert_allclose(
            together, alone, rtol=1e-5, atol=1e-5, err_msg=jax.tree_util.keystr(path)
        )


def test_gradients_lie_where_their_weights_do(eight_device_mesh):
    with jax.set_mesh(eight_device_mesh):
        batch = place_batch((rows(), fractions()), eight_device_mesh, batch_axis=0)
        model = tiny_on(eight_device_mesh)
        _, gradient = loss_and_gradient(model, *batch)
    for weight, slope in zip(jax.tree.leaves(model), jax.tree.leaves(gradient), strict=True):
        assert slope.sharding.spec == weight.sharding.spec


def test_fresh_weights_are_bitwise_equal_on_every_mesh(one_device_mesh, eight_device_mesh):
    alone, spread = fresh_on(one_device_mesh), fresh_on(eight_device_mesh)
    for one, eight in zip(jax.tree.leaves(alone), jax.tree.leaves(spread), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(eight))
    assert spread.blocks[0].attn.w_q.sharding.spec == P("data", "model")
    assert spread.blocks[0].mlp.w_down.sharding.spec == P("model", "data")


def test_a_weight_does_not_change_when_layers_are_added(one_device_mesh):
    deep = fresh_on(one_device_mesh)
    with jax.set_mesh(one_device_mesh):
        one_layer = replace(TINY, num_layers=1)
        shallow = jax.jit(lambda: Transformer.init(one_layer, key=jax.random.key(0)))()
    np.testing.assert_array_equal(deep.blocks[0].mlp.w_up, shallow.blocks[0].mlp.w_up)
    assert not np.array_equal(deep.blocks[0].mlp.w_up, deep.blocks[1].mlp.w_up)


def test_a_fresh_model_knows_nothing_and_its_blocks_are_the_identity(one_device_mesh):
    with jax.set_mesh(one_device_mesh):
        model = fresh_on(one_device_mesh)
        assert all(not np.asarray(b.attn.w_o).any() for b in model.blocks)
        assert all(not np.asarray(b.mlp.w_down).any() for b in model.blocks)
        loss, _ = loss_and_gradient(model, rows(), np.ones((B, S), np.float32))
    assert float(loss) == pytest.approx(np.log(TINY.vocab_size) + 1e-2 * 3.18**2, rel=0.02)


@pytest.mark.parametrize("remat", ["block", "matmuls"])
def test_recomputing_in_the_backward_pass_changes_no_result(remat, one_device_mesh):
    with jax.set_mesh(one_device_mesh):
        model = with_config(remat=remat)
        expected = loss_and_gradient(tiny_on(one_device_mesh), rows(), fractions())
        found = loss_and_gradient(model, rows(), fractions())
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_reductions_of_the_loss_agree(one_device_mesh):
    with jax.set_mesh(one_device_mesh):
        model, tokens, weight = tiny_on(one_device_mesh), rows(), fractions()
        mean, total, each = jax.jit(
            lambda tokens, weight: [
                model.next_token_loss(tokens, weight, reduction=reduction)
                for reduction in ("mean", "sum", "none")
            ]
        )(tokens, weight)
    assert float(total) == pytest.approx((np.asarray(each) * weight).sum(), rel=1e-5)
    assert float(mean) == pytest.approx(float(total) / weight.sum(), rel=1e-5)


def test_every_weight_has_the_label_its_optimizer_goes_by(one_device_mesh):
    with jax.set_mesh(one_device_mesh):
        model = jax.eval_shape(lambda: Transformer.init(SHORT, key=jax.random.key(0)))
    groups = model.param_groups()
    assert jax.tree.structure(groups) == jax.tree.structure(model)
    labels = {
        jax.tree_util.keystr(path, simple=True, separator="/"): label
        for path, label in jax.tree.leaves_with_path(groups)
    }
    assert labels == {
        "token_embed": "embedding",
        "blocks/0/attn_norm": "vector",
        "blocks/0/attn/w_q": "matrix",
        "blocks/0/attn/w_k": "matrix",
        "blocks/0/attn/w_v": "matrix",
        "blocks/0/attn/w_o": "matrix",
        "blocks/0/mlp_norm": "vector",
        "blocks/0/mlp/w_up": "matrix",
        "blocks/0/mlp/w_gate": "matrix",
        "blocks/0/mlp/w_down": "matrix",
        "final_norm": "vector",
        "lm_head": "matrix",
    }


@pytest.mark.parametrize("cfg", [TINY, SHORT, replace(TINY, sliding_window=50)])
@pytest.mark.parametrize("seq_len", [1, 2, 12])
def test_operations_per_token_equal_a_count_one_query_at_a_time(cfg, seq_len):
    width, hidden = cfg.inferred_head_dim, cfg.hidden_dim
    total = 0
    for query in range(seq_len):
        for _layer in range(cfg.num_layers):
            total += hidden * width * cfg.num_heads  # queries
            total += 2 * hidden * width * cfg.num_kv_heads  # keys and values
            first = 0 if cfg.sliding_window is None else max(0, query + 1 - cfg.sliding_window)
            for _key in range(first, query + 1):
                total += 2 * width * cfg.num_heads  # a score, and its share of the value
            total += hidden * width * cfg.num_heads  # out
            total += (3 if cfg.mlp == "swiglu" else 2) * hidden * cfg.intermediate_dim
        total += hidden * cfg.vocab_size
    assert cfg.flops_per_token(seq_len) == pytest.approx(2 * total / seq_len, rel=1e-12)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"num_kv_heads": 3}, r"num_heads=4 with num_kv_heads=3.*one of \[1, 2, 4\]"),
        (
            {"num_heads": 6, "num_kv_heads": 3},
            r"hidden_dim=16 with num_heads=6.*\[1, 2, 4, 8, 16\]",
        ),
        ({"num_layers": 0}, "num_layers=0.*set num_layers to a number in that range"),
        ({"vocab_size": -1}, "vocab_size=-1"),
        ({"sliding_window": 0}, "sliding_window=0"),
        ({"head_dim": 0}, "head_dim=0"),
        ({"head_dim": 5}, r"heads of width 5\. Allowed: even widths"),
        ({"logit_soft_cap": 0.0}, r"logit_soft_cap=0\.0"),
        ({"layer_norm_eps": 0.0}, r"layer_norm_eps=0\.0"),
    ],
)
def test_a_shape_that_cannot_be_is_refused_with_sizes_that_work(wrong, words):
    with pytest.raises(ConfigError, match=words) as refused:
        replace(TINY, **wrong)
    assert "Allowed: " in str(refused.value)
    assert "Fix: " in str(refused.value)


def test_a_row_longer_than_the_model_takes_is_refused_with_both_lengths(one_device_mesh):
    with jax.set_mesh(one_device_mesh), pytest.raises(ConfigError, match=r"=17 with .*_len=16"):
        tiny_on(one_device_mesh)(jnp.zeros((1, 17), jnp.int32))


def test_logits_and_losses_are_float32_whatever_is_computed_in(one_device_mesh):
    with jax.set_mesh(one_device_mesh):
        model = jax.eval_shape(lambda: Transformer.init(TINY, key=jax.random.key(0)))

        def outputs(model: Transformer, tokens: jax.Array) -> tuple[jax.Array, ...]:
            model = Precision(compute="bfloat16").for_compute(model)
            decoded, kept = model.decode_step(model.init_cache(B, S), tokens)
            loss = model.next_token_loss(tokens, jnp.ones((B, S)))
            return model(tokens), kept[0].k, model.logits(tokens), decoded, loss

        dtypes = [out.dtype for out in jax.eval_shape(outputs, model, rows())]
    assert dtypes == [jnp.bfloat16] * 2 + [jnp.float32] * 3
