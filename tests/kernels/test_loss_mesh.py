"""The chunked loss with tokens and vocabulary cut over a mesh equals that of one device."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from chomp.kernels.loss import (
    LossTerms,
    chunked_losses,
    chunked_sum,
    linear_cross_entropy_and_argmax,
    reshard_inputs,
)
from chomp.mesh import BATCH_AXES, MeshConfig, create_mesh
from tests.kernels.loss_by_hand import Case, Found, Inputs, assert_near, by_hand, inputs

TOKENS = P(BATCH_AXES, None)
SPECS = Inputs(P(BATCH_AXES, None, None), P("data", "model"), TOKENS, TOKENS, TOKENS)
TERMS = LossTerms(logsumexp_weight=0.1, logit_soft_cap=2.5)
# Two chunks and a tail of one token for every device on the meshes that cut the batch by eight.
ROWS = 3


def whole_numbers() -> Inputs:
    """Arguments with many equal logits, on either side of every cut of the vocabulary."""
    draw, given = np.random.default_rng(1), inputs(8, 7, 16, 24)
    hidden, head = draw.integers(-1, 2, size=(8, 7, 16)), draw.integers(-1, 2, size=(16, 24))
    head[:, 12:] = head[:, :12]
    head = head[:, draw.permutation(24)]
    return given._replace(hidden=jnp.float32(hidden), head=jnp.float32(head) * 0.25)


@jax.jit
def sum_and_losses(given: Inputs) -> tuple[Found, Found, jax.Array]:
    """The weighted sum and its gradients, the same of unreduced losses, and the argmax."""

    def total(hidden: jax.Array, head: jax.Array, weight: jax.Array) -> jax.Array:
        head = jax.reshard(head, P(None, "model"))
        return chunked_sum(*reshard_inputs(hidden, head, given.labels, weight), TERMS, ROWS)

    def by_token(
        hidden: jax.Array, head: jax.Array, weight: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        hidden, head, labels, _ = reshard_inputs(hidden, head, given.labels, weight)
        losses, argmax = chunked_losses(hidden, head, labels, TERMS, ROWS, True)
        return jnp.sum(losses * given.slopes), argmax

    arguments = (given.hidden, given.head, given.weight)
    gradients = partial(jax.value_and_grad, argnums=(0, 1, 2))
    value, first = gradients(total)(*arguments)
    (other, argmax), second = gradients(by_token, has_aux=True)(*arguments)
    return Found(value, *first), Found(other, *second), argmax


@pytest.mark.parametrize(
    "sizes",
    [
        {"data": 1},
        {"data": 4, "model": 2},
        pytest.param({"data": 2, "model": 4}, marks=pytest.mark.slow),
        {"data": 1, "model": 8},
        {"replica": 2, "data": 2, "expert": 2},
    ],
    ids=str,
)
def test_sums_losses_gradients_and_argmax_are_those_of_one_device(sizes):
    given = whole_numbers()
    mesh = create_mesh(MeshConfig(**sizes), devices=jax.devices()[: np.prod(list(sizes.values()))])
    with jax.set_mesh(mesh):
        total, by_token, argmax = sum_and_losses(Inputs(*map(jax.reshard, given, SPECS)))
        shown = [gradient.sharding.spec for gradient in total[1:]]
    assert shown == [SPECS.hidden, SPECS.head, SPECS.weight]
    for found, reduction in ((total, "sum"), (by_token, "none")):
        expected = by_hand(given, Case(reduction, 0.1, 2.5))
        assert_near(found, expected, most=5e-6, mean=1e-6, note=(sizes, reduction))
    logits = np.asarray(given.hidden) @ np.asarray(given.head)
    np.testing.assert_array_equal(argmax, logits.argmax(-1))


@pytest.mark.parametrize(
    ("hidden", "head"),
    [
        (P(None, "data", None), P(None, None)),  # the sequence cut, the head whole
        (P(None, None, "model"), P("model", "data")),  # widths cut, which the loss collects
    ],
    ids=str,
)
def test_arrays_laid_out_otherwise_are_taken_as_they_are(eight_device_mesh, hidden, head):
    given, case = inputs(2, 8, 6, 12), Case("mean")
    specs = Inputs(hidden, head, P(None, None), P(None, None), P(None, None))
    # No mesh is set: it is the arrays that carry it.
    laid = [
        jax.device_put(array, NamedSharding(eight_device_mesh, spec))
        for array, spec in zip(given, specs, strict=True)
    ]
    value, argmax = jax.jit(linear_cross_entropy_and_argmax)(*laid[:4])
    assert float(value) == pytest.approx(float(by_hand(given, case).found.value), rel=1e-6)
    logits = np.asarray(given.hidden) @ np.asarray(given.head)
    np.testing.assert_array_equal(argmax, logits.argmax(-1))
