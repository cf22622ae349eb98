"""`chomp harness`: lm-eval tasks on the weights of a checkpoint."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from chomp.checkpoint import LoadedWeights, WeightsName, best_weights, these_weights
from chomp.cli.loaded_run import GivenRun, LoadedRun, load_run
from chomp.cli.output import print_json, print_rows, say
from chomp.cli.results import (
    TITLES,
    about_checkpoint,
    asked_fields,
    harness_differences,
    late_tracker,
    require_place,
    say_places,
    short_hash,
    write_results,
)
from chomp.errors import ChompError, require
from chomp.evaluation.harness import HarnessResults
from chomp.mesh import is_first
from chomp.storage import exists, join, read_json
from chomp.tracking.run_files import ARTIFACTS
from chomp.training import HarnessConfig
from chomp.training.harness import Harness, log_results, results_name

# What overrides may change and has an effect here: all of the tasks but when the loop runs them.
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
# Fields by which an override can allow code: itself, or a whole section.
_ALLOWS_CODE = ("eval", "eval.harness", "eval.harness.allow_code")


def harness(
    given: GivenRun,
    *,
    tasks: Sequence[str] | None,
    asked: Mapping[str, Any],
    weights: WeightsName | None,
    out: str | None,
    is_json: bool,
) -> int:
    """Run the tasks, show and keep what they gave; the exit code.

    `asked` are fields of the harness config; what is not in it stays as the run's own config is.
    """
    include_path = asked.get("include_path")
    require(
        include_path is None or Path(include_path).is_dir(),
        given=f"--include-path {include_path}, where there is no folder",
        allowed="a folder of lm-eval task files (.yaml)",
        fix="correct the path",
    )
    run = load_run(given, may_change=MAY_CHANGE)
    require_place(run, out)
    config = _config(run, tasks, asked)
    # Before the weights: an unknown task is refused before minutes of reading.
    tester = Harness(config, run.from_template("scores_of"), run)
    choose = best_weights if weights is None else partial(these_weights, names=(weights,))
    read = run.weights(choose)
    about = _about(run, read, tester, config)
    # Before hours of tasks: a file that cannot be read must not lose their results.
    name = _file_name(run, about) if out is None else ""
    (model,) = read.models.values()
    start = time.perf_counter()  # as the loop counts: tasks are loaded before
    results = tester.results(model)
    about["seconds"] = time.perf_counter() - start
    content = {**about, **results.as_json()}
    path = write_results(run, content, name=name, out=out)
    if is_first() and is_json:
        print_json(content)
    elif is_first():
        headings, *rows = results.table()
        (name,) = read.models
        print_rows(
            [dict(zip(headings, row, strict=True)) for row in rows],
            title=f"{TITLES[name]} of step {read.found.metadata.step}",
            right=headings[2:],
        )
        say(f"{about['seconds']:.1f} s, compiling included")
        say_places(read.found, path, about["differs_from_run"])
    _log(run, about, results, path)  # last: a service may take its time
    return 0


def _config(run: LoadedRun, tasks: Sequence[str] | None, asked: Mapping[str, Any]) -> HarnessConfig:
    """The options of the command on top of the run's own harness config."""
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
    if own is None:
        return HarnessConfig(**named, **asked)
    # The run's own permission does not count now: its folder may be of a stranger.
    is_asked = any(name in _ALLOWS_CODE for name in run.changed)
    named["allow_code"] = own.allow_code and is_asked
    changed: HarnessConfig = replace(own, **(named | dict(asked)))
    return changed


def _about(
    run: LoadedRun, read: LoadedWeights, tester: Harness, config: HarnessConfig
) -> dict[str, Any]:
    """What the file of results begins with: what the loop's says, and which checkpoint it was."""
    (weights,) = read.models
    is_usual = (weights,) == tuple(best_weights(read.found))
    other = [] if is_usual else ["other weights than in the loop"]
    return {
        **about_checkpoint(run, read.found, weights),
        **tester.header(read.found.metadata.step, weights),
        "differs_from_run": [*harness_differences(run, read.found, config), *other],
    }


def _file_name(run: LoadedRun, about: Mapping[str, Any]) -> str:
    """The loop's own name for results, unless they are others or that file has others."""
    stem, asked = results_name(about["step"]), _definition(about)
    there = None if run.folder is None else join(run.folder, ARTIFACTS, f"{stem}.json")
    is_free = there is None or not exists(there) or _definition_in(there) == asked
    if is_free and not about["differs_from_run"]:
        return f"{stem}.json"
    more = [about["changed"], about["template_hash"]]
    return f"{stem}-{short_hash([*asked, *more])}.json"


def _definition(about: Mapping[str, Any]) -> list[Any]:
    """What results are of; the loop's files have it too."""
    return [about["weights"], asked_fields(about["harness"])]


def _definition_in(path: str) -> list[Any] | None:
    """Likewise of a file; None for one that is damaged, or not of this kind."""
    try:
        return _definition(read_json(path))
    except (ChompError, LookupError, TypeError, AttributeError):
        return None


def _log(
    run: LoadedRun, about: Mapping[str, Any], results: HarnessResults, path: str | None
) -> None:
    """The results at the last completed step of the run's record, if they are the run's own."""
    step: int = about["step"]
    if step == 0 or about["differs_from_run"]:
        return
    with late_tracker(run) as tracker:
        log_results(results, about["seconds"], tracker, path, completed_steps=step)
