"""`chomp eval`: held-out loss and bits per byte of a checkpoint, by the code that training uses.

With the run's own data and evaluation config the numbers are those that the loop logged, to the
bit on the same devices.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
from rich.table import Table
from rich.text import Text

from chomp.checkpoint import LoadedWeights, StepFolder, WeightsName, all_weights, these_weights
from chomp.cli.commands import Evaluate
from chomp.cli.eval_data import (
    held_out_datasets,
    held_out_stores,
    known_stores,
    named_data,
    store_folders,
)
from chomp.cli.loaded_run import LoadedRun, leaving_together, load_run
from chomp.cli.output import print_table, progress_bar, say
from chomp.cli.results import (
    MAY_CHANGE,
    TITLES,
    about_checkpoint,
    keep_results,
    late_tracker,
    require_place,
    result_differences,
    short_hash,
)
from chomp.config import config_to_mapping
from chomp.data import EvalDataset, LmComponentConfig, TokenStore, read_manifest
from chomp.errors import require
from chomp.launch.run import outputs_folder
from chomp.tracking import with_short_keys
from chomp.training import GrugEvalConfig, build_evaluators

# What overrides may change of a trained run, and has an effect here. All else is part of what the
# numbers mean, or of the loop.
_MAY_CHANGE = (
    "eval",  # of a run that has none
    "eval.eval_batch_size",
    "eval.max_eval_batches",
    "eval.eval_current",
    "eval.eval_ema",
    "eval.compute_bpb",
    "eval.prefix",
    *MAY_CHANGE,
    "data.components.*.validation_store",
    "data.components.*.tags*",
)
# With one of these changed, the numbers are others than those in the run's record.
_OTHER_NUMBERS = ("model", "eval", "data")
# The weights of a checkpoint by the name that evaluation has for them.
_WEIGHTS: dict[str, WeightsName] = {"current": "params", "ema": "ema"}


@leaving_together()
def evaluate(asked: Evaluate) -> int:
    """Evaluate, show, and keep the results; the exit code."""
    named = named_data(asked.data or [])  # a path that is not there shows before a run is loaded
    run = load_run(asked, may_change=_MAY_CHANGE)
    for option, is_given, fields in (
        ("--data", bool(named), ("data.",)),
        ("--weights", asked.weights is not None, ("eval.eval_current", "eval.eval_ema")),
    ):
        for field in run.changed:
            require(
                not (is_given and field.startswith(fields)),
                f"-o {field} with {option}, which takes its place",
                allowed="one of them",
                fix="leave one out",
            )
    require_place(run, asked.out)
    prefix = outputs_folder(asked.prefix)
    folders = store_folders(run, named, prefix=prefix, text_key=asked.text_key)
    stores = folders or held_out_stores(run)
    # A store that is gone shows before weights are read.
    datasets = _datasets_in(run, folders) if folders else held_out_datasets(run, run.limits())
    config: GrugEvalConfig = run.config.eval or GrugEvalConfig()
    choose: Callable[[StepFolder], Sequence[WeightsName]] = all_weights
    if asked.weights is not None:
        names: tuple[WeightsName, ...] = ("params", "ema")
        names = names if asked.weights == "both" else (asked.weights,)
        choose = partial(these_weights, names=names)
        config = replace(config, eval_current="params" in names, eval_ema="ema" in names)
    read = run.weights(choose)
    step, has_average = read.found.metadata.step, "ema" in read.models
    evaluators = build_evaluators(
        config,
        run,
        run.from_template("losses_of"),
        has_average=has_average,
        datasets=datasets,
    )
    metrics: dict[str, dict[str, float]] = {}
    # Both models by one `losses_of`, so that it is compiled once.
    with jax.set_mesh(run.mesh):
        for name, evaluator in evaluators.items():
            weights = _WEIGHTS[name]
            with progress_bar(f"evaluating the {TITLES[weights]}", unit="rows") as on_rows:
                metrics[name] = evaluator.evaluate(read.models.get(weights), on_rows)
    is_known = None if named else known_stores(run)
    evaluated = "both" if len(metrics) > 1 else _WEIGHTS[next(iter(metrics))]
    content: dict[str, Any] = {
        **about_checkpoint(run, read.found, evaluated),
        "seq_len": run.config.trainer.seq_len,
        "eval": config_to_mapping(config),
        "data": {},
        "metrics": {name: value for each in metrics.values() for name, value in each.items()},
        "differs_from_run": [
            *result_differences(run, read.found, _OTHER_NUMBERS, is_known),
            *(["other data"] if named else []),
        ],
    }
    for dataset in datasets:
        manifest = read_manifest(stores[dataset.name])
        content["data"][dataset.name] = {
            "store": stores[dataset.name],
            "hash": manifest.own_hash,  # of all it holds, and of where its documents were
            "split": manifest.identity.split,
            "documents": manifest.num_documents,
            "tokens": manifest.num_tokens,
            "tags": list(dataset.tags),
        }
    for item in named:
        content["data"][item.name]["made_from"] = item.path

    def show() -> None:
        seconds, tokens = 0.0, 0.0
        tags = {tag for dataset in datasets for tag in dataset.tags}
        prefixes = config.prefixes(has_average=has_average)
        for name, of_model in metrics.items():
            own = {k.removeprefix(f"{prefixes[name]}/"): value for k, value in of_model.items()}
            title = f"{TITLES[_WEIGHTS[name]]} of step {step}"
            print_table(_table(own, title=title, carried=tags))
            seconds += own["total_time"]
            tokens += own["tokens"]
        say(f"{seconds:.1f} s, {tokens / seconds:,.0f} tokens/s, compiling included")

    name = _file_name(run, read, content)
    path = keep_results(run, content, name=name, out=asked.out, as_json=asked.as_json, show=show)
    # Before a step is completed, the record has no place for the numbers.
    if step and not content["differs_from_run"] and run.config.eval is not None:
        with late_tracker(run) as tracker:  # last: a service may take its time
            # The time is this command's: the run's own times add up to its wall clock.
            kept = {k: v for k, v in content["metrics"].items() if not k.endswith("_time")}
            tracker.log(with_short_keys(kept), step=step - 1)
            if path is not None:
                tracker.log_artifact(path, name=f"eval-step-{step}", kind="eval")
    return 0


def _datasets_in(run: LoadedRun, folders: Mapping[str, str]) -> list[EvalDataset]:
    """All of the stores in the folders, by the run's own rules."""
    seq_len, limits = run.config.trainer.seq_len, run.limits()
    parts = {name: LmComponentConfig(validation_store=path) for name, path in folders.items()}
    # Stages name the run's own components, and say nothing about evaluation.
    data = replace(run.config.data, components=parts, validation={}, stages=())
    stores = {
        name: TokenStore.open(path, tokenizer_hash=run.tokenizer.content_hash)
        for name, path in folders.items()
    }
    return [
        EvalDataset(name, data, run.tokenizer, seq_len=seq_len, limits=limits, store=stores[name])
        for name in sorted(stores)
    ]


def _file_name(run: LoadedRun, read: LoadedWeights, content: Mapping[str, Any]) -> str:
    """One file for the run's own evaluation of a step, and one for each other that is made.

    A part of the run's own, as by --weights, does not take the place of the whole.
    """
    stem, weights = f"eval-step-{read.found.metadata.step}", content["weights"]
    if content["differs_from_run"]:
        # All that the numbers depend on, and nothing that an equal evaluation would have otherwise.
        data = {name: [facts["hash"], facts["tags"]] for name, facts in content["data"].items()}
        asked = [content[name] for name in ("weights", "eval", "changed", "template_hash")]
        return f"{stem}-{short_hash([data, asked])}.json"
    config = run.config.eval or GrugEvalConfig()
    has_ema = config.eval_ema and "ema" in all_weights(read.found)
    usual = "both" if config.eval_current and has_ema else "ema" if has_ema else "params"
    return f"{stem}.json" if weights == usual else f"{stem}-{weights}.json"


def _table(own: Mapping[str, float], *, title: str, carried: Collection[str]) -> Table:
    """A line for each tag below its parent, then everything.

    `carried` are the tags that datasets have themselves. Such a tag counts those datasets alone, so
    nothing is shown below it: `words/x` beside `words` is a line with its whole name.
    The mean over tags has no error: the tags' errors do not say how they go together.
    """

    def number(name: str) -> str:
        if name not in own:
            return "-"
        stderr = own.get(f"{name}_stderr")
        return f"{own[name]:.4f}" + ("" if stderr is None else f" ± {stderr:.4f}")

    def cells(prefix: str) -> list[str]:
        counts = [own.get(f"{prefix}{name}") for name in ("tokens", "documents")]
        texts = ["" if count is None else f"{count:,.0f}" for count in counts]
        return [number(f"{prefix}loss"), number(f"{prefix}bpb"), *texts]

    table = Table("tag", title=title, title_justify="left")
    for heading in ("loss", "bits per byte", "tokens", "documents"):
        table.add_column(heading, justify="right")
    # Every tag has a count of tokens, those without a loss too.
    tags = sorted(key.removesuffix("/tokens") for key in own if key.endswith("/tokens"))
    parents = {tag for tag in tags if tag not in carried}
    for tag in tags:
        above = [tag[:end] for end in range(len(tag)) if tag[end] == "/" and tag[:end] in parents]
        label = "  " * len(above) + tag.removeprefix(f"{above[-1]}/" if above else "")
        table.add_row(Text(label), *cells(f"{tag}/"))
    table.add_section()
    table.add_row("all", *cells(""))
    if "macro_loss" in own:  # with a single tag it would say `all` again
        table.add_row("mean over tags", number("macro_loss"), number("macro_bpb"), "", "")
    return table
