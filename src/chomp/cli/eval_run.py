"""`chomp eval`: held-out loss and bits per byte of a checkpoint, by the code that training uses.

With the run's own data and evaluation config the numbers are those that the loop logged, to the
bit on the same devices.
"""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from chomp.cli.eval_table import eval_table
from chomp.cli.evaluated_data import NamedData, named_data, store_folders
from chomp.cli.held_out import held_out_datasets, held_out_stores, known_stores
from chomp.cli.late_record import late_tracker
from chomp.cli.opened_run import GivenRun, OpenedRun, opened_run
from chomp.cli.own_results import differences
from chomp.cli.result_file import (
    TITLES,
    about_checkpoint,
    print_json,
    require_place,
    say_places,
    short_hash,
    written,
)
from chomp.cli.rows_bar import rows_bar
from chomp.cli.terminal import print_table, say
from chomp.errors import require

if TYPE_CHECKING:  # for annotations alone
    from chomp.checkpoint.weights_alone import WeightsAlone, WeightsName
    from chomp.data import EvalDataset
    from chomp.training import GrugEvalConfig

# What may be said otherwise of a run that is trained, and has an effect here. All else is part of
# what the numbers mean, or of the loop.
MAY_CHANGE = (
    "eval",  # of a run that has none
    "eval.eval_batch_size",
    "eval.max_eval_batches",
    "eval.eval_current",
    "eval.eval_ema",
    "eval.compute_bpb",
    "eval.prefix",
    "mesh.*",
    "logging.project",
    "logging.metrics_file",
    "logging.wandb.*",
    "logging.tensorboard.*",
    "model.attention",
    "data.components.*.validation_store",
    "data.components.*.tags*",
)
# With one of these changed, the numbers are others than those in the run's record.
_OTHER_NUMBERS = ("model", "eval", "data")
# The weights of a checkpoint by the name that evaluation has for them.
_WEIGHTS: dict[str, WeightsName] = {"current": "params", "ema": "ema"}


def eval_run(
    given: GivenRun,
    *,
    data: Sequence[str],
    weights: Sequence[WeightsName] | None,
    text_key: str,
    prefix: str,
    out: str | None,
    is_json: bool,
) -> int:
    """Evaluate, show, and keep the results; the exit code. No `weights`: those of the config."""
    from chomp.mesh import is_first

    named = named_data(data)  # a path that is not there shows before anything is loaded
    run = opened_run(given, may_change=MAY_CHANGE)
    _require_effect(run, has_data=bool(named), has_weights=weights is not None)
    require_place(run, out)
    folders = store_folders(run, named, prefix=prefix, text_key=text_key)
    datasets = _datasets(run, folders)  # a store that is gone shows before weights are read
    read = _weights(run, weights)
    other = _differences(run, read, named)
    config = _config(run, weights)
    metrics = _metrics(run, read, config, datasets)
    content = _content(run, read, config, metrics, datasets, folders or held_out_stores(run))
    content["differs_from_run"] = other
    for item in named:
        content["data"][item.name]["made_from"] = item.path
    path = written(run, content, name=_file_name(run, read, content), out=out)
    if is_first() and is_json:
        print_json(content)
    elif is_first():
        tags = {tag for dataset in datasets for tag in dataset.tags}
        _show(read, config, metrics, tags)
        say_places(read.found, path, other)
    if not other and run.config.eval is not None:  # last: a service may take its time
        _log(run, read.found.metadata.step, metrics, path)
    return 0


def _require_effect(run: OpenedRun, *, has_data: bool, has_weights: bool) -> None:
    """Raise `ConfigError` for an override that an option has made void."""
    taken = {"--data": ("data.",), "--weights": ("eval.eval_current", "eval.eval_ema")}
    given = [
        option for option, is_given in zip(taken, (has_data, has_weights), strict=True) if is_given
    ]
    for option in given:
        for path in run.changed:
            require(
                not path.startswith(taken[option]),
                given=f"-o {path} with {option}, which takes its place",
                allowed="one of them",
                fix="leave one out",
            )


def _differences(run: OpenedRun, read: WeightsAlone, named: Sequence[NamedData]) -> list[str]:
    """What makes these numbers others than the run's own."""
    if named:
        return [*differences(run, read.found, _OTHER_NUMBERS), "other data"]
    return differences(run, read.found, _OTHER_NUMBERS, known_stores(run))


def _weights(run: OpenedRun, weights: Sequence[WeightsName] | None) -> WeightsAlone:
    from chomp.checkpoint.weights_alone import all_weights, these_weights

    return run.weights(
        all_weights if weights is None else partial(these_weights, names=tuple(weights))
    )


def _config(run: OpenedRun, weights: Sequence[WeightsName] | None) -> GrugEvalConfig:
    """The run's own, for the weights that are asked for; without one, the defaults."""
    from chomp.training import GrugEvalConfig

    config: GrugEvalConfig = run.config.eval or GrugEvalConfig()
    if weights is None:
        return config
    return replace(config, eval_current="params" in weights, eval_ema="ema" in weights)


def _datasets(run: OpenedRun, folders: Mapping[str, str]) -> list[EvalDataset]:
    """The run's held-out rows; or all of the stores in the folders, by the run's own rules."""
    from chomp.data import EvalDataset, LmComponentConfig, TokenStore

    seq_len, limits = run.config.trainer.seq_len, run.limits()
    if not folders:
        return held_out_datasets(run, limits)
    parts = {name: LmComponentConfig(validation_store=path) for name, path in folders.items()}
    # Stages name the run's own components, and say nothing about evaluation.
    data = replace(run.config.data, components=parts, stages=())
    opened = {
        name: TokenStore.open(path, tokenizer_hash=run.tokenizer.content_hash)
        for name, path in folders.items()
    }
    return [
        EvalDataset(name, data, run.tokenizer, seq_len=seq_len, limits=limits, store=opened[name])
        for name in sorted(opened)
    ]


def _metrics(
    run: OpenedRun, read: WeightsAlone, config: GrugEvalConfig, datasets: Sequence[EvalDataset]
) -> dict[str, dict[str, float]]:
    """The metrics of each model that is evaluated, by the name that the loop has for it."""
    import jax

    from chomp.training import build_evaluators

    evaluators = build_evaluators(
        config,
        datasets,
        run.from_template("losses_of"),
        mesh=run.mesh,
        tokenizer=run.tokenizer,
        has_average="ema" in read.models,
    )
    models = {"current": read.models.get("params"), "ema": read.models.get("ema")}
    metrics = {}
    # Both models by one `losses_of`, so that it is compiled once.
    with jax.set_mesh(run.mesh):
        for name, evaluator in evaluators.items():
            with rows_bar(f"evaluating the {TITLES[_WEIGHTS[name]]}", "rows") as on_rows:
                metrics[name] = evaluator.evaluate(models[name], on_rows)
    return metrics


def _content(
    run: OpenedRun,
    read: WeightsAlone,
    config: GrugEvalConfig,
    metrics: Mapping[str, Mapping[str, float]],
    datasets: Sequence[EvalDataset],
    folders: Mapping[str, str],
) -> dict[str, Any]:
    from chomp.config import config_to_mapping

    weights = "both" if len(metrics) > 1 else _WEIGHTS[next(iter(metrics))]
    return {
        **about_checkpoint(run, read.found, weights),
        "seq_len": run.config.trainer.seq_len,
        "eval": config_to_mapping(config),
        "data": {
            dataset.name: {**_store_facts(folders[dataset.name]), "tags": list(dataset.tags)}
            for dataset in datasets
        },
        "metrics": _together(metrics),
    }


def _together(metrics: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The metrics of all models: each has names of its own."""
    return {name: value for of_model in metrics.values() for name, value in of_model.items()}


def _store_facts(path: str) -> dict[str, Any]:
    from chomp.data.store.token_store import read_manifest

    manifest = read_manifest(path)
    return {
        "store": path,
        "hash": manifest.own_hash,  # of all it holds, and of where its documents were
        "split": manifest.identity.split,
        "documents": manifest.num_documents,
        "tokens": manifest.num_tokens,
    }


def _file_name(run: OpenedRun, read: WeightsAlone, content: Mapping[str, Any]) -> str:
    """One file for the run's own evaluation of a step, and one for each other that is made.

    A part of the run's own, as by --weights, does not take the place of the whole.
    """
    stem = f"eval-step-{read.found.metadata.step}"
    if not content["differs_from_run"]:
        weights = content["weights"]
        return f"{stem}.json" if weights == _usual(run, read) else f"{stem}-{weights}.json"
    # All that the numbers depend on, and nothing that an equal evaluation would have otherwise.
    data = {name: [facts["hash"], facts["tags"]] for name, facts in content["data"].items()}
    asked = [content[name] for name in ("weights", "eval", "changed", "template_hash")]
    return f"{stem}-{short_hash([data, asked])}.json"


def _usual(run: OpenedRun, read: WeightsAlone) -> str:
    """The weights that the run's own config has evaluated of this checkpoint."""
    from chomp.checkpoint.weights_alone import all_weights

    config, there = _config(run, None), all_weights(read.found)
    is_asked = {"params": config.eval_current, "ema": config.eval_ema and "ema" in there}
    return "both" if all(is_asked.values()) else "ema" if is_asked["ema"] else "params"


def _log(
    run: OpenedRun, step: int, metrics: Mapping[str, Mapping[str, float]], path: str | None
) -> None:
    """The numbers at the last completed step of the run's record, where the loop has its own."""
    from chomp.tracking import with_short_keys

    if step == 0:  # no step is completed, so the record has no place for it
        return
    # The time belongs to this command: the run's own times add up to its wall clock.
    lasting = {k: v for k, v in _together(metrics).items() if not k.endswith("_time")}
    with late_tracker(run) as tracker:
        tracker.log(with_short_keys(lasting), step=step - 1)
        if path is not None:
            tracker.log_artifact(path, name=f"eval-step-{step}", kind="eval")


def _show(
    read: WeightsAlone,
    config: GrugEvalConfig,
    metrics: Mapping[str, Mapping[str, float]],
    tags: set[str],
) -> None:
    seconds, tokens = 0.0, 0.0
    prefixes = config.prefixes(has_average="ema" in read.models)
    for name, of_model in metrics.items():
        title = f"{TITLES[_WEIGHTS[name]]} of step {read.found.metadata.step}"
        print_table(eval_table(of_model, prefix=prefixes[name], title=title, carried=tags))
        seconds += of_model[f"{prefixes[name]}/total_time"]
        tokens += of_model[f"{prefixes[name]}/tokens"]
    say(f"{seconds:.1f} s, {tokens / seconds:,.0f} tokens/s, compiling included")
