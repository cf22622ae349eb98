"""How a run trains. A template adds a knob of its own in a subclass, in its train.py."""

from dataclasses import dataclass
from typing import Literal

from chomp.config import Config, setting
from chomp.data import BatchSchedule
from chomp.kernels.precision import Precision
from chomp.training.profiler import ProfilerConfig
from chomp.training.stopping import NonFinitePolicy
from chomp.training.watch import WatchConfig


@dataclass(frozen=True, kw_only=True)
class GrugTrainerConfig(Config):
    """How the run trains. A step takes `grad_accum` micro-batches of `batch_size` rows."""

    steps: int = setting(default=1000, ge=1, lt=2**31, mark="schedule")  # counted in int32
    # Rows of a micro-batch, or [start step, rows] pairs.
    batch_size: int | tuple[tuple[int, int], ...] = setting(default=32, mark="schedule")
    seq_len: int = setting(default=1024, ge=2, le=2**20)  # tokens of a row
    grad_accum: int = setting(default=1, ge=1, le=2**20, mark="schedule")
    seed: int = setting(default=0, ge=0, lt=2**32)  # a random key is made of 32 bits
    data_seed: int | None = setting(default=None, ge=0, lt=2**32)  # order of the data; None: `seed`
    precision: str = "params=float32,compute=float32"
    # Weight of logsumexp^2 in the loss, which keeps logits from drifting.
    z_loss_weight: float = setting(default=0.0, ge=0, le=1000, mark="schedule")
    # Averaged weights for evaluation: 0.999 averages over a thousand steps. None: no average.
    ema_beta: float | None = setting(default=None, gt=0, lt=1, mark="schedule")
    deterministic: bool | None = None  # True: no dropout; None: none unless the model has rates
    reproducible: bool = setting(default=False, mark="schedule")  # bit-equal on a GPU too, slower
    # What a step without a finite loss does to the run. The state it leaves as it was, always.
    nonfinite_policy: NonFinitePolicy = setting(default="raise", mark="schedule")
    log_every: int = setting(default=1, ge=1, lt=2**31, mark="cosmetic")
    watch: WatchConfig | None = setting(default=None, mark="cosmetic")  # norms of tensors
    profiler: ProfilerConfig = setting(default_factory=ProfilerConfig, mark="cosmetic")
    log_dir: str | None = setting(default=None, mark="cosmetic")  # of traces; None: the run's own
    # None continues what is there; True must find a checkpoint; False must start fresh.
    load_checkpoint: bool | None = setting(default=None, mark="cosmetic", is_versioned=False)
    # Where to look instead: a step-N, a folder of them, or a run.
    load_checkpoint_path: str | None = setting(default=None, mark="cosmetic", is_versioned=False)
    # Whose weights a new run begins with: a step-N, or a run for its newest. Identity is the path
    # as written; an output prefix that the run itself lies in does not count.
    initialize_from: str | None = setting(default=None, is_added=True)
    # Which of its weights; ema: the averaged ones.
    initialize_weights: Literal["current", "ema"] = setting(default="current", is_added=True)
    # Fields of the schedule that may differ from the checkpoint's.
    allow_changes: tuple[str, ...] = setting(default=(), mark="cosmetic", is_versioned=False)
    # Begin anew where there are checkpoints and none of them can be read.
    allow_fresh_start: bool = setting(default=False, mark="cosmetic", is_versioned=False)
    # Steps that this start may take before it saves and ends; None: all that are left.
    max_steps: int | None = setting(
        default=None, ge=1, lt=2**31, mark="cosmetic", is_versioned=False
    )

    def __post_init__(self) -> None:
        BatchSchedule(self.batch_size, self.grad_accum)  # refuses sizes that cannot be
        Precision.parse(self.precision)
