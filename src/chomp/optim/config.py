"""What updates the weights: a config that builds an optax transform, and AdamW.

    m <- b1 m + (1 - b1) g        v <- b2 v + (1 - b2) g g
    W <- W - lr (m' / (sqrt(v') + eps) + weight_decay W)

m' = m / (1 - b1^t) and v' = v / (1 - b2^t) after t updates; with `nesterov` m' looks one gradient
ahead (NAdam). Only the groups that decay have the last term. `chomp.optim.muon` has Muon.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from chomp.config import Config, setting
from chomp.errors import require
from chomp.optim.groups import (
    DECAYED_GROUPS,
    PARAM_GROUPS,
    Group,
    decayed_weights,
    grouped_weights,
    require_known_groups,
)
from chomp.optim.muon import MuonConfig, muon
from chomp.optim.schedule import (
    ENDING_SHAPES,
    Duration,
    LearningRate,
    Shape,
    require_duration,
    steps_of,
)

# Share of the run that `wsd` decays for, if decay_steps is not set.
_WSD_DECAY = "20%"


@dataclass(frozen=True, kw_only=True)
class AdamConfig(Config):
    """Moments of Adam."""

    b1: float = setting(default=0.9, gt=0, lt=1)
    b2: float = setting(default=0.999, gt=0, lt=1)
    eps: float = setting(default=1e-8, gt=0, le=1)
    nesterov: bool = False


@dataclass(frozen=True, kw_only=True)
class GrugOptimizerConfig(Config):
    """AdamW or Muon, a schedule for both; weight decay on matrices only.

    A length is steps (`100`) or a share (`"5%"`) of the run, or of its steps from `schedule_start`
    on. A field that the chosen optimizer or schedule has no use for must keep its default.
    """

    name: Literal["adamw", "muon"] = "adamw"
    # Peak rate. A resumed run may change it, and whatever else is marked schedule (`--allow`).
    lr: float = setting(default=3e-4, gt=0, le=1000, mark="schedule")
    weight_decay: float = setting(default=0.01, ge=0, le=1000, mark="schedule")
    # Global norm; 0: no clipping.
    grad_clip_norm: float = setting(default=1.0, ge=0, mark="schedule")
    warmup_steps: Duration = setting(default=10, lt=2**31, mark="schedule")
    # Of one decay; None: the rest of the run (wsd: its 20%).
    decay_steps: Duration | None = setting(default=None, lt=2**31, mark="schedule")
    # 0.1 ends the run at a tenth of `lr`.
    min_lr_ratio: float = setting(default=0.0, ge=0, le=1, mark="schedule")
    lr_schedule: Shape = setting(default="cosine", mark="schedule")
    # Decays, each from the full rate.
    cycles: int = setting(default=1, ge=1, lt=2**31, mark="schedule")
    # The step whose rate is the first of the schedule, warmup included: where a run is continued.
    schedule_start: int = setting(default=0, ge=0, lt=2**31, mark="schedule", is_added=True)
    adam: AdamConfig = field(default_factory=AdamConfig)
    muon: MuonConfig = field(default_factory=MuonConfig)

    def __post_init__(self) -> None:
        require_duration("optim.warmup_steps", self.warmup_steps, least=0)
        if self.decay_steps is not None:
            require_duration("optim.decay_steps", self.decay_steps, least=1)
        # Nothing would read these fields.
        by_schedule, by_name = f"optim.lr_schedule={self.lr_schedule}", f"optim.name={self.name}"
        endless = self.lr_schedule not in ENDING_SHAPES
        uses: tuple[tuple[str, Any, bool, str], ...] = (
            ("decay_steps", None, not endless, by_schedule),
            ("cycles", 1, not endless, by_schedule),
            ("min_lr_ratio", 0.0, self.lr_schedule != "constant", by_schedule),
            *(
                (f"muon.{f.name}", f.default, self.name == "muon", by_name)
                for f in fields(MuonConfig)
            ),
        )
        for name, default, is_used, chosen in uses:
            value = attrgetter(name)(self)
            require(
                is_used or value == default,
                f"optim.{name}={value} with {chosen}, which does not use it",
                allowed=f"the default, {default}",
                fix=f"leave out optim.{name}, or choose another {chosen.partition('=')[0]}",
            )

    def schedule(self, num_steps: int) -> LearningRate:
        """The learning rate of a run of `num_steps`; its lengths are in steps."""
        length, whole = num_steps - self.schedule_start, f"a run of {num_steps} steps"
        require(
            length > 0,
            f"optim.schedule_start={self.schedule_start} in {whole}",
            allowed="a start before the last step",
            fix=f"set train.steps above {self.schedule_start}, or lower optim.schedule_start",
        )
        if self.schedule_start:
            whole = f"the {length} steps from optim.schedule_start={self.schedule_start} on"
        warmup = steps_of(self.warmup_steps, length)
        require(
            warmup < length,
            f"optim.warmup_steps={self.warmup_steps} in {whole}",
            allowed="fewer warmup steps than steps",
            fix=f"set optim.warmup_steps to {length // 10}",
        )
        decay, stable = self._cycle(length, length - warmup, whole)
        return LearningRate(
            lr=self.lr,
            warmup_steps=warmup,
            decay_steps=decay,
            min_lr_ratio=self.min_lr_ratio,
            shape=self.lr_schedule,
            stable_steps=stable,
            cycles=self.cycles,
            start=self.schedule_start,
        )

    def hyperparameters(self, num_steps: int) -> Callable[[int], dict[str, float]]:
        """What is logged of the optimizer for an update (from 0); computed without any device."""
        schedule = self.schedule(num_steps)

        def of_step(step: int) -> dict[str, float]:
            rate = float(schedule(step))
            logged = {"optim/learning_rate": rate, "optim/weight_decay": self.weight_decay}
            if self.name == "muon":
                logged["optim/muon_learning_rate"] = rate * self.muon.lr_scale
                logged["optim/muon_weight_decay"] = self.weight_decay * self.muon.weight_decay_mult
                logged["optim/muon_momentum"] = self.muon.momentum
            return logged

        return of_step

    def build(self, num_steps: int, param_groups: Any) -> optax.GradientTransformation:
        """The update rule for parameters whose tree of group labels is `param_groups`."""
        require_known_groups(param_groups)
        clip = clip_by_norm(self.grad_clip_norm) if self.grad_clip_norm > 0 else optax.identity()
        schedule = self.schedule(num_steps)
        decay = {"weight_decay": self.weight_decay, "param_groups": param_groups}
        by_adam = adamw(self.adam, schedule, **decay)
        if self.name == "adamw" and "state" not in jax.tree.leaves(param_groups):
            rule = optax.chain(clip, *by_adam)
        else:
            rules = {"adamw": optax.chain(*by_adam), "none": optax.set_to_zero()}
            if self.name == "muon":
                rules["muon"] = optax.chain(*muon(self.muon, schedule, **decay))

            def rules_of(params: Any) -> Any:
                weights = grouped_weights(params, param_groups)
                names = [self.updated_by(weight.group, len(weight.shape)) for weight in weights]
                for weight, name in zip(weights, names, strict=True):
                    require(
                        name != "muon" or len(weight.shape) >= 2,
                        f"{weight.path} of shape {list(weight.shape)} in the group "
                        f"{weight.group!r}",
                        allowed="weights with two axes or more under Muon",
                        fix="label it 'vector' in the model's param_groups()",
                    )
                require(
                    self.name != "muon" or "muon" in names,
                    f"optim.name='muon' with no weight for it among {len(weights)}, whose groups "
                    f"are {sorted({weight.group for weight in weights})}",
                    allowed="a model with weights in the group 'matrix'",
                    fix="label them in the model's param_groups(), or set optim.name=adamw",
                )
                return jax.tree.unflatten(jax.tree.structure(params), names)

            # As a function: a tree of labels may be a model, which optax would take for one.
            rule = optax.chain(clip, optax.partition(rules, rules_of))

        def update(updates: Any, state: Any, params: Any = None) -> Any:
            # JAX's usual dtype rules: optax raises floats to the power of int32 counts, which the
            # strict rules of our tests refuse.
            with jax.numpy_dtype_promotion("standard"):
                return rule.update(updates, state, params)

        return optax.GradientTransformation(rule.init, update)

    def updated_by(self, group: Group, num_axes: int) -> Literal["adamw", "muon", "none"]:
        """The optimizer that updates a weight of a group with so many axes."""
        if group == "state":
            return "none"
        return "muon" if self.name == "muon" and self.muon.takes(group, num_axes) else "adamw"

    def _cycle(self, num_steps: int, rest: int, whole: str) -> tuple[int | float, int | float]:
        """Steps of one decay and of the stable part before it, `rest` steps after the warmup."""
        require(
            self.cycles == 1 or 2 * self.cycles <= rest,
            f"optim.cycles={self.cycles} with {rest} steps after the warmup of {whole}",
            allowed="two steps or more for each cycle: its last is at the lowest rate",
            fix=f"set optim.cycles to {max(rest // 10, 1)} or less",
        )
        # Equal cycles need not be whole steps; a single one is, and stays an integer.
        length = rest / self.cycles if self.cycles > 1 else rest
        is_wsd, decay = self.lr_schedule == "wsd", length
        if self.decay_steps is not None:
            decay = steps_of(self.decay_steps, num_steps)
        elif is_wsd:
            decay = min(steps_of(_WSD_DECAY, num_steps), length)
        # One decay may outlast the run, which then ends on the way down; no later one would begin.
        require(
            decay <= length or (self.cycles == 1 and not is_wsd),
            f"optim.decay_steps={self.decay_steps} with optim.cycles={self.cycles} and "
            f"{rest} steps after the warmup of {whole}",
            allowed=f"decays of at most {int(length)} steps",
            fix="lower optim.decay_steps, optim.cycles or optim.warmup_steps",
        )
        return decay, length - decay if is_wsd else 0


def group_table(params: Any, param_groups: Any, config: GrugOptimizerConfig) -> str:
    """Groups, the optimizer of each, its decay, tensors and weights; every weight counted once.

    `params` may be shapes. A group whose weights two optimizers share has a line for each.
    """
    sizes: dict[tuple[str, str], list[int]] = {}
    for weight in grouped_weights(params, param_groups):
        key = (weight.group, config.updated_by(weight.group, len(weight.shape)))
        sizes.setdefault(key, []).append(math.prod(weight.shape))
    rows: list[tuple[str, ...]] = [("group", "updated by", "decay", "tensors", "weights")]
    for group in PARAM_GROUPS:
        for rule in ("muon", "adamw", "none"):
            if (found := sizes.get((group, rule))) is not None:
                times = config.muon.weight_decay_mult if rule == "muon" else 1.0
                decay = config.weight_decay * times if group in DECAYED_GROUPS else 0.0
                shown = f"{decay:g}" if decay else "none"
                rows.append((group, rule, shown, str(len(found)), f"{sum(found):,}"))
    everything = [size for found in sizes.values() for size in found]
    rows.append(("all", "", "", str(len(everything)), f"{sum(everything):,}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        # Numbers to the right.
        [f"{cell:{'>' if column > 2 else '<'}{widths[column]}}" for column, cell in enumerate(row)]
        for row in rows
    ]
    return "\n".join("  ".join(cells).rstrip() for cells in lines)


def adamw(
    config: AdamConfig, schedule: LearningRate, *, weight_decay: float, param_groups: Any
) -> tuple[optax.GradientTransformation, ...]:
    """The transforms of AdamW, to be chained."""
    return (
        optax.scale_by_adam(b1=config.b1, b2=config.b2, eps=config.eps, nesterov=config.nesterov),
        optax.add_decayed_weights(weight_decay, mask=decayed_weights(param_groups)),
        optax.scale_by_learning_rate(schedule),
    )


def clip_by_norm(max_norm: float) -> optax.GradientTransformation:
    """Gradients times max_norm / norm where their norm over all weights is larger.

    Not optax's, which sums the squares of bfloat16 gradients in bfloat16: the sum stops growing at
    256 equal terms, so gradients of a model with many tensors would be clipped too little.
    """

    def clipped(updates: Any, params: Any) -> Any:
        del params
        norm = optax.tree.norm(jax.tree.map(lambda g: g.astype(jnp.float32), updates))
        is_small = norm < max_norm
        return jax.tree.map(
            lambda g: jnp.where(is_small, g, (g / norm.astype(g.dtype)) * max_norm), updates
        )

    return optax.stateless(clipped)
