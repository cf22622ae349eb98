"""A race: how many steps and how much time base takes to a target loss, on fixed data and model.

    uv run python -m experiments.speedrun.grugformer_20260129.grugformer_speedrun
    ... --plan | --dry-run | -o optim.lr=1e-3 | --sweep optim.lr=1e-3,3e-3 | --on process
    SPEEDRUN_TRACK=h200 ...

One step trains by base's own `train_base` and then reads the run's record into `result.json`. All
that a base run can do works here too: mixtures, tagged evaluation, lm-eval tasks, resume.
"""

from __future__ import annotations  # a launch config may hold markers until the executor runs it

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from chomp.checkpoint import CheckpointConfig
from chomp.config import Config, config_difference, setting
from chomp.data import BatchSchedule
from chomp.errors import require
from chomp.executor import ExecutorStep, versioned
from chomp.executor.step import source_hashes
from chomp.launch import executor_main
from chomp.mesh import is_first
from chomp.optim import AdamConfig, GrugOptimizerConfig
from chomp.report.run_table import print_run_table
from chomp.storage import (
    exists,
    join,
    list_folder,
    name_of,
    parent_of,
    read_json,
    write_json_atomic,
)
from chomp.tracking import Row, latest_rows, metrics, read_metrics, summary_of
from chomp.training import (
    GrugEvalConfig,
    GrugTrainerConfig,
    SamplesConfig,
    derived_values,
    environment,
)
from chomp.variants.checkout import head_commit, uncommitted
from experiments.grug.base import launch as base
from experiments.grug.base.model import GrugModelConfig

RESULT = "result.json"  # in the run's folder
TRACK = "SPEEDRUN_TRACK"  # the environment variable; a track is a whole config, too much for -o
_COLUMNS = ("run", "target", "reached", "loss", "steps", "tokens", "training s", "wall s", "rules")


@dataclass(frozen=True, kw_only=True)
class Entry(Config):
    """What a run races as."""

    track: str
    template: dict[str, str]  # SHA-256 of base's files: with other code it is another run
    changed_rules: tuple[str, ...]  # fields of the track that it does not keep; none: it counts
    commit: str | None = setting(mark="cosmetic", is_versioned=False)  # of the newest start


@dataclass(frozen=True, kw_only=True)
class SpeedrunConfig(base.GrugBaseLaunchConfig):
    """A base run and the loss it is to reach.

    Not nested, so that every flag and every `-o` means what it means for base.
    """

    target_loss: float  # of all held-out tokens, in nats
    entry: Entry | None = None  # filled in by `steps`


# ---- The tracks -----------------------------------------------------------------------------


def cpu_track() -> SpeedrunConfig:
    """Base as its launch file has it: about two minutes on two cores."""
    return SpeedrunConfig(
        run_id="grugformer-cpu",
        # Two seeds were below it at steps 240 and 280, and ended at 4.28 and 4.35 (recipe page).
        target_loss=4.4,
        eval=GrugEvalConfig(steps_per_eval=20),
        samples=SamplesConfig(max_tokens=0),
    )


def h200_track() -> SpeedrunConfig:
    """126M parameters in bfloat16 on one GPU: about a minute on an H200, with its data."""
    data = base.embedded_mixture()
    return SpeedrunConfig(
        run_id="grugformer-h200",
        # One seed was below it at step 260, and ended at 4.13 (recipe page).
        target_loss=4.25,
        model=GrugModelConfig(
            vocab_size=8192,
            hidden_dim=768,
            intermediate_dim=3072,
            num_layers=16,
            num_heads=6,
            num_kv_heads=6,
            max_seq_len=1024,
        ),
        data=replace(data, tokenizer=replace(data.tokenizer, vocab_size=8192)),
        optimizer=GrugOptimizerConfig(
            lr=1e-3, weight_decay=0.1, warmup_steps=40, min_lr_ratio=0.05, adam=AdamConfig(b2=0.95)
        ),
        trainer=GrugTrainerConfig(
            # About two epochs of all the text there is; after several, such a model knows it.
            steps=320,
            batch_size=16,
            seq_len=1024,
            precision="params=float32,compute=bfloat16",
            z_loss_weight=1e-4,
            log_every=10,
        ),
        eval=GrugEvalConfig(steps_per_eval=20),
        samples=SamplesConfig(max_tokens=0),
        checkpoint=CheckpointConfig(save_interval_s=60.0),
    )


TRACKS: dict[str, Callable[[], SpeedrunConfig]] = {"cpu": cpu_track, "h200": h200_track}


def rules_of(config: SpeedrunConfig) -> dict[str, Any]:
    """What every run of a track has in common. The rest is what the race is about."""
    default = GrugEvalConfig()
    asked = config.eval or default
    # Where all rows are evaluated, how many at once is a matter of speed: any is the default.
    sized = default if asked.max_eval_batches is None else asked
    return {
        "target_loss": config.target_loss,
        "model": config.model,
        "data": config.data,
        "eval": {
            "max_eval_batches": asked.max_eval_batches,
            "eval_batch_size": sized.eval_batch_size,
        },
        "train": {
            "seq_len": config.trainer.seq_len,  # more context, lower loss
            "initialize_from": config.trainer.initialize_from,  # a run starts from nothing
            "load_checkpoint_path": config.trainer.load_checkpoint_path,
        },
    }


# ---- The run --------------------------------------------------------------------------------


def steps(config: SpeedrunConfig) -> list[ExecutorStep]:
    """Base's steps, of which the last one trains and then writes the result."""
    track = os.environ.get(TRACK) or "cpu"
    require(
        track in TRACKS,
        f"{TRACK}={track}",
        allowed=f"one of {', '.join(TRACKS)}",
        fix="correct it, or leave it out for the track that two CPU cores can run",
    )
    require(
        config.eval is not None and config.eval.eval_current,
        f"eval={config.eval}",
        allowed="an evaluation of the weights that are trained: it decides the race",
        fix="leave eval and eval.eval_current as they are",
    )
    require(
        config.entry is None,
        f"entry={config.entry}",
        allowed="nothing: it is filled in when the run is planned",
        fix="leave it out",
    )
    root = Path(__file__).parents[3]
    commit = head_commit(root)
    if commit and (uncommitted(root, "src") or uncommitted(root, "experiments")):
        commit += "-dirty"
    changed = config_difference(rules_of(TRACKS[track]()), rules_of(config))
    entry = Entry(
        track=track,
        # Of a model's schedule are its kernel and what is made again: it is the same model.
        changed_rules=tuple(each.path for each in changed if each.mark != "schedule"),
        commit=commit,
        template=source_hashes(Path(base.__file__).parent),
    )
    (step,) = base.steps(config)
    # What decides the race names the folder too: no result stands for another target.
    raced = replace(
        step.config,
        target_loss=versioned(config.target_loss),
        eval=versioned(config.eval),
        entry=versioned(entry),
    )
    name, description = f"speedrun/{config.run_id}", "train to the target loss"
    return [replace(step, name=name, description=description, fn=race, config=raced)]


def race(config: SpeedrunConfig) -> None:
    """The executor's entry point: train as base does, then write what the target took."""
    base.train_base(config)
    if is_first():
        write_json_atomic(join(config.output_path, RESULT), result_of(config))


def result_of(config: SpeedrunConfig) -> dict[str, Any]:
    """What a finished run took to its target or, where it missed that, to its end."""
    assert config.eval is not None
    assert config.entry is not None
    rows = read_metrics(join(config.output_path, config.logging.metrics_file))
    summary, loss = summary_of(rows), f"{config.eval.prefix}/loss"
    # The newest attempt's rows: those are of the weights that the run ended with.
    evaluated = [row for row in latest_rows(rows) if row.get(loss) is not None]
    reached = [row for row in evaluated if row[loss] <= config.target_loss]
    completed = (reached or evaluated[-1:])[0]["step"] + 1
    # The line itself: lines of tasks or samples of that step came after it.
    end = [row for row in rows if row.get("step") == completed - 1 and loss in row][-1]
    trainer = config.trainer
    batches = BatchSchedule(trainer.batch_size, trainer.grad_accum)
    return {
        "track": config.entry.track,
        "changed_rules": list(config.entry.changed_rules),
        "target_loss": config.target_loss,
        "is_reached": bool(reached),
        "loss": end[loss],
        "best_loss": min(row[loss] for row in evaluated),
        "steps": completed,
        "tokens": batches.examples_before(completed) * trainer.seq_len,
        "training_seconds": training_seconds(rows, completed),
        "wall_seconds": wall_seconds(rows, end),
        "attempts": end["attempt"],
        "parameters": summary[metrics.PARAMETER_COUNT],
        "device": summary[metrics.DEVICE_KIND],
        "seed": trainer.seed,
        "commit": config.entry.commit,
        "held_out_hashes": derived_values(config)["data"]["held_out_hashes"],
        "versions": environment(),
    }


def training_seconds(rows: Sequence[Row], completed: int) -> float:
    """Time inside the first `completed` steps, each counted once however often it was done.

    Without compiling, waiting for data, evaluation and saving.
    """
    seconds, before = 0.0, 0
    for row in latest_rows(rows):
        if metrics.DURATION in row and before < completed:
            # The mean of the steps since the line before, which may go beyond the last counted.
            seconds += row[metrics.DURATION] * (min(row["step"] + 1, completed) - before)
            before = row["step"] + 1
    return seconds


def wall_seconds(rows: Sequence[Row], end: Row) -> float:
    """All that the attempts took until the line `end`, steps that were lost and repeated too.

    Each from its first line to its end, or its last step if it has none: not the time between,
    when nothing ran.
    """
    seconds = 0.0
    for attempt in {row["attempt"] for row in rows if row["attempt"] <= end["attempt"]}:
        own = [row for row in rows if row["attempt"] == attempt]
        # Lines of a later `chomp eval` belong to the last attempt before it, and are no work of it.
        worked = [row for row in own if metrics.TRAIN_LOSS in row or metrics.RUN_OUTCOME in row]
        last = end if attempt == end["attempt"] else (worked or own[:1])[-1]
        seconds += last["time"] - own[0]["time"]
    return seconds


# ---- What is shown --------------------------------------------------------------------------


def report(path: str) -> None:
    """What came of the run in `path`, and of all others that ran the same race beside it."""
    print_run_table(path)
    # Wider than most terminals: a line that is broken can still be read, a cut cell cannot.
    Console(width=200).print(results_table(path))


def results_table(path: str) -> Table:
    """The results beside `path` on the same track and held-out data, the fastest first."""
    this, folder = read_json(join(path, RESULT)), parent_of(path)
    files = {name: join(folder, name, RESULT) for name in list_folder(folder)}
    found = {name: read_json(file) for name, file in files.items() if exists(file)}
    table = Table("", *_COLUMNS, title=f"speedrun, track {this['track']}")
    for name in sorted(found, key=lambda name: _order(found[name])):
        result = found[name]
        # Every Python brings another standard library: a loss on other text says nothing.
        if any(result[key] != this[key] for key in ("track", "held_out_hashes")):
            continue
        changed = len(result["changed_rules"])
        table.add_row(
            ">" if name == name_of(path) else "",
            name,
            str(result["target_loss"]),
            "yes" if result["is_reached"] else "no",
            f"{result['loss']:.4f}",
            f"{result['steps']:,}",
            f"{result['tokens']:,}",
            f"{result['training_seconds']:,.1f}",
            f"{result['wall_seconds']:,.1f}",
            f"{changed} changed" if changed else "kept",
        )
    return table


def _order(result: dict[str, Any]) -> tuple[bool, bool, float]:
    """Runs by the rules come first, then those that got there, then the fast."""
    return bool(result["changed_rules"]), not result["is_reached"], result["training_seconds"]


if __name__ == "__main__":
    executor_main(
        steps,
        TRACKS.get(os.environ.get(TRACK) or "cpu", cpu_track)(),
        description="Race base to a target loss on fixed data and model.",
        report=report,
        dry_run=base.dry_run,
    )
