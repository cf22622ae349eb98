"""A run goes on where it was left, differs in what it was told may differ, and checks its data."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chomp.checkpoint import CheckpointConfig, latest_checkpoint
from chomp.checkpoint.format import signed
from chomp.data import LmDataConfig, MixtureStage
from chomp.errors import CheckpointError, RunInterrupted
from chomp.executor.status import StepInfo, write_info
from chomp.tracking import latest_rows, read_metrics
from chomp.tracking.run_files import sources_hash, template_sources
from chomp.training import check_run
from experiments.grug.base.train import GrugRunConfig, run_grug
from tests import tiny
from tests.well_compiled import well_compiled

# What the executor writes into the folder of a step before it runs.
STEP = StepInfo(
    name="grug/tuned",
    identity="ba9876543210",
    values={},
    fn="train",
    config={},
    description="",
    dependencies=[],
    output_path="",
    sources={},
    started=0.0,
)


@pytest.fixture(scope="module", autouse=True)
def _well_compiled() -> Iterator[None]:
    """A step with an average and one without are two programs, which in real runs agree."""
    with well_compiled():
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> LmDataConfig:
    return tiny.build_data(tmp_path_factory.mktemp("tiny-data"))


def config_of(data: LmDataConfig, folder: Path, **trainer: Any) -> GrugRunConfig:
    config = tiny.run_config(data, folder, **{"steps": 6, **trainer})
    # A constant rate: a longer run is the same run up to there.
    optimizer = replace(config.optimizer, lr_schedule="constant")
    return replace(
        config, eval=None, optimizer=optimizer, checkpoint=CheckpointConfig(save_interval_s=None)
    )


@pytest.fixture(scope="module")
def longer(data, tmp_path_factory) -> Path:
    """An unbroken run of 10 steps."""
    folder = tmp_path_factory.mktemp("longer")
    run_grug(config_of(data, folder, steps=10))
    return folder


@pytest.fixture(scope="module")
def six_steps(data, tmp_path_factory) -> Path:
    """A finished run of 6 steps, which stays as it is."""
    folder = tmp_path_factory.mktemp("six-steps")
    run_grug(config_of(data, folder))
    return folder


@pytest.fixture
def shorter(six_steps, tmp_path) -> Path:
    """A finished run of 6 steps."""
    return Path(shutil.copytree(six_steps, tmp_path, dirs_exist_ok=True))


def test_a_finished_run_is_made_longer_only_when_that_is_allowed(shorter, longer, data):
    with pytest.raises(CheckpointError, match=r"(?s)trainer\.steps +6 +10 +schedule.*--allow"):
        run_grug(config_of(data, shorter, steps=10))
    run_grug(config_of(data, shorter, steps=10, allow_changes=("train.steps",)))
    assert tiny.losses(shorter) == tiny.losses(longer)
    assert tiny.receipt(shorter, 10) == tiny.receipt(longer, 10)
    newest = latest_checkpoint(str(shorter / "checkpoints"))
    assert newest is not None
    assert newest.metadata.attempt == 2  # one that is refused leaves no record
    assert newest.metadata.continues is not None
    assert newest.metadata.continues["step"] == 6


def test_a_run_with_a_damaged_record_and_template_goes_on_and_says_so_once(shorter, longer, data):
    record = shorter / "metrics.jsonl"
    lines = record.read_bytes().split(b"\n")
    damaged = next(i for i, line in enumerate(lines) if b'"step":3,' in line)
    lines[damaged] = lines[damaged].replace(b'"train/loss":', b'"train/loss"*', 1)
    record.write_bytes(b"\n".join(lines))
    (shorter / "template/model.py").write_bytes(b"\0" * 100)
    (shorter / "template/train.py").unlink()
    (shorter / "template/train.py").mkdir()
    run_grug(config_of(data, shorter, steps=10, allow_changes=("train.steps",)))
    assert tiny.receipt(shorter, 10) == tiny.receipt(longer, 10)
    told = (shorter / "train.log").read_text()
    assert told.count(f"1 damaged line left out, and all others used: line {damaged + 1}.") == 1
    rows = {row["step"]: row for row in latest_rows(read_metrics(record)) if "train/loss" in row}
    assert sorted(rows) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    page = (shorter / "report/index.html").read_text()
    assert f"because unreadable: line {damaged + 1}" in page
    assert sources_hash(template_sources(shorter / "template")) == sources_hash(
        template_sources(longer / "template")
    )


def test_the_same_rows_may_be_cut_into_other_micro_batches(data, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run_grug(config_of(data, whole, batch_size=16, steps=8))
    run_grug(config_of(data, cut, batch_size=8, grad_accum=2))
    allowed = ("train.batch_size", "train.grad_accum", "train.steps")
    run_grug(config_of(data, cut, batch_size=16, steps=8, allow_changes=allowed))
    # The rows are the same ones; their sums come in another order.
    assert tiny.losses(cut) == pytest.approx(tiny.losses(whole), abs=1e-4)
    with pytest.raises(CheckpointError, match=r"(?s)examples.*Allowed: .*Fix: "):
        run_grug(config_of(data, cut, batch_size=8, steps=8, allow_changes=allowed))


def staged(data: LmDataConfig, *stages: tuple[int, float, float]) -> LmDataConfig:
    """The data with stages: each a step, and the weights of sums and words from there on."""
    made = [
        MixtureStage(start_step=step, weights={"sums": float(sums), "words": float(words)})
        for step, sums, words in stages
    ]
    return replace(data, stages=tuple(made))


def test_a_run_goes_on_with_stages_that_agree_with_its_past(shorter, data, tmp_path):
    allowed = ("data.stages", "train.steps")
    now = staged(data, (0, 3, 1), (6, 0, 1))  # the weights that the run began with, until step 6
    with pytest.raises(CheckpointError, match=r"(?s)data\.stages.*schedule.*--allow data\.stages"):
        run_grug(config_of(now, shorter, steps=10, allow_changes=("train.steps",)))
    for other, step in (((5, 0, 1), 5), ((3, 1, 3), 3)):
        wrong = staged(data, (0, 3, 1), other)
        with pytest.raises(CheckpointError, match=rf"at step {step}\. Allowed: .*Fix: .*6"):
            run_grug(config_of(wrong, shorter, steps=10, allow_changes=allowed))
    run_grug(config_of(now, shorter, steps=10, allow_changes=allowed))
    run_grug(config_of(now, tmp_path / "straight", steps=10))
    assert tiny.losses(shorter) == tiny.losses(tmp_path / "straight")
    assert tiny.receipt(shorter, 10) == tiny.receipt(tmp_path / "straight", 10)
    # From here on, the new stages are the run's own.
    run_grug(config_of(now, shorter, steps=11, allow_changes=("train.steps",)))


def test_an_average_may_come_and_go(shorter, longer, data):
    allowed = ("train.ema_beta", "train.steps")
    run_grug(config_of(data, shorter, steps=8, ema_beta=0.5, allow_changes=allowed))
    assert any(name.startswith("ema_params/") for name in tiny.receipt(shorter, 8))
    run_grug(config_of(data, shorter, steps=10, allow_changes=allowed))
    assert tiny.losses(shorter) == tiny.losses(longer)
    assert tiny.receipt(shorter, 10) == tiny.receipt(longer, 10)


def test_weights_of_another_run_start_a_run_of_their_own(six_steps, data, tmp_path):
    # As the executor lays them out: the run and where its weights come from, below one prefix.
    outputs, moved = tmp_path / "outputs", tmp_path / "moved"
    shutil.copytree(six_steps, outputs / "grug/first-0123456789ab")

    def config_below(prefix: Path, **trainer: Any) -> GrugRunConfig:
        source = {"initialize_from": str(prefix / "grug/first-0123456789ab")}
        settings = {"data_seed": 3, **source, **trainer}
        return config_of(data, prefix / "grug/tuned-ba9876543210", **settings)

    tuned = Path(config_below(outputs).output_path)
    tuned.mkdir(parents=True)
    write_info(str(tuned), STEP)
    run_grug(config_below(outputs))
    found = tiny.losses(tuned)
    assert sorted(found) == list(range(6))
    assert found[0] < tiny.losses(six_steps)[0] - 0.5  # it begins with what the other has learned
    for trainer in ({"initialize_from": None}, {"initialize_from": str(six_steps)}):
        with pytest.raises(CheckpointError, match=r"trainer\.initialize_from .* identity\n"):
            run_grug(config_below(outputs, **trainer))
    # The same command again goes on with its own checkpoint, whatever is at the source by now.
    outputs.rename(moved)
    shutil.rmtree(moved / "grug/first-0123456789ab")
    run_grug(config_below(moved))
    tuned = moved / "grug/tuned-ba9876543210"
    assert tiny.losses(tuned) == found
    newest = latest_checkpoint(str(tuned / "checkpoints"))
    assert newest is not None
    continues = newest.metadata.continues or {}
    assert continues["initialize_from"] == str(
        outputs / "grug/first-0123456789ab/checkpoints/step-6"
    )
    recorded = json.loads((tuned / "config_resolved.json").read_text())["trainer"]
    assert recorded["initialize_from"] == str(moved / "grug/first-0123456789ab")


def scheduled(config: GrugRunConfig, **optimizer: Any) -> GrugRunConfig:
    """The config with another schedule, whose every change is allowed."""
    allowed = ("train.steps", *(f"optim.{name}" for name in optimizer))
    return replace(
        config,
        optimizer=replace(config.optimizer, **optimizer),
        trainer=replace(config.trainer, allow_changes=allowed),
    )


def test_a_schedule_that_starts_anew_keeps_weights_and_moments(shorter, longer, data):
    # The same rate as before, so the same bits: nothing but the rate depends on the start.
    config = config_of(data, shorter, steps=10)
    run_grug(scheduled(config, schedule_start=6, warmup_steps=0))
    assert tiny.losses(shorter) == tiny.losses(longer)
    assert tiny.receipt(shorter, 10) == tiny.receipt(longer, 10)


def test_a_schedule_that_starts_where_a_run_never_was_is_refused(six_steps, data, tmp_path):
    with pytest.raises(CheckpointError, match=r"schedule_start=7 .*step-6.*Fix: "):
        run_grug(scheduled(config_of(data, six_steps, steps=10), schedule_start=7))
    assert not (six_steps / "checkpoints" / "step-10").exists()
    with pytest.raises(CheckpointError, match=r"schedule_start=6 .*Fix: .*schedule_start=0"):
        run_grug(scheduled(config_of(data, tmp_path / "new", steps=10), schedule_start=6))
    assert not (tmp_path / "new" / "config_resolved.json").exists()


def test_fewer_steps_than_are_done_are_refused_and_change_nothing(shorter, data):
    before = sorted(path for path in shorter.rglob("*") if path.name != "train.log")
    config = config_of(data, shorter, steps=4, allow_changes=("train.steps",))
    with pytest.raises(CheckpointError) as refused:
        run_grug(config)
    assert "steps=4" in str(refused.value)
    assert "step-6" in str(refused.value)
    with pytest.raises(CheckpointError):
        check_run(config, lambda _: None, lambda _: None, is_here=False)  # before any data is built
    assert sorted(path for path in shorter.rglob("*") if path.name != "train.log") == before


def test_a_cooldown_of_a_finished_run_is_the_same_in_pieces(shorter, data, tmp_path):
    pieces = Path(shutil.copytree(shorter, tmp_path / "pieces"))

    def cooldown(folder: Path) -> GrugRunConfig:
        return scheduled(
            config_of(data, folder, steps=12),
            schedule_start=6,
            lr=4e-3,
            lr_schedule="linear",
            warmup_steps=2,
        )

    run_grug(cooldown(shorter))
    piece = cooldown(pieces)
    piece = replace(piece, trainer=replace(piece.trainer, max_steps=3))
    with pytest.raises(RunInterrupted) as stopped:
        run_grug(piece)
    assert stopped.value.exit_code == 0
    assert not (pieces / "checkpoints" / "step-12").exists()
    run_grug(cooldown(pieces))
    assert tiny.losses(pieces) == tiny.losses(shorter)
    assert tiny.receipt(pieces, 12) == tiny.receipt(shorter, 12)
    rows = [json.loads(line) for line in (pieces / "metrics.jsonl").read_text().splitlines()]
    rates = {row["step"]: row["lr"] for row in rows if "lr" in row}
    assert rates[5] == pytest.approx(1e-2)
    by_hand = [2e-3, 4e-3, 3e-3, 2e-3, 1e-3, 0.0]
    assert [rates[step] for step in range(6, 12)] == pytest.approx(by_hand)
    derived = json.loads((pieces / "config_resolved.json").read_text())["derived"]["optim"]
    assert derived == {"warmup_steps_effective": 2, "decay_steps_effective": 4}


def test_a_batch_that_is_not_the_one_the_checkpoint_expects_is_an_error(data, tmp_path):
    config = config_of(data, tmp_path, steps=10)
    run_grug(replace(config, checkpoint=CheckpointConfig(save_interval_s=None, every=6)))
    newest = tmp_path / "checkpoints" / "step-10"
    newest.rename(tmp_path / "step-10")
    file = tmp_path / "checkpoints" / "step-6" / "metadata.json"
    fields = json.loads(file.read_text())
    del fields["metadata_hash"]
    assert len(fields["next_batches"]) == 2
    fields["next_batches"][1] = "0" * 64
    file.write_text(json.dumps(signed(fields)))
    with pytest.raises(CheckpointError, match=r"the batch of step 7 is not the one.*Fix: "):
        run_grug(config)


def test_what_a_save_cost_is_logged(longer):
    rows = [json.loads(line) for line in (longer / "metrics.jsonl").read_text().splitlines()]
    (row,) = [row for row in rows if "checkpoint/step" in row]
    assert row["checkpoint/step"] == 10
    assert row["checkpoint/bytes"] > 100_000
    assert 0 < row["checkpoint/blocked_seconds"] <= row["checkpoint/seconds"]
