"""`chomp data ...`: what each command takes. What it does is in the file named for it."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from functools import partial
from typing import Annotated

import typer

from chomp.cli.config_arguments import (
    Action,
    Config,
    Prefix,
    Template,
    given_config,
)
from chomp.errors import require
from chomp.step_options import Overrides

data_app = typer.Typer(
    no_args_is_help=True,
    help="Token stores: build, verify, inspect, trace, forecast.",
)


@data_app.command(help="Build the tokenizer and the token stores of a config; finished ones stay.")
def build(
    config: Config,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this component; may be given again."),
    ] = None,
    overrides: Overrides = None,
    prefix: Prefix = None,
    template: Template = None,
) -> Action:
    """What `chomp data build` does."""
    from chomp.cli.data_build import build_data

    return partial(build_data, given_config(config, overrides, prefix, template), only or [])


@data_app.command(help="Read stores completely and compare them with their checksums and counts.")
def verify(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="CONFIG|STORE...", help="Configs, or folders of token stores."),
    ],
    overrides: Overrides = None,
    prefix: Prefix = None,
    template: Template = None,
) -> Action:
    """What `chomp data verify` does."""
    from chomp.cli.data_verify import verify_data

    return partial(
        verify_data, [given_config(path, overrides, prefix, template) for path in targets]
    )


@data_app.command(help="Show what stores hold: counts, lengths of documents, the first of them.")
def inspect(
    target: Annotated[
        str, typer.Argument(metavar="CONFIG|STORE", help="A config, or the folder of a store.")
    ],
    documents: Annotated[int, typer.Option(min=0, help="How many documents to show.")] = 3,
    overrides: Overrides = None,
    prefix: Prefix = None,
    template: Template = None,
) -> Action:
    """What `chomp data inspect` does."""
    from chomp.cli.data_inspect import inspect_data

    return partial(inspect_data, given_config(target, overrides, prefix, template), documents)


@data_app.command(help="Show the documents behind a batch, or when a document is trained on.")
def where(
    config: Config,
    step: Annotated[int | None, typer.Option(help="The step whose batch is asked for.")] = None,
    row: Annotated[int | None, typer.Option(help="Only this row of the batch.")] = None,
    doc: Annotated[
        str | None, typer.Option(metavar="ID", help="The document that is asked for.")
    ] = None,
    text: Annotated[
        bool, typer.Option("--text", help="With --step: also how each piece begins.")
    ] = False,
    overrides: Overrides = None,
    prefix: Prefix = None,
    template: Template = None,
) -> Action:
    """What `chomp data where` does."""
    from chomp.cli.data_where import where_document, where_step

    given = given_config(config, overrides, prefix, template)
    require(
        (step is None) != (doc is None),
        given="both --step and --doc" if doc is not None else "neither --step nor --doc",
        allowed="one of them: --step N asks what a batch is made of, --doc ID when it is seen",
        fix="leave one out" if doc is not None else "add --step 0, for example",
    )
    if doc is not None:
        require(
            row is None and not text,
            given="--doc with --row or --text",
            allowed="--row and --text with --step only",
            fix="leave them out",
        )
        return partial(where_document, given, doc)
    assert step is not None, "one of the two was asked for"
    return partial(where_step, given, step, row, with_text=text)


@data_app.command(help="Show how often a run will read each component, and how many tokens of it.")
def forecast(
    config: Config, overrides: Overrides = None, prefix: Prefix = None, template: Template = None
) -> Action:
    """What `chomp data forecast` does."""
    from chomp.cli.data_forecast import forecast_data

    return partial(forecast_data, given_config(config, overrides, prefix, template))
