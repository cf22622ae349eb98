"""Each contract of a variant notices its breach and names it: the other half of the contracts.

Breaches are planted in copies of base under `tmp_path`, or in the records of runs that nobody has
made. All but the last few are found without compiling anything.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from chomp.tracking import metrics
from chomp.variants.checkout import Variant, variant_folders
from tests import grug_contracts as contracts
from tests import grug_run_contracts as run_contracts
from tests import grug_traced_contracts as traced
from tests.grug_contracts import BASE, ROOT
from tests.grug_run_contracts import STEPS

_numbers = count()
NEXT_MONTH = str(date.today() + timedelta(days=30))
# One layer, by default and as launched: what is planted here does not depend on there being more.
SMALLER = re.compile(r"num_layers(: int = |=)[46]\b")


def planted(root: Path, *changes: tuple[str, str, str], origin: str = BASE) -> Variant:
    """A copy of `origin` under a new name beside it, with text of its files replaced."""
    name = f"planted_{next(_numbers)}"  # never used before: see `contracts.imported`
    for copy in (origin, name):
        folder = root / "experiments/grug" / copy
        folder.mkdir(parents=True)
        for path in (ROOT / "experiments/grug" / origin).glob("*.py"):
            text = path.read_text().replace(f"grug.{origin}.", f"grug.{copy}.")
            text = SMALLER.sub("num_layers\\g<1>1", text.replace(f'"{origin}"', f'"{copy}"'))
            (folder / path.name).write_text(text)
        (folder / "README.md").write_text(f"# {copy}\n")
    for file, old, new in changes:
        text = (folder / file).read_text()
        assert text.count(old) == 1, f"{file} has {old!r} {text.count(old)} times"
        (folder / file).write_text(text.replace(old, new))
    return next(variant for variant in variant_folders(root) if variant.name == name)


def broken(contract: Callable[..., list[str]], variant: Variant) -> list[str]:
    """What a contract says of a variant."""
    if contract in (*contracts.IMPORTED, *traced.TRACED):
        with contracts.imported(variant) as template:
            return contract(template)
    return contract(variant)


@dataclass(frozen=True)
class Breach:
    """What is planted, which contract it breaks, and words of its one violation."""

    contract: Callable[..., list[str]]
    change: tuple[str, str, str]  # file, old text, new text
    words: tuple[str, ...]


FORWARD = "return self._trunk(token_ids, mask or AttentionMask.causal())[0]\n"
DROPPED = (
    "hidden = self._trunk(token_ids, mask or AttentionMask.causal())[0]\n"
    "        return hidden * jax.random.bernoulli(jax.random.key(0), 0.9).astype(hidden.dtype)\n"
)
BREACHES = {
    "an exception that has ended": Breach(
        contracts.says_why_it_is_not_verified,
        ("train.py", "from coll", "# GRUG NOVERIFY: slow, until 2020-01-01\nfrom coll"),
        ("train.py:7: `# GRUG NOVERIFY: slow, until 2020-01-01` has expired",),
    ),
    "an exception without a reason": Breach(
        contracts.says_why_it_is_not_verified,
        ("train.py", "from collections", "# GRUG NOVERIFY\nfrom collections"),
        ("train.py:7: `# GRUG NOVERIFY` is not in the form of a mark",),
    ),
    "a stale copy": Breach(
        contracts.copies_are_equal,
        ("train.py", "def fresh_state(config: ", "# verbatim: base\ndef fresh_state(given: "),
        ("train.py:", "fresh_state is marked as a copy of experiments/grug/base/train.py:"),
    ),
    "an import of what is not there": Breach(
        contracts.can_be_imported,
        ("train.py", "import optax\n", "import optax\nimport no_such_module\n"),
        ("train.py:16: cannot be imported: ModuleNotFoundError", "no_such_module"),
    ),
    "a missing function": Breach(
        contracts.has_the_promised_names,
        ("train.py", "def scores_of(", "def scored("),
        ("train.py: has no scores_of", "scores_of(mp, params, batch)"),
    ),
    "a missing method": Breach(
        contracts.has_the_promised_names,
        ("model.py", "def decode_step(", "def step("),
        ("model.py: has no Transformer.decode_step",),
    ),
    "a parameter that others do not give": Breach(
        contracts.has_the_promised_names,
        ("model.py", "init_cache(self, batch_size: int, ", "init_cache(self, rows: int, k: int, "),
        ("model.py: Transformer.init_cache", "missing a required argument"),
    ),
    "a keyword that others give": Breach(
        contracts.has_the_promised_names,
        ("train.py", "    z_loss_weight: float,\n", "    z_loss: float,\n"),
        ("train.py: _make_train_step", "z_loss_weight"),
    ),
    "a model without default sizes": Breach(
        contracts.has_the_promised_names,
        ("model.py", "num_layers: int = setting(default=6, ", "num_layers: int = setting("),
        ("model.py: GrugModelConfig", "missing a required argument: 'num_layers'"),
    ),
    "a state without an average": Breach(
        contracts.has_the_promised_names,
        ("train.py", "    ema_params: Transformer | None\n", "    average: Transformer | None\n"),
        ("train.py: GrugTrainState", "ema_params"),
    ),
    "the name of what it was copied from": Breach(
        contracts.launches_under_its_own_name,
        ("launch.py", 'VARIANT = "', 'VARIANT = "not_'),
        ("launch.py: the last step is 'grug/not_planted", "set VARIANT to the name of the folder"),
    ),
    "two launch configs": Breach(
        contracts.launches_under_its_own_name,
        ("launch.py", "def run_config(", "class OddLaunchConfig: ...\ndef run_config("),
        ("launch.py: config classes ['GrugBaseLaunchConfig', 'OddLaunchConfig']",),
    ),
    "a training step of somebody else's": Breach(
        contracts.launches_under_its_own_name,
        ("launch.py", "            fn=train_base,\n", "            fn=run_grug,\n"),
        ("launch.py: the last step is ", "run by experiments.grug.planted_", ".train"),
    ),
    "a label that no optimizer knows": Breach(
        traced.labels_every_weight,
        ("model.py", 'groups, "embedding")', 'groups, "table")'),
        ("model.py: parameter groups ['table']",),
    ),
    "labels of another shape": Breach(
        traced.labels_every_weight,
        ("model.py", "eqx.tree_at(lambda model: model.token_embed, groups, ", "dict(x="),
        ("model.py: parameters and their groups differ",),
    ),
    "dropout without a key": Breach(
        traced.draws_nothing_without_a_key,
        ("model.py", FORWARD, DROPPED),
        ("model.py: without a key, the model draws (random_bits",),
    ),
    "a lookup whose gradient is summed in half precision": Breach(
        traced.adds_up_gradients_in_float32,
        (
            "model.py",
            "embed(self.token_embed, token_ids, out_sharding=ROWS)",
            "jax.reshard(self.token_embed, P(None, None)).at[token_ids].get(out_sharding=ROWS)",
        ),
        ("is added up in bfloat16 by a scatter-add",),
    ),
    "logits in half precision": Breach(
        traced.gives_the_promised_shapes,
        ("model.py", "(self(token_ids, mask))", "(self(token_ids, mask)).astype(jnp.bfloat16)"),
        ("model.py: Transformer.logits gives bfloat16[8, 16, 2048]",),
    ),
    "a cache that shrinks": Breach(
        traced.gives_the_promised_shapes,
        ("model.py", "(hidden), new_cache\n", "(hidden), new_cache[:0]\n"),
        ("model.py: the cache after decode_step",),
    ),
    "operations that nobody counted": Breach(
        traced.counts_its_operations,
        ("model.py", "return 2.0 * (self", "return 0.0 * (self"),
        ("model.py: flops_per_token gives [0.0, 0.0]",),
    ),
    "a loss under another name": Breach(
        traced.lowers_on_abstract_meshes,
        ("train.py", "metrics |= {GRAD", "metrics.pop(TRAIN_LOSS)\n        metrics |= {GRAD"),
        ("train.py: the step on 4 devices does not give train/loss of shape ()",),
    ),
    "an average that nobody asked for": Breach(
        traced.lowers_on_abstract_meshes,
        ("train.py", "if ema_beta is not None:\n        # The", "if True:\n        # The"),
        ("train.py: the step on 4 devices does not give no averaged weights",),
    ),
    "fewer devices than asked for": Breach(
        traced.lowers_on_abstract_meshes,
        ("model.py", "abstract_mesh(data=num_devices)", "abstract_mesh(data=2)"),
        ("train.py: the step on 4 devices does not give a program for 4 devices",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("breach", BREACHES.values(), ids=BREACHES.keys())
def test_a_planted_breach_is_named_once_with_its_file(breach: Breach, tmp_path: Path):
    variant = planted(tmp_path, breach.change)
    (violation,) = broken(breach.contract, variant)
    assert violation.startswith(f"experiments/grug/{variant.name}/")
    for words in (*breach.words, "Allowed: ", "Fix: "):
        assert words in violation


@pytest.mark.parametrize(("until", "is_skipped"), [(NEXT_MONTH, True), ("2020-01-01", False)])
def test_an_exception_is_honoured_with_its_reason_until_its_day(
    until: str, is_skipped: bool, tmp_path: Path
):
    mark = f"# GRUG NOVERIFY: the router leaks, until {until}\nfrom coll"
    variant = planted(tmp_path, ("train.py", "from coll", mark))
    shown = f"{variant.name} is not verified until {until}: the router leaks"
    assert contracts.reason_to_skip(variant) == (shown if is_skipped else None)
    assert (contracts.says_why_it_is_not_verified(variant) == []) == is_skipped


@pytest.mark.parametrize("file", contracts.FILES)
def test_a_missing_file_is_named(file: str, tmp_path: Path):
    variant = planted(tmp_path)
    (variant.folder / file).unlink()
    (violation,) = contracts.has_its_files(variant)
    assert violation.startswith(f"{variant.file_path(file)}: there is no such file")


def test_a_copy_with_nothing_planted_breaks_nothing(tmp_path: Path):
    variant = planted(tmp_path)
    for contract in (contracts.says_why_it_is_not_verified, *contracts.READ, *contracts.IMPORTED):
        assert broken(contract, variant) == []


def test_every_contract_has_a_planted_breach():
    broken_here = {breach.contract for breach in BREACHES.values()} | {contracts.has_its_files}
    assert {*contracts.READ, *contracts.IMPORTED, *traced.TRACED} <= broken_here


def test_no_variants_or_none_to_verify_is_a_failure(tmp_path: Path):
    (violation,) = contracts.something_to_verify(tmp_path)
    assert "experiments/grug/base: variants [] without it" in violation
    excluded = (
        "train.py",
        "from collections",
        f"# GRUG NOVERIFY: x, until {NEXT_MONTH}\nfrom collections",
    )
    variant = planted(tmp_path, excluded)
    assert contracts.something_to_verify(tmp_path) == []
    (tmp_path / "experiments/grug/base/train.py").write_text(
        (variant.folder / "train.py").read_text()
    )
    (violation,) = contracts.something_to_verify(tmp_path)
    assert "experiments/grug/base: which is not verified" in violation


# --- the axes of a variant ----------------------------------------------------------------------


def with_other_words(root: Path) -> Variant:
    """The template of experts, with a name of its own for how many there are."""
    variant = planted(root, origin="moe")
    for path in variant.folder.glob("*.py"):
        path.write_text(path.read_text().replace("num_experts", "num_specialists"))
    return variant


UP = 'f"{path}/w_up", (d, f), P("data", "model"), std)'
CUT = 'f"{path}/w_up", (d, f), P(("data", "expert"), "model"), std)'


@pytest.mark.parametrize(
    ("plant", "axes"),
    [
        (planted, {"data", "model"}),
        (with_other_words, {"data", "expert", "model"}),
        (lambda root: planted(root, ("model.py", UP, CUT)), {"data", "expert", "model"}),
    ],
    ids=["base", "experts under another name", "no experts at all"],
)
def test_the_axes_of_a_variant_are_those_its_weights_are_cut_over(
    plant: Callable[[Path], Variant], axes: set[str], tmp_path: Path
):
    with contracts.imported(plant(tmp_path)) as template:
        assert not hasattr(template.launch_class().model, "num_experts")
        assert template.axes == axes
        assert template.uses_experts == ("expert" in axes)


@pytest.mark.slow
def test_a_variant_with_other_words_for_experts_is_run_over_their_axis(tmp_path: Path):
    with contracts.imported(with_other_words(tmp_path)) as template:
        runs = run_contracts.made_runs(template, tmp_path / "runs")
    assert runs.over_experts is not None
    (config,) = runs.over_experts.glob("config_resolved.json")
    assert json.loads(config.read_text())["mesh"]["expert"] == 2
    assert run_contracts.run_violations(runs) == []


# --- records of runs ----------------------------------------------------------------------------

Rows = list[dict[str, Any]]


def record(folder: Path, *, attempt: int = 1, is_averaged: bool = True) -> tuple[Path, Rows]:
    """The record of a run that keeps every contract, which no run has made."""
    promised = {key: 1.0 for key in run_contracts.PROMISED if key != metrics.COMPILE_TIME}
    rows = [
        {
            **promised,
            "step": step,
            "attempt": attempt,
            metrics.TRAIN_LOSS: 6.0 - 0.1 * step,
            metrics.COMPILE_TIME: 3.0 if step == 0 else 0.0,
        }
        for step in range(STEPS)
    ]
    evaluated = {key: 5.0 for key in run_contracts.EVALUATED}
    averaged = {"eval/ema/loss": 5.5} if is_averaged else {}
    rows.append({"step": STEPS - 1, "attempt": attempt, **evaluated, **averaged})
    rows.append({"kind": "summary", **dict.fromkeys(run_contracts.SUMMARY, 1.0)})
    saved = folder / f"checkpoints/step-{STEPS}"
    saved.mkdir(parents=True)
    leaves = {"params/w": "aa", **({"ema_params/w": "bb"} if is_averaged else {})}
    (saved / "metadata.json").write_text(json.dumps({"receipt": leaves}))
    return written(folder, rows), rows


def written(folder: Path, rows: Rows) -> Path:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_record_that_keeps_every_contract_is_left_alone(tmp_path: Path):
    (straight, _), (resumed, _) = record(tmp_path / "a"), record(tmp_path / "b", attempt=2)
    plain, _ = record(tmp_path / "c", is_averaged=False)
    assert run_contracts.the_loss_falls(straight) == []
    assert run_contracts.compiles_once(straight) == []
    assert run_contracts.logs_what_it_promises(straight) == []
    assert run_contracts.averages_only_when_asked(straight, plain) == []
    assert run_contracts.resumes_bit_for_bit(straight, resumed) == []
    assert run_contracts.trains_over_experts(plain) == []


def say(step: int, **changes: Any) -> Callable[[Rows], None]:
    """A change of some values of one line; None takes a key away."""

    def change(rows: Rows) -> None:
        for key, value in changes.items():
            name = key.replace("__", "/")
            rows[step][name] = value
            if value is None:
                del rows[step][name]

    return change


def flat(rows: Rows) -> None:
    for row in rows[:STEPS]:
        row[metrics.TRAIN_LOSS] = 6.0


RECORDED = {
    "a loss that stays": (run_contracts.the_loss_falls, flat, "losses [6.0, 6.0"),
    "a step without a loss": (run_contracts.the_loss_falls, say(7, train__loss=None), ", None, "),
    "experts that do not learn": (
        run_contracts.trains_over_experts,
        say(STEPS - 1, train__loss=6.1),
        "6.1] over the expert axis",
    ),
    "a second program": (
        run_contracts.compiles_once,
        say(9, throughput__compile_time=2.5),
        "compiled at steps [0, 9]",
    ),
    "a line without a key": (
        run_contracts.logs_what_it_promises,
        say(3, throughput__hook_time=None),
        "the line of step 3 has no throughput/hook_time",
    ),
    "an evaluation without bits per byte": (
        run_contracts.logs_what_it_promises,
        say(STEPS, eval__bpb=None),
        "evaluation 0 has no eval/bpb",
    ),
    "no evaluation": (
        run_contracts.logs_what_it_promises,
        lambda rows: rows.pop(STEPS),
        "evaluation 0 has no ",
    ),
    "no count of operations": (
        run_contracts.logs_what_it_promises,
        say(-1, throughput__flops_per_token_analytic=None),
        "the summary has no throughput/flops_per_token_analytic",
    ),
}


@pytest.mark.parametrize(("contract", "change", "words"), RECORDED.values(), ids=RECORDED.keys())
def test_a_record_that_breaks_a_contract_is_told_by_its_run(
    contract: Callable[[Path], list[str]],
    change: Callable[[Rows], object],
    words: str,
    tmp_path: Path,
):
    folder, rows = record(tmp_path / "odd")
    change(rows)
    (violation,) = contract(written(folder, rows))
    assert violation.startswith(f"{tmp_path.name}/odd: ")
    assert words in violation


def test_a_metric_of_ones_own_breaks_no_contract_and_is_listed(tmp_path: Path):
    folder, rows = record(tmp_path / "odd")
    say(3, my__own=1.0, eval__my__own__loss=1.0)(rows)
    written(folder, rows)
    assert run_contracts.logs_what_it_promises(folder) == []
    assert run_contracts.not_described(folder) == ["my/own"]


def test_a_resumed_run_that_differs_is_told_from_the_first_step_on(tmp_path: Path):
    straight, _ = record(tmp_path / "a")
    resumed, rows = record(tmp_path / "b", attempt=2)
    for step in range(12, STEPS):
        rows[step][metrics.GRAD_NORM] = 2.0
    metadata = resumed / f"checkpoints/step-{STEPS}/metadata.json"
    metadata.write_text(json.dumps({"receipt": {"params/w": "ff", "ema_params/w": "bb"}}))
    logged, saved = run_contracts.resumes_bit_for_bit(straight, written(resumed, rows))
    assert "b: step 12: grad/norm/total is 2.0, in the unbroken run 1.0" in logged
    assert f"step {STEPS} differs in 1 leaves, as params/w" in saved
    # What only the speed of the machine decides may differ.
    rows[3][metrics.DURATION] = 99.0
    assert len(run_contracts.resumes_bit_for_bit(straight, written(resumed, rows))) == 2


def test_a_run_that_began_again_has_not_resumed(tmp_path: Path):
    straight, _ = record(tmp_path / "a")
    (violation,) = run_contracts.resumes_bit_for_bit(straight, record(tmp_path / "b")[0])
    assert "no step of a second attempt" in violation


def test_an_average_in_the_wrong_place_is_told(tmp_path: Path):
    averaged, plain = (
        record(tmp_path / name, is_averaged=flag)[0] for name, flag in (("a", True), ("b", False))
    )
    (violation,) = run_contracts.averages_only_when_asked(averaged, averaged)
    assert "a: metrics ['eval/ema/loss'] with ema_beta unset" in violation
    _, rows = record(tmp_path / "c")
    say(STEPS, eval__ema__loss=5.0)(rows)
    (violation,) = run_contracts.averages_only_when_asked(written(averaged, rows), plain)
    assert "a: eval/ema/loss is 5.0, which is eval/loss" in violation
    missing = run_contracts.averages_only_when_asked(plain, plain)
    assert "b: metrics [] with ema_beta set" in missing[0]
    assert "b: a checkpoint without averaged weights" in missing[1]


# --- real runs ----------------------------------------------------------------------------------

FAULTS: dict[str, tuple[tuple[str, str, str], str]] = {
    "data that begins anew": (
        (
            "train.py",
            "for _, batch in run.batches():",
            "for number, (_, batch) in enumerate(run.batches()):\n"
            "            batch = run.loader.batch(number)",
        ),
        "step 10: ",
    ),
    "an average of nothing": (
        ("train.py", "step_size=1.0 - ema_beta", "step_size=1.0"),
        "eval/ema",
    ),
    "a step that climbs": (
        (
            "train.py",
            "updates, opt_state = optimizer.update(grad, ",
            "updates, opt_state = optimizer.update(jax.tree.map(jnp.negative, grad), ",
        ),
        "losses [",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("change", "words"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_that_only_a_run_shows_is_found_by_running(
    change: tuple[str, str, str], words: str, tmp_path: Path
):
    with contracts.imported(planted(tmp_path, change)) as template:
        runs = run_contracts.made_runs(template, tmp_path / "runs")
    violations = run_contracts.run_violations(runs)
    assert violations
    assert all(words in told or "leaves" in told for told in violations), violations
