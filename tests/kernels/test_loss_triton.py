"""The hand-written loss kernel in Pallas' interpreter, against the passes it takes the place of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from chomp.kernels.loss import LossTerms, is_one_kernel, row_losses_and_grads
from chomp.kernels.loss_triton import triton_losses_and_grads

ROWS = 5


def inputs(vocab: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    draw = np.random.default_rng(0)
    logits = draw.normal(size=(ROWS, vocab)) * 4
    logits[1] -= 80.0  # far below the first guess of a maximum
    labels = draw.integers(0, vocab, ROWS)
    labels[:2] = (0, vocab - 1)
    weight = np.asarray([1.0, 0.25, 0.0, 3.0, 1.0])
    return jnp.asarray(logits, jnp.float32), jnp.asarray(labels), jnp.asarray(weight, jnp.float32)


# One piece, several whole ones, and a last one that is cut by the vocabulary's end.
@pytest.mark.parametrize(
    ("logsumexp_weight", "vocab"),
    [
        *[(0.3, vocab) for vocab in (7, 64, 192, 131)],
        (0.0, 131),
        *[pytest.param(0.0, vocab, marks=pytest.mark.slow) for vocab in (7, 64, 192)],
    ],
)
def test_one_kernel_gives_the_losses_and_slopes_of_three_passes(vocab, logsumexp_weight):
    logits, labels, weight = inputs(vocab)
    terms = LossTerms(logsumexp_weight=logsumexp_weight)
    assert not is_one_kernel(logits, terms)  # on a CPU, the passes
    expected = row_losses_and_grads(logits, labels, weight, terms, jnp.float32)
    found = triton_losses_and_grads(
        logits,
        labels,
        weight,
        logsumexp_weight=logsumexp_weight,
        dtype=jnp.float32,
        columns=64,
        is_interpreted=True,
    )
    np.testing.assert_allclose(found[0], expected[0], rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(found[1], expected[1], rtol=2e-5, atol=2e-6)


def test_a_label_outside_of_the_vocabulary_counts_as_a_logit_of_zero():
    logits, _, weight = inputs(131)
    labels = jnp.asarray([-100, 131, 5, -1, 10**6])
    found = triton_losses_and_grads(
        logits,
        labels,
        weight,
        logsumexp_weight=0.0,
        dtype=jnp.float32,
        columns=64,
        is_interpreted=True,
    )
    expected = row_losses_and_grads(logits, labels, weight, LossTerms(), jnp.float32)
    np.testing.assert_allclose(found[0], expected[0], rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(found[1], expected[1], rtol=2e-5, atol=2e-6)


def test_a_row_that_is_not_finite_has_no_finite_loss():
    logits, labels, weight = inputs(64)
    logits = logits.at[0, 5].set(jnp.nan).at[3, 9].set(jnp.inf)
    losses, _ = triton_losses_and_grads(
        logits,
        labels,
        weight,
        logsumexp_weight=0.0,
        dtype=jnp.bfloat16,
        columns=64,
        is_interpreted=True,
    )
    assert np.isfinite(np.asarray(losses)).tolist() == [False, True, True, False, True]


# JAX 0.11 means to drop this backend of Pallas; the warning is for us (docs/decisions/0009).
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend:DeprecationWarning")
def test_the_kernel_is_lowered_for_cuda_in_the_compute_dtype():
    logits, labels, weight = inputs(131)
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (logits, labels, weight)]
    # JAX 0.11 asks what the GPU is before it lowers this, and here is none.
    device = AbstractDevice(device_kind="NVIDIA H200", num_cores=None, platform="cuda")
    mesh = AbstractMesh((1,), ("x",), (AxisType.Explicit,), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        traced = jax.jit(
            lambda *arrays: triton_losses_and_grads(
                *arrays, logsumexp_weight=0.1, dtype=jnp.bfloat16
            )
        ).trace(*shapes)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "row_losses_and_grads" in text
    assert f"tensor<{ROWS}x131xbf16>" in text
