"""The learning rate as a function of the step: one formula, for devices and for the host.

With c = step + 1 (steps count from 0), warmup w and floor m = min_lr_ratio, step c <= w runs at
lr * c / w: the first update counts. After the warmup it is lr times

    constant       1
    cosine         m + (1 - m) * (1 + cos(pi p)) / 2
    linear         m + (1 - m) * (1 - p)
    wsd            1 for `stable_steps`, then as linear
    inverse_sqrt   max(m, sqrt(max(w, 1) / c))

where p goes from 0 to 1 over `decay_steps` (1 is the last step's, but the only step of a decay has
0) and then stays. `cycles` decays (of wsd: with their stable parts) follow each other, each
beginning again at the full rate. A schedule may start later than the run: all of the above then
counts from `start`.

A length is given in steps or as a share of the run. The two are different types: an integer is
steps, text such as "5%" is a share. One number that means either by its size would make `1` both
one step and the whole run, so a float is refused with both spellings.
"""

import re
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from chomp.errors import ConfigError

Shape = Literal["cosine", "linear", "constant", "wsd", "inverse_sqrt"]
# Those whose decay has an end: they take `decay_steps`, and can begin again.
ENDING_SHAPES: tuple[Shape, ...] = ("cosine", "linear", "wsd")

# Floats are declared only so that they arrive here, to be refused in words that help.
Duration = int | float | str

Rate = Float[Array, ""] | Float[np.ndarray, ""] | np.floating


_SHARE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")


@dataclass(frozen=True, kw_only=True)
class LearningRate:
    """An optax schedule, in float32, by the formulas above; lengths are in steps.

    Of a JAX array the rate is a JAX array. Of an int numpy computes it, so that logging it touches
    no device; the two differ by rounding only.
    """

    lr: float
    warmup_steps: int
    decay_steps: int | float  # of one decay; a share of the run need not be whole
    min_lr_ratio: float
    shape: Shape = "cosine"
    stable_steps: int | float = 0  # of one cycle
    cycles: int = 1
    start: int = 0  # the step whose rate is the first

    def __call__(self, step: int | Int[Array, ""]) -> Rate:
        """The rate of a step, counted from 0."""
        xp: ModuleType = jnp if isinstance(step, jax.Array) else np
        if self.start:
            # Steps that were skipped are no updates, so the first ones here may count below it.
            step = xp.maximum(step - self.start, 0)
        count = xp.asarray(step, xp.float32)
        warmup = (count + 1.0) / max(self.warmup_steps, 1)
        if self.shape == "constant":
            after = xp.ones_like(count)
        elif self.shape == "inverse_sqrt":
            fallen = xp.sqrt(max(self.warmup_steps, 1) / (count + 1.0))
            after = xp.maximum(fallen, self.min_lr_ratio)
        else:
            # A decay ends with its last step. One of a single step has no way to go, or a run of
            # one step would change nothing.
            ahead = 1.0 if self.decay_steps > 1 else 0.0
            begin = self._start_of_cycle(xp, count) + self.stable_steps
            progress = xp.clip((count + ahead - begin) / max(self.decay_steps, 1), 0.0, 1.0)
            is_cosine = self.shape == "cosine"
            fallen = 0.5 * (1.0 + xp.cos(xp.pi * progress)) if is_cosine else 1.0 - progress
            after = self.min_lr_ratio + (1.0 - self.min_lr_ratio) * fallen
        return self.lr * xp.where(count < self.warmup_steps, warmup, after)

    def _start_of_cycle(self, xp: ModuleType, count: Any) -> Any:
        """Steps before the cycle that a step belongs to; its last step still does."""
        if self.cycles == 1:
            return self.warmup_steps
        length = self.stable_steps + self.decay_steps
        ends = [np.float32(self.warmup_steps + length * n) for n in range(1, self.cycles)]
        # By comparing, not by dividing: a device's quotient may lie just above a whole number,
        # and the last step of a cycle would run at the full rate of the next.
        start: Any = np.float32(self.warmup_steps)
        for end in ends:
            start = xp.where(count + 1.0 > end, end, start)
        return start


def require_duration(name: str, value: Duration, *, least: int) -> None:
    """Raise `ConfigError` unless `value` is at least `least` steps, or a share of up to 100 %."""
    if isinstance(value, str):
        share = _share(value)
        if share is None or not (0 < share <= 100 or share == least == 0):
            raise ConfigError(
                f"{name}={value!r}",
                allowed=f"a share {'above' if least else 'from'} 0% and up to 100%, or a whole "
                "number",
                fix="write '5%' for a twentieth of the run, or 100 for a hundred steps",
            )
    elif isinstance(value, bool | float):
        share_text = f"{100 * value:g}%" if 0 < value <= 1 else "5%"
        steps = f"{value:.0f}" if value >= 1 and float(value).is_integer() else "100"
        raise ConfigError(
            f"{name}={value}",
            allowed="a whole number of steps, or a share of the run in quotes",
            fix=f"set {name} to {steps} for steps, or to '{share_text}' for a share of the run",
        )
    elif value < least:
        raise ConfigError(
            f"{name}={value}",
            allowed="above 0" if least else "0 or more",
            fix=f"set {name} to {least} or more steps, or to a share such as '5%'",
        )


def steps_of(value: Duration, num_steps: int) -> int:
    """The steps that a checked `value` stands for in a run of `num_steps`.

    A share is rounded to the nearest step, and is one step at least unless it is 0 %.
    """
    if not isinstance(value, str):
        return int(value)
    share = _share(value)
    assert share is not None, "checked by require_duration"
    return max(round(share / 100 * num_steps), 1) if share > 0 else 0


def _share(text: str) -> float | None:
    found = _SHARE.fullmatch(text)
    return float(found[1]) if found else None
