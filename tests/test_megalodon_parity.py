"""Our Megalodon against the public `megalodon-jax` package: the same weights, logits, gradients."""

from collections.abc import Iterator
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("megalodon_jax", reason="megalodon-jax, which needs JAX 0.10, is not installed")

import equinox as eqx

from chomp.kernels.attention import AttentionMask
from chomp.mesh import MeshConfig, create_mesh
from experiments.grug.megalodon.model import GrugModelConfig, Transformer
from tests.megalodon_oracle import as_ours, as_theirs, deviations, leaves_of, their_model
from tests.test_megalodon import CONFIG, shaken

LENGTH = 21  # two chunks of eight and a part of a third
IDS = np.random.default_rng(2).integers(3, 64, (2, LENGTH), dtype=np.int32)

PLAIN = replace(CONFIG, swiglu=False, rescale_nffn=False, num_heads=1)
OTHERS = {
    "no gate, one head": PLAIN,
    "tied, scaled": replace(CONFIG, share_emb=True, scale_emb=True),
    "no affine norms": replace(CONFIG, norm_affine=False, rope_base=100.0),
    "a window": replace(CONFIG, attention_window=6),
}


@pytest.fixture(autouse=True)
def one_device() -> Iterator[None]:
    """Weights need a mesh to lie on. The package relies on promotions that tests forbid us."""
    mesh = create_mesh(MeshConfig(), devices=jax.devices()[:1])
    loose = jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow")
    with jax.set_mesh(mesh), loose[0], loose[1]:
        yield


def require_equal(cfg: GrugModelConfig, segments: np.ndarray | None = None) -> None:
    """Equal logits to 1e-5 and, relative to each weight's largest, equal gradients."""
    model = shaken(cfg)
    theirs = their_model(model)
    mask = AttentionMask.causal(segment_ids=None if segments is None else jnp.asarray(segments))
    weight = np.ones(IDS.shape, np.float32)
    weight[:, -1] = 0.0
    if segments is not None:  # nobody predicts the first token of the next document
        weight[:, :-1] = segments[:, 1:] == segments[:, :-1]

    def our_loss(model: Transformer) -> jax.Array:
        return model.next_token_loss(jnp.asarray(IDS), jnp.asarray(weight), mask=mask)

    logits = jax.jit(lambda m: m.logits(jnp.asarray(IDS), mask))(model)
    loss, gradient = jax.jit(jax.value_and_grad(our_loss))(model)
    told = {} if segments is None else {"segment_ids": segments + 1}  # 0 is padding there
    expected, _ = eqx.filter_jit(lambda m: m(IDS, **told))(theirs)
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    their_loss = eqx.filter_value_and_grad(lambda m: m.compute_loss(IDS, IDS, **told))
    their_value, their_gradient = eqx.filter_jit(their_loss)(theirs)
    np.testing.assert_allclose(loss, their_value, rtol=1e-6)
    found = deviations(as_theirs(gradient), leaves_of(their_gradient))
    assert max(found.values()) < 2e-5, sorted(found.items(), key=lambda item: -item[1])[:3]


def test_logits_and_every_gradient_are_those_of_the_package() -> None:
    require_equal(CONFIG)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_so_are_those_of_other_shapes(name: str) -> None:
    require_equal(OTHERS[name])


@pytest.mark.slow
@pytest.mark.parametrize("cfg", [CONFIG, PLAIN], ids=["gated", "plain"])
def test_so_are_those_of_packed_documents(cfg: GrugModelConfig) -> None:
    """Documents that begin on and off the chunks' edges, of one token, and over an edge."""
    lengths = [[5, 11, 5], [1, 15, 5]]
    segments = np.stack([np.repeat(np.arange(3), row) for row in lengths]).astype(np.int32)
    require_equal(cfg, segments)


def test_weights_go_there_and_come_back_as_they_were() -> None:
    model = shaken(CONFIG)
    back = as_ours(their_model(model), model)
    same = jax.tree.map(lambda a, b: np.array_equal(a, b), model, back)
    assert all(jax.tree.leaves(same))
