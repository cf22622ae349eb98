"""The speedrun: base and nothing around it, raced to a target, with a result to be trusted."""

import ast
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from chomp.checkpoint import CheckpointConfig, Checkpointer
from chomp.config import apply_overrides, config_to_mapping
from chomp.data import LmDataConfig
from chomp.errors import ConfigError
from chomp.executor import ExecutorStep, PlannedStep, plan_steps, run_plan
from chomp.executor.identity import Identities
from chomp.executor.step import source_hashes
from chomp.launch.run import local_runner
from chomp.tracking import latest_rows, read_metrics
from chomp.training import HarnessConfig
from experiments.grug.base import launch as base
from experiments.grug.base.model import Transformer
from experiments.speedrun.grugformer_20260129 import grugformer_speedrun as speedrun
from experiments.speedrun.grugformer_20260129.grugformer_speedrun import SpeedrunConfig
from tests import tiny
from tests.evaluation.local_tasks import local_tasks
from tests.grug_contracts import markers_for_values

ROOT = Path(__file__).parents[1]
FILE = ROOT / "experiments/speedrun/grugformer_20260129/grugformer_speedrun.py"
STEPS, PERIOD, CRASH = 12, 4, 10  # the crash loses two steps, which are done again


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> LmDataConfig:
    return tiny.build_data(tmp_path_factory.mktemp("tiny-data"))


def small(data: LmDataConfig, **changes: Any) -> SpeedrunConfig:
    """A race of 12 steps of the smallest model that starts well above its target."""
    run = tiny.run_config(data, Path("unused"), steps=STEPS)
    assert run.eval is not None
    return SpeedrunConfig(
        run_id="small",
        target_loss=5.0,
        model=replace(run.model, num_layers=1),
        data=run.data,
        optimizer=run.optimizer,
        trainer=run.trainer,
        eval=replace(run.eval, steps_per_eval=PERIOD),
        samples=run.samples,
        checkpoint=CheckpointConfig(save_interval_s=None, every=PERIOD),
        logging=run.logging,
        **changes,
    )


def steps_of(config: SpeedrunConfig) -> list[ExecutorStep]:
    with markers_for_values():
        return speedrun.steps(config)


def planned(config: SpeedrunConfig, prefix: Path) -> list[PlannedStep]:
    with markers_for_values():
        return plan_steps(speedrun.steps(config), prefix=str(prefix))


@pytest.fixture(scope="module")
def resumed(data: LmDataConfig, tmp_path_factory: pytest.TempPathFactory) -> PlannedStep:
    """A race that crashed after ten steps, went on from the eighth, and ended."""
    prefix, is_due = tmp_path_factory.mktemp("races"), Checkpointer.is_due

    def crashing(self: Checkpointer, step: int) -> bool:
        if step == CRASH:
            raise OSError("the machine is gone")
        return is_due(self, step)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Checkpointer, "is_due", crashing)
        first = planned(small(data), prefix)
        (failure,) = run_plan(first, local_runner(first))
    assert "the machine is gone" in str(failure.error)
    second = planned(small(data), prefix)
    assert run_plan(second, local_runner(second)) == []
    return second[-1]


def rows_of(race: PlannedStep) -> list[dict[str, Any]]:
    return read_metrics(Path(race.path, "metrics.jsonl"))


def result_in(folder: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(folder, speedrun.RESULT).read_text())
    return found


# ---- What it is made of -----------------------------------------------------------------------


def test_it_imports_chomp_and_base_and_no_other_layer():
    tree = ast.parse(FILE.read_text())
    imported = [
        f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    ]
    own = {name for name in imported if name.split(".")[0] == "experiments"}
    assert own
    assert all(name.startswith("experiments.grug.base.") for name in own), own
    roots = {name.split(".")[0] for name in imported}
    assert roots <= {"chomp", "experiments", "rich", *sys.stdlib_module_names}
    # What the first speedrun was wrapped in, by name.
    for word in ("levanter", "marin", "LmConfig", "GrugWrapper", "default_speedrun"):
        assert not any(word.lower() in name.lower() for name in imported)


def test_the_step_is_bases_own_with_its_source_as_part_of_what_it_is(data):
    config = small(data)
    with markers_for_values():
        (step,), (own,) = speedrun.steps(config), base.steps(config)
    identity = Identities().of(step)
    files = source_hashes(Path(base.__file__).parent)
    assert {"model.py", "train.py", "launch.py"} <= set(files)
    found = {name: value for name, value in identity.values.items() if "template" in name}
    assert sorted(found.values()) == sorted(files.values())
    assert (step.name, step.resources) == ("speedrun/small", own.resources)
    # All that makes a base run another run makes this one another.
    assert set(Identities().of(own).values) <= set(identity.values)


@pytest.mark.parametrize(
    ("override", "is_other"),
    [
        ("target_loss=4.9", True),
        ("eval.steps_per_eval=2", True),
        ("optim.lr=0.02", True),
        ("train.log_every=3", False),
    ],
)
def test_what_decides_the_race_names_its_folder(data, override, is_other):
    config = small(data)
    hashes = [
        Identities().of(steps_of(each)[-1]).hash
        for each in (config, apply_overrides(config, [override]))
    ]
    assert (hashes[0] != hashes[1]) == is_other


@pytest.mark.parametrize(
    ("override", "rule"),
    [
        ("target_loss=9.0", "target_loss"),
        ("model.num_layers=1", "model.num_layers"),
        ("eval.max_eval_batches=1", "eval.max_eval_batches"),
        ("train.seq_len=32", "train.seq_len"),
        ("train.initialize_from=elsewhere", "train.initialize_from"),
        ("data.components.code.train_store=mine", "data.components.code.train_store"),
        ("data.components.code.weight=0.9", "data.components.code.weight"),
        ("optim.lr=1e-2", None),
        ("train.steps=100", None),
        ("train.batch_size=8", None),
        ("model.attention=reference", None),
        ("eval.steps_per_eval=10", None),
        ("eval.eval_batch_size=16", None),  # all rows are evaluated, however many at once
    ],
)
def test_a_changed_rule_is_noted_and_a_changed_run_is_not(override, rule):
    (step,) = steps_of(apply_overrides(speedrun.cpu_track(), [override]))
    assert step.config.entry.value.changed_rules == (() if rule is None else (rule,))


def test_where_a_few_batches_are_evaluated_their_size_is_a_rule(monkeypatch):
    few = apply_overrides(speedrun.cpu_track(), ["eval.max_eval_batches=2"])
    monkeypatch.setitem(speedrun.TRACKS, "cpu", lambda: few)
    for size, changed in ((32, ()), (16, ("eval.eval_batch_size",))):
        (step,) = steps_of(apply_overrides(few, [f"eval.eval_batch_size={size}"]))
        assert step.config.entry.value.changed_rules == changed


def test_the_track_for_a_gpu_is_a_whole_config_of_126_million_parameters(
    monkeypatch, one_device_mesh
):
    config = speedrun.h200_track()
    run = base.run_config(replace(config, output_path="anywhere"))
    with jax.set_mesh(one_device_mesh):
        model = jax.eval_shape(lambda: Transformer.init(run.model, key=jax.random.key(0)))
    assert sum(leaf.size for leaf in jax.tree.leaves(model)) == pytest.approx(126e6, rel=0.01)
    monkeypatch.setenv(speedrun.TRACK, "h200")
    (step,) = steps_of(config)
    assert (step.config.entry.value.track, step.config.entry.value.changed_rules) == ("h200", ())


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["eval=null"], "eval=None"),
        (["eval.eval_current=false", "train.ema_beta=0.9"], "eval_current=False"),
        (["entry={track: cpu, changed_rules: [], commit: null, template: {}}"], "entry="),
    ],
)
def test_what_would_leave_the_race_undecided_is_refused(overrides, words):
    config = apply_overrides(speedrun.cpu_track(), overrides)
    with pytest.raises(ConfigError, match=rf"(?s){words}.*Allowed: .*Fix: "):
        steps_of(config)


def test_an_unknown_track_is_refused(monkeypatch):
    monkeypatch.setenv(speedrun.TRACK, "h2000")
    with pytest.raises(ConfigError, match=r"SPEEDRUN_TRACK=h2000.*Allowed: .*cpu, h200.*Fix: "):
        steps_of(speedrun.cpu_track())


# ---- What came of it --------------------------------------------------------------------------


def test_the_result_is_of_the_first_evaluation_at_or_below_the_target(resumed):
    result = result_in(resumed.path)
    losses = {row["step"] + 1: row["eval/loss"] for row in rows_of(resumed) if "eval/loss" in row}
    assert sorted(losses) == [4, 8, 12]
    first = min(step for step, loss in losses.items() if loss <= 5.0)
    assert first < STEPS  # the target is reached on the way, not at the end
    assert (result["is_reached"], result["steps"]) == (True, first)
    assert (result["loss"], result["best_loss"]) == (losses[first], min(losses.values()))
    assert result["tokens"] == first * 8 * 64
    assert (result["target_loss"], result["track"], result["seed"]) == (5.0, "cpu", 0)
    assert "model.hidden_dim" in result["changed_rules"]
    assert set(result["held_out_hashes"]) == {"sums", "words"}
    assert result["versions"]["jax"] == jax.__version__
    assert (result["device"], result["parameters"] > 10_000) == ("cpu", True)


def test_a_target_that_is_not_reached_is_a_result_too(resumed):
    result = speedrun.result_of(replace(resumed.config, target_loss=0.01))
    assert (result["is_reached"], result["steps"]) == (False, STEPS)
    assert result["loss"] == result["best_loss"]


def test_steps_that_a_crash_had_repeated_count_once(resumed):
    rows = rows_of(resumed)
    timed = [row for row in rows if "throughput/duration" in row]
    assert len(timed) > STEPS
    assert {row["attempt"] for row in timed} == {1, 2}
    once = [row["throughput/duration"] for row in latest_rows(rows) if "train/loss" in row]
    assert len(once) == STEPS
    result = speedrun.result_of(replace(resumed.config, target_loss=0.01))
    assert result["training_seconds"] == pytest.approx(sum(once))
    assert result["attempts"] == 2
    # What was done twice is in the wall clock, and so is compiling; the time between is not.
    assert result["wall_seconds"] > result["training_seconds"]
    assert result["wall_seconds"] < rows[-1]["time"] - rows[0]["time"]


def test_a_finished_race_is_found_again(resumed, data):
    again = planned(small(data), Path(resumed.path).parents[1])
    assert [each.action for each in again] == ["skip"]


@st.composite
def attempts(draw: st.DrawFn) -> tuple[int, list[range]]:
    """Steps between rows, and the steps of each attempt: some lost, none left out."""
    log_every, start, spans = draw(st.integers(1, 4)), 0, []
    for _ in range(draw(st.integers(1, 4))):
        stop = start + draw(st.integers(1, 12))
        spans.append(range(start, stop))
        start = draw(st.integers(max(0, start), stop))
    return log_every, [*spans, range(start, spans[-1].stop + draw(st.integers(1, 9)))]


@given(attempts())
def test_every_second_of_a_step_counts_once_and_none_in_which_nothing_ran(drawn):
    log_every, spans = drawn
    rows: list[dict[str, Any]] = []
    now, worked = 0.0, 0.0
    for attempt, span in enumerate(spans, start=1):
        rows.append({"kind": "summary", "attempt": attempt, "time": now})
        begun = last = now
        for step in span:
            now += 2.0
            if (step + 1) % log_every == 0 or step + 1 == spans[-1].stop:
                last = now
                row = {"train/loss": 1.0, "throughput/duration": 2.0}
                rows.append({"step": step, "attempt": attempt, "time": now, **row})
        worked += last - begun
        now += 1000.0  # until somebody starts it again
    total = spans[-1].stop
    for completed in range(1, total + 1):
        assert speedrun.training_seconds(rows, completed) == pytest.approx(2.0 * completed)
    assert speedrun.wall_seconds(rows, rows[-1]) == pytest.approx(worked)


def test_results_of_the_same_race_are_listed_with_the_fastest_first(resumed, tmp_path):
    result = result_in(resumed.path)
    kept = {**result, "changed_rules": []}
    runs = {
        "slow": {**kept, "training_seconds": 9.0},
        "fast": {**kept, "training_seconds": 3.0},
        "missed": {**kept, "is_reached": False, "training_seconds": 1.0},
        "cheat": {**result, "training_seconds": 0.1},
        "other-track": {**kept, "track": "h200"},
        "other-text": {**kept, "held_out_hashes": {}},
    }
    for name, each in runs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / speedrun.RESULT).write_text(json.dumps(each))
    (tmp_path / "unfinished").mkdir()
    shown = io.StringIO()
    Console(width=200, file=shown).print(speedrun.results_table(str(tmp_path / "slow")))
    lines = [line for line in shown.getvalue().splitlines() if "│" in line]
    names = [line.split("│")[2].strip() for line in lines]
    assert names == ["fast", "slow", "missed", "cheat"]
    assert [line.split("│")[1].strip() for line in lines] == ["", ">", "", ""]
    assert "no" in lines[2].split()
    assert "changed" in lines[3]


# ---- As people run it -------------------------------------------------------------------------


def overrides(texts: Path, **more: Any) -> list[str]:
    """The arguments that make the CPU track as small as `small`, on text files."""
    parts = ", ".join(
        f"{name}: {{source: {{kind: text, paths: [{texts}/{name}-*.txt]}}, tags: [text/{name}]}}"
        for name in ("sums", "words")
    )
    fields = {
        "data.components": f"{{{parts}}}",
        "data.tokenizer": "{kind: byte}",
        "data.validation_fraction": 0.2,
        "model.vocab_size": 257,
        "model.hidden_dim": 32,
        "model.intermediate_dim": 64,
        "model.num_layers": 2,
        "model.num_heads": 2,
        "model.num_kv_heads": 1,
        "train.steps": 24,
        "train.batch_size": 8,
        "train.seq_len": 64,
        "train.log_every": 1,
        "optim.warmup_steps": 2,
        "eval.steps_per_eval": 8,
        "eval.max_eval_batches": 2,
        **more,
    }
    return [part for key, value in fields.items() for part in ("-o", f"{key}={value}")]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    tiny.write_texts(folder)
    return folder


ENVIRONMENT = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}


def test_the_command_shows_what_came_of_a_race_that_is_done(base_launches, data, resumed):
    config = config_to_mapping(small(data))
    fields = ("run_id", "target_loss", "model", "data", "optimizer", "trainer", "eval")
    asked = [part for key in fields for part in ("-o", f"{key}={json.dumps(config[key])}")]
    prefix = Path(resumed.path).parents[1]
    done = base_launches.run(FILE, "--prefix", str(prefix), *asked, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    told = ("Already done", "text/sums", "speedrun, track cpu", Path(resumed.path).name, "changed")
    for word in told:
        assert word in done.stdout


@pytest.mark.slow
def test_one_command_builds_the_data_races_and_says_that_the_target_was_missed(
    base_launches, texts, tmp_path
):
    asked = ["--prefix", str(tmp_path), *overrides(texts, target_loss=0.01)]
    done = base_launches.run(FILE, *asked, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("speedrun/grugformer-cpu-*")
    result = result_in(folder)
    assert (result["is_reached"], result["steps"], result["attempts"]) == (False, 24, 1)
    for word in ("held-out", "text/sums", "speedrun, track cpu", folder.name, "24", "changed"):
        assert word in done.stdout
    again = base_launches.run(FILE, *asked, env=ENVIRONMENT)
    assert "Already done" in again.stdout
    assert folder.name in again.stdout


@pytest.mark.slow
def test_a_race_that_was_killed_goes_on_in_a_process_of_its_own(texts, tmp_path):
    module = "experiments.speedrun.grugformer_20260129.grugformer_speedrun"
    # Evaluated at its end alone, so that it cannot be there before it is killed.
    more = {"train.steps": 300, "eval.steps_per_eval": "null", "checkpoint.every": 20}
    command = [sys.executable, "-m", module, "--prefix", str(tmp_path), *overrides(texts, **more)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, env=ENVIRONMENT, cwd=ROOT, **pipes)
    wait_for_rows(process, tmp_path, 30)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = subprocess.run([*command, "--on", "process"], env=ENVIRONMENT, cwd=ROOT, **pipes)
    assert done.returncode == 0, done.stdout
    (folder,) = tmp_path.glob("speedrun/grugformer-cpu-*/result.json")
    result = result_in(folder.parent)
    assert (result["attempts"], result["is_reached"]) == (2, True)


def wait_for_rows(process: "subprocess.Popen[str]", prefix: Path, rows: int) -> None:
    """Until the run has logged that many steps, without blocking it."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for metrics in prefix.glob("speedrun/*/metrics.jsonl"):
            if metrics.read_text().count("train/loss") >= rows:
                return
        assert process.poll() is None, process.stdout and process.stdout.read()
        time.sleep(0.02)
    raise AssertionError(f"fewer than {rows} steps in two minutes")


@pytest.fixture
def tasks(tmp_path: Path) -> Iterator[Path]:
    with local_tasks(tmp_path) as folder:
        yield folder


@pytest.mark.slow  # importing lm-eval takes most of it
def test_lm_eval_tasks_are_asked_from_it(data, tmp_path, tasks):
    harness = HarnessConfig(tasks=("colours",), include_path=str(tasks), batch_size=8)
    config = small(data)
    assert config.eval is not None
    plan = planned(replace(config, eval=replace(config.eval, harness=harness)), tmp_path / "out")
    assert run_plan(plan, local_runner(plan)) == []
    assert any("lm_eval/colours/acc" in row for row in rows_of(plan[-1]))
    assert result_in(plan[-1].path)["is_reached"]
