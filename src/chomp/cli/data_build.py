"""`chomp data build`: the tokenizer and the token stores of a config, as executor steps."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chomp.cli.given_config import GivenConfig
from chomp.cli.launch_files import launch_steps
from chomp.cli.run_data import RunData, data_of_steps, run_data
from chomp.cli.stores import require_built, store_places, store_table
from chomp.cli.terminal import print_table
from chomp.errors import ConfigError, message
from chomp.screen import outliving_the_screen

if TYPE_CHECKING:  # for annotations alone
    from chomp.executor import ExecutorStep, PlannedStep


def build_data(given: GivenConfig, only: Sequence[str]) -> int:
    """Build what is not there yet, then list the stores; the exit code."""
    from chomp.launch.launching import run_planned
    from chomp.launch.telling import tell_differences

    if given.kind() in ("run folder", "token store"):
        # What it was built from may have changed since; what it uses is there or it is not.
        run = run_data(given)
        _require_components(run, only)
        require_built(run)
    else:
        steps = launch_steps(given)
        run = data_of_steps(given, steps)
        _require_components(run, only)
        planned = _data_steps(steps, given.outputs, only)
        with outliving_the_screen():
            tell_differences(planned)
            if code := run_planned(planned, prefix=given.outputs):
                return code
    places = store_places(run.data)
    print_table(store_table(item for item in places if not only or item.component in only))
    return 0


def _data_steps(
    steps: Sequence[ExecutorStep], prefix: str, only: Sequence[str]
) -> list[PlannedStep]:
    """The plan for what the steps need of data, whether they are done themselves or not."""
    from chomp.data import StoreBuildConfig, TokenizerBuildConfig
    from chomp.executor import plan_steps
    from chomp.executor.identity import dependencies_of

    needed = dict.fromkeys(each for step in steps for each in dependencies_of(step))
    planned = plan_steps(needed, prefix=prefix)
    return [
        item
        for item in planned
        if isinstance(item.config, TokenizerBuildConfig)
        or (isinstance(item.config, StoreBuildConfig) and (not only or item.config.name in only))
    ]


def _require_components(run: RunData, only: Sequence[str]) -> None:
    from chomp.config.messages import did_you_mean, nearest

    known = run.data.components
    for name in only:
        if name not in known:
            raise ConfigError(
                message(
                    given=f"--only {name}{did_you_mean(nearest(name, known))}",
                    allowed=f"the components of {run.given.path}: {', '.join(known)}",
                    fix="correct the name",
                )
            )
