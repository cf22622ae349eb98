"""What only runs of a variant show: that it learns, resumes to the bit, and logs what it promises.

A variant is run as its own launch file says; only sizes are overridden, and the texts, as it takes
longer to read those that every Python brings along than to train on them. The checks read what the
runs have left behind, so each of them can be tried on a folder that no run has made.
"""

import dataclasses
import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chomp.config import apply_overrides
from chomp.errors import ConfigError
from chomp.executor import PlannedStep, plan_steps, run_plan
from chomp.launch.run import local_runner
from chomp.tracking import metric_of, metrics
from tests import tiny
from tests.grug_contracts import Template, markers_for_values

STEPS, RESUMED_AT = 20, 10
SMALL = {
    "train.steps": STEPS,
    "train.batch_size": 8,
    "train.seq_len": 64,
    "train.log_every": 1,
    "train.ema_beta": 0.9,
    "optim.warmup_steps": 2,
    "data.tokenizer.kind": "byte",  # a BPE takes longer to train than the model
    "data.validation_fraction": tiny.VALIDATION_FRACTION,
    "eval.max_eval_batches": 1,
    "eval.eval_batch_size": 8,
    "samples.max_tokens": 0,
    "checkpoint.save_interval_s": "null",
    "checkpoint.every": RESUMED_AT,
    "logging.console": "false",
    "mesh.data": 4,
    "mesh.model": 2,
}
# As far as a variant has these fields; what else it has stays as its launch file says.
SMALL_MODEL = {
    "vocab_size": 512,
    "hidden_dim": 32,
    "intermediate_dim": 64,
    "num_layers": 2,
    "num_heads": 2,
    "num_kv_heads": 2,
    "max_seq_len": 64,
    "model_dim": 32,
    "z_dim": 16,
    "value_dim": 32,
    "ffn_hidden_dim": 48,
    "cema_ndim": 4,
    "chunk_size": 16,
    "norm_num_groups": 4,
}
OVER_EXPERTS = {
    "train.steps": 3,
    "train.ema_beta": "null",
    "eval": "null",
    "model.num_layers": 1,
    "mesh.data": 2,
    "mesh.expert": 2,
}

# Seed 000's list, but for what a CPU does not have; and seed 004's.
PROMISED = {
    metrics.TRAIN_LOSS, metrics.GLOBAL_STEP, metrics.RUN_PROGRESS, metrics.GRAD_NORM,
    metrics.LEARNING_RATE, metrics.DURATION, metrics.EXAMPLES_PER_SECOND,
    metrics.TOKENS_PER_SECOND, metrics.TOTAL_TOKENS, metrics.GFLOPS_PER_SECOND,
    metrics.TOTAL_GFLOPS, metrics.HOOK_TIME, metrics.LOADING_TIME, metrics.CHECKPOINT_TIME,
    metrics.COMPILE_TIME, metrics.MIXTURE_STAGE, metrics.TOKENS_SEEN, metrics.TOKENS_PER_SEC,
    metrics.PACKING_MODE, metrics.PACKING_UTILIZATION, "step", "attempt", "time", "loss",
    "grad_norm", "lr",
}  # fmt: skip
EVALUATED = {
    metrics.EVAL_LOSS, metrics.EVAL_MACRO_LOSS, metrics.EVAL_BPB, metrics.EVAL_MACRO_BPB,
    metrics.EVAL_LOADING_TIME, metrics.EVAL_TOTAL_TIME, "eval_loss",
}  # fmt: skip
SUMMARY = {
    metrics.FLOPS_PER_TOKEN_ANALYTIC, metrics.FLOPS_PER_EXAMPLE_ANALYTIC, metrics.FLOPS_PER_EXAMPLE,
    metrics.DEVICE_KIND, metrics.PARAMETER_COUNT,
}  # fmt: skip
_ROW_KEYS = {"step", "attempt", "time", "kind"}
_AVERAGED, _AVERAGED_LEAVES = "eval/ema/", "ema_params/"


@dataclass(frozen=True)
class Runs:
    """The folders of a variant's runs."""

    straight: Path  # unbroken, with averaged weights
    resumed: Path  # the same run from a checkpoint in its middle on
    plain: Path  # the end of it without averaged weights
    over_experts: Path | None  # where the variant uses that axis: its first steps with it


def made_runs(template: Template, folder: Path) -> Runs:
    """Run the variant in `folder`, where the data of an earlier variant is used again."""
    own = folder / template.variant.name
    planned = planned_run(template, folder)
    straight = _run(planned)
    with markers_for_values():  # and unchecked types, of which the first run had enough
        resumed = _resumed(planned, own / "resumed")
        plain = _without_average(planned, own / "plain")
        is_spread = template.uses_experts
        spread = _run(planned_run(template, folder, OVER_EXPERTS)) if is_spread else None
    return Runs(straight, resumed, plain, spread)


def _run(planned: PlannedStep) -> Path:
    planned.step.fn(planned.config)
    return Path(planned.path)


def planned_run(
    template: Template, prefix: Path, overrides: dict[str, Any] | None = None
) -> PlannedStep:
    """The training step of the variant's launch file, small, with its data built."""
    launch = template.launch_class()
    fields = {field.name for field in dataclasses.fields(launch.model)}
    model = {f"model.{name}": size for name, size in SMALL_MODEL.items() if name in fields}
    values = {**SMALL, **model, "data.components": _texts(prefix), **(overrides or {})}
    # A section that is left out has no parts to be overridden.
    given = {key: value for key, value in values.items() if key.split(".")[0] not in values}
    given |= {key: value for key, value in values.items() if "." not in key}
    launch = apply_overrides(launch, [f"{key}={value}" for key, value in given.items()])
    with markers_for_values():
        *data, run = plan_steps(template.launch.steps(launch), prefix=str(prefix))
        failures = run_plan(data, local_runner(data))
    assert not failures, failures
    return run


def _texts(prefix: Path) -> str:
    """Two bodies of text as an override, with the names and weights of those in the launch file."""
    folder = prefix / "texts"
    if not folder.exists():
        folder.mkdir(parents=True)
        tiny.write_texts(folder)
    parts = [("code", "sums", 0.6), ("prose", "words", 0.4)]
    components = {
        name: {"source": {"kind": "text", "paths": [f"{folder}/{files}-*.txt"]}, "weight": weight}
        for name, files, weight in parts
    }
    return json.dumps(components)


def _resumed(planned: PlannedStep, folder: Path) -> Path:
    """What the run becomes when it is lost after its first checkpoint and started again."""
    shutil.copytree(planned.path, folder)
    shutil.rmtree(folder / f"checkpoints/step-{STEPS}")
    planned.step.fn(replace(planned.config, output_path=str(folder)))
    return folder


def _without_average(planned: PlannedStep, folder: Path) -> Path:
    """The end of the run without averaged weights: no step is left, so no step is compiled."""
    shutil.copytree(planned.path, folder, ignore=shutil.ignore_patterns("metrics.jsonl"))
    trainer = planned.config.trainer
    trainer = replace(trainer, ema_beta=None, allow_changes=("train.ema_beta",))
    planned.step.fn(replace(planned.config, trainer=trainer, output_path=str(folder)))
    return folder


def run_violations(runs: Runs) -> list[str]:
    """All that the runs of a variant show to be broken."""
    over_experts = [] if runs.over_experts is None else [runs.over_experts]
    return [
        *the_loss_falls(runs.straight),
        *resumes_bit_for_bit(runs.straight, runs.resumed),
        *averages_only_when_asked(runs.straight, runs.plain),
        *compiles_once(runs.straight),
        *logs_what_it_promises(runs.straight),
        *(told for run in over_experts for told in trains_over_experts(run)),
    ]


# --- what the folders show ----------------------------------------------------------------------


def rows_of(run: Path) -> list[dict[str, Any]]:
    """Every line of the run's record."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def trained_rows(run: Path) -> dict[int, dict[str, Any]]:
    """The line of each step, the newest attempt's where there are several."""
    return {row["step"]: row for row in rows_of(run) if metrics.TRAIN_LOSS in row}


def the_loss_falls(run: Path) -> list[str]:
    """Within twenty steps the loss is a tenth lower than at the first."""
    losses = tiny.losses(run)
    found = [losses.get(step) for step in range(STEPS)]
    is_whole = all(loss is not None and math.isfinite(loss) for loss in found)
    if is_whole and sum(found[-5:]) / 5 < 0.9 * found[0]:
        return []
    told = [None if loss is None else round(loss, 3) for loss in found]
    return [_broken(run, f"losses {told}", allowed="a loss that falls by a tenth in 20 steps")]


def averages_only_when_asked(averaged: Path, plain: Path) -> list[str]:
    """Averaged weights are evaluated and saved where they are asked for, and nowhere else.

    What is evaluated is the average: after few steps it is still far from the weights.
    """
    violations = []
    for run, is_asked in ((averaged, True), (plain, False)):
        keys = {key for row in rows_of(run) for key in row if key.startswith(_AVERAGED)}
        if bool(keys) != is_asked:
            given = f"metrics {sorted(keys)[:3]} with ema_beta {'set' if is_asked else 'unset'}"
            violations.append(_broken(run, given, allowed="eval/ema/* exactly when it is set"))
    for row in rows_of(averaged):
        loss = row.get(_AVERAGED + "loss")
        if loss is not None and loss == row.get(metrics.EVAL_LOSS):
            given = f"eval/ema/loss is {loss}, which is eval/loss"
            violations.append(_broken(averaged, given, allowed="the loss of the averaged weights"))
    leaves = [name for name in tiny.receipt(averaged, STEPS) if name.startswith(_AVERAGED_LEAVES)]
    if not leaves:
        violations.append(
            _broken(averaged, "a checkpoint without averaged weights", allowed="ema_params/* in it")
        )
    return violations


def resumes_bit_for_bit(straight: Path, resumed: Path) -> list[str]:
    """A run that was lost and started again logs and saves what an unbroken one does."""
    violations = []
    if not any(row["attempt"] == 2 for row in trained_rows(resumed).values()):
        violations.append(_broken(resumed, "no step of a second attempt", allowed="a resumed run"))
    for step, row in trained_rows(straight).items():
        again = trained_rows(resumed).get(step, {})
        keys = {key for key in row.keys() | again.keys() if _is_repeatable(key)}
        if differing := {key for key in keys if row.get(key) != again.get(key)}:
            key = min(differing)
            given = f"step {step}: {key} is {again.get(key)}, in the unbroken run {row.get(key)}"
            violations.append(_broken(resumed, given, allowed="the same to the bit"))
            break  # all that come after differ because this one does
    saved, again = (tiny.receipt(run, STEPS) for run in (straight, resumed))
    if leaves := sorted(name for name in saved | again if saved.get(name) != again.get(name)):
        given = f"the checkpoint of step {STEPS} differs in {len(leaves)} leaves, as {leaves[0]}"
        violations.append(_broken(resumed, given, allowed="the same to the bit"))
    return violations


def _is_repeatable(key: str) -> bool:
    """Whether a value is made by the run and not by the machine's speed."""
    timed = ("throughput/", "checkpoint/", "data/tensorstore/", "time", "attempt")
    slow = (metrics.TOKENS_PER_SEC, metrics.FIRST_STEP_COMPILE_TIME_S, metrics.PEAK_MEMORY_GB)
    return not key.startswith(timed) and not key.endswith("_time") and key not in slow


def compiles_once(run: Path) -> list[str]:
    """One size of batch is one program."""
    steps = [
        step for step, row in trained_rows(run).items() if row.get(metrics.COMPILE_TIME, 0) > 0
    ]
    if steps == [0]:
        return []
    given = f"the step was compiled at steps {steps} of batches of one size"
    return [_broken(run, given, allowed="once, at step 0")]


def logs_what_it_promises(run: Path) -> list[str]:
    """The promised keys are on every line they belong to."""
    rows, trained = rows_of(run), trained_rows(run)
    evaluated = [row for row in rows if metrics.EVAL_LOSS in row]
    summary = {k: v for row in rows if row.get("kind") == "summary" for k, v in row.items()}
    return [
        *_missing(run, "the line of step {}", trained, PROMISED),
        *_missing(run, "evaluation {}", dict(enumerate(evaluated)) or {0: {}}, EVALUATED),
        *_missing(run, "the summary", {0: summary}, SUMMARY),
    ]


def _missing(
    run: Path, where: str, rows: dict[int, dict[str, Any]], promised: set[str]
) -> Iterator[str]:
    for number, row in rows.items():
        if missing := sorted(promised - row.keys()):
            given = f"{where.format(number)} has no {', '.join(missing)}"
            yield _broken(run, given, allowed="what experiments/grug/README.md promises")
            return


def not_described(run: Path) -> list[str]:
    """The variant's own metrics: logged keys that `chomp.tracking.metrics` does not describe."""
    logged = {key for row in rows_of(run) if row.get("kind") != "artifact" for key in row}
    return [key for key in sorted(logged - _ROW_KEYS) if metric_of(key) is None]


def trains_over_experts(run: Path) -> list[str]:
    """With experts over devices, too, the loss is finite and falls."""
    losses = list(tiny.losses(run).values())
    if len(losses) > 1 and all(map(math.isfinite, losses)) and losses[-1] < losses[0]:
        return []
    return [_broken(run, f"losses {losses} over the expert axis", allowed="losses that fall")]


def _broken(
    run: Path,
    given: str,
    *,
    allowed: str,
    fix: str = "compare the variant's train.py with experiments/grug/base/train.py",
) -> str:
    return str(ConfigError(f"{run.parent.name}/{run.name}: {given}", allowed=allowed, fix=fix))
