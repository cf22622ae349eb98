"""`chomp train`: the steps of a config, the data under the prefix and the run in its own folder."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chomp.cli.given_config import GivenConfig
from chomp.cli.given_text import given_text
from chomp.cli.launch_files import Launch, loaded_launch
from chomp.cli.resume import (
    Beginning,
    Resume,
    beginning,
    checkpoint_steps,
    reopen,
    resume_wish,
)
from chomp.cli.template_folder import LAUNCH_FILE
from chomp.cli.terminal import say
from chomp.errors import ConfigError, LaunchError, message, require
from chomp.screen import outliving_the_screen

if TYPE_CHECKING:  # for annotations alone
    from chomp.executor import ExecutorStep, PlannedStep

RUNS = "runs"


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What `chomp train` is told besides the config."""

    run_dir: str | None = None
    force: Sequence[str] = ()
    allow: Sequence[str] = ()
    is_dry_run: bool = False
    on: str | None = None
    max_concurrent: int | None = None
    resume: str | None = None
    max_steps: int | None = None  # of this start


def train_run(given: GivenConfig, asked: TrainOptions) -> int:
    """Train, continue, or say that it is done; the exit code."""
    from chomp.launch.allowed import allowed_fields, allowed_overrides
    from chomp.launch.launching import LaunchOptions, launched, require_dry_run
    from chomp.storage.paths import without_dots

    # Before the launch file is loaded, which takes seconds: it refuses what cannot be.
    options = LaunchOptions(
        prefix=given.outputs,
        is_dry_run=asked.is_dry_run,
        on=asked.on,
        max_concurrent=asked.max_concurrent,
    )
    wish = resume_wish(asked.resume)
    _require_trainable(given)
    with _no_bytecode() if asked.is_dry_run else outliving_the_screen():
        overrides = (*given.overrides, *allowed_overrides(asked.allow))
        launch = loaded_launch(replace(given, overrides=overrides))
        if asked.is_dry_run:
            require_dry_run(launch.dry_run, fix="leave out --dry-run, or write such a function")
        steps = launch.steps()
        allowed = allowed_fields(steps[-1], asked.allow)
        folder = launch.run_dir if asked.run_dir is None else asked.run_dir
        folder = None if folder is None else without_dots(folder)
        plan = partial(_planned, given, run_dir=folder, force=asked.force, allowed=allowed)
        planned = _begun(launch, plan(steps), plan, wish, is_dry_run=asked.is_dry_run)
        *before, run = planned
        run = replace(run, config=_for_this_start(run.config, asked.max_steps, given_text(given)))
        return launched([*before, run], options, report=_report, dry_run=launch.dry_run)


def _begun(
    launch: Launch,
    planned: list[PlannedStep],
    plan: Callable[[Sequence[ExecutorStep]], list[PlannedStep]],
    wish: Resume | None,
    *,
    is_dry_run: bool,
) -> list[PlannedStep]:
    """The plan for a run that begins where `--resume` says."""
    if wish is None:
        return planned
    from chomp.launch.together import decided_by_first, is_spokesman

    def decided() -> dict[str, Any]:
        begins = beginning(planned[-1], wish)
        if begins.is_reopened and not is_dry_run:
            reopen(planned[-1])
        return asdict(begins)

    # By one process: what another finds in the folder may be before that or after it.
    begins = Beginning(**decided_by_first(f"--resume {wish}", decided))
    if begins.told is not None and is_spokesman():
        say(begins.told)
    # The folder is known only now, and what is asked of one start does not change it.
    return plan(launch.steps(begins.overrides)) if begins.overrides else planned


def default_run_dir(given: GivenConfig, step: ExecutorStep) -> str:
    """The folder of a run that is given none: by project, config and what the run is."""
    from chomp.executor.pins import identities_at
    from chomp.executor.step import replaced
    from chomp.storage import join

    place = Path(given.path).resolve()
    # Every launch file is called so; the folder it is in tells more.
    stem = place.parent.name if place.name == LAUNCH_FILE else place.stem
    settings = getattr(replaced(step.config, lambda path: path), "logging", None)
    project = getattr(settings, "project", None)
    require(
        project is None or not {"", ".", ".."} & set(project.split("/")),
        given=f"logging.project={project!r}, which is to name a folder",
        allowed="a plain name",
        fix="change logging.project, or pass --run-dir",
    )
    folder = join(RUNS, project) if project is not None else RUNS
    return join(folder, f"{stem}-{identities_at(given.outputs).of(step).hash}")


def _require_trainable(given: GivenConfig) -> None:
    kind = given.kind()
    require(
        kind in ("YAML file", "launch file"),
        given=f"{given.path}, a {kind}",
        allowed="a YAML file or a launch file",
        fix="pass the config that made it, with --run-dir if the run was given a folder: that "
        "continues the run"
        if kind == "run folder"
        else "pass the config of a run",
    )


def _for_this_start(config: Any, max_steps: int | None, text: str | None) -> Any:
    """The config of the run with what this start alone is given: not part of its record."""
    trainer: Any = getattr(config, "trainer", None)
    logging: Any = getattr(config, "logging", None)
    if max_steps is not None:
        if not hasattr(trainer, "max_steps"):
            raise ConfigError(
                f"--max-steps {max_steps} with {type(config).__name__}",
                allowed="--max-steps with a config that has train.max_steps",
                fix="leave --max-steps out",
            )
        config = replace(config, trainer=replace(trainer, max_steps=max_steps))
    if text is not None and hasattr(logging, "original_config"):
        config = replace(config, logging=replace(logging, original_config=text))
    return config


def _planned(
    given: GivenConfig,
    steps: Sequence[ExecutorStep],
    *,
    run_dir: str | None,
    force: Sequence[str],
    allowed: Sequence[str],
) -> list[PlannedStep]:
    """The plan for the steps, the last of which is the run and goes to a folder of its own."""
    from chomp.executor import plan_steps
    from chomp.executor.pins import identities_at
    from chomp.launch.allowed import in_earlier_folder, refuse_other_run

    *before, last = steps
    folder = default_run_dir(given, last) if run_dir is None else run_dir
    run = replace(last, override_output_path=folder)
    if run_dir is None:
        run = in_earlier_folder(run, folder, identities_at(given.outputs), allowed)
    planned = plan_steps([*before, run], prefix=given.outputs, force=force, allow=allowed)
    if not _is_without_result(planned[-1]):
        refuse_other_run(planned[-1], allowed, elsewhere="choose another --run-dir")
    _refuse_other_files(planned[-1])
    return planned


def _is_without_result(planned: PlannedStep) -> bool:
    """Whether the run in the folder ended without a checkpoint: there is nothing to protect."""
    from chomp.executor.status import LOCK
    from chomp.storage import join, lock_holder

    has_ended = planned.found is not None and planned.found.state != "SUCCESS"
    return (
        has_ended
        and lock_holder(join(planned.path, LOCK)) is None
        and not checkpoint_steps(planned.path)
    )


def _refuse_other_files(planned: PlannedStep) -> None:
    """Raise `LaunchError` if the folder holds things, and no run: they would get mixed up."""
    from chomp.storage import is_folder, list_folder
    from chomp.tracking.run_files import RESOLVED_CONFIG

    if planned.found is not None or not is_folder(planned.path):
        return
    names = [name for name in list_folder(planned.path) if not name.startswith(".executor")]
    if names and RESOLVED_CONFIG not in names:
        raise LaunchError(
            message(
                given=f"{planned.path} holds {sorted(names)[0]} and no run",
                allowed="a folder that is new, empty or that of a run",
                fix="choose another --run-dir",
            )
        )


def _report(path: str) -> None:
    """What came of a run, if it has a record: a launch file may end with another kind of step."""
    from chomp.report.run_table import print_run_table
    from chomp.storage import exists
    from chomp.tracking.run_files import record_of

    if exists(record_of(path)):
        print_run_table(path)


@contextmanager
def _no_bytecode() -> Iterator[None]:
    """Let Python write no __pycache__ beside the template: a dry run leaves nothing behind."""
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before
