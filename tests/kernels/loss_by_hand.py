"""The loss and its gradients in float64, and the same asked of the library."""

from itertools import product
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from chomp.kernels.loss import (
    LossTerms,
    Reduction,
    chunked_losses,
    chunked_sum,
    linear_cross_entropy,
)

# Axes: B batch, S sequence, D model width, V vocabulary.


class Case(NamedTuple):
    """One way to ask for the loss."""

    reduction: Reduction
    z_weight: float = 0.0
    cap: float | None = None


# Every reduction and every term, each with and without the others; then all of them.
CASES = (
    Case("none"),
    Case("none", 0.1, 2.5),
    Case("sum", 0.3),
    Case("mean"),
    Case("mean", 0.3),
    Case("mean", 0.1, 2.5),
)
ALL_CASES = tuple(
    Case(reduction, z_weight, cap)
    for reduction, z_weight, cap in product(("none", "sum", "mean"), (0.0, 0.3), (None, 2.5))
)


class Inputs(NamedTuple):
    """Arguments of a loss, and `slopes`: what each of the unreduced losses counts for."""

    hidden: jax.Array
    head: jax.Array
    labels: jax.Array
    weight: jax.Array
    slopes: jax.Array


class Found(NamedTuple):
    """A loss, or losses times `slopes` summed, and the gradients."""

    value: np.ndarray
    by_hidden: np.ndarray
    by_head: np.ndarray
    by_weight: np.ndarray


class Expected(NamedTuple):
    """What the formula gives, and the size of the numbers that its rounding errors come from."""

    found: Found
    sizes: Found


def inputs(
    rows: int, length: int, width: int, vocab: int, *, dtype: str = "float32", seed: int = 0
) -> Inputs:
    """Random arguments with fractional weights, some of them 0, and labels at both ends."""
    draw = np.random.default_rng(seed)
    hidden, head = draw.normal(size=(rows, length, width)), draw.normal(size=(width, vocab))
    labels = draw.integers(0, vocab, size=(rows, length))
    labels.flat[0], labels.flat[-1] = vocab - 1, 0
    weight = draw.uniform(0, 1.7, size=labels.shape) * (draw.uniform(size=labels.shape) > 0.2)
    slopes = draw.normal(size=labels.shape)
    floats = [jnp.asarray(array, dtype) for array in (hidden, head)]
    rest = [jnp.asarray(array, jnp.float32) for array in (weight, slopes)]
    return Inputs(*floats, jnp.asarray(labels, jnp.int32), *rest)


def by_hand(given: Inputs, case: Case) -> Expected:
    """What the formula gives, in float64, from the arguments as rounded."""
    hidden, head, weight, slopes = (np.asarray(given[i], np.float64) for i in (0, 1, 3, 4))
    cap = case.cap or np.inf
    products = hidden @ head
    logits = products if case.cap is None else cap * np.tanh(products / cap)
    z = np.log(np.exp(logits).sum(-1))
    is_label = np.arange(head.shape[1]) == np.asarray(given.labels)[..., None]
    losses = z - (logits * is_label).sum(-1) + case.z_weight * z**2
    shares = np.exp(logits - z[..., None])
    slope = shares * (1 + 2 * case.z_weight * z[..., None]) - is_label
    slope *= 1 - (logits / cap) ** 2

    total = max(weight.sum(), 1e-9)
    counts = {"none": slopes, "sum": weight, "mean": weight / total}[case.reduction]
    value = (counts * losses).sum()
    by_weight = {"none": 0 * losses, "sum": losses, "mean": (losses - value) / total}
    slope *= counts[..., None]
    by_head = np.einsum("bsd,bsv->dv", hidden, slope)
    found = Found(value, slope @ head.T, by_head, by_weight[case.reduction])
    sizes = [np.abs(array).max() for array in found]
    # Sums of mixed signs, and differences, are as exact as what goes into them.
    sizes[0] = np.abs(counts * losses).sum()
    sizes[3] = losses.max() / (total if case.reduction == "mean" else 1.0)
    return Expected(found, Found(*sizes))


def asked(given: Inputs, case: Case, how: str | int) -> Found:
    """What the library gives: by an implementation's name, or in chunks of that many tokens."""

    def objective(hidden: jax.Array, head: jax.Array, weight: jax.Array) -> jax.Array:
        loss = _loss(given._replace(hidden=hidden, head=head, weight=weight), case, how)
        return jnp.sum(loss * given.slopes) if case.reduction == "none" else loss

    arguments = (given.hidden, given.head, given.weight)
    value, gradients = jax.value_and_grad(objective, argnums=(0, 1, 2))(*arguments)
    return Found(value, *gradients)


def _loss(given: Inputs, case: Case, how: str | int) -> jax.Array:
    if isinstance(how, str):
        return linear_cross_entropy(
            *given[:4],
            reduction=case.reduction,
            logsumexp_weight=case.z_weight,
            logit_soft_cap=case.cap,
            implementation=how,
        )
    terms = LossTerms(logsumexp_weight=case.z_weight, logit_soft_cap=case.cap)
    if case.reduction == "none":
        return chunked_losses(*given[:3], terms, how)[0]
    total = chunked_sum(*given[:4], terms, how)
    return total if case.reduction == "sum" else total / jnp.sum(given.weight)


def assert_near(
    found: Found, expected: Expected, *, most: float, mean: float, note: object
) -> None:
    """Deviations are at most `most` of their size, and an array's at most `mean` on average."""
    for name, one, other, size in zip(Found._fields, found, *expected, strict=True):
        deviation = np.abs(np.asarray(one, np.float64) - other) / max(size, 1e-6)
        told = f"{note} {name}: max {deviation.max():.1e}, mean {deviation.mean():.1e}"
        assert deviation.max() <= most, told
        assert deviation.mean() <= mean, told
