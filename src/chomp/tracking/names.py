"""The metric names, written down once: in code as constants, for readers as the table `METRICS`.

A name with `<word>` or `*` in it is a pattern; each stands for one or more characters, slashes
included, since datasets and tags are often named like paths. A short key is the second name under
which a row also carries a value, for readers who know chomp's first `metrics.jsonl`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from chomp.errors import message
from chomp.tracking.protocol import MetricValue

TRAIN_LOSS = "train/loss"
GLOBAL_STEP = "global_step"
RUN_PROGRESS = "run_progress"
GRAD_NORM = "grad/norm/total"
SKIPPED_STEPS = "train/skipped_steps"
# Of models with routers: of one layer, then the means over the layers.
ROUTER_LAYER = "train/router/layer_<i>/<metric>"
ROUTER_ENTROPY = "train/router/entropy"
ROUTER_LOAD_MAX = "train/router/load_max"
ROUTER_LOAD_MIN = "train/router/load_min"
ROUTER_MAX_VIOLATION = "train/router/max_violation"
ROUTER_DROPPED_FRACTION = "train/router/dropped_fraction"
ROUTER_BALANCE_LOSS = "train/router/balance_loss"
ROUTER_Z_LOSS = "train/router/z_loss"
OPTIM = "optim/*"
LEARNING_RATE = "optim/learning_rate"
TOKENS_SEEN = "tokens_seen"
TOKENS_PER_SEC = "tokens_per_sec"
PACKING_MODE = "packing_mode"
PACKING_UTILIZATION = "packing_utilization"
FIRST_STEP_COMPILE_TIME_S = "first_step_compile_time_s"
PEAK_MEMORY_GB = "peak_memory_gb"
DURATION = "throughput/duration"
EXAMPLES_PER_SECOND = "throughput/examples_per_second"
TOKENS_PER_SECOND = "throughput/tokens_per_second"
TOTAL_TOKENS = "throughput/total_tokens"
GFLOPS_PER_SECOND = "throughput/gflops_per_second"
TOTAL_GFLOPS = "throughput/total_gflops"
MFU = "throughput/mfu"
HOOK_TIME = "throughput/hook_time"
LOADING_TIME = "throughput/loading_time"
CHECKPOINT_TIME = "throughput/checkpoint_time"
COMPILE_TIME = "throughput/compile_time"
FLOPS_PER_TOKEN_ANALYTIC = "throughput/flops_per_token_analytic"
FLOPS_PER_EXAMPLE_ANALYTIC = "throughput/flops_per_example_analytic"
FLOPS_PER_EXAMPLE = "throughput/flops_per_example"
TOKENS_PER_SECOND_WALL = "throughput/tokens_per_second_wall"
MEASURED_FLOPS_PER_DEVICE = "throughput/measured_flops_per_device"
MFU_OF_MEASURED = "throughput/mfu_of_measured"
PARAMETER_COUNT = "throughput/parameter_count"
P10_MFU = "throughput/p10_mfu"
P50_MFU = "throughput/p50_mfu"
P90_MFU = "throughput/p90_mfu"
MEAN_MFU = "throughput/mean_mfu"
DEVICE_KIND = "throughput/device_kind"
THEORETICAL_FLOPS_PER_DEVICE = "throughput/theoretical_flops_per_device"
THEORETICAL_FLOPS = "throughput/theoretical_flops"
KERNELS_ATTENTION = "kernels/attention"
KERNELS_ATTENTION_REASON = "kernels/attention_reason"
KERNELS_ATTENTION_DEVIATION = "kernels/attention_deviation"
KERNELS_LOSS = "kernels/loss"
KERNELS_LOSS_DEVIATION = "kernels/loss_deviation"
KERNELS_SELF_CHECK_SECONDS = "kernels/self_check_seconds"
MEMORY_PARAMS_BYTES = "memory/params_bytes_per_device"
MEMORY_STATE_BYTES = "memory/state_bytes_per_device"
MIXTURE_STAGE = "mixture/stage"
MIXTURE_WEIGHT = "mixture/weight/<dataset_name>"
MIXTURE_EPOCH = "mixture/epoch/<dataset_name>"
MIXTURE_EXAMPLES = "mixture/examples/<dataset_name>"
MIXTURE_TOKENS = "mixture/tokens/<dataset_name>"
EVAL_LOSS = "eval/loss"
EVAL_LOADING_TIME = "eval/loading_time"
EVAL_TOTAL_TIME = "eval/total_time"
EVAL_MACRO_LOSS = "eval/macro_loss"
EVAL_BPB = "eval/bpb"
EVAL_MACRO_BPB = "eval/macro_bpb"
EVAL_EMA = "eval/ema/*"
EVAL_TAG_LOSS = "eval/<tag>/loss"
EVAL_TAG_MICRO_LOSS = "eval/<tag>/micro_loss"
EVAL_TAG_MACRO_LOSS = "eval/<tag>/macro_loss"
EVAL_TAG_BPB = "eval/<tag>/bpb"
EVAL_TAG_MACRO_BPB = "eval/<tag>/macro_bpb"
EVAL_TOKENS = "eval/tokens"
EVAL_TAG_TOKENS = "eval/<tag>/tokens"
EVAL_LOSS_STDERR = "eval/loss_stderr"
EVAL_BPB_STDERR = "eval/bpb_stderr"
EVAL_DOCUMENTS = "eval/documents"
EVAL_TAG_LOSS_STDERR = "eval/<tag>/loss_stderr"
EVAL_TAG_BPB_STDERR = "eval/<tag>/bpb_stderr"
EVAL_TAG_DOCUMENTS = "eval/<tag>/documents"
LM_EVAL_MACRO_AVERAGE = "lm_eval/averages/macro_avg_<metric>"
LM_EVAL_MICRO_AVERAGE = "lm_eval/averages/micro_avg_<metric>"
LM_EVAL_TRUNCATED = "lm_eval/truncated_requests"
LM_EVAL_TOTAL_TIME = "lm_eval/total_time"
LM_EVAL_METRIC = "lm_eval/<task>/<metric>"
CHECKPOINT_STEP = "checkpoint/step"
CHECKPOINT_BLOCKED_SECONDS = "checkpoint/blocked_seconds"
CHECKPOINT_SECONDS = "checkpoint/seconds"
CHECKPOINT_BYTES = "checkpoint/bytes"
RUN_SECONDS = "run/seconds"
RUN_TOKENS_PER_SECOND = "run/tokens_per_second"
RUN_TOKENS_PER_SEC = "run/tokens_per_sec"
RUN_OUTCOME = "run/outcome"
WANDB_RUN_ID = "run/wandb_id"
ENVIRONMENT = "environment/<what>"
TENSORSTORE = "data/tensorstore/*"
GRAD = "grad/*"
PARAMS = "params/*"
UPDATES = "updates/*"
OPT_STATE = "opt_state/*"


@dataclass(frozen=True)
class Metric:
    """One line of the table: a name or a pattern, its unit, what it says, its short key if any."""

    name: str
    unit: str
    meaning: str
    short: str | None = None


# Exact names and narrow patterns stand above the wider patterns that would also fit:
# `metric_of` takes the first that does.
METRICS: tuple[Metric, ...] = (
    # The step.
    Metric(TRAIN_LOSS, "nats/token", "training loss of the just-completed step", "loss"),
    Metric(GLOBAL_STEP, "steps", "0-based index of the completed optimizer step"),
    Metric(RUN_PROGRESS, "fraction", "completed steps over total steps; ends at 1"),
    Metric(GRAD_NORM, "", "norm of the whole gradient, before clipping", "grad_norm"),
    Metric(SKIPPED_STEPS, "steps", "steps so far that were not finite and left out"),
    Metric(ROUTER_LAYER, "", "one of the following, of one layer"),
    Metric(
        ROUTER_ENTROPY, "nats", "entropy of the routers' softmax; mean over layers, as all below"
    ),
    Metric(ROUTER_LOAD_MAX, "", "tokens of the busiest expert over an even share"),
    Metric(ROUTER_LOAD_MIN, "", "tokens of the idlest expert over an even share"),
    Metric(ROUTER_MAX_VIOLATION, "", "what the busiest expert has beyond an even share"),
    Metric(ROUTER_DROPPED_FRACTION, "fraction", "weight that found no room, of all weight"),
    Metric(ROUTER_BALANCE_LOSS, "", "experts' shares times their probability; 1: even"),
    Metric(ROUTER_Z_LOSS, "", "mean squared logsumexp of the routers' logits"),
    Metric(LEARNING_RATE, "", "learning rate of the completed step", "lr"),
    Metric(OPTIM, "", "an optimizer hyperparameter of the completed step"),
    # The first chomp's, by its keys alone: trained tokens, where throughput/* counts positions.
    Metric(TOKENS_SEEN, "tokens", "tokens trained on so far, after masking", TOKENS_SEEN),
    Metric(TOKENS_PER_SEC, "tokens/s", "tokens trained on per second of the step", TOKENS_PER_SEC),
    Metric(PACKING_MODE, "", "how documents were put into rows", PACKING_MODE),
    Metric(
        PACKING_UTILIZATION,
        "fraction",
        "tokens over positions of the step's batch (of process 0's rows)",
        PACKING_UTILIZATION,
    ),
    Metric(
        FIRST_STEP_COMPILE_TIME_S,
        "s",
        "compile time of the first step; on the first logged row only",
        FIRST_STEP_COMPILE_TIME_S,
    ),
    Metric(PEAK_MEMORY_GB, "GB", "peak device memory, where the device tells", PEAK_MEMORY_GB),
    # Throughput. The times of a step sum to wall clock.
    Metric(DURATION, "s", "time per step, less loading, hooks, eval, checkpoint and compile"),
    Metric(EXAMPLES_PER_SECOND, "examples/s", "examples processed per second"),
    Metric(TOKENS_PER_SECOND, "tokens/s", "positions processed per second"),
    Metric(TOTAL_TOKENS, "tokens", "positions processed so far, by the batch schedule"),
    Metric(GFLOPS_PER_SECOND, "GFLOP/s", "model FLOPs per second, from the analytic count"),
    Metric(TOTAL_GFLOPS, "GFLOP", "model FLOPs so far, from the analytic count"),
    Metric(MFU, "%", "model FLOPs per second over the devices' theoretical peak"),
    Metric(MFU_OF_MEASURED, "%", "the same over the peak that a matrix product reached here"),
    Metric(TOKENS_PER_SECOND_WALL, "tokens/s", "positions over wall clock since the line before"),
    Metric(HOOK_TIME, "s", "time in hooks and logging after the step"),
    Metric(LOADING_TIME, "s", "time the step waited for its batch"),
    Metric(CHECKPOINT_TIME, "s", "time the step loop was blocked by a checkpoint"),
    Metric(COMPILE_TIME, "s", "time spent compiling"),
    Metric(FLOPS_PER_TOKEN_ANALYTIC, "FLOP/token", "forward pass of one token (summary)"),
    Metric(FLOPS_PER_EXAMPLE_ANALYTIC, "FLOP/example", "forward and backward pass (summary)"),
    Metric(FLOPS_PER_EXAMPLE, "FLOP/example", "the value the throughput hook uses (summary)"),
    Metric(DEVICE_KIND, "", "accelerator type as JAX names it (summary)"),
    Metric(THEORETICAL_FLOPS_PER_DEVICE, "FLOP/s", "peak of one device (summary)"),
    Metric(THEORETICAL_FLOPS, "FLOP/s", "peak of all devices (summary)"),
    Metric(MEASURED_FLOPS_PER_DEVICE, "FLOP/s", "what a matrix product reached here (summary)"),
    Metric(PARAMETER_COUNT, "parameters", "numbers that are trained (summary)"),
    Metric(P10_MFU, "%", "tenth percentile of `throughput/mfu` over the last rows (summary)"),
    Metric(P50_MFU, "%", "its median (summary)"),
    Metric(P90_MFU, "%", "its ninetieth percentile (summary)"),
    Metric(MEAN_MFU, "%", "its mean (summary)"),
    # Kernels and memory, as the start of a run found them.
    Metric(KERNELS_ATTENTION, "", "attention backend that runs (summary)"),
    Metric(KERNELS_ATTENTION_REASON, "", "why it is that backend (summary)"),
    Metric(KERNELS_ATTENTION_DEVIATION, "", "its largest relative error at the start (summary)"),
    Metric(KERNELS_LOSS, "", "what computes the losses of rows: triton or xla (summary)"),
    Metric(KERNELS_LOSS_DEVIATION, "", "the same of the loss kernel (summary)"),
    Metric(KERNELS_SELF_CHECK_SECONDS, "s", "time the check of both kernels took (summary)"),
    Metric(MEMORY_PARAMS_BYTES, "bytes", "parameters on one device (summary)"),
    Metric(
        MEMORY_STATE_BYTES, "bytes", "parameters, optimizer and average on one device (summary)"
    ),
    # Data.
    Metric(MIXTURE_STAGE, "", "index of the data mixture's current stage"),
    Metric(MIXTURE_WEIGHT, "fraction", "sampling weight of a dataset in that stage"),
    Metric(MIXTURE_EPOCH, "epochs", "how many times a dataset was read so far"),
    Metric(MIXTURE_EXAMPLES, "examples", "examples served from a dataset so far"),
    Metric(MIXTURE_TOKENS, "tokens", "positions served from a dataset so far"),
    Metric(TENSORSTORE, "", "TensorStore cache and IO counters, when asked for"),
    # Evaluation. `eval/ema/*` repeats every name below it for the averaged weights.
    Metric(EVAL_LOSS, "nats/token", "loss over all evaluation tokens", "eval_loss"),
    Metric(EVAL_LOADING_TIME, "s", "time evaluation waited for batches"),
    Metric(EVAL_TOTAL_TIME, "s", "time evaluation took in all"),
    Metric(EVAL_MACRO_LOSS, "nats/token", "mean of the tags' losses, when there are several"),
    Metric(EVAL_BPB, "bits/byte", "bits per byte over all evaluation tokens"),
    Metric(EVAL_MACRO_BPB, "bits/byte", "mean of the tags' bits per byte"),
    Metric(EVAL_TOKENS, "tokens", "tokens whose loss was counted"),
    Metric(EVAL_DOCUMENTS, "documents", "documents that these tokens are of"),
    Metric(EVAL_LOSS_STDERR, "nats/token", "standard error of `eval/loss`, by document"),
    Metric(EVAL_BPB_STDERR, "bits/byte", "standard error of `eval/bpb`, by document"),
    Metric(EVAL_EMA, "", "the same evaluation metric for the EMA weights"),
    Metric(EVAL_TAG_LOSS, "nats/token", "loss of one tag"),
    Metric(EVAL_TAG_MICRO_LOSS, "nats/token", "loss over all tokens of a tag's datasets"),
    Metric(EVAL_TAG_MACRO_LOSS, "nats/token", "mean of the losses of a tag's datasets"),
    Metric(EVAL_TAG_BPB, "bits/byte", "bits per byte of one tag"),
    Metric(EVAL_TAG_MACRO_BPB, "bits/byte", "mean of the bits per byte of a tag's datasets"),
    Metric(EVAL_TAG_TOKENS, "tokens", "tokens of one tag whose loss was counted"),
    Metric(EVAL_TAG_DOCUMENTS, "documents", "documents of one tag"),
    Metric(EVAL_TAG_LOSS_STDERR, "nats/token", "standard error of one tag's loss, by document"),
    Metric(EVAL_TAG_BPB_STDERR, "bits/byte", "standard error of one tag's bits per byte"),
    # lm-eval tasks, of the averaged weights where there are any.
    Metric(LM_EVAL_MACRO_AVERAGE, "", "mean of a metric over tasks, each counting once"),
    Metric(LM_EVAL_MICRO_AVERAGE, "", "the same, each task counting by its documents"),
    Metric(LM_EVAL_TRUNCATED, "requests", "requests that lost the beginning of their context"),
    Metric(LM_EVAL_TOTAL_TIME, "s", "time all tasks took"),
    Metric(
        LM_EVAL_METRIC, "", "a metric of one task, or of a group; `_stderr`: its standard error"
    ),
    # Checkpoints, on the first row after one is on disk.
    Metric(CHECKPOINT_STEP, "steps", "completed steps in the checkpoint that was written"),
    Metric(CHECKPOINT_BLOCKED_SECONDS, "s", "time the loop waited for that save to begin"),
    Metric(CHECKPOINT_SECONDS, "s", "time from there until it was complete on disk"),
    Metric(CHECKPOINT_BYTES, "bytes", "size of its arrays; 0 where an earlier one was kept"),
    # The attempt, at its end.
    Metric(RUN_SECONDS, "s", "time from the first step to the end, all included (summary)"),
    Metric(RUN_TOKENS_PER_SECOND, "tokens/s", "positions over that time (summary)"),
    Metric(RUN_TOKENS_PER_SEC, "tokens/s", "tokens trained on over that time (summary)"),
    Metric(
        RUN_OUTCOME,
        "",
        "`finished`, `piece finished` (`--max-steps`), or the exception that ended it (summary)",
    ),
    Metric(WANDB_RUN_ID, "", "the run's id at Weights & Biases, in every attempt (summary)"),
    Metric(ENVIRONMENT, "", "a version, a commit or a device count of the attempt (summary)"),
    # Watch.
    # How a row carries a histogram is told in `chomp.tracking.histogram`.
    Metric(GRAD, "", "norms and histograms of gradients, when watched"),
    Metric(PARAMS, "", "norms and histograms of parameters, when watched"),
    Metric(UPDATES, "", "norms and histograms of updates, when watched"),
    Metric(OPT_STATE, "", "norms and histograms of the optimizer state, when watched"),
)

SHORT_KEYS: dict[str, str] = {
    metric.name: metric.short for metric in METRICS if metric.short is not None
}

_WILDCARD = re.compile(r"<\w+>|\*")


def name_from(pattern: str, *parts: str) -> str:
    """The name a pattern gives for `parts`: `name_from(EVAL_TAG_LOSS, "web")` = `eval/web/loss`."""
    wildcards = len(_WILDCARD.findall(pattern))
    if wildcards != len(parts) or not all(parts):
        raise ValueError(
            message(
                given=f"{len(parts)} parts {parts} for the metric pattern {pattern!r}",
                allowed=f"{wildcards} non-empty parts, one for each <word> or *",
                fix="pass one string for each, in order",
            )
        )
    remaining = iter(parts)
    return _WILDCARD.sub(lambda _: next(remaining), pattern)


def metric_of(name: str) -> Metric | None:
    """The line of the table that describes a logged key, short keys included; None if none does."""
    for metric in METRICS:
        if name == metric.short or _regex(metric.name).fullmatch(name):
            return metric
    return None


def with_short_keys(metrics: Mapping[str, MetricValue]) -> dict[str, MetricValue]:
    """The row with its short keys added (`loss` for `train/loss`, …); a key already there stays."""
    short = {SHORT_KEYS[name]: value for name, value in metrics.items() if name in SHORT_KEYS}
    return {**metrics, **{key: value for key, value in short.items() if key not in metrics}}


@cache
def _regex(pattern: str) -> re.Pattern[str]:
    literals = _WILDCARD.split(pattern)
    return re.compile(".+".join(re.escape(literal) for literal in literals), re.DOTALL)
