"""What tracing a variant shows, as functions: shapes, labels, randomness, lowering.

Nothing is compiled or computed, so sizes do not matter: the models are those that a variant has by
default. Each function returns what the variant breaks, in three parts.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxprs_in_params
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from chomp.data import GrugLmExample
from chomp.errors import ConfigError
from chomp.kernels.attention import AttentionMask
from chomp.kernels.precision import Precision
from chomp.mesh import MeshConfig, abstract_arrays, create_mesh
from chomp.optim import GrugOptimizerConfig
from chomp.optim.config import grouped_weights
from chomp.tracking.metrics import TRAIN_LOSS
from tests.grug_contracts import Checks, Template

ROWS, TOKENS = 8, 16
HALF = "compute=bfloat16"


def _abstract_model(template: Template, cfg: Any) -> Any:
    return abstract_arrays(lambda: template.model.Transformer.init(cfg, key=jax.random.key(0)))


def _model_config(template: Template) -> Any:
    """The model of the launch file, with dropout where it has any."""
    cfg = template.launch_class().model
    dropout = (field.name for field in dataclasses.fields(cfg) if "dropout" in field.name)
    rates = {name: 0.1 for name in dropout if isinstance(getattr(cfg, name), float)}
    return replace(cfg, **rates)


@contextmanager
def _one_device() -> Iterator[None]:
    with jax.set_mesh(create_mesh(MeshConfig(data=1), devices=jax.devices()[:1])):
        yield


def labels_every_weight(template: Template) -> list[str]:
    """`param_groups()` is shaped like the parameters, and holds labels that optimizers know."""
    model = _abstract_model(template, _model_config(template))
    groups, fix = model.param_groups(), "make param_groups() from the parameters by jax.tree.map"
    try:
        grouped_weights(model, groups)
    except ConfigError as error:
        return [template.breach("model.py", str(error), allowed="as said", fix=fix)]
    if jax.tree.structure(groups) == jax.tree.structure(model):
        return []
    given, allowed = f"param_groups() is a {type(groups).__name__}", "a tree shaped like the model"
    return [template.breach("model.py", given, allowed=allowed, fix=fix)]


def draws_nothing_without_a_key(template: Template) -> list[str]:
    """With `key=None` nothing is random: no draw is traced, and two traces are equal."""
    model = _abstract_model(template, _model_config(template))

    def outputs(model: Any, tokens: jax.Array, weight: jax.Array) -> tuple[jax.Array, ...]:
        mask = AttentionMask.causal()
        loss = model.next_token_loss(
            tokens, weight, mask=mask, reduction="mean", logsumexp_weight=1e-4, key=None
        )
        return model(tokens, mask, key=None), loss

    with _one_device():
        arguments = (model, jnp.zeros((ROWS, TOKENS), jnp.int32), jnp.ones((ROWS, TOKENS)))
        first, second = (str(jax.make_jaxpr(outputs)(*arguments)) for _ in range(2))
    drawn = [word for word in ("random_bits", "random_split", "threefry", "rng_") if word in first]
    if not drawn and first == second:
        return []
    return [
        template.breach(
            "model.py",
            f"without a key, the model draws ({', '.join(drawn)})"
            if drawn
            else "two traces of the model differ",
            allowed="`key=None`: no dropout, and the same result every time",
            fix="draw from `key` only, and only where it is not None",
        )
    ]


def adds_up_gradients_in_float32(template: Template) -> list[str]:
    """Under bfloat16 compute, no gradient is a sum over positions that bfloat16 adds up.

    Such a sum stands still once it is 256 times what is added: of a lookup's rows, of a bias.
    Products are not looked at: the hardware adds them up in float32.
    """
    model, mp = _abstract_model(template, template.launch_class().model), Precision.parse(HALF)

    def loss(model: Any, tokens: jax.Array, weight: jax.Array) -> jax.Array:
        summed: jax.Array = mp.for_compute(model).next_token_loss(tokens, weight)
        return summed

    with _one_device():
        arguments = (model, jnp.zeros((ROWS, TOKENS), jnp.int32), jnp.ones((ROWS, TOKENS)))
        traced = jax.make_jaxpr(jax.grad(loss, allow_int=True))(*arguments)
    return [
        template.breach(
            "model.py",
            f"a gradient of shape {list(found.outvars[0].aval.shape)} is added up in bfloat16 by a "
            f"{found.primitive.name}",
            allowed="sums over positions in float32, rounded once",
            fix="cast to float32 before, as chomp.kernels.layers does, and back after",
        )
        for found in _equations(traced.jaxpr)
        if _adds_up_halves(found)
    ]


def _adds_up_halves(equation: Any) -> bool:
    made = equation.outvars[0].aval if equation.outvars else None
    if getattr(made, "dtype", None) != jnp.bfloat16:
        return False
    if equation.primitive.name == "reduce_sum":
        return bool(equation.invars[0].aval.size > made.size)
    return equation.primitive.name in ("scatter-add", "cumsum")


def _equations(jaxpr: Any) -> Iterator[Any]:
    """Of a traced program, and of all that it calls."""
    for equation in jaxpr.eqns:
        yield equation
        for called in jaxprs_in_params(equation.params):
            yield from _equations(called)


def gives_the_promised_shapes(template: Template) -> list[str]:
    """Hidden states, logits, losses, scores and caches are of the shapes that others rely on."""
    cfg, train, shape = _model_config(template), template.train, (ROWS, TOKENS)
    model, logits = _abstract_model(template, cfg), (*shape, cfg.vocab_size)

    def outputs(model: Any) -> dict[str, Any]:
        tokens, mask = jnp.zeros(shape, jnp.int32), AttentionMask.causal()
        batch = GrugLmExample(tokens=tokens, loss_weight=jnp.ones(shape), attn_mask=mask)
        cache = model.init_cache(ROWS, TOKENS)
        decoded, extended = model.decode_step(cache, tokens)
        return {
            "Transformer.__call__": model(tokens, mask)[..., 0].astype(jnp.float32),
            "Transformer.logits": model.logits(tokens, mask),
            "next_token_loss(reduction='mean')": model.next_token_loss(tokens, jnp.ones(shape)),
            "losses_of": train.losses_of(Precision(), model, batch),
            "scores_of": train.scores_of(Precision(), model, batch),
            "decode_step": decoded,
            "caches": (cache, extended),
        }

    with _one_device():
        found = jax.eval_shape(outputs, model)
    before, after = (
        jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), each) for each in found.pop("caches")
    )
    promised = {
        "Transformer.logits": logits,
        "decode_step": logits,
        "next_token_loss(reduction='mean')": (),
    }
    wrong = {
        name: f"{leaf.dtype}{list(leaf.shape)}"
        for name, value in found.items()
        for leaf in jax.tree.leaves(value)
        if leaf.shape != promised.get(name, shape)
        or (leaf.dtype != jnp.float32 and name != "scores_of")
    }
    if before != after:
        wrong["the cache after decode_step"] = "another shape or dtype than before"
    return [
        template.breach(
            "model.py",
            f"{name} gives {what} for rows {list(shape)} of a vocabulary of {cfg.vocab_size}",
            allowed=f"float32{list(promised.get(name, shape))}; of a cache, what it was",
            fix="see experiments/grug/base/model.py",
        )
        for name, what in wrong.items()
    ]


def counts_its_operations(template: Template) -> list[str]:
    """`flops_per_token` is above the two operations that each weight of the head takes."""
    cfg = template.model.GrugModelConfig(vocab_size=1024)
    counted = [cfg.flops_per_token(length) for length in (1, 64)]
    if counted[0] > 2 * cfg.vocab_size and counted[1] >= counted[0]:
        return []
    return [
        template.breach(
            "model.py",
            f"flops_per_token gives {counted} for rows of 1 and 64 tokens",
            allowed="the operations of a forward pass, which longer rows never lower",
            fix="count two for each multiply-add of the model",
        )
    ]


def lowers_on_abstract_meshes(template: Template) -> list[str]:
    """A step of the default model lowers for 4 and for 8 devices, with its loss as a scalar."""
    for devices in (4, 8):
        if told := list(_lowered(template, devices)):
            return told  # what is wrong on few devices is as wrong on many
    return []


def _lowered(template: Template, devices: int) -> Iterator[str]:
    model, train = template.model, template.train
    mesh, spec = model.debug_mesh_and_token_pspec(devices)
    cfg, mp = model.GrugModelConfig(vocab_size=1024), Precision()

    def params() -> Any:
        return model.Transformer.init(cfg, key=jax.random.key(0))

    def fresh() -> Any:
        key = jax.random.key(0)  # made here: nothing can be computed on an abstract mesh
        return train.initial_state(cfg, optimizer=optimizer, mp=mp, key=key, ema_beta=None)

    with jax.sharding.use_abstract_mesh(mesh):
        optimizer = GrugOptimizerConfig().build(100, jax.eval_shape(params).param_groups())
        state = jax.eval_shape(fresh)
        step = train._make_train_step(optimizer, mp, z_loss_weight=0.0, ema_beta=None)
        zeros = np.zeros((32, 4), np.int32)
        rows = GrugLmExample.from_rows(zeros, zeros, eos_id=1)
        batch = jax.tree.map(lambda leaf: _on(mesh, (1, *leaf.shape), leaf, P(None, *spec)), rows)
        traced = step.trace(jax.tree.map(lambda leaf: _on(mesh, leaf.shape, leaf), state), batch)
        text = traced.lower(lowering_platforms=("cpu",)).as_text()
    after, metrics = traced.out_info
    loss = metrics.get(TRAIN_LOSS)
    facts = {
        f"a program for {devices} devices": f"num_partitions = {devices}" in text,
        f"{TRAIN_LOSS} of shape ()": loss is not None and loss.shape == (),
        "a step counter of shape ()": after.step.shape == (),
        "no averaged weights": after.ema_params is None,
        "a state of the shape it had": jax.tree.structure(after) == jax.tree.structure(state),
    }
    for fact, holds in facts.items():
        if not holds:
            yield template.breach(
                "train.py",
                f"the step on {devices} devices does not give {fact}",
                allowed="step(state, batch) -> (state, metrics) as base's, whatever the devices",
                fix="see _make_train_step in experiments/grug/base/train.py",
            )


def _on(mesh: Any, shape: tuple[int, ...], leaf: Any, spec: P | None = None) -> Any:
    if spec is None:
        spec = leaf.sharding.spec if leaf.sharding is not None else P()
    return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=NamedSharding(mesh, spec))


TRACED: tuple[Checks, ...] = (
    labels_every_weight,
    draws_nothing_without_a_key,
    adds_up_gradients_in_float32,
    gives_the_promised_shapes,
    counts_its_operations,
    lowers_on_abstract_meshes,
)
