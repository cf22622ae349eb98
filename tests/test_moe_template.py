"""The template of experts: its step on one device and on many, its bias, its averages, its text."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding

from chomp.data import GrugLmExample
from chomp.errors import ConfigError
from chomp.kernels.attention import AttentionMask
from chomp.kernels.precision import Precision
from chomp.mesh import MeshConfig, create_mesh, place_batch
from chomp.optim import GrugOptimizerConfig, MuonConfig, group_table
from chomp.tracking.metrics import TRAIN_LOSS
from experiments.grug.moe.model import Experts, GrugModelConfig, Transformer
from experiments.grug.moe.train import _make_train_step, initial_state, losses_of

CONFIG = GrugModelConfig(
    vocab_size=64,
    hidden_dim=32,
    num_experts=4,
    experts_per_token=2,
    expert_dim=16,
    shared_dim=16,
    num_layers=2,
    num_heads=4,
    num_kv_heads=4,
    max_seq_len=16,
    capacity_factor=4.0,
)
PADDED = 5  # positions at the end of every second row


@pytest.fixture(autouse=True)
def one_device() -> Iterator[None]:
    """Weights need a mesh to lie on; what is said of several devices sets another."""
    with jax.set_mesh(create_mesh(MeshConfig(), devices=jax.devices()[:1])):
        yield


def batch_of(micro_batches: int = 1) -> GrugLmExample:
    """Eight rows of sixteen tokens, half of them padded, as so many micro-batches."""
    tokens = np.random.default_rng(0).integers(0, 64, (8, 16), dtype=np.int32)
    ids = np.zeros((8, 16), np.int32)
    ids[::2, -PADDED:] = -1
    weight = (ids == 0).astype(np.float32)
    weight[:, -1] = 0.0
    return GrugLmExample(
        tokens=jnp.asarray(tokens.reshape(micro_batches, -1, 16)),
        loss_weight=jnp.asarray(weight.reshape(micro_batches, -1, 16)),
        attn_mask=AttentionMask.causal(segment_ids=jnp.asarray(ids.reshape(micro_batches, -1, 16))),
    )


def optimizer_of(config: GrugModelConfig) -> optax.GradientTransformation:
    """AdamW for the model, told what each weight is."""
    model = jax.eval_shape(lambda: Transformer.init(config, key=jax.random.key(0)))
    return GrugOptimizerConfig(lr=1e-2, warmup_steps=0).build(100, model.param_groups())


def stepped(
    micro_batches: int = 1, *, steps: int = 3, mesh: Any = None, compute: str = "float32"
) -> tuple[Any, list[dict[str, float]]]:
    """The state after some steps on one batch, and the metrics of each."""
    mp, optimizer = Precision(compute=compute), optimizer_of(CONFIG)
    step = _make_train_step(optimizer, mp, z_loss_weight=1e-4, ema_beta=0.5)
    state = initial_state(CONFIG, optimizer=optimizer, mp=mp, key=jax.random.key(0), ema_beta=0.5)
    batch = batch_of(micro_batches)
    if mesh is not None:
        batch = place_batch(jax.tree.map(np.asarray, batch), mesh, batch_axis=1)
    rows = []
    for _ in range(steps):
        state, metrics = step(state, batch)
        rows.append({name: float(value) for name, value in metrics.items()})
    return state, rows


@cache
def reference() -> tuple[Any, list[dict[str, float]]]:
    """What one device makes of the batch as a whole."""
    return stepped()


def worst(found: Any, wanted: Any) -> float:
    """The largest difference of any two weights."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
    return max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in pairs)


def test_the_bias_is_set_by_the_step_and_no_optimizer_knows_it() -> None:
    state, _ = reference()
    assert state.params.param_groups().router_bias == "state"
    shapes = [leaf.shape for leaf in jax.tree.leaves(state.opt_state)]
    assert state.params.lm_head.shape in shapes
    assert state.params.router_bias.shape not in shapes
    bias = np.asarray(state.params.router_bias)
    assert (bias != 0).any()
    np.testing.assert_allclose(bias.mean(axis=1), 0, atol=1e-6)


def test_averaged_weights_choose_by_the_bias_that_holds_now() -> None:
    state, _ = reference()
    np.testing.assert_array_equal(state.ema_params.router_bias, state.params.router_bias)
    assert worst(state.ema_params, state.params) > 1e-4


def test_padding_is_no_part_of_what_is_counted() -> None:
    batch = jax.tree.map(lambda each: each[0], batch_of())
    model = Transformer.init(CONFIG, key=jax.random.key(0))
    loss = jax.jit(lambda *a: model.training_loss(a[0], a[1], mask=a[2])[1])
    routing = loss(batch.tokens, batch.loss_weight, batch.attn_mask)
    np.testing.assert_array_equal(routing.tokens, 8 * 16 - 4 * PADDED)
    np.testing.assert_array_equal(routing.assigned.sum(axis=1), 2 * routing.tokens)


def test_micro_batches_give_what_one_batch_gives() -> None:
    state, rows = stepped(2)
    wanted, wanted_rows = reference()
    # Counts add up exactly. Only what the routers add to the loss is a mean by micro-batch.
    assert worst(state.params, wanted.params) < 2e-3
    for name in ("train/router/load_max", "train/router/entropy", TRAIN_LOSS):
        assert rows[0][name] == pytest.approx(wanted_rows[0][name], rel=1e-4)
    assert rows[0]["train/router/load_max"] == wanted_rows[0]["train/router/load_max"]


def test_experts_on_several_devices_train_as_on_one() -> None:
    wanted, wanted_rows = reference()
    mesh = create_mesh(MeshConfig(data=2, expert=2, model=2))
    with jax.set_mesh(mesh):
        state, rows = stepped(mesh=mesh)
    for row, wanted_row in zip(rows, wanted_rows, strict=True):
        for name, value in wanted_row.items():
            assert row[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    assert worst(state.params, wanted.params) < 1e-4


def test_evaluation_drops_nothing_however_little_room_training_leaves() -> None:
    tight = replace(CONFIG, capacity_factor=0.3)
    batch = jax.tree.map(lambda each: each[0], batch_of())
    losses = jax.jit(partial(losses_of, Precision()))
    params = reference()[0].params
    wanted = losses(params, batch)
    mesh = create_mesh(MeshConfig(data=2, expert=4))
    with jax.set_mesh(mesh):
        cut = jax.tree.map(
            lambda spec, value: jax.device_put(
                np.asarray(value), NamedSharding(mesh, spec.sharding.spec)
            ),
            jax.eval_shape(lambda: Transformer.init(tight, key=jax.random.key(0))),
            replace_config(params, tight),
        )
        placed = place_batch(jax.tree.map(np.asarray, batch), mesh, batch_axis=0)
        found = losses(cut, placed)
        dropped = jax.jit(lambda m, b: m.training_loss(b.tokens, b.loss_weight, mask=b.attn_mask))(
            cut, placed
        )[1].dropped_weight
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert (np.asarray(dropped) > 0).all()


def replace_config(params: Transformer, config: GrugModelConfig) -> Transformer:
    """The same weights in a model of another config."""
    like = jax.eval_shape(lambda: Transformer.init(config, key=jax.random.key(0)))
    return jax.tree.unflatten(jax.tree.structure(like), jax.tree.leaves(params))


def test_routers_and_their_bias_are_float32_whatever_the_model_computes_in() -> None:
    mp = Precision(params="bfloat16", compute="bfloat16")
    shape = jax.eval_shape(
        lambda: initial_state(
            CONFIG, optimizer=optimizer_of(CONFIG), mp=mp, key=jax.random.key(0), ema_beta=None
        )
    )
    for params in (shape.params, jax.eval_shape(mp.for_compute, shape.params)):
        assert params.router_bias.dtype == jnp.float32
        assert {block.experts.w_router.dtype for block in params.blocks} == {jnp.dtype("float32")}
        assert params.lm_head.dtype == params.blocks[0].experts.w_up.dtype == jnp.bfloat16


def test_a_model_in_bfloat16_routes_by_the_float32_product_of_float32_weights() -> None:
    weights = reference()[0].params.blocks[0].experts
    x = jax.random.normal(jax.random.key(1), (2, 16, 32), jnp.bfloat16)
    experts = Precision(compute="bfloat16").for_compute(reference()[0].params).blocks[0].experts
    y, sums = jax.jit(partial(Experts.__call__, may_drop=False))(experts, x, jnp.zeros(4), None)
    assert y.dtype == jnp.bfloat16

    def squares(router: Any) -> float:
        logits = np.asarray(x, np.float64) @ np.asarray(router, np.float64)
        return float(np.sum(np.log(np.exp(logits).sum(axis=-1)) ** 2))

    assert float(sums.logsumexp_squared) == pytest.approx(squares(weights.w_router), rel=1e-6)
    rounded = squares(weights.w_router.astype(jnp.bfloat16))
    assert float(sums.logsumexp_squared) != pytest.approx(rounded, rel=1e-5)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_routers_are_never_decayed_and_no_table_that_muon_takes_with_the_embedding(
    optimizer: Any,
) -> None:
    model = jax.eval_shape(lambda: Transformer.init(CONFIG, key=jax.random.key(0)))
    muon = MuonConfig(allow_tied_embed=True) if optimizer == "muon" else MuonConfig()
    config = GrugOptimizerConfig(name=optimizer, muon=muon, weight_decay=0.1)
    rows = [line.split() for line in group_table(model, model.param_groups(), config).splitlines()]
    assert ["dynamics", "adamw", "none", "2", str(2 * 32 * 4)] in rows
    assert ["embedding", optimizer, "none", "1", f"{64 * 32:,}"] in rows


def test_decoding_gives_the_logits_of_the_whole_row() -> None:
    model = reference()[0].params
    tokens = batch_of().tokens[0, :2]
    whole = jax.jit(Transformer.logits)(model, tokens)
    step = jax.jit(Transformer.decode_step)
    first, cache = step(model, model.init_cache(2, 16), tokens[:, :9])
    second, _ = step(model, cache, tokens[:, 9:])
    np.testing.assert_allclose(jnp.concatenate([first, second], axis=1), whole, atol=2e-5)


def test_flops_count_the_experts_a_token_goes_through_and_no_other() -> None:
    more = replace(CONFIG, num_experts=8)
    # Of four more experts a token sees a logit each.
    added = 2 * CONFIG.num_layers * CONFIG.hidden_dim * 4
    assert more.flops_per_token(16) - CONFIG.flops_per_token(16) == added
    wider = replace(CONFIG, expert_dim=32)
    added = 2 * CONFIG.num_layers * 2 * CONFIG.hidden_dim * 2 * 16
    assert wider.flops_per_token(16) - CONFIG.flops_per_token(16) == added


def test_more_experts_for_a_token_than_there_are_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"experts_per_token=5 with model\.num_experts=4"):
        replace(CONFIG, experts_per_token=5)
