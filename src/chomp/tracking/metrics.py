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
from chomp.tracking.tracker import MetricValue


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


def metric(key: str, description: str, *, unit: str = "", short: str | None = None) -> str:
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
TRAIN_LOSS = metric(
    "train/loss", "training loss of the just-completed step", unit="nats/token", short="loss"
)
GLOBAL_STEP = metric("global_step", "0-based index of the completed optimizer step", unit="steps")
RUN_PROGRESS = metric(
    "run_progress", "completed steps over total steps; ends at 1", unit="fraction"
)
GRAD_NORM = metric(
    "grad/norm/total", "norm of the whole gradient, before clipping", short="grad_norm"
)
SKIPPED_STEPS = metric(
    "train/skipped_steps", "steps so far that were not finite and left out", unit="steps"
)
LEARNING_RATE = metric("optim/learning_rate", "learning rate of the completed step", short="lr")
OPTIM = metric("optim/*", "an optimizer hyperparameter of the completed step")

# The first chomp's, by its keys alone: trained tokens, where throughput/* counts positions.
TOKENS_SEEN = metric("tokens_seen", "tokens trained on so far, after masking", unit="tokens")
TOKENS_PER_SEC = metric(
    "tokens_per_sec", "tokens trained on per second of the step", unit="tokens/s"
)
PACKING_MODE = metric("packing_mode", "how documents were put into rows")
PACKING_UTILIZATION = metric(
    "packing_utilization",
    "tokens over positions of the step's batch (of process 0's rows)",
    unit="fraction",
)
FIRST_STEP_COMPILE_TIME_S = metric(
    "first_step_compile_time_s",
    "compile time of the first step; on the first logged row only",
    unit="s",
)
PEAK_MEMORY_GB = metric("peak_memory_gb", "peak device memory, where the device tells", unit="GB")

# Throughput. The times of a step sum to wall clock.
DURATION = metric(
    "throughput/duration",
    "time per step, less loading, hooks, eval, checkpoint and compile",
    unit="s",
)
EXAMPLES_PER_SECOND = metric(
    "throughput/examples_per_second", "examples processed per second", unit="examples/s"
)
TOKENS_PER_SECOND = metric(
    "throughput/tokens_per_second", "positions processed per second", unit="tokens/s"
)
TOTAL_TOKENS = metric(
    "throughput/total_tokens", "positions processed so far, by the batch schedule", unit="tokens"
)
GFLOPS_PER_SECOND = metric(
    "throughput/gflops_per_second",
    "model FLOPs per second, from the analytic count",
    unit="GFLOP/s",
)
TOTAL_GFLOPS = metric(
    "throughput/total_gflops", "model FLOPs so far, from the analytic count", unit="GFLOP"
)
MFU = metric(
    "throughput/mfu", "model FLOPs per second over the devices' theoretical peak", unit="%"
)
MFU_OF_MEASURED = metric(
    "throughput/mfu_of_measured",
    "the same over the peak that a matrix product reached here",
    unit="%",
)
TOKENS_PER_SECOND_WALL = metric(
    "throughput/tokens_per_second_wall",
    "positions over wall clock since the line before",
    unit="tokens/s",
)
HOOK_TIME = metric("throughput/hook_time", "time in hooks and logging after the step", unit="s")
LOADING_TIME = metric("throughput/loading_time", "time the step waited for its batch", unit="s")
CHECKPOINT_TIME = metric(
    "throughput/checkpoint_time", "time the step loop was blocked by a checkpoint", unit="s"
)
COMPILE_TIME = metric("throughput/compile_time", "time spent compiling", unit="s")
FLOPS_PER_TOKEN_ANALYTIC = metric(
    "throughput/flops_per_token_analytic", "forward pass of one token (summary)", unit="FLOP/token"
)
FLOPS_PER_EXAMPLE_ANALYTIC = metric(
    "throughput/flops_per_example_analytic",
    "forward and backward pass (summary)",
    unit="FLOP/example",
)
FLOPS_PER_EXAMPLE = metric(
    "throughput/flops_per_example",
    "the value the throughput hook uses (summary)",
    unit="FLOP/example",
)
DEVICE_KIND = metric("throughput/device_kind", "accelerator type as JAX names it (summary)")
THEORETICAL_FLOPS_PER_DEVICE = metric(
    "throughput/theoretical_flops_per_device", "peak of one device (summary)", unit="FLOP/s"
)
THEORETICAL_FLOPS = metric(
    "throughput/theoretical_flops", "peak of all devices (summary)", unit="FLOP/s"
)
MEASURED_FLOPS_PER_DEVICE = metric(
    "throughput/measured_flops_per_device",
    "what a matrix product reached here (summary)",
    unit="FLOP/s",
)
PARAMETER_COUNT = metric(
    "throughput/parameter_count", "numbers that are trained (summary)", unit="parameters"
)
P10_MFU = metric(
    "throughput/p10_mfu",
    "tenth percentile of `throughput/mfu` over the last rows (summary)",
    unit="%",
)
P50_MFU = metric("throughput/p50_mfu", "its median (summary)", unit="%")
P90_MFU = metric("throughput/p90_mfu", "its ninetieth percentile (summary)", unit="%")
MEAN_MFU = metric("throughput/mean_mfu", "its mean (summary)", unit="%")

# Kernels and memory, as the start of a run found them.
KERNELS_ATTENTION = metric("kernels/attention", "attention backend that runs (summary)")
KERNELS_ATTENTION_REASON = metric("kernels/attention_reason", "why it is that backend (summary)")
KERNELS_ATTENTION_DEVIATION = metric(
    "kernels/attention_deviation", "its largest relative error at the start (summary)"
)
KERNELS_LOSS = metric("kernels/loss", "what computes the losses of rows: triton or xla (summary)")
KERNELS_LOSS_DEVIATION = metric("kernels/loss_deviation", "the same of the loss kernel (summary)")
KERNELS_SELF_CHECK_SECONDS = metric(
    "kernels/self_check_seconds", "time the check of both kernels took (summary)", unit="s"
)
MEMORY_PARAMS_BYTES = metric(
    "memory/params_bytes_per_device", "parameters on one device (summary)", unit="bytes"
)
MEMORY_STATE_BYTES = metric(
    "memory/state_bytes_per_device",
    "parameters, optimizer and average on one device (summary)",
    unit="bytes",
)

# Data.
MIXTURE_STAGE = metric("mixture/stage", "index of the data mixture's current stage")
MIXTURE_WEIGHT = metric(
    "mixture/weight/<dataset_name>", "sampling weight of a dataset in that stage", unit="fraction"
)
MIXTURE_EPOCH = metric(
    "mixture/epoch/<dataset_name>", "how many times a dataset was read so far", unit="epochs"
)
MIXTURE_EXAMPLES = metric(
    "mixture/examples/<dataset_name>", "examples served from a dataset so far", unit="examples"
)
MIXTURE_TOKENS = metric(
    "mixture/tokens/<dataset_name>", "positions served from a dataset so far", unit="tokens"
)
TENSORSTORE = metric("data/tensorstore/*", "TensorStore cache and IO counters, when asked for")

# Evaluation. `eval/ema/*` repeats every name below it for the averaged weights.
EVAL_LOSS = metric(
    "eval/loss", "loss over all evaluation tokens", unit="nats/token", short="eval_loss"
)
EVAL_LOADING_TIME = metric("eval/loading_time", "time evaluation waited for batches", unit="s")
EVAL_TOTAL_TIME = metric("eval/total_time", "time evaluation took in all", unit="s")
EVAL_MACRO_LOSS = metric(
    "eval/macro_loss", "mean of the tags' losses, when there are several", unit="nats/token"
)
EVAL_BPB = metric("eval/bpb", "bits per byte over all evaluation tokens", unit="bits/byte")
EVAL_MACRO_BPB = metric("eval/macro_bpb", "mean of the tags' bits per byte", unit="bits/byte")
EVAL_TOKENS = metric("eval/tokens", "tokens whose loss was counted", unit="tokens")
EVAL_DOCUMENTS = metric("eval/documents", "documents that these tokens are of", unit="documents")
EVAL_LOSS_STDERR = metric(
    "eval/loss_stderr", "standard error of `eval/loss`, by document", unit="nats/token"
)
EVAL_BPB_STDERR = metric(
    "eval/bpb_stderr", "standard error of `eval/bpb`, by document", unit="bits/byte"
)
EVAL_EMA = metric("eval/ema/*", "the same evaluation metric for the EMA weights")
EVAL_TAG_LOSS = metric("eval/<tag>/loss", "loss of one tag", unit="nats/token")
EVAL_TAG_MICRO_LOSS = metric(
    "eval/<tag>/micro_loss", "loss over all tokens of a tag's datasets", unit="nats/token"
)
EVAL_TAG_MACRO_LOSS = metric(
    "eval/<tag>/macro_loss", "mean of the losses of a tag's datasets", unit="nats/token"
)
EVAL_TAG_BPB = metric("eval/<tag>/bpb", "bits per byte of one tag", unit="bits/byte")
EVAL_TAG_MACRO_BPB = metric(
    "eval/<tag>/macro_bpb", "mean of the bits per byte of a tag's datasets", unit="bits/byte"
)
EVAL_TAG_TOKENS = metric(
    "eval/<tag>/tokens", "tokens of one tag whose loss was counted", unit="tokens"
)
EVAL_TAG_DOCUMENTS = metric("eval/<tag>/documents", "documents of one tag", unit="documents")
EVAL_TAG_LOSS_STDERR = metric(
    "eval/<tag>/loss_stderr", "standard error of one tag's loss, by document", unit="nats/token"
)
EVAL_TAG_BPB_STDERR = metric(
    "eval/<tag>/bpb_stderr", "standard error of one tag's bits per byte", unit="bits/byte"
)

# lm-eval tasks, of the averaged weights where there are any.
LM_EVAL_MACRO_AVERAGE = metric(
    "lm_eval/averages/macro_avg_<metric>", "mean of a metric over tasks, each counting once"
)
LM_EVAL_MICRO_AVERAGE = metric(
    "lm_eval/averages/micro_avg_<metric>", "the same, each task counting by its documents"
)
LM_EVAL_TRUNCATED = metric(
    "lm_eval/truncated_requests",
    "requests that lost the beginning of their context",
    unit="requests",
)
LM_EVAL_TOTAL_TIME = metric("lm_eval/total_time", "time all tasks took", unit="s")
LM_EVAL_METRIC = metric(
    "lm_eval/<task>/<metric>", "a metric of one task, or of a group; `_stderr`: its standard error"
)

# Checkpoints, on the first row after one is on disk.
CHECKPOINT_STEP = metric(
    "checkpoint/step", "completed steps in the checkpoint that was written", unit="steps"
)
CHECKPOINT_BLOCKED_SECONDS = metric(
    "checkpoint/blocked_seconds", "time the loop waited for that save to begin", unit="s"
)
CHECKPOINT_SECONDS = metric(
    "checkpoint/seconds", "time from there until it was complete on disk", unit="s"
)
CHECKPOINT_BYTES = metric(
    "checkpoint/bytes", "size of its arrays; 0 where an earlier one was kept", unit="bytes"
)

# The attempt, at its end.
RUN_SECONDS = metric(
    "run/seconds", "time from the first step to the end, all included (summary)", unit="s"
)
RUN_TOKENS_PER_SECOND = metric(
    "run/tokens_per_second", "positions over that time (summary)", unit="tokens/s"
)
RUN_TOKENS_PER_SEC = metric(
    "run/tokens_per_sec", "tokens trained on over that time (summary)", unit="tokens/s"
)
RUN_OUTCOME = metric(
    "run/outcome",
    "`finished`, `piece finished` (`--max-steps`), or the exception that ended it (summary)",
)
WANDB_RUN_ID = metric(
    "run/wandb_id", "the run's id at Weights & Biases, in every attempt (summary)"
)
ENVIRONMENT = metric(
    "environment/<what>", "a version, a commit or a device count of the attempt (summary)"
)

# Watch.

# How a row carries a histogram is told in `chomp.tracking.record`.
GRAD = metric("grad/*", "norms and histograms of gradients, when watched")
PARAMS = metric("params/*", "norms and histograms of parameters, when watched")
UPDATES = metric("updates/*", "norms and histograms of updates, when watched")
OPT_STATE = metric("opt_state/*", "norms and histograms of the optimizer state, when watched")
