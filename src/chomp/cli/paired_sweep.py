"""Two launch files at the same seeds: the missing runs are made, base and variant in turn."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chomp.cli.given_config import GivenConfig
from chomp.cli.launch_files import Launch, loaded_launch
from chomp.cli.template_folder import LAUNCH_FILE, known_template
from chomp.errors import require

if TYPE_CHECKING:  # for annotations alone
    from chomp.executor import ExecutorStep
    from chomp.launch.launching import LaunchOptions

_SUFFIXES = (".py", ".yaml", ".yml")


@dataclass(frozen=True)
class PairedRuns:
    """The run folders of both sides by seed, and how the launching of them ended."""

    base: list[str]
    variant: list[str]
    code: int


def paired_runs(
    base: GivenConfig, variant: GivenConfig, seeds: Sequence[int], options: LaunchOptions
) -> PairedRuns:
    """Plan or run each seed on both sides; what is there already is not run again.

    Base and variant take turns, so that a machine that gets slower or busier does so to both.
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
    planned = plan_steps(steps, prefix=options.prefix)
    return PairedRuns(folders[0], folders[1], launched(planned, options))


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
