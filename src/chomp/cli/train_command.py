"""`chomp train`: what it takes. What it does is in train_run.py."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from functools import partial
from typing import Annotated

import typer

from chomp.cli.config_arguments import Action, Overrides, Prefix, Template, given_config
from chomp.errors import require

# The mark is typer's: it leaves the lines of the paragraph after it as they are.
EXAMPLES = """\b
Examples:
  chomp train configs/debug_smoke.yaml
  chomp train configs/base_smoke.yaml --dry-run
  chomp train configs/base_smoke.yaml -o train.steps=50 --run-dir runs/longer
  chomp train configs/base_smoke.yaml -o train.steps=80 --allow train.steps --run-dir runs/longer
  chomp train configs/base_smoke.yaml --run-dir runs/longer --resume 10
  chomp train configs/base_smoke.yaml --max-steps 5
  chomp train configs/base_smoke.yaml --restarts 10
  chomp train configs/base_smoke.yaml --on process --max-concurrent 2
  chomp train experiments/grug/base/launch.py
"""


def train(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A YAML file or a launch file.")],
    overrides: Overrides = None,
    run_dir: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Where the run goes; default: runs/<project>/<name of CONFIG>-<hash of the run>.",
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="none|latest|STEP",
            help="none: a fresh start, refused where there are checkpoints. latest: there must be "
            "one. STEP: go back to that one; newer ones are moved aside. Default: continue what "
            "there is.",
        ),
    ] = None,
    max_steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Save and end after at most N more steps; the schedule stays that of the whole "
            "run, and the same command continues.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Check the config and show what a run would take; write nothing."
        ),
    ] = False,
    force: Annotated[
        list[str] | None,
        typer.Option(
            metavar="REGEX",
            help="Run matching steps again from the start; earlier results are moved aside.",
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD",
            help="Go on with an earlier run though this field of its schedule has changed.",
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="Where steps run: local (this process, the default), process (processes of this "
            "machine) or ray (a cluster).",
        ),
    ] = None,
    max_concurrent: Annotated[
        int | None, typer.Option(metavar="N", help="Steps that may run at the same time.")
    ] = None,
    restarts: Annotated[
        int, typer.Option(metavar="N", help="Start again up to N times after exit code 75.")
    ] = 0,
    prefix: Prefix = None,
    template: Template = None,
) -> Action:
    """What `chomp train` does."""
    from chomp.cli.train_run import TrainOptions, train_run
    from chomp.launch.restarts import require_restartable, restarted, this_command

    require_restartable(restarts, force or [])
    require(
        not restarts or resume != "none",
        given=f"--restarts {restarts} with --resume none",
        allowed="one of them: started again, the run would be refused for what it has saved",
        fix="leave out --resume none: a new --run-dir has no checkpoints",
    )
    if restarts and not dry_run:
        return partial(restarted, this_command("-m", "chomp"), restarts)
    asked = TrainOptions(
        run_dir=run_dir,
        force=force or [],
        allow=allow or [],
        is_dry_run=dry_run,
        on=on,
        max_concurrent=max_concurrent,
        resume=resume,
        max_steps=max_steps,
    )
    return partial(train_run, given_config(config, overrides, prefix, template), asked)
