"""Every weight is in exactly one group, and a table says what happens to each."""

import jax
import jax.numpy as jnp
import pytest

from chomp.errors import ConfigError
from chomp.mesh import abstract_arrays
from chomp.optim import GrugOptimizerConfig, MuonConfig, group_table
from experiments.grug.base.model import GrugModelConfig, Transformer

CFG = GrugModelConfig(
    vocab_size=50, hidden_dim=8, intermediate_dim=16, num_layers=2, num_heads=2, num_kv_heads=2
)


@pytest.fixture(scope="module")
def model():
    return abstract_arrays(lambda: Transformer.init(CFG, key=jax.random.key(0)))


def test_the_table_counts_every_weight_of_the_base_model_once(model):
    config = GrugOptimizerConfig(
        name="muon", weight_decay=0.1, muon=MuonConfig(weight_decay_mult=2.0)
    )
    table = group_table(model, model.param_groups(), config)
    # Per layer four square projections and two of 8 x 16; two norms of 8 and two of 4.
    matrices, vectors = 2 * (4 * 64 + 2 * 128) + 8 * 50, 2 * (2 * 8 + 2 * 4) + 8
    rows = [line.split() for line in table.splitlines()]
    assert rows == [
        ["group", "updated", "by", "decay", "tensors", "weights"],
        ["matrix", "muon", "0.2", "13", f"{matrices:,}"],
        ["embedding", "adamw", "none", "1", "400"],
        ["vector", "adamw", "none", "9", str(vectors)],
        ["all", "23", f"{matrices + vectors + 400:,}"],
    ]
    everything = sum(leaf.size for leaf in jax.tree.leaves(model))
    assert matrices + vectors + 400 == everything
    for knob in ("allow_tied_embed", "allow_all_2d"):
        with_embedding = GrugOptimizerConfig(name="muon", muon=MuonConfig(**{knob: True}))
        assert "embedding  muon" in group_table(model, model.param_groups(), with_embedding)


def test_all_2d_takes_no_stacked_vectors_and_no_dynamics():
    weights = {name: jnp.ones((2, 3)) for name in ("w", "decay", "norms")} | {"rate": jnp.ones(2)}
    groups = {"w": "matrix", "decay": "dynamics", "norms": "vector", "rate": "dynamics"}
    config = GrugOptimizerConfig(name="muon", muon=MuonConfig(allow_all_2d=True))
    rows = [line.split()[:2] for line in group_table(weights, groups, config).splitlines()[1:-1]]
    assert rows == [
        ["matrix", "muon"],
        ["vector", "adamw"],
        ["dynamics", "adamw"],
    ]


def test_an_unknown_group_is_refused_with_the_path_of_its_weight():
    with pytest.raises(ConfigError, match=r"groups \['bias'\] at layer/b\. Allowed: .*'dynamics'"):
        GrugOptimizerConfig().build(10, {"layer": {"w": "matrix", "b": "bias"}})


def test_a_weight_without_a_group_is_refused_by_its_path():
    weights = {"w": jnp.ones((2, 2)), "extra": jnp.ones(2)}
    with pytest.raises(ConfigError, match=r"differ at extra\. Allowed: exactly one group"):
        group_table(weights, {"w": "matrix"}, GrugOptimizerConfig())


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_what_a_step_sets_itself_is_left_alone_and_has_no_moments(name):
    weights = {"w": jnp.ones((4, 4)), "bias": jnp.full((3, 5), 7.0)}
    groups = {"w": "matrix", "bias": "state"}
    config = GrugOptimizerConfig(name=name, weight_decay=0.1, warmup_steps=0)
    optimizer = config.build(10, groups)
    state = optimizer.init(weights)
    gradient = jax.tree.map(jnp.ones_like, weights)
    updates, _ = optimizer.update(gradient, state, weights)
    assert (updates["bias"] == 0).all()
    assert (updates["w"] != 0).all()
    assert (3, 5) not in [leaf.shape for leaf in jax.tree.leaves(state)]
    rows = [line.split()[:4] for line in group_table(weights, groups, config).splitlines()]
    assert ["state", "none", "none", "1"] in rows
