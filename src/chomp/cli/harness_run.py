"""`chomp harness`: lm-eval tasks on the weights of a checkpoint."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chomp.cli.late_record import late_tracker
from chomp.cli.opened_run import GivenRun, OpenedRun, opened_run
from chomp.cli.result_file import (
    ARTIFACTS,
    about_checkpoint,
    print_json,
    require_place,
    say_places,
    written,
)
from chomp.cli.terminal import print_table, say
from chomp.errors import require

if TYPE_CHECKING:  # for annotations alone
    from chomp.checkpoint.weights_alone import WeightsAlone, WeightsName
    from chomp.evaluation.harness import HarnessResults
    from chomp.hooks import HarnessConfig

MAY_CHANGE = ("eval.harness", "eval.harness.*", "mesh.*", "logging.*", "model.attention")
_TITLES = {"params": "weights", "ema": "averaged weights"}
# As the loop names its own.
_RESULTS = "lm_eval_harness_results"
_ARTIFACT_KIND = "lm_eval_output"
_HASH_CHARACTERS = 8


def harness_run(
    given: GivenRun,
    *,
    tasks: Sequence[str] | None,
    asked: Mapping[str, Any],
    weights: WeightsName | None,
    out: str | None,
    is_json: bool,
) -> int:
    """Run the tasks, show and keep what they gave; the exit code."""
    from chomp.checkpoint.weights_alone import best_weights, these_weights
    from chomp.hooks.harness import Harness

    _require_folder(asked.get("include_path"))
    run = opened_run(given, may_change=MAY_CHANGE)
    require_place(run, out)
    config = _config(run, tasks, asked)
    # Before the weights: a task that is not there should cost nobody the reading of them.
    harness = Harness(
        config,
        run.from_template("scores_of"),
        model=run.config.model,
        data=run.config.data,
        seq_len=run.config.trainer.seq_len,
        mesh=run.mesh,
        mp=run.mp,
        tokenizer=run.tokenizer,
    )
    choose = best_weights if weights is None else partial(these_weights, names=(weights,))
    read = run.weights(choose)
    (model,) = read.models.values()
    start = time.perf_counter()  # as the loop counts: tasks are loaded before
    results = harness.results(model)
    seconds = time.perf_counter() - start
    _keep(run, read, config, results, seconds, out=out, is_json=is_json)
    return 0


def _require_folder(include_path: str | None) -> None:
    require(
        include_path is None or Path(include_path).is_dir(),
        given=f"--include-path {include_path}, where there is no folder",
        allowed="a folder of lm-eval task files (.yaml)",
        fix="correct the path",
    )


def _config(run: OpenedRun, tasks: Sequence[str] | None, asked: Mapping[str, Any]) -> HarnessConfig:
    """What is asked for, on top of what the run's own config says of tasks."""
    from chomp.hooks import HarnessConfig

    own = None if run.config.eval is None else run.config.eval.harness
    require(
        bool(tasks) or (tasks is None and own is not None),
        given="--tasks with no name" if tasks is not None else f"no tasks, and {run.path} has none",
        allowed="names of tasks and groups, with commas between them",
        fix="pass --tasks NAME,NAME and --include-path FOLDER",
    )
    require(
        own is not None or bool({"include_path", "include_defaults"} & asked.keys()),
        given=f"--tasks {','.join(tasks or ())} without a place to look for them",
        allowed="--include-path FOLDER, --with-defaults for lm-eval's own, or both",
        fix="pass the folder of the tasks' files as --include-path",
    )
    # On top of the run's own: a task of its config may need its folder of files.
    named: dict[str, Any] = {} if tasks is None else {"tasks": tuple(tasks)}
    if own is not None:
        changed: HarnessConfig = replace(own, **named, **asked)
        return changed
    return HarnessConfig(**named, **asked)


def _keep(
    run: OpenedRun,
    read: WeightsAlone,
    config: HarnessConfig,
    results: HarnessResults,
    seconds: float,
    *,
    out: str | None,
    is_json: bool,
) -> None:
    """Write the results, show them, and log them as the loop does."""
    from chomp.config import config_to_mapping
    from chomp.mesh import is_first

    found, (weights,) = read.found, read.models
    content = {
        **about_checkpoint(run, found),
        "weights": weights,
        "seconds": seconds,
        "harness": config_to_mapping(config),
        **results.as_json(),
    }
    path = written(run, content, name=_file_name(run, content), out=out)
    if is_first() and is_json:
        print_json(content)
    elif is_first():
        _show(read, results, seconds, path)
    _log(run, read, results, seconds, path)  # last: a service may take its time


def _file_name(run: OpenedRun, content: Mapping[str, Any]) -> str:
    """The loop's own name for results, unless that file has results of other tasks or weights."""
    from chomp.config import fingerprint
    from chomp.storage import exists, join, read_json

    stem = f"{_RESULTS}.{content['step']}"
    asked = [content["weights"], content["harness"]]
    # The loop's file has no such fields, so it is never written over either.
    path = None if run.folder is None else join(run.folder, ARTIFACTS, f"{stem}.json")
    there = read_json(path) if path is not None and exists(path) else None
    if isinstance(there, dict) and [there.get("weights"), there.get("harness")] != asked:
        return f"{stem}-{fingerprint(asked)[:_HASH_CHARACTERS]}.json"
    return f"{stem}.json"


def _log(
    run: OpenedRun, read: WeightsAlone, results: HarnessResults, seconds: float, path: str | None
) -> None:
    """The results at the last completed step, if they are of the weights that the loop takes."""
    from chomp.checkpoint.weights_alone import best_weights
    from chomp.tracking import names

    step = read.found.metadata.step
    # Results of other weights under the same names would look like a change of the model.
    if step == 0 or tuple(read.models) != tuple(best_weights(read.found)):
        return
    with late_tracker(run) as tracker:
        metrics = {**results.metrics(), names.LM_EVAL_TOTAL_TIME: seconds}
        tracker.log(metrics, step=step - 1)
        if path is not None:
            tracker.log_artifact(path, name=f"{_RESULTS}.{step}", kind=_ARTIFACT_KIND)


def _show(read: WeightsAlone, results: HarnessResults, seconds: float, path: str | None) -> None:
    from rich.table import Table

    (weights,) = read.models
    headings, *rows = results.table()
    title = f"{_TITLES[weights]} of step {read.found.metadata.step}"
    table = Table(title=title, title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < 2 else "right")
    for row in rows:
        table.add_row(*row)
    print_table(table)
    say(f"{seconds:.1f} s, compiling included")
    say_places(read.found, path)
