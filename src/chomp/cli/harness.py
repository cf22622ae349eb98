"""`chomp harness`: lm-eval tasks on the weights of a checkpoint."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from chomp.checkpoint import best_weights
from chomp.cli.commands import HarnessTasks
from chomp.cli.loaded_run import LoadedRun, leaving_together, load_run
from chomp.cli.output import print_rows, say
from chomp.cli.results import (
    MAY_CHANGE,
    TITLES,
    about_checkpoint,
    keep_results,
    late_tracker,
    require_place,
    result_differences,
    short_hash,
)
from chomp.errors import ChompError, require
from chomp.storage import exists, join, read_json
from chomp.tracking.run_files import ARTIFACTS
from chomp.training import HarnessConfig
from chomp.training.harness import Harness, log_results, results_name

# What overrides may change and has an effect here: all of the tasks but when the loop runs them.
_MAY_CHANGE = (
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
    *MAY_CHANGE,
)
# Fields by which an override can allow code: itself, or a whole section.
_ALLOWS_CODE = ("eval", "eval.harness", "eval.harness.allow_code")
# Fields that say when and how fast, and nothing about the numbers.
_NOT_NUMBERS = frozenset({"every", "batch_size", "allow_code"})


@leaving_together()
def harness(asked: HarnessTasks) -> int:
    """Run the tasks, show and keep what they gave; the exit code."""
    require(
        asked.include_path is None or Path(asked.include_path).is_dir(),
        f"--include-path {asked.include_path}, where there is no folder",
        allowed="a folder of lm-eval task files (.yaml)",
        fix="correct the path",
    )
    run = load_run(asked, may_change=_MAY_CHANGE)
    require_place(run, asked.out)
    own = None if run.config.eval is None else run.config.eval.harness
    config = _config(run, own, asked)
    # Before the weights: an unknown task is refused before minutes of reading.
    tester = Harness(config, run.from_template("scores_of"), run)
    read = run.one_model(asked.weights)
    [(weights, model)] = read.models.items()
    step = read.found.metadata.step
    other = result_differences(run, read.found, ("model",))
    # What differs from the tasks of the loop. A run without tasks in its loop has no numbers of
    # its own, but those of a part of a task's questions must not look like those of the whole.
    if own is None or {"eval", "eval.harness"} & run.changed.keys():
        other += [] if config.limit is None else [f"limit={config.limit}"]
    else:
        names = {path.split(".")[2] for path in run.changed if "harness." in path}
        names |= {name for name, value in vars(config).items() if value != vars(own)[name]}
        other += [f"another {name}" for name in sorted(names - _NOT_NUMBERS)]
    is_usual = (weights,) == tuple(best_weights(read.found))
    other += [] if is_usual else ["other weights than in the loop"]
    # What the loop's own file of results says, and which checkpoint it was.
    about = {
        **about_checkpoint(run, read.found, weights),
        **tester.header(step, weights),
        "differs_from_run": other,
    }
    # Before hours of tasks: a file that cannot be read must not lose their results.
    name = _file_name(run, about) if asked.out is None else ""
    start = time.perf_counter()  # as the loop counts: tasks are loaded before
    results = tester.results(model)
    about["seconds"] = time.perf_counter() - start

    def show() -> None:
        headings, *rows = results.table()
        print_rows(
            [dict(zip(headings, row, strict=True)) for row in rows],
            title=f"{TITLES[weights]} of step {step}",
            right=headings[2:],
        )
        say(f"{about['seconds']:.1f} s, compiling included")

    content = {**about, **results.as_json()}
    path = keep_results(run, content, name=name, out=asked.out, as_json=asked.as_json, show=show)
    if step and not other:  # they are the run's own
        with late_tracker(run) as tracker:  # last: a service may take its time
            log_results(results, about["seconds"], tracker, path, completed_steps=step)
    return 0


def _config(run: LoadedRun, own: HarnessConfig | None, asked: HarnessTasks) -> HarnessConfig:
    """The options of the command on top of the run's own harness config."""
    tasks = None if asked.tasks is None else [*filter(None, map(str.strip, asked.tasks.split(",")))]
    # What is not given stays as the run's own config has it.
    names = ("include_path", "num_fewshot", "limit", "batch_size", "max_length")
    options = {name: getattr(asked, name) for name in names}
    options["include_defaults"] = asked.with_defaults or None
    options["allow_code"] = asked.allow_code or None
    changed = {name: value for name, value in options.items() if value is not None}
    require(
        bool(tasks) or (tasks is None and own is not None),
        "--tasks with no name" if tasks is not None else f"no tasks, and {run.path} has none",
        allowed="names of tasks and groups, with commas between them",
        fix="pass --tasks NAME,NAME and --include-path FOLDER",
    )
    require(
        own is not None or bool({"include_path", "include_defaults"} & changed.keys()),
        f"--tasks {','.join(tasks or ())} without a place to look for them",
        allowed="--include-path FOLDER, --with-defaults for lm-eval's own, or both",
        fix="pass the folder of the tasks' files as --include-path",
    )
    # On top of the run's own: a task of its config may need its folder of files.
    named: dict[str, Any] = {} if tasks is None else {"tasks": tuple(tasks)}
    if own is None:
        return HarnessConfig(**named, **changed)
    # The run's own permission does not count now: its folder may be of a stranger.
    is_asked = any(name in _ALLOWS_CODE for name in run.changed)
    named["allow_code"] = own.allow_code and is_asked
    return replace(own, **(named | changed))


def _file_name(run: LoadedRun, about: Mapping[str, Any]) -> str:
    """The loop's own name for results, unless they are others or that file has others."""

    def definition(content: Mapping[str, Any]) -> list[Any]:
        tasks = content["harness"].items()
        return [content["weights"], {k: value for k, value in tasks if k not in _NOT_NUMBERS}]

    stem, asked, is_free = results_name(about["step"]), definition(about), True
    there = None if run.folder is None else join(run.folder, ARTIFACTS, f"{stem}.json")
    if there is not None and exists(there):
        try:
            is_free = definition(read_json(there)) == asked
        except (ChompError, LookupError, TypeError, AttributeError):
            is_free = False  # damaged, or not of this kind
    if is_free and not about["differs_from_run"]:
        return f"{stem}.json"
    more = [about["changed"], about["template_hash"]]
    return f"{stem}-{short_hash([*asked, *more])}.json"
