"""What updates the weights: a config that builds an optax transform, and AdamW.

    m <- b1 m + (1 - b1) g        v <- b2 v + (1 - b2) g g
    W <- W - lr (m' / (sqrt(v') + eps) + weight_decay W)

m' = m / (1 - b1^t) and v' = v / (1 - b2^t) after t updates; with `nesterov` m' looks one gradient
ahead (NAdam). Only the groups that decay have the last term. `chomp.optim.muon` has Muon.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import optax

from chomp.config import Config, setting
from chomp.errors import ConfigError, require
from chomp.mesh import aligned_columns
from chomp.optim.muon import MuonConfig, muon
from chomp.optim.schedule import (
    ENDING_SHAPES,
    Duration,
    LearningRate,
    Shape,
    require_duration,
    steps_of,
)

# The groups a model sorts its weights into, by `param_groups()`, a tree shaped like its parameters:
# no optimizer goes by the names of weights. `state` is what a train step itself sets beside the
# weights, such as the bias of a router: no optimizer touches it.
Group = Literal["matrix", "embedding", "vector", "dynamics", "state"]
PARAM_GROUPS: tuple[Group, ...] = get_args(Group)
# Weight decay pulls on these alone: it would move norms, tables and time constants off their scale.
DECAYED_GROUPS: tuple[Group, ...] = ("matrix",)
# Share of the run that `wsd` decays for, if decay_steps is not set.
_WSD_DECAY = "20%"
_MAX_PATHS = 4  # in a message


class GroupedWeight(NamedTuple):
    """One weight: its path in the tree, its group, its shape."""

    path: str
    group: Group
    shape: tuple[int, ...]


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
        uses: list[tuple[str, Any, bool, str]] = [
            ("decay_steps", None, not endless, by_schedule),
            ("cycles", 1, not endless, by_schedule),
            ("min_lr_ratio", 0.0, self.lr_schedule != "constant", by_schedule),
        ]
        for each in fields(MuonConfig):
            uses.append((f"muon.{each.name}", each.default, self.name == "muon", by_name))
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
        rest = length - warmup
        require(
            self.cycles == 1 or 2 * self.cycles <= rest,
            f"optim.cycles={self.cycles} with {rest} steps after the warmup of {whole}",
            allowed="two steps or more for each cycle: its last is at the lowest rate",
            fix=f"set optim.cycles to {max(rest // 10, 1)} or less",
        )
        # Equal cycles need not be whole steps; a single one is, and stays an integer.
        cycle = rest / self.cycles if self.cycles > 1 else rest
        is_wsd, decay = self.lr_schedule == "wsd", cycle
        if self.decay_steps is not None:
            decay = steps_of(self.decay_steps, length)
        elif is_wsd:
            decay = min(steps_of(_WSD_DECAY, length), cycle)
        # One decay may outlast the run, which then ends on the way down; no later one would begin.
        require(
            decay <= cycle or (self.cycles == 1 and not is_wsd),
            f"optim.decay_steps={self.decay_steps} with optim.cycles={self.cycles} and "
            f"{rest} steps after the warmup of {whole}",
            allowed=f"decays of at most {int(cycle)} steps",
            fix="lower optim.decay_steps, optim.cycles or optim.warmup_steps",
        )
        return LearningRate(
            lr=self.lr,
            warmup_steps=warmup,
            decay_steps=decay,
            min_lr_ratio=self.min_lr_ratio,
            shape=self.lr_schedule,
            stable_steps=cycle - decay if is_wsd else 0,
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
        decayed = jax.tree.map(lambda label: label in DECAYED_GROUPS, param_groups)
        adam = self.adam
        by_adam = (
            optax.scale_by_adam(b1=adam.b1, b2=adam.b2, eps=adam.eps, nesterov=adam.nesterov),
            optax.add_decayed_weights(self.weight_decay, mask=decayed),
            optax.scale_by_learning_rate(schedule),
        )
        if self.name == "adamw" and "state" not in jax.tree.leaves(param_groups):
            return _by_usual_dtypes(optax.chain(clip, *by_adam))
        rules = {"adamw": optax.chain(*by_adam), "none": optax.set_to_zero()}
        if self.name == "muon":
            by_muon = muon(self.muon, schedule, weight_decay=self.weight_decay, decayed=decayed)
            rules["muon"] = optax.chain(*by_muon)

        def rules_of(params: Any) -> Any:
            weights = grouped_weights(params, param_groups)
            names = [self.updated_by(weight.group, len(weight.shape)) for weight in weights]
            for weight, name in zip(weights, names, strict=True):
                require(
                    name != "muon" or len(weight.shape) >= 2,
                    f"{weight.path} of shape {list(weight.shape)} in the group {weight.group!r}",
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
        return _by_usual_dtypes(optax.chain(clip, optax.partition(rules, rules_of)))

    def updated_by(self, group: Group, num_axes: int) -> Literal["adamw", "muon", "none"]:
        """The optimizer that updates a weight of a group with so many axes."""
        if group == "state":
            return "none"
        # A vector with two axes is a stack of those of many layers; so may be time constants, and
        # those of one layer mean nothing to one another.
        takes = group == "matrix"
        if group == "embedding":
            takes = self.muon.allow_tied_embed or (self.muon.allow_all_2d and num_axes == 2)
        return "muon" if self.name == "muon" and takes else "adamw"


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
    return aligned_columns(rows, first_number=3)


def require_known_groups(param_groups: Any) -> None:
    """Raise `ConfigError` unless every leaf is a label of a group."""
    unknown = {path: label for path, label in _by_path(param_groups) if label not in PARAM_GROUPS}
    if unknown:
        raise ConfigError(
            f"parameter groups {sorted(set(map(str, unknown.values())))} at {_listed(unknown)}",
            allowed=f"{list(PARAM_GROUPS)}",
            fix="correct the model's param_groups()",
        )


def grouped_weights(params: Any, param_groups: Any) -> list[GroupedWeight]:
    """Every weight (or its shape) with its one group; trees that do not match are refused."""
    require_known_groups(param_groups)
    weights, labels = dict(_by_path(params)), dict(_by_path(param_groups))
    if unmatched := [path for path in weights | labels if (path in weights) != (path in labels)]:
        raise ConfigError(
            f"parameters and their groups differ at {_listed(unmatched)}",
            allowed="exactly one group for each parameter",
            fix="make param_groups() from the parameters by jax.tree.map",
        )
    return [GroupedWeight(path, labels[path], tuple(x.shape)) for path, x in weights.items()]


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


def _by_path(tree: Any) -> list[tuple[str, Any]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in leaves]


def _listed(paths: Collection[str]) -> str:
    more = len(paths) - _MAX_PATHS
    return ", ".join([*paths][:_MAX_PATHS]) + (f" and {more} more" if more > 0 else "")


def _by_usual_dtypes(rule: optax.GradientTransformation) -> optax.GradientTransformation:
    """The rule, also under JAX's strict dtype promotion, where optax raises floats to int32 powers.

    Users may set that mode (`JAX_NUMPY_DTYPE_PROMOTION=strict`), and our tests do.
    """

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        with jax.numpy_dtype_promotion("standard"):
            return rule.update(updates, state, params)

    return optax.GradientTransformation(rule.init, update)
