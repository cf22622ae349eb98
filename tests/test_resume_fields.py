"""What a resume may change of a real run: every template's own config, field by field.

Three classes. Identity is refused and no flag helps; of the schedule, each change is allowed by
its name; the rest is nobody's business. The first chomp refused nearly everything (its bug 32),
also what its run never looked at (33), and told it after everything was restored (31).
"""

import importlib
import logging
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from chomp.checkpoint import CheckpointMetadata, StepFolder
from chomp.checkpoint.compatibility import allowed_changes, require_same_run
from chomp.config import apply_overrides, config_hash, config_to_mapping
from chomp.errors import CheckpointError, ConfigError
from chomp.executor import ExecutorStep, versioned
from chomp.executor.identity import Identities
from chomp.variants.checkout import variant_folders
from tests.grug_contracts import markers_for_values

TEMPLATES = [variant.name for variant in variant_folders(Path(__file__).parents[1])]

# As a user writes them; each is another value than the launch files of the templates have.
IDENTITY = {
    "model.vocab_size": "4096",
    "model.num_layers": "7",
    "data.tokenizer.kind": "byte",
    "data.components.code.source.part": "prose",
    "data.components.code.weight": "0.9",
    "data.shuffle": "false",
    "data.packing_mode": "bin",
    "data.mask_boundary_loss": "false",
    "data.train_on_eos": "false",
    "data.validation_fraction": "0.2",
    "train.seq_len": "32",
    "train.seed": "5",
    "train.data_seed": "6",
    "train.precision": "compute=bfloat16",
    "train.initialize_from": "outputs/another",
    "optim.name": "muon",
}
SCHEDULE = {
    "train.steps": "1000",
    "train.batch_size": "64",
    "data.stages": "[{start_step: 0, weights: {code: 1, prose: 1}}]",
    "train.grad_accum": "2",
    "train.z_loss_weight": "0.5",
    "train.ema_beta": "0.5",
    "train.nonfinite_policy": "skip",
    "optim.lr": "1e-4",
    "optim.weight_decay": "0.7",
    "optim.grad_clip_norm": "3.0",
    "optim.warmup_steps": "3",
    "optim.schedule_start": "6",
    "optim.decay_steps": "50",
    "optim.min_lr_ratio": "0.3",
    "model.remat": "block",
    "model.attention": "reference",
}
FREE = {
    "train.log_every": "77",
    "train.eval_every": "3",
    "train.profiler.enabled": "true",
    "eval": "null",
    "eval.max_eval_batches": "3",
    "samples.every": "4",
    "checkpoint.save_every": "9",
    "checkpoint.save_interval_s": "null",
    "logging.level": "DEBUG",
    "logging.project": "another",
    "logging.wandb.tags": "[a, b]",
    "mesh.data": "1",
    "run_id": "renamed",
    "output_path": "elsewhere",
    # Where the same tokens lie; that they are the same is the fingerprint's business.
    "data.components.code.train_store": "moved",
    "data.tokenizer.path": "moved",
}


@cache
def launched(template: str) -> Any:
    """The config of the run that a template's launch file makes."""
    launch = importlib.import_module(f"experiments.grug.{template}.launch")
    return launch.run_config(replace(launch_class(launch)(), output_path="run"))


def launch_class(launch: Any) -> Any:
    """The config class of a template's launch file."""
    (cls,) = (
        value
        for name, value in vars(launch).items()
        if name.endswith("LaunchConfig") and value.__module__ == launch.__name__
    )
    return cls


def about(config: Any, step: int = 0) -> CheckpointMetadata:
    """What a checkpoint of such a run says of it."""
    return CheckpointMetadata(
        step=step,
        run_id=config.run_id,
        attempt=1,
        config_hash=config_hash(config),
        config=config_to_mapping(config),
        data_fingerprint="0123",
        data_offset=0,
        tokens_seen=0,
    )


def go_on(template: str, changes: dict[str, str], allow: Sequence[str] = ()) -> None:
    """Go on from a checkpoint of the template's own run with a changed config."""
    before = launched(template)
    now = apply_overrides(before, [f"{name}={value}" for name, value in changes.items()])
    assert now != before
    found = StepFolder("run/checkpoints/step-6", about(before, step=6))
    require_same_run(found, about(now), config=now, allowed=allowed_changes(now, allow))


def told_fields(error: pytest.ExceptionInfo[CheckpointError]) -> dict[str, list[str]]:
    """Saved value, new value and class by field, as the table in a message has them."""
    rows = (re.split(r"\s{2,}", line.strip()) for line in str(error.value).splitlines()[2:-1])
    return {field: cells for field, *cells in rows}


def path_of(name: str) -> str:
    """The name as the config itself spells it."""
    return name.replace("train.", "trainer.", 1).replace("optim.", "optimizer.", 1)


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("name", IDENTITY)
def test_what_makes_another_run_is_refused_with_both_values_and_no_flag_helps(template, name):
    with pytest.raises(CheckpointError, match="was saved by another run") as refused:
        go_on(template, {name: IDENTITY[name]})
    told = told_fields(refused)
    assert list(told) == [path_of(name)]
    before, now, mark = told[path_of(name)]
    assert (before != now, mark) == (True, "identity")
    with pytest.raises(ConfigError, match="part of the run's identity"):
        go_on(template, {name: IDENTITY[name]}, allow=[name])


@pytest.mark.parametrize("template", TEMPLATES)
def test_all_that_differs_is_told_in_one_message(template):
    with pytest.raises(CheckpointError) as refused:
        go_on(template, IDENTITY | SCHEDULE | {k: v for k, v in FREE.items() if k != "eval"})
    told = told_fields(refused)
    # A kind of tokenizer may bring fields of its own along.
    assert set(told) >= {path_of(name) for name in IDENTITY | SCHEDULE}
    assert {cells[-1] for cells in told.values()} == {"identity", "schedule"}
    assert not [name for name in FREE if path_of(name) in told]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("name", SCHEDULE)
def test_another_schedule_goes_on_when_it_is_allowed_by_name(template, name, caplog):
    with pytest.raises(CheckpointError, match=f"--allow {re.escape(path_of(name))}") as refused:
        go_on(template, {name: SCHEDULE[name]})
    assert list(told_fields(refused)) == [path_of(name)]
    go_on(template, {name: SCHEDULE[name]}, allow=[name])
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("name", FREE)
def test_what_changes_nothing_that_is_trained_is_free(template, name, caplog):
    go_on(template, {name: FREE[name]})
    assert not caplog.records


def test_every_section_of_a_run_is_in_one_of_the_tables():
    said = {path_of(name).split(".")[0] for name in IDENTITY | SCHEDULE | FREE}
    assert {field.name for field in fields(launched("base"))} == said


@pytest.mark.parametrize("template", TEMPLATES)
def test_other_first_weights_are_another_step_and_those_of_a_step_count_as_that_step(template):
    launch = importlib.import_module(f"experiments.grug.{template}.launch")
    config = launch_class(launch)()
    with markers_for_values():
        step = launch.steps(config)[-1]

    def identity(**trainer: Any) -> str:
        with markers_for_values():
            changed = versioned(replace(config.trainer, **trainer))
            again = replace(step, config=replace(step.config, trainer=changed))
            return Identities().of(again).hash

    def source(width: int) -> str:
        return ExecutorStep("first", print, {"width": versioned(width)}) / "checkpoints"

    hashes = [
        identity(),
        identity(initialize_from="outputs/a"),
        identity(initialize_from="outputs/b"),
        identity(initialize_from="outputs/b", initialize_weights="ema"),
        identity(initialize_from=source(1)),
        identity(initialize_from=source(2)),
    ]
    assert len(set(hashes)) == len(hashes)
    assert identity(initialize_from=source(1)) == hashes[4]
