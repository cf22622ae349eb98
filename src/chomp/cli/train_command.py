"""`chomp train`: what it takes. What it does is in train_run.py."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from functools import partial

from chomp.cli.config_arguments import Action, Prefix, Template, given_config
from chomp.cli.train_arguments import Config, DryRun, MaxSteps, Resume, RunDir
from chomp.errors import require
from chomp.step_options import Allow, Force, MaxConcurrent, On, Overrides, Restarts

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
    config: Config,
    overrides: Overrides = None,
    run_dir: RunDir = None,
    resume: Resume = None,
    max_steps: MaxSteps = None,
    dry_run: DryRun = False,
    force: Force = None,
    allow: Allow = None,
    on: On = None,
    max_concurrent: MaxConcurrent = None,
    restarts: Restarts = 0,
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
