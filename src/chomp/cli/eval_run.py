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
from typing import TYPE_CHECKING, Any, Literal

from chomp.cli.eval_table import eval_table
from chomp.cli.evaluated_data import named_data, store_folders
from chomp.cli.late_record import late_tracker
from chomp.cli.opened_run import GivenRun, OpenedRun, opened_run
from chomp.cli.result_file import about_checkpoint, print_json, require_place, say_places, written
from chomp.cli.rows_bar import rows_bar
from chomp.cli.terminal import print_table, say

if TYPE_CHECKING:  # for annotations alone
    from chomp.checkpoint.weights_alone import WeightsAlone
    from chomp.data import EvalDataset
    from chomp.hooks import GrugEvalConfig

EvaluatedWeights = Literal["params", "ema", "both"]

# What may be said otherwise of a run that is trained. All else is part of what the numbers mean.
MAY_CHANGE = (
    "eval",
    "eval.*",
    "mesh.*",
    "logging.*",
    "model.attention",
    "data.components.*.validation_store",
    "data.components.*.tags*",
)
# With one of these changed, the numbers are others than those in the run's record.
_OTHER_NUMBERS = ("eval", "data")
_TITLES = {"current": "weights", "ema": "averaged weights"}
_HASH_CHARACTERS = 8  # of the data, in the name of a file


def eval_run(
    given: GivenRun,
    *,
    data: Sequence[str],
    weights: EvaluatedWeights | None,
    text_key: str,
    prefix: str,
    out: str | None,
    is_json: bool,
) -> int:
    """Evaluate, show, and keep the results; the exit code."""
    from chomp.mesh import is_first

    named = named_data(data)  # a path that is not there shows before anything is loaded
    run = opened_run(given, may_change=MAY_CHANGE)
    require_place(run, out)
    folders = store_folders(run, named, prefix=prefix, text_key=text_key)
    datasets = _datasets(run, folders)  # a store that is gone shows before weights are read
    read = _weights(run, weights)
    config = _config(run, weights)
    is_own = not named and not any(name.startswith(_OTHER_NUMBERS) for name in run.changed)
    metrics = _metrics(run, read, config, datasets)
    content = _content(run, read, config, metrics, folders or _own_stores(run))
    for item in named:
        content["data"][item.name]["made_from"] = item.path
    name = _file_name(read, content, is_own=is_own)
    path = written(run, content, name=name, out=out)
    if is_first() and is_json:
        print_json(content)
    elif is_first():
        _show(read, config, metrics, path)
    if is_own and run.config.eval is not None:  # last: a service may take its time
        _log(run, read.found.metadata.step, metrics, path)
    return 0


def _weights(run: OpenedRun, weights: EvaluatedWeights | None) -> WeightsAlone:
    from chomp.checkpoint.weights_alone import WeightsName, all_weights, these_weights

    if weights is None:
        return run.weights(all_weights)
    names: tuple[WeightsName, ...] = ("params", "ema") if weights == "both" else (weights,)
    return run.weights(partial(these_weights, names=names))


def _config(run: OpenedRun, weights: EvaluatedWeights | None) -> GrugEvalConfig:
    """The run's own, for the weights that are asked for; without one, the defaults."""
    from chomp.hooks import GrugEvalConfig

    config: GrugEvalConfig = run.config.eval or GrugEvalConfig()
    if weights is None:
        return config
    return replace(config, eval_current=weights != "ema", eval_ema=weights != "params")


def _datasets(run: OpenedRun, folders: Mapping[str, str]) -> list[EvalDataset]:
    """The run's held-out rows; or all of the stores in the folders, by the run's own rules."""
    from chomp.data import EvalDataset, LmComponentConfig, TokenStore, build_eval_datasets

    seq_len, limits = run.config.trainer.seq_len, run.limits()
    if not folders:
        data = run.config.data
        return build_eval_datasets(data, run.tokenizer, seq_len=seq_len, limits=limits)
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

    from chomp.hooks import evaluators_of

    evaluators = evaluators_of(
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
            with rows_bar(f"evaluating the {_TITLES[name]}", "rows") as on_rows:
                metrics[name] = evaluator.evaluate(models[name], on_rows)
    return metrics


def _own_stores(run: OpenedRun) -> dict[str, str]:
    parts = run.config.data.components
    return {name: str(parts[name].validation_store) for name in sorted(parts)}


def _content(
    run: OpenedRun,
    read: WeightsAlone,
    config: GrugEvalConfig,
    metrics: Mapping[str, Mapping[str, float]],
    folders: Mapping[str, str],
) -> dict[str, Any]:
    from chomp.config import config_to_mapping

    return {
        **about_checkpoint(run, read.found),
        "seq_len": run.config.trainer.seq_len,
        "eval": config_to_mapping(config),
        "data": {name: _store_facts(path) for name, path in folders.items()},
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
        "hash": manifest.own_hash,  # of all it holds, wherever its files were
        "split": manifest.identity.split,
        "documents": manifest.num_documents,
        "tokens": manifest.num_tokens,
    }


def _file_name(read: WeightsAlone, content: Mapping[str, Any], *, is_own: bool) -> str:
    """One file for the run's own evaluation of a step, and one for each other that is made."""
    from chomp.config import fingerprint

    hashes = {name: facts["hash"] for name, facts in content["data"].items()}
    other = "" if is_own else f"-{fingerprint([hashes, content['eval']])[:_HASH_CHARACTERS]}"
    return f"eval-step-{read.found.metadata.step}{other}.json"


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
    path: str | None,
) -> None:
    seconds, tokens = 0.0, 0.0
    prefixes = config.prefixes(has_average="ema" in read.models)
    for name, of_model in metrics.items():
        title = f"{_TITLES[name]} of step {read.found.metadata.step}"
        print_table(eval_table(of_model, prefix=prefixes[name], title=title))
        seconds += of_model[f"{prefixes[name]}/total_time"]
        tokens += of_model[f"{prefixes[name]}/tokens"]
    say(f"{seconds:.1f} s, {tokens / seconds:,.0f} tokens/s, compiling included")
    say_places(read.found, path)
