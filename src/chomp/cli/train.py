"""`chomp train`: the steps of a config, the data under the prefix and the run in its own folder.

Without `--resume` a run continues what its folder holds. `none` insists on a folder without
checkpoints, `latest` on one that has some. A number goes back to the checkpoint of that step, once:
the run moves newer ones aside after it has restored, and keeps them. The same command then
continues.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from chomp.checkpoint import latest_checkpoint
from chomp.checkpoint.format import step_of_name, step_path
from chomp.checkpoint.resume import ASKED_FOR
from chomp.cli.commands import Train
from chomp.cli.load_config import GivenConfig, load_launch
from chomp.cli.output import say
from chomp.cli.templates import LAUNCH_FILE
from chomp.errors import CheckpointError, LaunchError, require
from chomp.executor import ExecutorStep, PlannedStep, plan_steps
from chomp.executor.identity import identities_at
from chomp.executor.status import LOCK, read_status, write_status
from chomp.executor.step import replaced
from chomp.launch.console import force_flag
from chomp.launch.multi_process import decide_once, is_lead_process
from chomp.launch.run import (
    LaunchOptions,
    allowed_fields,
    allowed_overrides,
    in_earlier_folder,
    launch_plan,
    refuse_other_run,
    require_dry_run,
)
from chomp.launch.signals import require_restartable, run_with_restarts, this_command
from chomp.report.run_table import print_run_table
from chomp.storage import (
    FileLock,
    exists,
    is_folder,
    is_local,
    join,
    list_folder,
    lock_holder,
)
from chomp.storage.file_hashes import read_files_again
from chomp.storage.paths import without_dots
from chomp.storage.screen import outliving_the_screen
from chomp.tracking.run_files import CHECKPOINTS, RESOLVED_CONFIG, record_of

Resume = Literal["none", "latest"] | int

_RUNS = "runs"
_STEPS_SHOWN = 8


def train(asked: Train) -> int:
    """Train, continue, or say that it is done; the exit code. With --restarts, in a child."""
    force, allow, is_dry_run = asked.force or [], asked.allow or [], asked.dry_run
    require_restartable(asked.restarts, force)
    if asked.restarts and not is_dry_run:
        return run_with_restarts(this_command("-m", "chomp"), asked.restarts)
    given = GivenConfig.of(asked.config, asked)
    options = LaunchOptions(
        prefix=given.outputs,
        is_dry_run=is_dry_run,
        on=asked.on,
        max_concurrent=asked.max_concurrent,
    )
    wanted = parsed_resume(asked.resume)
    given.require_file(
        fix="pass the config that made it, with --run-dir if the run was given a folder: that "
        "continues the run"
    )
    with _no_bytecode() if is_dry_run else outliving_the_screen():
        overrides = (*given.overrides, *allowed_overrides(allow))
        launch = load_launch(replace(given, overrides=overrides))
        if is_dry_run:
            require_dry_run(launch.dry_run, fix="leave out --dry-run, or write such a function")
        with read_files_again(asked.verify_sources):
            steps = launch.steps()
        plan = partial(
            _plan,
            given,
            run_dir=None if asked.run_dir is None else without_dots(asked.run_dir),
            force=force,
            allowed=allowed_fields(steps[-1], allow),
        )
        planned = plan(steps)
        if wanted is not None:
            # By one process: what another finds in the folder may be before that or after it.
            begins = decide_once(
                f"--resume {wanted}", partial(_beginning, planned[-1], wanted, is_dry_run)
            )
            if begins["message"] is not None and is_lead_process():
                say(begins["message"])
            if begins["overrides"]:
                # Only now, since the folder was not known; these do not change it.
                planned = plan(launch.steps(begins["overrides"]))
        *before, run = planned
        # What this start alone is given is not part of the run's record.
        config: Any = run.config
        if asked.max_steps is not None:
            trainer: Any = getattr(config, "trainer", None)
            require(
                hasattr(trainer, "max_steps"),
                f"--max-steps {asked.max_steps} with {type(config).__name__}",
                allowed="--max-steps with a config that has train.max_steps",
                fix="leave --max-steps out",
            )
            config = replace(config, trainer=replace(trainer, max_steps=asked.max_steps))
        logging: Any = getattr(config, "logging", None)
        original = given.original_text()
        if original is not None and hasattr(logging, "original_config"):
            config = replace(config, logging=replace(logging, original_config=original))

        def report(path: str) -> None:
            if exists(record_of(path)):  # the last step may be of another kind
                print_run_table(path)

        run = replace(run, config=config)
        return launch_plan([*before, run], options, report=report, dry_run=launch.dry_run)


def default_run_dir(given: GivenConfig, step: ExecutorStep) -> str:
    """The folder of a run that is given none: by project, config and what the run is."""
    place = Path(given.path).resolve()
    # Every launch file has that name; its folder has the variant's.
    stem = place.parent.name if place.name == LAUNCH_FILE else place.stem
    settings = getattr(replaced(step.config, lambda path: path), "logging", None)
    project = getattr(settings, "project", None)
    require(
        project is None or not {"", ".", ".."} & set(project.split("/")),
        f"logging.project={project!r}, which is to name a folder",
        allowed="a plain name",
        fix="change logging.project, or pass --run-dir",
    )
    folder = join(_RUNS, project) if project is not None else _RUNS
    return join(folder, f"{stem}-{identities_at(given.outputs).of(step).hash}")


def _plan(
    given: GivenConfig,
    steps: Sequence[ExecutorStep],
    *,
    run_dir: str | None,
    force: Sequence[str],
    allowed: Sequence[str],
) -> list[PlannedStep]:
    """The plan for the steps, the last of which is the run and goes to a folder of its own."""
    *before, last = steps
    folder = default_run_dir(given, last) if run_dir is None else run_dir
    run = replace(last, override_output_path=folder)
    if run_dir is None:
        run = in_earlier_folder(run, folder, identities_at(given.outputs), allowed)
    planned = plan_steps([*before, run], prefix=given.outputs, force=force, allow=allowed)
    run_plan = planned[-1]
    has_ended = run_plan.found is not None and run_plan.found.state != "SUCCESS"
    is_held = lock_holder(join(run_plan.path, LOCK)) is not None
    # Without a checkpoint there is nothing to protect.
    if not has_ended or is_held or _checkpoint_steps(run_plan.path):
        refuse_other_run(run_plan, allowed, elsewhere="choose another --run-dir")
    if run_plan.found is None and is_folder(run_plan.path):
        names = [name for name in list_folder(run_plan.path) if not name.startswith(".executor")]
        if names and RESOLVED_CONFIG not in names:
            raise LaunchError(
                f"{run_plan.path} holds {min(names)} and no run",
                allowed="a folder that is new, empty or that of a run",
                fix="choose another --run-dir",
            )
    return planned


@contextmanager
def _no_bytecode() -> Iterator[None]:
    """Let Python write no __pycache__ beside the template: a dry run leaves nothing behind."""
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


# --- --resume -----------------------------------------------------------------------------------


def parsed_resume(text: str | None) -> Resume | None:
    """What `--resume` says; None: continue what is there."""
    require(
        text is None or text in ("none", "latest") or (text.isascii() and text.isdecimal()),
        f"--resume {text}",
        allowed="none (a fresh start), latest (a checkpoint must be there), or the number of a "
        "step that has one, 0 or more",
        fix="write one of these, or leave it out to continue what there is",
    )
    if text is None or not text.isdecimal():
        return text  # type: ignore[return-value]  # one of the two words, as was just required
    return int(text)


def _beginning(run: PlannedStep, wanted: Resume, is_dry_run: bool) -> dict[str, Any]:
    """A message, and overrides of its config, with which a planned run begins as is wanted.

    Raises `CheckpointError` where it cannot.
    """
    folder = join(run.path, CHECKPOINTS)
    # What is forced is moved aside first, with its checkpoints.
    steps = [] if run.is_forced else _checkpoint_steps(run.path)
    if wanted == "none":
        if steps:
            raise CheckpointError(
                f"--resume none, but {folder} has {_names(steps)}",
                allowed="a fresh start in a folder without checkpoints",
                fix="leave out --resume to continue, choose another --run-dir, or pass "
                f"{force_flag(run)}, which moves the earlier run aside",
            )
        return {"message": "--resume none: a fresh start", "overrides": []}
    require(
        not run.is_forced,
        f"--resume {wanted} with --force",
        allowed="one of them: --force moves the checkpoints aside and starts over",
        fix="leave one out",
    )
    newest = latest_checkpoint(folder)
    step = 0 if wanted == "latest" else wanted
    # The newest is of the line that went on from the step, so it was gone back to before.
    continues = {} if newest is None else newest.metadata.continues or {}
    has_gone_back = wanted != "latest" and continues.get(ASKED_FOR) == f"step-{step}"
    is_same_config = run.found is not None and run.found.identity == run.identity.hash
    # The config itself may say that a step is gone back to however often it was before.
    trainer = getattr(run.config, "trainer", None)
    goes_back_always = getattr(trainer, "load_checkpoint", None) is True
    # The same command; with another config it goes back once more.
    is_again = has_gone_back and is_same_config and not goes_back_always
    is_done = run.action == "skip"
    if is_again and is_done:
        message = (
            f"--resume {step}: the run has gone on from step-{step} and is done. To go back once "
            "more, add -o train.load_checkpoint=true"
        )
        return {"message": message, "overrides": []}
    # Once a run has gone on, the step itself may have been cleaned up.
    if (newest is None) if wanted == "latest" else (step not in steps and not is_again):
        known = _names(steps) if steps else "no checkpoint"
        allowed = "one of those" if steps else "latest or a step only where the run has saved"
        if wanted == "latest" and steps:
            known, allowed = f"only incomplete checkpoints ({known})", "a complete checkpoint"
        raise CheckpointError(
            f"--resume {wanted}, but {folder} has {known}",
            allowed=allowed,
            fix="correct it or --run-dir, or leave out --resume",
        )
    if wanted == "latest":
        number = None if newest is None else newest.metadata.step
        return {"message": f"--resume latest: from step {number}", "overrides": []}
    if run.action == "wait":
        raise _held(run)
    place = step_path(folder, step)
    place = os.path.abspath(place) if is_local(place) else place
    overrides = [f"trainer.load_checkpoint_path={place}"]
    if is_again and newest is not None:
        line = f"the line begun at step-{step}: from step-{newest.metadata.step}"
        return {"message": f"--resume {step}: continues {line}", "overrides": overrides}
    later = [each for each in steps if each > step]
    if not later and is_done:
        return {"message": None, "overrides": []}  # the launch says that it is done
    if has_gone_back:
        overrides.append("trainer.load_checkpoint=true")  # else the run would continue its line
    message = f"--resume {step}: from {place}"
    if later:
        message += f". Newer ones are moved aside and kept: {_names(later)}"
    if is_done and not is_dry_run:
        # Let it be run again, in its folder as it is.
        lock = FileLock.try_acquire(join(run.path, LOCK))
        if lock is None:
            raise _held(run)
        with lock:
            status = read_status(run.path)
            if status is not None and status.state == "SUCCESS":
                # As one that was stopped: whatever happens next, the same command continues it.
                again = replace(status, state="INTERRUPTED", error="it is to go back (--resume)")
                write_status(run.path, again)
    return {"message": message, "overrides": overrides}


def _checkpoint_steps(run: str) -> list[int]:
    """The steps of a run folder with a checkpoint, complete or not."""
    folder = join(run, CHECKPOINTS)
    names = list_folder(folder) if is_folder(folder) else []
    return sorted(step for step in map(step_of_name, names) if step is not None)


def _held(run: PlannedStep) -> LaunchError:
    holder = lock_holder(join(run.path, LOCK))
    stop = f" (kill {holder.pid} on {holder.host})" if holder else ""
    return LaunchError(
        f"--resume with {run.path}, which is held by {holder or 'another process'}",
        allowed="a run that no process is training",
        fix=f"wait for that process, or stop it{stop}; the same command then continues",
    )


def _names(steps: list[int]) -> str:
    names = [f"step-{step}" for step in steps]
    if len(names) > _STEPS_SHOWN:
        names = [*names[: _STEPS_SHOWN // 2], "...", *names[-_STEPS_SHOWN // 2 :]]
    return ", ".join(names)
