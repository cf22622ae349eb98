"""`chomp config ...`: what each command takes. What it does is in the file named for it."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from functools import partial
from typing import Annotated

import typer

from chomp.cli.config_arguments import Action, Config, Template, given_config
from chomp.step_options import Overrides

config_app = typer.Typer(
    no_args_is_help=True, help="Configs: show what one comes to, compare two, print the schema."
)

# The mark is typer's: it leaves the lines of the paragraph after it as they are.
_SHOW_EXAMPLES = """\b
Examples:
  chomp config show configs/base_smoke.yaml
  chomp config show configs/base_smoke.yaml -o train.steps=50 > mine.yaml
  chomp config show runs/mine
"""
_DIFF_EXAMPLES = """\b
Examples:
  chomp config diff configs/debug_smoke.yaml configs/base_smoke.yaml
  chomp config diff runs/mine configs/mine.yaml
  chomp config diff runs/mine runs/other
"""
_SCHEMA_EXAMPLES = """\b
Examples:
  chomp config schema
  chomp config schema --template base > base.schema.json
"""

_SIDE = "A YAML file, a launch file or a run folder."


@config_app.command(
    "show", help="Print a config as YAML, with every field of it.", epilog=_SHOW_EXAMPLES
)
def show(config: Config, overrides: Overrides = None, template: Template = None) -> Action:
    """What `chomp config show` does."""
    from chomp.cli.config_show import show_config

    return partial(show_config, given_config(config, overrides, None, template))


@config_app.command(
    "diff",
    help="Fields that differ between two configs or runs, and what each change means for a run.",
    epilog=_DIFF_EXAMPLES,
)
def diff(
    before: Annotated[str, typer.Argument(metavar="A", help=_SIDE)],
    after: Annotated[str, typer.Argument(metavar="B", help=_SIDE)],
    template: Template = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run a run's template, whoever wrote it.")
    ] = False,
) -> Action:
    """What `chomp config diff` does."""
    from chomp.cli.config_diff import diff_configs

    sides = (given_config(path, None, None, template) for path in (before, after))
    return partial(diff_configs, *sides, is_trusted=trust)


@config_app.command(
    "schema", help="Print the JSON schema of YAML files for a template.", epilog=_SCHEMA_EXAMPLES
)
def schema(
    template: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A template, by its name under experiments/grug or its folder; default: "
            "megalodon.",
        ),
    ] = None,
) -> Action:
    """What `chomp config schema` does."""
    from chomp.cli.config_show import show_schema

    return partial(show_schema, template)
