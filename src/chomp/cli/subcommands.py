"""The commands of `chomp config`, `data`, `metrics`, `checkpoint` and `variant`: what each takes.

What a command does is in the file of its group, which is imported once the command starts.
"""

# ruff: noqa: PLC0415

from enum import StrEnum
from typing import Annotated

import typer

from chomp.cli.options import (
    AllowChanged,
    Config,
    Json,
    Place,
    Prefix,
    RunFolder,
    Template,
    Trust,
    Variant,
    Weights,
    config_of,
    examples,
    group,
    later,
)
from chomp.errors import require
from chomp.step_options import Overrides

config_app = group("Configs: show one in full, compare two, print the schema.")
data_app = group("Token stores: build, verify, inspect, trace, forecast.")
metrics_app = group("The record of a run: show it, send it to a service again.")
checkpoint_app = group("Saved states: list, verify, compare, export to safetensors.")
variant_app = group(
    "The templates under experiments/grug: copy, compare, list, retire; the ledger."
)


# --- configs ------------------------------------------------------------------------------------


@config_app.command(
    "show",
    help="Print a config as YAML, with every field of it.",
    epilog=examples(
        "chomp config show configs/base_smoke.yaml",
        "chomp config show configs/base_smoke.yaml -o train.steps=50 > mine.yaml",
        "chomp config show runs/mine",
    ),
)
@later
def config_show(config: Config, overrides: Overrides = None, template: Template = None) -> int:
    """Print a config."""
    from chomp.cli.config import show_config

    return show_config(config_of(config, overrides, template=template))


_SIDE = "A YAML file, a launch file or a run folder."


@config_app.command(
    "diff",
    help="Show the fields that differ between two configs or runs, and what each change means.",
    epilog=examples(
        "chomp config diff configs/debug_smoke.yaml configs/base_smoke.yaml",
        "chomp config diff runs/mine configs/mine.yaml",
        "chomp config diff runs/mine runs/other",
    ),
)
@later
def config_diff(
    before: Annotated[str, typer.Argument(metavar="A", help=_SIDE)],
    after: Annotated[str, typer.Argument(metavar="B", help=_SIDE)],
    template: Template = None,
    trust: Trust = False,
    as_json: Json = False,
) -> int:
    """Compare two configs."""
    from chomp.cli.config import diff_configs

    return diff_configs(
        config_of(before, template=template),
        config_of(after, template=template),
        is_trusted=trust,
        is_json=as_json,
    )


@config_app.command(
    "schema",
    help="Print the JSON schema of YAML files for a template.",
    epilog=examples(
        "chomp config schema", "chomp config schema --template base > base.schema.json"
    ),
)
@later
def config_schema(
    template: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A template, by its name under experiments/grug or its folder; default: "
            "megalodon.",
        ),
    ] = None,
) -> int:
    """Print the schema."""
    from chomp.cli.config import show_schema

    return show_schema(template)


# --- data ---------------------------------------------------------------------------------------


@data_app.command(
    "build", help="Build the tokenizer and the token stores of a config; finished ones stay."
)
@later
def data_build(
    config: Config,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this component; repeatable."),
    ] = None,
    overrides: Overrides = None,
    prefix: Prefix = None,
    template: Template = None,
    as_json: Json = False,
) -> int:
    """Build the data."""
    from chomp.cli.data import build_data

    given = config_of(config, overrides, prefix, template)
    return build_data(given, only or [], is_json=as_json)


@data_app.command(
    "verify", help="Read stores completely and compare them with their checksums and counts."
)
@later
def data_verify(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="CONFIG|STORE...", help="Configs, or folders of token stores."),
    ],
    overrides: Overrides = None,
    prefix: Prefix = None,
    template: Template = None,
) -> int:
    """Verify stores."""
    from chomp.cli.data import verify_data

    return verify_data([config_of(path, overrides, prefix, template) for path in targets])


@data_app.command(
    "inspect", help="Show what stores hold: counts, lengths of documents, the first of them."
)
@later
def data_inspect(
    target: Annotated[
        str, typer.Argument(metavar="CONFIG|STORE", help="A config, or the folder of a store.")
    ],
    documents: Annotated[int, typer.Option(min=0, help="How many documents to show.")] = 3,
    overrides: Overrides = None,
    prefix: Prefix = None,
    template: Template = None,
    as_json: Json = False,
) -> int:
    """Show stores."""
    from chomp.cli.data import inspect_data

    given = config_of(target, overrides, prefix, template)
    return inspect_data(given, documents, is_json=as_json)


@data_app.command(
    "where", help="Show the documents behind a batch, or when a document is trained on."
)
@later
def data_where(
    config: Config,
    step: Annotated[int | None, typer.Option(help="Show the batch of this step.")] = None,
    row: Annotated[int | None, typer.Option(help="Only this row of the batch.")] = None,
    doc: Annotated[
        str | None, typer.Option(metavar="ID", help="Show when this document is seen.")
    ] = None,
    text: Annotated[
        bool, typer.Option("--text", help="With --step: also how each piece begins.")
    ] = False,
    overrides: Overrides = None,
    prefix: Prefix = None,
    template: Template = None,
    as_json: Json = False,
) -> int:
    """Trace a batch or a document."""
    require(
        (step is None) != (doc is None),
        given="both --step and --doc" if doc is not None else "neither --step nor --doc",
        allowed="one of them: --step N asks what a batch is made of, --doc ID when it is seen",
        fix="leave one out" if doc is not None else "add --step 0, for example",
    )
    require(
        doc is None or (row is None and not text),
        given="--doc with --row or --text",
        allowed="--row and --text with --step only",
        fix="leave them out",
    )
    from chomp.cli.data_where import where_document, where_step

    given = config_of(config, overrides, prefix, template)
    if step is not None:
        return where_step(given, step, row, with_text=text, is_json=as_json)
    assert doc is not None, "one of the two was given"
    return where_document(given, doc, is_json=as_json)


@data_app.command(
    "forecast", help="Show how often a run will read each component, and how many tokens of it."
)
@later
def data_forecast(
    config: Config,
    overrides: Overrides = None,
    prefix: Prefix = None,
    template: Template = None,
    as_json: Json = False,
) -> int:
    """Forecast a run's data."""
    from chomp.cli.data import forecast_data

    return forecast_data(config_of(config, overrides, prefix, template), is_json=as_json)


# --- the record ---------------------------------------------------------------------------------


class Service(StrEnum):
    """Where a record can be sent."""

    wandb = "wandb"
    tensorboard = "tensorboard"


@metrics_app.command("replay", help="Send every row of a run's record to W&B or TensorBoard.")
@later
def metrics_replay(
    run: RunFolder,
    to: Annotated[Service, typer.Option("--to", help="Where to.", show_default=False)],
    run_id: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="ID", help="W&B only: the run to write to; default: a new one."
        ),
    ] = None,
) -> int:
    """Send the record."""
    require(
        run_id is None or to is Service.wandb,
        given=f"--id {run_id} with --to {to}",
        allowed="--id with --to wandb",
        fix="leave it out",
    )
    from chomp.cli.report import replay_metrics

    return replay_metrics(run, to.value, run_id)


@metrics_app.command("show", help="Show the newest values of a run's record, and its summary.")
@later
def metrics_show(
    run: RunFolder,
    rows: Annotated[int, typer.Option(min=1, help="How many steps to show.")] = 5,
    as_json: Json = False,
) -> int:
    """Show the record."""
    from chomp.cli.report import show_metrics

    return show_metrics(run, rows, is_json=as_json)


# --- checkpoints --------------------------------------------------------------------------------


@checkpoint_app.command(
    "list",
    help="Show what checkpoints there are, from their metadata; no array is read.",
    epilog=examples("chomp checkpoint list runs/mine"),
)
@later
def checkpoint_list(place: Place, as_json: Json = False) -> int:
    """List checkpoints."""
    from chomp.cli.checkpoint import list_checkpoints

    return list_checkpoints(place, is_json=as_json)


@checkpoint_app.command(
    "verify",
    help="Read the arrays and compare them with the receipt they were saved with.",
    epilog=examples("chomp checkpoint verify runs/mine", "chomp checkpoint verify runs/mine --all"),
)
@later
def checkpoint_verify(
    place: Place,
    every: Annotated[
        bool, typer.Option("--all", help="All checkpoints of the place, not only the newest.")
    ] = False,
) -> int:
    """Verify checkpoints."""
    from chomp.cli.checkpoint import verify_checkpoints

    return verify_checkpoints(place, every=every)


@checkpoint_app.command(
    "diff",
    help="Compare two checkpoints: arrays, config, and where in training they are.",
    epilog=examples(
        "chomp checkpoint diff runs/mine/checkpoints/step-100 runs/mine",
        "chomp checkpoint diff runs/mine runs/other --all",
    ),
)
@later
def checkpoint_diff(
    before: Annotated[str, typer.Argument(metavar="A", help="A run folder or a step-N.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The one to compare with it.")],
    every: Annotated[bool, typer.Option("--all", help="Show equal arrays too.")] = False,
    as_json: Json = False,
) -> int:
    """Compare two checkpoints."""
    from chomp.cli.checkpoint import diff_checkpoints

    return diff_checkpoints(before, after, every=every, is_json=as_json)


class FloatType(StrEnum):
    """What floating-point weights can be rounded to."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


@checkpoint_app.command(
    "export",
    help="Write the weights to safetensors, with the config, the tokenizer and the template.",
    epilog=examples(
        "chomp checkpoint export runs/mine --out exported",
        "chomp checkpoint export runs/mine/checkpoints/step-100 --out exported --dtype bfloat16",
    ),
)
@later
def checkpoint_export(
    place: Place,
    out: Annotated[str, typer.Option(metavar="FOLDER", help="A new folder.", show_default=False)],
    weights: Annotated[
        Weights, typer.Option(help="The weights themselves, or their moving average.")
    ] = Weights.params,
    dtype: Annotated[
        FloatType | None,
        typer.Option(help="Round floating-point weights to this; default: as they were saved."),
    ] = None,
    allow_changed: AllowChanged = False,
) -> int:
    """Export weights."""
    from chomp.cli.checkpoint import export_checkpoint

    return export_checkpoint(
        place,
        out,
        weights=weights.value,
        dtype=None if dtype is None else dtype.value,
        allows_changed=allow_changed,
    )


# --- variants -----------------------------------------------------------------------------------


@variant_app.command(
    "new",
    help="Copy a variant under a new name, list it, and check it.",
    epilog=examples(
        'chomp variant new wide_mlp --from base --purpose "A wider MLP at equal parameters"'
    ),
)
@later
def variant_new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the copy.")],
    origin: Annotated[str, typer.Option("--from", metavar="NAME", help="What to copy.")] = "base",
    purpose: Annotated[str, typer.Option(help="What it is for, in one sentence.")] = "",
    check: Annotated[bool, typer.Option(help="Run its contracts.")] = True,
) -> int:
    """Copy a variant."""
    from chomp.cli.variants import new_variant

    return new_variant(name, origin, purpose, is_checked=check)


@variant_app.command(
    "diff",
    help="Show what a variant changes, and write a page with the lines.",
    epilog=examples("chomp variant diff wide_mlp"),
)
@later
def variant_diff(
    name: Variant,
    against: Annotated[
        str | None, typer.Option(metavar="NAME", help="What it differs from; default: its origin.")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="Where the report goes; default: grug-diff/NAME among the outputs."
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Compare a variant with its origin."""
    from chomp.cli.variants import diff_variant

    return diff_variant(name, against, out, is_json=as_json)


@variant_app.command(
    "list",
    help="Show the variants, what each changes and what came of it.",
    epilog=examples("chomp variant list --all"),
)
@later
def variant_list(
    is_all: Annotated[bool, typer.Option("--all", help="Also those whose folder is gone.")] = False,
    prefix: Prefix = None,
    as_json: Json = False,
) -> int:
    """List variants."""
    from chomp.cli.variants import list_variants

    return list_variants(prefix, is_all=is_all, is_json=as_json)


class Retirement(StrEnum):
    """What becomes of a variant."""

    superseded = "superseded"
    deleted = "deleted"


@variant_app.command(
    "retire",
    help="Delete a variant's folder; its entry in the archive stays.",
    epilog=examples("chomp variant retire wide_mlp --status superseded --superseded-by base"),
)
@later
def variant_retire(
    name: Variant,
    status: Annotated[Retirement, typer.Option(help="Why it is retired.", show_default=False)],
    superseded_by: Annotated[
        str, typer.Option(metavar="NAME", help="The variant that took its place.")
    ] = "",
    reason: Annotated[str, typer.Option(help="What was tried, and what came of it.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Delete uncommitted changes too.")] = False,
) -> int:
    """Retire a variant."""
    from chomp.cli.variants import retire_variant

    return retire_variant(
        name, status.value, superseded_by=superseded_by, reason=reason, is_forced=force
    )


@variant_app.command(
    "ledger",
    help="Write docs/reports/ledger: all variants, and whether each is better.",
    epilog=examples(
        "chomp compare base moe --seeds 5 --save",
        "chomp variant ledger",
        "chomp variant ledger --check",
    ),
)
@later
def variant_ledger(
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail if a page is out of date.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Write the ledger."""
    from chomp.cli.variants import write_ledger_pages

    return write_ledger_pages(is_check=check, is_json=as_json)
