"""Runs of two configs at the same seeds, for `chomp compare --seeds`."""

import re
from collections.abc import Sequence

from chomp.cli.load_config import GivenConfig, load_launch
from chomp.cli.templates import LAUNCH_FILE, known_template
from chomp.errors import require
from chomp.executor import ExecutorStep, PlannedStep, plan_steps
from chomp.executor.pins import identities_at
from chomp.executor.status import read_info
from chomp.launch.run import LaunchOptions, launch_plan
from chomp.launch.sweep import sweep_of
from chomp.storage import join


def run_pairs(
    sides: Sequence[tuple[str, Sequence[str]]],  # a variant or config, and overrides
    seeds: Sequence[int],
    options: LaunchOptions,
    *,
    is_forced: bool,
) -> tuple[list[list[str]], int]:
    """The run folders of base and variant by seed, and the exit code of making what is missing.

    What is there already is not run again, unless `is_forced`, or its template was edited since:
    runs are compared as those of the source that is there now. Base and variant take turns, so that
    a machine that gets slower or busier does so to both.
    """
    launches = []
    for path, overrides in sides:
        is_file = path.endswith((".py", ".yaml", ".yml"))
        file = path if is_file else str(known_template(path) / LAUNCH_FILE)
        given = GivenConfig(path=file, overrides=tuple(overrides), prefix=options.prefix)
        launches.append(load_launch(given))
    steps: list[ExecutorStep] = []
    runs: tuple[list[ExecutorStep], list[ExecutorStep]] = ([], [])
    for seed in seeds:
        for launch, own in zip(launches, runs, strict=True):
            # As a sweep of one point: it refuses what has no folder of its own.
            point = sweep_of(launch.steps_of, launch.config, [(f"train.seed={seed}",)])
            steps += point.steps
            own.append(point.steps[-1])
    identities = identities_at(options.prefix)
    folders = [
        [join(options.prefix, f"{run.name}-{identities.of(run).hash}") for run in own]
        for own in runs
    ]
    require(
        not set(folders[0]) & set(folders[1]),
        given=f"{sides[0][0]} and {sides[1][0]}, which are the same run at the same seed",
        allowed="two sides that differ",
        fix="name another variant, or change a field of one: --set-variant optim.lr=1e-3",
    )
    names = dict.fromkeys(run.name for own in runs for run in own)
    planned = plan_steps(
        steps,
        prefix=options.prefix,
        force=[f"^{re.escape(name)}$" for name in names] if is_forced else [],
        is_source_identity=True,
    )
    code = launch_plan(planned, options)
    if not options.is_plan:
        _require_planned_source(planned, [*folders[0], *folders[1]])
    return folders, code


def _require_planned_source(planned: Sequence[PlannedStep], folders: Sequence[str]) -> None:
    """Raise `ConfigError` if an earlier run is still where one of the present source should be.

    As after a failure of a step that the run needs: it was not begun, and nothing was moved.
    """
    sources = {item.path: item.sources for item in planned}
    infos = {path: read_info(path) for path in folders}
    stale = [path for path, info in infos.items() if info and info.sources != sources[path]]
    require(
        not stale,
        given=f"runs of a template that was edited since: {', '.join(stale)}",
        allowed="runs of the source that the template has now",
        fix="read above why they were not run again, and run the same command again",
    )
