"""Two launch files at the same seeds: the missing runs are made, base and variant in turn."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chomp.cli.given_config import GivenConfig
from chomp.cli.launch_files import Launch, loaded_launch
from chomp.cli.template_folder import LAUNCH_FILE, known_template
from chomp.errors import require

if TYPE_CHECKING:  # for annotations alone
    from chomp.executor import ExecutorStep, PlannedStep
    from chomp.launch.launching import LaunchOptions

_SUFFIXES = (".py", ".yaml", ".yml")


@dataclass(frozen=True)
class PairedRuns:
    """The run folders of both sides by seed, and how the launching of them ended."""

    base: list[str]
    variant: list[str]
    code: int


def paired_runs(
    base: GivenConfig,
    variant: GivenConfig,
    seeds: Sequence[int],
    options: LaunchOptions,
    *,
    is_forced: bool = False,
) -> PairedRuns:
    """Plan or run each seed on both sides; what is there already is not run again.

    Unless `is_forced`, or its template was edited since: runs are compared as those of the source
    that is there now. Base and variant take turns, so that a machine that gets slower or busier
    does so to both.
    """
    from chomp.executor import plan_steps
    from chomp.executor.pins import identities_at
    from chomp.launch.launching import launched
    from chomp.storage import join

    launches = [loaded_launch(_configured(given)) for given in (base, variant)]
    steps: list[ExecutorStep] = []
    runs: tuple[list[ExecutorStep], list[ExecutorStep]] = ([], [])
    for seed in seeds:
        for launch, own in zip(launches, runs, strict=True):
            made = _steps_at(launch, seed)
            steps += made
            own.append(made[-1])
    identities = identities_at(options.prefix)
    folders = [
        [join(options.prefix, f"{run.name}-{identities.of(run).hash}") for run in own]
        for own in runs
    ]
    require(
        not set(folders[0]) & set(folders[1]),
        given=f"{base.path} and {variant.path}, which are the same run at the same seed",
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
    code = launched(planned, options)
    if not options.is_plan:
        _require_planned_source(planned, [*folders[0], *folders[1]])
    return PairedRuns(folders[0], folders[1], code)


def _require_planned_source(planned: Sequence[PlannedStep], folders: Sequence[str]) -> None:
    """Raise `ConfigError` if an earlier run is still where one of the present source should be.

    As after a failure of a step that the run needs: it was not begun, and nothing was moved.
    """
    from chomp.executor.status import read_info

    sources = {item.path: item.sources for item in planned}
    infos = {path: read_info(path) for path in folders}
    stale = [path for path, info in infos.items() if info and info.sources != sources[path]]
    require(
        not stale,
        given=f"runs of a template that was edited since: {', '.join(stale)}",
        allowed="runs of the source that the template has now",
        fix="read above why they were not run again, and run the same command again",
    )


def _steps_at(launch: Launch, seed: int) -> Sequence[ExecutorStep]:
    from chomp.launch.sweep import sweep_of

    # As a sweep of one point: it refuses what has no folder of its own.
    return sweep_of(launch.steps_of, launch.config, [(f"train.seed={seed}",)]).steps


def _configured(given: GivenConfig) -> GivenConfig:
    """The config of a launch file; a bare name is that of a variant."""
    if given.path.endswith(_SUFFIXES):
        return given
    folder: Path = known_template(given.path)
    return GivenConfig(
        path=str(folder / LAUNCH_FILE), overrides=given.overrides, prefix=given.prefix
    )
