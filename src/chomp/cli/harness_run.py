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
from chomp.cli.own_results import harness_differences, what_is_asked
from chomp.cli.result_file import (
    TITLES,
    about_checkpoint,
    print_json,
    require_place,
    say_places,
    short_hash,
    written,
)
from chomp.cli.terminal import print_table, say
from chomp.errors import ChompError, require

if TYPE_CHECKING:  # for annotations alone
    from chomp.checkpoint.weights_alone import WeightsAlone, WeightsName
    from chomp.evaluation.harness import HarnessResults
    from chomp.training import HarnessConfig
    from chomp.training.harness import Harness

# What may be said otherwise and has an effect here: all of the tasks but when the loop runs them.
MAY_CHANGE = (
    "eval",  # of a run that has none, as is the next
    "eval.harness",
    "eval.harness.tasks*",
    "eval.harness.include_path",
    "eval.harness.include_defaults",
    "eval.harness.num_fewshot",
    "eval.harness.limit",
    "eval.harness.batch_size",
    "eval.harness.max_length",
    "eval.harness.allow_code",
    "mesh.*",
    "logging.project",
    "logging.metrics_file",
    "logging.wandb.*",
    "logging.tensorboard.*",
    "model.attention",
)

# As far as an override can say it: by itself, or with a whole section.
_ALLOWS_CODE = ("eval", "eval.harness", "eval.harness.allow_code")


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
    from chomp.mesh import is_first

    _require_folder(asked.get("include_path"))
    run = opened_run(given, may_change=MAY_CHANGE)
    require_place(run, out)
    config = _config(run, tasks, asked)
    # Before the weights: a task that is not there should cost nobody the reading of them.
    harness = _harness(run, config)
    choose = best_weights if weights is None else partial(these_weights, names=(weights,))
    read = run.weights(choose)
    about = _about(run, read, harness, config)
    # Before hours of tasks: a file that cannot be read must cost nobody their results.
    name = _file_name(run, about) if out is None else ""
    (model,) = read.models.values()
    start = time.perf_counter()  # as the loop counts: tasks are loaded before
    results = harness.results(model)
    about["seconds"] = time.perf_counter() - start
    content = {**about, **results.as_json()}
    path = written(run, content, name=name, out=out)
    if is_first() and is_json:
        print_json(content)
    elif is_first():
        _show(read, results, about["seconds"])
        say_places(read.found, path, about["differs_from_run"])
    _log(run, about, results, path)  # last: a service may take its time
    return 0


def _harness(run: OpenedRun, config: HarnessConfig) -> Harness:
    from chomp.training.harness import Harness

    return Harness(
        config,
        run.from_template("scores_of"),
        model=run.config.model,
        data=run.config.data,
        seq_len=run.config.trainer.seq_len,
        mesh=run.mesh,
        mp=run.mp,
        tokenizer=run.tokenizer,
    )


def _require_folder(include_path: str | None) -> None:
    require(
        include_path is None or Path(include_path).is_dir(),
        given=f"--include-path {include_path}, where there is no folder",
        allowed="a folder of lm-eval task files (.yaml)",
        fix="correct the path",
    )


def _config(run: OpenedRun, tasks: Sequence[str] | None, asked: Mapping[str, Any]) -> HarnessConfig:
    """What is asked for, on top of what the run's own config says of tasks."""
    from chomp.training import HarnessConfig

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
        # What the run let its tasks do is nobody's wish now: its folder may be anybody's.
        is_asked = any(name in _ALLOWS_CODE for name in run.changed)
        named["allow_code"] = own.allow_code and is_asked
        changed: HarnessConfig = replace(own, **(named | dict(asked)))
        return changed
    return HarnessConfig(**named, **asked)


def _about(
    run: OpenedRun, read: WeightsAlone, harness: Harness, config: HarnessConfig
) -> dict[str, Any]:
    """What the file of results begins with: what the loop's says, and which checkpoint it was."""
    from chomp.checkpoint.weights_alone import best_weights

    (weights,) = read.models
    is_usual = (weights,) == tuple(best_weights(read.found))
    other = [] if is_usual else ["other weights than in the loop"]
    return {
        **about_checkpoint(run, read.found, weights),
        **harness.header(read.found.metadata.step, weights),
        "differs_from_run": [*harness_differences(run, read.found, config), *other],
    }


def _file_name(run: OpenedRun, about: Mapping[str, Any]) -> str:
    """The loop's own name for results, unless they are others or that file has others."""
    from chomp.storage import exists, join
    from chomp.tracking.run_files import ARTIFACTS
    from chomp.training.harness import results_name

    stem, asked = results_name(about["step"]), _defined(about)
    there = None if run.folder is None else join(run.folder, ARTIFACTS, f"{stem}.json")
    is_free = there is None or not exists(there) or _defined_in(there) == asked
    if is_free and not about["differs_from_run"]:
        return f"{stem}.json"
    more = [about["changed"], about["template_hash"]]
    return f"{stem}-{short_hash([*asked, *more])}.json"


def _defined(about: Mapping[str, Any]) -> list[Any]:
    """What tells results from others of the run's own; the loop's files have it too."""
    return [about["weights"], what_is_asked(about["harness"])]


def _defined_in(path: str) -> list[Any] | None:
    """Likewise of a file; None for one that is damaged, or not of this kind."""
    from chomp.storage import read_json

    try:
        return _defined(read_json(path))
    except (ChompError, LookupError, TypeError, AttributeError):
        return None


def _log(
    run: OpenedRun, about: Mapping[str, Any], results: HarnessResults, path: str | None
) -> None:
    """The results at the last completed step of the run's record, if they are the run's own."""
    from chomp.training.harness import log_results

    step: int = about["step"]
    if step == 0 or about["differs_from_run"]:
        return
    with late_tracker(run) as tracker:
        log_results(results, about["seconds"], tracker, path, completed_steps=step)


def _show(read: WeightsAlone, results: HarnessResults, seconds: float) -> None:
    from rich.table import Table

    (weights,) = read.models
    headings, *rows = results.table()
    title = f"{TITLES[weights]} of step {read.found.metadata.step}"
    table = Table(title=title, title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < 2 else "right")
    for row in rows:
        table.add_row(*row)
    print_table(table)
    say(f"{seconds:.1f} s, compiling included")
