"""What makes a step come out the same: no random numbers, and sums in one order.

Random numbers: `train.deterministic`, or what the model's config says. Order: `train.reproducible`,
which on a GPU costs speed; on a CPU every run has it.
"""

import dataclasses
import logging
from typing import Any, TypeVar

from jax.sharding import Mesh

from chomp.errors import require

log = logging.getLogger(__name__)

RunConfig = TypeVar("RunConfig")

# Of the attention backends that a GPU has, those whose sums do not depend on which thread is first.
_IN_ONE_ORDER = ("chunked", "reference")


def with_sums_in_one_order(config: RunConfig, mesh: Mesh) -> RunConfig:
    """The run config with kernels that a reproducible run may use on these devices.

    cuDNN's attention adds its gradients up as threads arrive, and under XLA's deterministic mode
    it does not run at all (JAX 0.11.2 on an H200: an IndexError out of the compiled step).
    """
    given: Any = config
    is_gpu = mesh.devices.flat[0].platform == "gpu"
    if not (given.trainer.reproducible and is_gpu) or given.model.attention in _IN_ONE_ORDER:
        return config
    require(
        given.model.attention == "auto",
        f"train.reproducible=true with model.attention={given.model.attention} on a GPU",
        allowed=f"attention whose sums have one order: {', '.join(_IN_ONE_ORDER)}",
        fix="leave model.attention out, or set train.reproducible=false",
    )
    log.warning(
        "train.reproducible=true: attention is `chunked`, which is several times slower than cuDNN"
    )
    model = dataclasses.replace(given.model, attention=_IN_ONE_ORDER[0])
    reproducible: RunConfig = dataclasses.replace(given, model=model)
    return reproducible


def is_stochastic(deterministic: bool | None, model: Any) -> bool:
    """Whether the step hands the model a random key; without one, no model drops anything.

    None: if any number of the model's config with `dropout` in its name is above 0.
    """
    rates = {
        field.name: getattr(model, field.name)
        for field in dataclasses.fields(model)
        if "dropout" in field.name and isinstance(getattr(model, field.name), int | float)
    }
    has_dropout = any(rate for rate in rates.values())
    if deterministic and has_dropout:
        log.warning("train.deterministic=true: the dropout of the model is off (%s)", rates)
    return has_dropout if deterministic is None else not deterministic
