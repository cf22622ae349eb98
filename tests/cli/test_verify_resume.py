"""`chomp verify-resume`: real runs, really killed; the verdict on them, and on planted faults."""

import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chomp.cli.verify_resume import Life, Outcome, draw_instant, first_difference, kinds_of
from tests import tiny
from tests.cli.conftest import Chomp, assert_refused

ROOT = Path(__file__).parents[2]
BASE = ROOT / "experiments/grug/base"

CONFIG = """
run_id: tiny
model: {vocab_size: 257, hidden_dim: 16, intermediate_dim: 32, num_layers: 1, num_heads: 2,
  num_kv_heads: 1, max_seq_len: 32}
data:
  tokenizer: {kind: byte}
  validation_fraction: 0.2
  components: {words: {source: {kind: text, paths: ["words-*.txt"]}}}
train: {steps: 12, batch_size: 8, seq_len: 32}
optim: {lr: 1e-2, warmup_steps: 2}
eval: {eval_batch_size: 8, max_eval_batches: 1}
samples: {max_tokens: 0}
"""

# Appended to a copy of the template: its loop goes on from a state without the moments of Adam.
FORGETS = """

_chomp_training = training


class training:
    def __getattr__(self, name):
        return getattr(_chomp_training, name)

    @staticmethod
    @contextmanager
    def open_run(config, **given):
        with _chomp_training.open_run(config, **given) as run:
            if int(run.state.step) > 0:
                nothing = jax.tree.map(jnp.zeros_like, run.state.opt_state)
                run.state = eqx.tree_at(lambda state: state.opt_state, run.state, nothing)
            yield run


training = training()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with texts and a config of the smallest run."""
    tiny.write_texts(tmp_path)
    (tmp_path / "tiny.yaml").write_text(f"template: {BASE}\n{CONFIG}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planted(folder: Path, fault: str) -> str:
    """A copy of the base template with a fault at the end of its train.py."""
    template = folder / "planted"
    template.mkdir()
    for source in BASE.glob("*.py"):
        text = source.read_text().replace("experiments.grug.base", "planted")
        if source.name == "train.py":
            imported = "from contextlib import contextmanager\nfrom dataclasses"
            text = text.replace("from dataclasses", imported, 1)
            text += fault
        (template / source.name).write_text(text)
    return str(template)


def killed_where(out: str) -> list[str]:
    """Where in the run each kill came, as it was told."""
    return re.findall(r"^kill \d+ of \d+.*?: after [\d.]+ s, (.+)$", out, re.MULTILINE)


# ---- Whole trials ---------------------------------------------------------------------------


def test_a_run_that_is_killed_is_the_unbroken_run(here: Path, chomp: Chomp):
    told = chomp("verify-resume", "tiny.yaml", "-o", "eval=null", "--kills", "2", "--keep", "kept")
    assert (told.code, told.err) == (0, ""), told.out
    assert "Equal: killed 2 times, the run logged the same losses in all of its 12" in told.out
    assert "-o trainer.log_every=1 -o checkpoint.save_interval_s=1.0" in told.out
    assert len(killed_where(told.out)) == 2
    # Not by its own word alone.
    runs = [path for path in (here / "kept").iterdir() if path.name.startswith("killed-")]
    runs = [path for path in runs if path.is_dir()]
    assert runs
    for run in runs:
        assert tiny.losses(run) == tiny.losses(here / "kept/unbroken")
        assert tiny.receipt(run, 12) == tiny.receipt(here / "kept/unbroken", 12)
    # In any of them: one that came to its end before its kill was left as it was.
    rows = [row for run in runs for row in (run / "metrics.jsonl").read_text().splitlines()]
    assert max(json.loads(row)["attempt"] for row in rows) > 1


@pytest.mark.slow
def test_a_template_that_forgets_part_of_the_state_is_found_out(here: Path, chomp: Chomp):
    template = planted(here, FORGETS)
    told = chomp(
        *("verify-resume", "tiny.yaml", "--template", template, "--kills", "1", "--seed", "5"),
        *("-o", "checkpoint.every=1", "--keep", "kept"),
    )
    assert (told.code, told.err) == (1, ""), told.out
    [first] = re.findall(r"Different: (\S+) of step (\d+): (\S+) in the unbroken", told.out)
    name, step, value = first
    assert name in ("train/loss", "grad/norm/total")
    rows = (here / "kept/unbroken/metrics.jsonl").read_text().splitlines()
    assert any(
        row.get(name) == float(value) and row["step"] == int(step)
        for row in map(json.loads, rows)
        if "step" in row
    )
    assert "are in kept" in told.out


@pytest.mark.slow
def test_twenty_kills_change_nothing(here: Path, chomp: Chomp):
    told = chomp("verify-resume", "tiny.yaml", "--kills", "21", "--steps", "60", "--seed", "3")
    assert told.code == 0, told.out
    assert "Equal: killed 21 times" in told.out
    places = killed_where(told.out)
    assert len(places) == 21
    # A third of each is aimed at; on a busy machine some come a moment late.
    assert sum("saving" in place for place in places) >= 3
    assert sum(place == "starting" for place in places) >= 3


@pytest.mark.slow
def test_a_megalodon_that_is_killed_is_the_unbroken_one(here: Path, chomp: Chomp):
    config = Path(__file__).parents[2] / "configs/megalodon_smoke.yaml"
    told = chomp(
        *("verify-resume", str(config), "--steps", "12", "--kills", "3"),
        *("-o", "eval=null", "-o", "samples.max_tokens=0"),
    )
    assert told.code == 0, told.out + told.err
    assert "Equal: killed 3 times, the run logged the same losses in all of its 12" in told.out


@pytest.mark.slow
def test_a_launch_file_is_verified_as_a_config_is(here: Path, chomp: Chomp):
    launch = Path(planted(here, ""), "launch.py")
    overrides = [
        "model={vocab_size: 257, hidden_dim: 16, intermediate_dim: 32, num_layers: 1, "
        "num_heads: 2, num_kv_heads: 1, max_seq_len: 32}",
        "data={tokenizer: {kind: byte}, validation_fraction: 0.2, components: {words: {source: "
        "{kind: text, paths: ['words-*.txt']}}}}",
        *("train.batch_size=8", "train.seq_len=32", "optim.warmup_steps=2"),
        *("samples.max_tokens=0", "eval.eval_batch_size=8", "eval.max_eval_batches=1"),
    ]
    given_overrides = [part for text in overrides for part in ("-o", text)]
    told = chomp("verify-resume", str(launch), "--steps", "12", "--kills", "2", *given_overrides)
    assert told.code == 0, told.out + told.err


@pytest.mark.slow
def test_a_run_that_moves_between_numbers_of_devices_stays_within_the_stated_bound(
    here: Path, chomp: Chomp
):
    told = chomp("verify-resume", "tiny.yaml", "--kills", "4", "--devices", "1,2,4", "--seed", "2")
    assert told.code == 0, told.out
    assert "Equal: killed and moved 4 times" in told.out
    assert "The bound is 10 times that." in told.out
    assert re.findall(r"kill \d of 4 on (\d) devices", told.out) == ["1", "2", "4", "1"]


@pytest.mark.slow
def test_what_a_moved_run_forgets_is_beyond_the_bound(here: Path, chomp: Chomp):
    template = planted(here, FORGETS)
    told = chomp(
        *("verify-resume", "tiny.yaml", "--template", template, "--kills", "2", "--seed", "1"),
        *("-o", "checkpoint.every=1", "--devices", "1,2", "--keep", "kept"),
    )
    assert told.code == 1, told.out
    assert re.search(r"Different: .+ differs by ", told.out)


@pytest.mark.slow
def test_a_run_that_fails_by_itself_is_told_with_its_own_words(here: Path, chomp: Chomp):
    template = planted(here, "\n\ndef run_grug(config):\n    raise RuntimeError('no room')\n")
    told = chomp("verify-resume", "tiny.yaml", "--template", template)
    assert told.code == 1
    assert "a process that nobody killed ended with 1 (starting)" in told.err
    assert "no room" in told.err


# ---- What is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["tiny.yaml", "--devices", "1"], "--devices 1"),
        (["tiny.yaml", "--devices", "1,1"], "--devices 1,1"),
        (["tiny.yaml", "--devices", "1,two"], "--devices 1,two"),
        (["tiny.yaml", "--keep", "."], "--keep ., which holds something"),
        (["tiny.yaml", "--kills", "0"], "--kills"),
        (["nothing.yaml"], "there is no nothing.yaml"),
        (["old"], "old, a run folder"),
        (["tiny.yaml", "-o", "train.stepz=5"], "did you mean steps?"),
    ],
)
def test_a_wrong_command_is_told_in_three_parts(
    here: Path, chomp: Chomp, arguments: list[str], fault: str
):
    (here / "old").mkdir()
    (here / "old/config_resolved.json").write_text("{}")
    assert_refused(chomp("verify-resume", *arguments), fault)


# ---- When lives end -------------------------------------------------------------------------

LENGTHS = {"start": 4.0, "step": 1.25, "save": 0.5}


@given(st.integers(1, 40), st.integers(0))
def test_a_third_of_the_kills_are_of_each_kind(kills: int, seed: int):
    kinds = kinds_of(kills, random.Random(seed))
    counts = [kinds.count(kind) for kind in ("save", "step", "start")]
    assert sum(counts) == kills
    assert max(counts) - min(counts) <= 1
    assert "save" in kinds


@given(st.data(), st.integers(1, 500), st.integers(1, 30), st.integers(0))
def test_an_instant_is_ahead_within_the_run_and_no_longer_off_than_what_it_is_in(
    data: st.DataObject, steps: int, kills_left: int, seed: int
):
    done = data.draw(st.integers(0, steps - 1))
    kind = data.draw(st.sampled_from(["save", "step", "start"]))
    instant = draw_instant(kind, done, steps, kills_left, LENGTHS, random.Random(seed))
    assert done < instant.at_step <= steps
    # The kills that are left share what is left, so one alone never takes much more than its part.
    assert instant.at_step - done <= 1 + 2 * (steps - done) / (kills_left + 1)
    assert 0 <= instant.delay_s <= LENGTHS[kind]


# ---- The verdict ----------------------------------------------------------------------------


def run_folder(path: Path, rows: list[dict[str, Any]], receipt: dict[str, str]) -> Outcome:
    """What a run leaves behind that is compared."""
    final = path / "checkpoints/step-4"
    final.mkdir(parents=True)
    (final / "metadata.json").write_text(json.dumps({"receipt": receipt}))
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Outcome(str(path), "metrics.jsonl")


def life(began_at: int = 0, first_step: int = 0) -> Life:
    """A life that was killed after four steps."""
    found = Life("killed-1", "metrics.jsonl")
    found.began_at, found.steps, found.was_killed = began_at, list(range(first_step, 4)), True
    return found


def rows_of(steps: range, attempt: int = 1) -> list[dict[str, Any]]:
    return [
        {"step": i, "attempt": attempt, "train/loss": 5.0 - i / 7, "tokens_seen": 10 * i, "time": 0}
        for i in steps
    ]


RECEIPT = {"params/a": "0a", "params/b": "0b", "step": "0c"}


@pytest.fixture
def unbroken(tmp_path: Path) -> Outcome:
    """A run of four steps."""
    return run_folder(tmp_path / "unbroken", rows_of(range(4)), RECEIPT)


def test_attempts_that_overlap_and_agree_are_equal(unbroken: Outcome, tmp_path: Path):
    rows = [*rows_of(range(3)), {"kind": "summary", "attempt": 2}, *rows_of(range(1, 4), 2)]
    killed = run_folder(tmp_path / "killed", rows, RECEIPT)
    assert first_difference(unbroken, killed, [life()]) is None


@given(st.integers(0, 3), st.integers(1, 3), st.sampled_from(["train/loss", "tokens_seen"]))
def test_one_value_of_any_attempt_that_differs_is_found_and_named(
    tmp_path_factory: pytest.TempPathFactory, step: int, attempt: int, name: str
):
    folder = tmp_path_factory.mktemp("verdict")
    unbroken = run_folder(folder / "unbroken", rows_of(range(4)), RECEIPT)
    rows = [row for number in (1, 2, 3) for row in rows_of(range(4), number)]
    [wrong] = [row for row in rows if (row["step"], row["attempt"]) == (step, attempt)]
    right = wrong[name]
    wrong[name] = right * (1 + 2**-23) + 1e-9
    killed = run_folder(folder / "killed", rows, RECEIPT)
    assert first_difference(unbroken, killed, [life()]) == (
        f"{name} of step {step}: {right!r} in the unbroken run, {wrong[name]!r} in the killed one "
        f"(attempt {attempt})"
    )
    shutil.rmtree(folder)


def test_a_step_that_no_attempt_logged_is_found(unbroken: Outcome, tmp_path: Path):
    killed = run_folder(tmp_path / "killed", rows_of(range(3)), RECEIPT)
    found = first_difference(unbroken, killed, [life()])
    assert found is not None
    assert found.startswith("tokens_seen of step 3: logged by the unbroken run")


def test_a_state_that_differs_is_told_by_its_first_array(unbroken: Outcome, tmp_path: Path):
    killed = run_folder(tmp_path / "killed", rows_of(range(4)), {**RECEIPT, "params/b": "ff"})
    found = first_difference(unbroken, killed, [life()])
    assert found is not None
    assert found.startswith("params/b of the final state (0b and ff), the first of 1 arrays")


def test_a_resume_that_lost_a_complete_checkpoint_is_a_difference(
    unbroken: Outcome, tmp_path: Path
):
    killed = run_folder(tmp_path / "killed", rows_of(range(4)), RECEIPT)
    lives = [life(), life(began_at=3, first_step=1)]
    found = first_difference(unbroken, killed, lives)
    assert found is not None
    assert found.startswith("life 2 began after 1 steps, although the checkpoint of step 3 was")
