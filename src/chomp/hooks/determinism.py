"""Whether a step draws random numbers: `train.deterministic`, or what the model's config says."""

import dataclasses
import logging
from typing import Any

log = logging.getLogger(__name__)


def is_stochastic(deterministic: bool | None, model: Any) -> bool:
    """Whether the step hands the model a random key; without one, no model drops anything.

    None: if any field of the model's config with `dropout` in its name is above 0.
    """
    rates = {
        field.name: getattr(model, field.name)
        for field in dataclasses.fields(model)
        if "dropout" in field.name
    }
    has_dropout = any(rate for rate in rates.values())
    if deterministic and has_dropout:
        log.warning("train.deterministic=true: the dropout of the model is off (%s)", rates)
    return has_dropout if deterministic is None else not deterministic
