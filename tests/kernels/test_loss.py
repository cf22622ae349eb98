"""The loss reference against its formula in float64: values, gradients, weights, reductions."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from chomp.kernels.loss import linear_cross_entropy
from chomp.mesh import BATCH_AXES

# Axes: B batch, S sequence, D model width, V vocabulary.
B, S, D, V = 4, 5, 6, 14

WEIGHTS = {
    "ones": np.ones((B, S)),
    "zeros and ones": np.arange(B * S).reshape(B, S) % 3 > 0,
    "fractions": np.linspace(0.0, 1.7, B * S).reshape(B, S),
    "one token": np.eye(B, S)[:, ::-1] * [[0.0], [0.0], [0.25], [0.0]],
}


def arrays(dtype: str = "float32") -> tuple[jax.Array, jax.Array, jax.Array]:
    draw = np.random.default_rng(0)
    hidden, head = draw.normal(size=(B, S, D)), draw.normal(size=(D, V))
    labels = draw.integers(0, V, size=(B, S))
    labels[0, 0], labels[0, 1] = 0, V - 1
    kind = jnp.dtype(dtype)
    return jnp.asarray(hidden, kind), jnp.asarray(head, kind), jnp.asarray(labels, jnp.int32)


def by_hand(
    hidden: np.ndarray, head: np.ndarray, labels: np.ndarray, z_weight: float
) -> tuple[np.ndarray, np.ndarray]:
    """Loss of every token and its derivative by the logits, in float64."""
    logits = hidden @ head
    logsumexp = np.log(np.exp(logits).sum(-1))
    label_logit = np.take_along_axis(logits, labels[..., None], -1)[..., 0]
    losses = logsumexp - label_logit + z_weight * logsumexp**2
    probability = np.exp(logits - logsumexp[..., None])
    slope = probability * (1 + 2 * z_weight * logsumexp[..., None]) - np.eye(V)[labels]
    return losses, slope


@partial(jax.jit, static_argnames=("reduction", "logsumexp_weight"))
def loss(*args: jax.Array, reduction: str, logsumexp_weight: float = 0.0) -> jax.Array:
    return linear_cross_entropy(*args, reduction=reduction, logsumexp_weight=logsumexp_weight)


def exact(*values: jax.Array) -> list[np.ndarray]:
    return [np.asarray(v, np.int64 if v.dtype == jnp.int32 else np.float64) for v in values]


@pytest.mark.parametrize("z_weight", [0.0, 0.3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_each_token_has_the_loss_of_the_formula_in_float32(dtype, z_weight):
    args = arrays(dtype)
    weight = jnp.asarray(WEIGHTS["fractions"], jnp.float32)
    found = loss(*args, weight, reduction="none", logsumexp_weight=z_weight)
    expected, _ = by_hand(*exact(*args), z_weight)
    assert found.dtype == jnp.float32
    deviation = np.abs(np.asarray(found, np.float64) - expected)
    # Products of bfloat16 are exact in float32, so the dtype of the inputs costs nothing more.
    assert deviation.max() < 1e-5, f"max {deviation.max():.2e}, mean {deviation.mean():.2e}"


def test_unreduced_losses_do_not_depend_on_the_weights():
    args = arrays()
    ones, none = jnp.ones((B, S)), jnp.zeros((B, S))
    np.testing.assert_array_equal(
        loss(*args, ones, reduction="none"), loss(*args, none, reduction="none")
    )


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_weights_enter_sums_and_means_once_with_their_gradients(name, reduction):
    args, z_weight = arrays(), 0.1
    weight = np.asarray(WEIGHTS[name], np.float64)
    hidden, head, labels = exact(*args)
    losses, slope = by_hand(hidden, head, labels, z_weight)
    scale = 1.0 if reduction == "sum" else 1.0 / weight.sum()
    slope = slope * weight[..., None] * scale

    value, gradients = value_and_gradients(*args, jnp.asarray(weight, jnp.float32), reduction)
    assert float(value) == pytest.approx((losses * weight).sum() * scale, rel=1e-5)
    np.testing.assert_allclose(gradients[0], slope @ head.T, rtol=1e-4, atol=1e-5)
    by_head = np.einsum("bsd,bsv->dv", hidden, slope)
    np.testing.assert_allclose(gradients[1], by_head, rtol=1e-4, atol=1e-5)


@partial(jax.jit, static_argnums=4)
def value_and_gradients(
    hidden: jax.Array, head: jax.Array, labels: jax.Array, weight: jax.Array, reduction: str
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return jax.value_and_grad(
        lambda hidden, head: linear_cross_entropy(
            hidden, head, labels, weight, reduction=reduction, logsumexp_weight=0.1
        ),
        argnums=(0, 1),
    )(hidden, head)


def test_a_mean_over_no_token_is_zero_with_gradients_of_zero():
    value, gradients = value_and_gradients(*arrays(), jnp.zeros((B, S)), "mean")
    assert float(value) == 0.0
    assert all(not np.asarray(gradient).any() for gradient in gradients)


def test_logits_too_large_to_exponentiate_still_have_a_finite_loss():
    hidden, head, labels = arrays()
    found = loss(hidden * 1e4, head, labels, jnp.ones((B, S)), reduction="none")
    assert np.isfinite(found).all()
    assert (np.asarray(found) >= 0).all()


def test_a_vocabulary_cut_over_the_mesh_gives_what_one_device_gives(eight_device_mesh):
    hidden, head, labels = arrays()
    weight = jnp.asarray(WEIGHTS["fractions"], jnp.float32)
    value, gradients = value_and_gradients(hidden, head, labels, weight, "mean")
    with jax.set_mesh(eight_device_mesh):
        spread = value_and_gradients(
            jax.reshard(hidden, P(BATCH_AXES, None, None)),
            jax.reshard(head, P(None, "model")),
            jax.reshard(labels, P(BATCH_AXES, None)),
            jax.reshard(weight, P(BATCH_AXES, None)),
            "mean",
        )
    assert float(spread[0]) == pytest.approx(float(value), rel=1e-6)
    for together, alone in zip(spread[1], gradients, strict=True):
        np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-6)
