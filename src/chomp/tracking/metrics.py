"""The metrics chomp knows, each written once: its key, what it says, its unit.

A run may log any other key as well: nothing here is asked before a value is logged. In a key,
`<word>` and `*` stand for one or more characters, slashes included, since datasets and tags are
often named like paths. A short key is a second name under which a row carries the same value, for
readers who know chomp's first `metrics.jsonl`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from chomp.errors import ConfigError
from chomp.tracking.record import MetricValue


@dataclass(frozen=True)
class Metric:
    """What is known of a metric: its key or pattern, what it says, its unit, its short key."""

    key: str
    description: str
    unit: str = ""
    short: str | None = None


METRICS: dict[str, Metric] = {}  # by key, in the order of this file
SHORT_KEYS: dict[str, str] = {}  # the short key of each key that has one
_WILDCARD = re.compile(r"<\w+>|\*")


def metric(key: str, description: str, unit: str = "", *, short: str | None = None) -> str:
    """Add a metric to `METRICS` and return its key."""
    assert key not in METRICS, f"{key} is described twice"
    METRICS[key] = Metric(key, description, unit, short)
    if short is not None:
        SHORT_KEYS[key] = short
    return key


def metric_of(key: str) -> Metric | None:
    """The metric that a logged key is of, short keys included; None for a key of one's own."""
    if key in METRICS:
        return METRICS[key]
    # The first pattern that fits: narrow ones stand above wider ones.
    for known in METRICS.values():
        if key == known.short or _regex(known.key).fullmatch(key):
            return known
    return None


def name_from(pattern: str, *parts: str) -> str:
    """The key a pattern gives for `parts`: `name_from(EVAL_TAG_LOSS, "web")` = `eval/web/loss`."""
    wildcards = len(_WILDCARD.findall(pattern))
    if wildcards != len(parts) or not all(parts):
        raise ConfigError(
            f"{len(parts)} parts {parts} for the metric pattern {pattern!r}",
            allowed=f"{wildcards} non-empty parts, one for each <word> or *",
            fix="pass one string for each, in order",
        )
    remaining = iter(parts)
    return _WILDCARD.sub(lambda _: next(remaining), pattern)


def with_short_keys(metrics: Mapping[str, MetricValue]) -> dict[str, MetricValue]:
    """The row with its short keys added (`loss` for `train/loss`, …); a key already there stays."""
    short = {SHORT_KEYS[key]: value for key, value in metrics.items() if key in SHORT_KEYS}
    return {**metrics, **{key: value for key, value in short.items() if key not in metrics}}


@cache
def _regex(pattern: str) -> re.Pattern[str]:
    literals = _WILDCARD.split(pattern)
    return re.compile(".+".join(re.escape(literal) for literal in literals), re.DOTALL)


# The step.
TRAIN_LOSS = metric("train/loss", "loss of the step just completed", "nats/token", short="loss")
GLOBAL_STEP = metric("global_step", "0-based index of the completed optimizer step", "steps")
RUN_PROGRESS = metric("run_progress", "completed steps over total steps; ends at 1", "fraction")
GRAD_NORM = metric(
    "grad/norm/total", "norm of the whole gradient before clipping", short="grad_norm"
)
SKIPPED_STEPS = metric("train/skipped_steps", "steps skipped so far, being not finite", "steps")
LEARNING_RATE = metric("optim/learning_rate", "learning rate of the completed step", short="lr")
OPTIM = metric("optim/*", "an optimizer hyperparameter of the completed step")

# The first chomp's, by its keys alone: trained tokens, where throughput/* counts positions.
TOKENS_SEEN = metric("tokens_seen", "tokens trained on so far, after masking", "tokens")
TOKENS_PER_SEC = metric("tokens_per_sec", "tokens trained on per second of the step", "tokens/s")
PACKING_MODE = metric("packing_mode", "how documents were put into rows")
PACKING_UTILIZATION = metric(
    "packing_utilization",
    "tokens over positions of the step's batch (of process 0's rows)",
    "fraction",
)
FIRST_STEP_COMPILE_TIME_S = metric(
    "first_step_compile_time_s", "compile time of the first step; on the first logged row only", "s"
)
PEAK_MEMORY_GB = metric("peak_memory_gb", "peak device memory, where the device tells", "GB")

# Throughput. The times of a step sum to wall clock.
DURATION = metric(
    "throughput/duration", "time per step, less loading, hooks, eval, checkpoint and compile", "s"
)
EXAMPLES_PER_SECOND = metric(
    "throughput/examples_per_second", "training examples per second", "examples/s"
)
TOKENS_PER_SECOND = metric("throughput/tokens_per_second", "token positions per second", "tokens/s")
TOTAL_TOKENS = metric(
    "throughput/total_tokens", "positions so far, by the batch schedule", "tokens"
)
GFLOPS_PER_SECOND = metric(
    "throughput/gflops_per_second", "model FLOPs per second, from the analytic count", "GFLOP/s"
)
TOTAL_GFLOPS = metric("throughput/total_gflops", "model FLOPs so far (analytic count)", "GFLOP")
MFU = metric("throughput/mfu", "model FLOPs per second over the devices' theoretical peak", "%")
MFU_OF_MEASURED = metric(
    "throughput/mfu_of_measured", "the same over the peak that a matrix product reached here", "%"
)
TOKENS_PER_SECOND_WALL = metric(
    "throughput/tokens_per_second_wall",
    "positions over wall clock since the line before",
    "tokens/s",
)
HOOK_TIME = metric("throughput/hook_time", "time in hooks and logging after the step", "s")
LOADING_TIME = metric("throughput/loading_time", "time the step waited for its batch", "s")
CHECKPOINT_TIME = metric("throughput/checkpoint_time", "time a checkpoint blocked the loop", "s")
COMPILE_TIME = metric("throughput/compile_time", "time spent compiling", "s")
FLOPS_PER_TOKEN_ANALYTIC = metric(
    "throughput/flops_per_token_analytic", "forward pass of one token (summary)", "FLOP/token"
)
FLOPS_PER_EXAMPLE_ANALYTIC = metric(
    "throughput/flops_per_example_analytic", "forward and backward pass (summary)", "FLOP/example"
)
FLOPS_PER_EXAMPLE = metric(
    "throughput/flops_per_example", "the value the throughput hook uses (summary)", "FLOP/example"
)
DEVICE_KIND = metric("throughput/device_kind", "accelerator type as JAX names it (summary)")
THEORETICAL_FLOPS_PER_DEVICE = metric(
    "throughput/theoretical_flops_per_device", "peak of one device (summary)", "FLOP/s"
)
THEORETICAL_FLOPS = metric("throughput/theoretical_flops", "peak of them all (summary)", "FLOP/s")
MEASURED_FLOPS_PER_DEVICE = metric(
    "throughput/measured_flops_per_device", "what a matrix product reached here (summary)", "FLOP/s"
)
PARAMETER_COUNT = metric("throughput/parameter_count", "trained numbers (summary)", "parameters")
P10_MFU = metric("throughput/p10_mfu", "tenth percentile of `throughput/mfu` (summary)", "%")
P50_MFU = metric("throughput/p50_mfu", "its median (summary)", "%")
P90_MFU = metric("throughput/p90_mfu", "its ninetieth percentile (summary)", "%")
MEAN_MFU = metric("throughput/mean_mfu", "its mean (summary)", "%")

# Kernels and memory, as the start of a run found them.
KERNELS_ATTENTION = metric("kernels/attention", "attention backend that runs (summary)")
KERNELS_ATTENTION_REASON = metric("kernels/attention_reason", "why it is that backend (summary)")
KERNELS_ATTENTION_DEVIATION = metric(
    "kernels/attention_deviation", "its largest relative error at the start (summary)"
)
KERNELS_LOSS = metric("kernels/loss", "what computes the losses of rows: triton or xla (summary)")
KERNELS_LOSS_DEVIATION = metric("kernels/loss_deviation", "the same of the loss kernel (summary)")
KERNELS_SELF_CHECK_SECONDS = metric(
    "kernels/self_check_seconds", "time the check of both kernels took (summary)", "s"
)
MEMORY_PARAMS_BYTES = metric("memory/params_bytes_per_device", "parameters (summary)", "bytes")
MEMORY_STATE_BYTES = metric(
    "memory/state_bytes_per_device",
    "parameters, optimizer and average on one device (summary)",
    "bytes",
)

# Data.
MIXTURE_STAGE = metric("mixture/stage", "index of the data mixture's current stage")
MIXTURE_WEIGHT = metric(
    "mixture/weight/<dataset_name>", "sampling weight in that stage", "fraction"
)
MIXTURE_EPOCH = metric("mixture/epoch/<dataset_name>", "times a dataset was read so far", "epochs")
MIXTURE_EXAMPLES = metric("mixture/examples/<dataset_name>", "examples served from it", "examples")
MIXTURE_TOKENS = metric("mixture/tokens/<dataset_name>", "positions served from it", "tokens")
TENSORSTORE = metric("data/tensorstore/*", "TensorStore cache and IO counters, when asked for")

# Evaluation. `eval/ema/*` repeats every name below it for the averaged weights.
EVAL_LOSS = metric("eval/loss", "loss over all evaluation tokens", "nats/token", short="eval_loss")
EVAL_LOADING_TIME = metric("eval/loading_time", "time evaluation waited for batches", "s")
EVAL_TOTAL_TIME = metric("eval/total_time", "time evaluation took in all", "s")
EVAL_MACRO_LOSS = metric("eval/macro_loss", "mean of the tags' losses, if several", "nats/token")
EVAL_BPB = metric("eval/bpb", "bits per byte over all evaluation tokens", "bits/byte")
EVAL_MACRO_BPB = metric("eval/macro_bpb", "mean of the tags' bits per byte", "bits/byte")
EVAL_TOKENS = metric("eval/tokens", "tokens whose loss was counted", "tokens")
EVAL_DOCUMENTS = metric("eval/documents", "documents that these tokens are of", "documents")
EVAL_LOSS_STDERR = metric("eval/loss_stderr", "standard error, by document", "nats/token")
EVAL_BPB_STDERR = metric("eval/bpb_stderr", "standard error, by document", "bits/byte")
EVAL_EMA = metric("eval/ema/*", "the same evaluation metric for the EMA weights")
EVAL_TAG_LOSS = metric("eval/<tag>/loss", "loss of one tag", "nats/token")
EVAL_TAG_MICRO_LOSS = metric(
    "eval/<tag>/micro_loss", "over all tokens of its datasets", "nats/token"
)
EVAL_TAG_MACRO_LOSS = metric("eval/<tag>/macro_loss", "mean over the tag's datasets", "nats/token")
EVAL_TAG_BPB = metric("eval/<tag>/bpb", "bits per byte of one tag", "bits/byte")
EVAL_TAG_MACRO_BPB = metric("eval/<tag>/macro_bpb", "mean over the tag's datasets", "bits/byte")
EVAL_TAG_TOKENS = metric("eval/<tag>/tokens", "tokens of one tag whose loss was counted", "tokens")
EVAL_TAG_DOCUMENTS = metric("eval/<tag>/documents", "documents of one tag", "documents")
EVAL_TAG_LOSS_STDERR = metric("eval/<tag>/loss_stderr", "standard error, by document", "nats/token")
EVAL_TAG_BPB_STDERR = metric("eval/<tag>/bpb_stderr", "standard error, by document", "bits/byte")

# lm-eval tasks, of the averaged weights where there are any.
LM_EVAL_MACRO_AVERAGE = metric(
    "lm_eval/averages/macro_avg_<metric>", "mean of a metric over tasks, each counting once"
)
LM_EVAL_MICRO_AVERAGE = metric(
    "lm_eval/averages/micro_avg_<metric>", "the same, each task counting by its documents"
)
LM_EVAL_TRUNCATED = metric(
    "lm_eval/truncated_requests", "requests that lost the beginning of their context", "requests"
)
LM_EVAL_TOTAL_TIME = metric("lm_eval/total_time", "time all tasks took", "s")
LM_EVAL_METRIC = metric(
    "lm_eval/<task>/<metric>", "a metric of one task, or of a group; `_stderr`: its standard error"
)

# Checkpoints, on the first row after one is on disk.
CHECKPOINT_STEP = metric("checkpoint/step", "completed steps of the newest checkpoint", "steps")
CHECKPOINT_BLOCKED_SECONDS = metric(
    "checkpoint/blocked_seconds", "time the loop waited for that save to begin", "s"
)
CHECKPOINT_SECONDS = metric("checkpoint/seconds", "time from there until it was complete", "s")
CHECKPOINT_BYTES = metric(
    "checkpoint/bytes", "bytes of its arrays; 0: it was there already", "bytes"
)

# The attempt, at its end.
RUN_SECONDS = metric("run/seconds", "time from the first step to the end (summary)", "s")
RUN_TOKENS_PER_SECOND = metric("run/tokens_per_second", "positions over it (summary)", "tokens/s")
RUN_TOKENS_PER_SEC = metric("run/tokens_per_sec", "trained tokens over it (summary)", "tokens/s")
RUN_OUTCOME = metric(
    "run/outcome",
    "`finished`, `piece finished` (`--max-steps`), or the exception that ended it (summary)",
)
WANDB_RUN_ID = metric("run/wandb_id", "the run's id at W&B, in every attempt (summary)")
ENVIRONMENT = metric("environment/<what>", "a version, commit or count of the attempt (summary)")

# Watch.

# How a row carries a histogram is told in `chomp.tracking.record`.
GRAD = metric("grad/*", "norms and histograms of gradients, when watched")
PARAMS = metric("params/*", "norms and histograms of parameters, when watched")
UPDATES = metric("updates/*", "norms and histograms of updates, when watched")
OPT_STATE = metric("opt_state/*", "norms and histograms of the optimizer state, when watched")
