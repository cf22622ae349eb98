"""Runs compared at equal budgets, and everything that can be wrong with them."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from chomp.cli.compare import print_comparison
from chomp.errors import ConfigError
from chomp.ledger.comparison import Comparison, Question, compare
from chomp.ledger.curves import curve_of
from chomp.ledger.runs import differing_fields, find_side, measured_run
from chomp.report.record import read_record
from tests.ledger.made_runs import STEPS, TOKENS_A_STEP, config_of, loss_after, make_run, make_side

BASE = {0: 4.00, 1: 4.03, 2: 3.98, 3: 4.01}
GAINS = {0: -0.040, 1: -0.044, 2: -0.036, 3: -0.041}  # about 1 %


@pytest.fixture
def grug(tmp_path: Path) -> Path:
    """The folder of runs among the outputs."""
    return tmp_path / "grug"


def compared(base: object, variant: object, outputs: Path, **question: object) -> Comparison:
    sides = [find_side(str(given), outputs=str(outputs)) for given in (base, variant)]
    return compare(*sides, Question(**question))  # type: ignore[arg-type]


def make_pairs(grug: Path, gains: dict[int, float] = GAINS, **options: object) -> None:
    make_side(grug, "base", {seed: BASE[seed] for seed in gains})
    ends = {seed: BASE[seed] + gain for seed, gain in gains.items()}
    make_side(grug, "moe", ends, **options)


def test_variants_are_paired_by_seed_and_compared_at_equal_tokens(grug, tmp_path):
    make_pairs(grug)
    found = compared("base", "moe", tmp_path)
    assert found.verdict.word == "better"
    assert [pair.seeds for pair in found.pairs] == [(seed, seed) for seed in GAINS]
    assert found.deciding.spent == (STEPS * TOKENS_A_STEP,) * 4
    assert found.deciding.statistics is not None
    assert found.deciding.statistics.differences == pytest.approx(list(GAINS.values()))
    # Equal FLOPs and equal time are equal tokens here, and shown after what decides.
    assert [each.budget for each in found.budgets] == ["tokens", "flops", "time"]
    for other in found.budgets[1:]:
        assert other.statistics is not None
        assert other.statistics.mean == pytest.approx(found.deciding.statistics.mean)


def test_a_costlier_variant_is_read_off_its_curve_where_the_base_ends(grug, tmp_path):
    make_pairs(grug, flops_a_token=2 * 6e6, seconds_a_step=0.4)
    found = {each.budget: each for each in compared("base", "moe", tmp_path).budgets}
    # Half of the steps at twice the FLOPs; a quarter at four times the seconds.
    assert found["flops"].variant[0] == pytest.approx(loss_after(50, 3.96), abs=1e-9)
    assert found["flops"].base[0] == pytest.approx(4.00)
    assert found["time"].variant[0] == pytest.approx(loss_after(25, 3.96), abs=1e-3)
    assert found["time"].spent == pytest.approx((10.0,) * 4)
    [note] = found["flops"].notes
    assert "the variant is 50 % through its schedule and the base 100 %" in note
    assert "learning rate" not in note  # which may be constant
    assert found["tokens"].notes == ()


def test_speeds_that_vary_from_seed_to_seed_are_said(grug, tmp_path):
    make_side(grug, "base", {0: 4.0, 1: 4.0})
    make_side(grug, "moe", {0: 3.9}, seconds_a_step=0.2)
    make_side(grug, "moe", {1: 3.9}, seconds_a_step=0.05)
    found = {each.budget: each for each in compared("base", "moe", tmp_path).budgets}
    assert "up to 50 % of their schedule apart, now one ahead" in found["time"].notes[0]
    assert found["tokens"].notes == ()


def test_the_budget_that_is_asked_for_decides(grug, tmp_path):
    make_side(grug, "base", BASE)
    for seed, end in BASE.items():
        # Half of the steps at twice the FLOPs: both are at their ends at equal FLOPs.
        half = {"config": config_of(seed, trainer__steps=50), "steps": 50}
        make_side(grug, "moe", {seed: end + seed / 1000}, flops_a_token=2 * 6e6, **half)
    by_flops = compared("base", "moe", tmp_path, at="flops")
    assert by_flops.deciding.budget == "flops"
    assert by_flops.verdict.word == "worse"
    assert compared("base", "moe", tmp_path, at="tokens").verdict.word == "cannot tell"


def test_a_shorter_run_of_the_same_recipe_is_not_called_better(grug, tmp_path):
    """At its end its learning rate is down, and that of a longer run is not yet."""
    make_side(grug, "base", BASE)
    for seed, end in BASE.items():
        short = config_of(seed, trainer__steps=70)
        # Below the long run's curve at its end, as a schedule that ends there makes it.
        ends = {seed: loss_after(70, end) - 0.1 + seed / 1000 - loss_after(70, 0.0)}
        make_side(grug, "short", ends, config=short, steps=70)
    found = compared("base", "short", tmp_path)
    assert found.deciding.statistics is not None
    assert found.deciding.statistics.p < 0.001
    assert found.verdict.word == "cannot tell"
    assert found.verdict.text.startswith(
        "cannot tell: the base had done 70 % of its schedule there, the variant all of it, and a "
        "learning rate that falls makes a difference by itself; train both for as many tokens. "
        "Measured there: -"
    )
    assert "96.5 % interval" in found.verdict.text
    assert found.deciding.progress == ((0.7, 1.0),) * 4


def test_a_variant_that_gets_less_far_in_equal_flops_is_not_called_worse(grug, tmp_path):
    make_pairs(grug, flops_a_token=2 * 6e6)
    by_flops = compared("base", "moe", tmp_path, at="flops")
    assert by_flops.verdict.word == "cannot tell"
    assert "the base had done all of its schedule there, the variant 50 %" in by_flops.verdict.text
    assert "train both for as many FLOPs" in by_flops.verdict.text
    # Where it does not decide it takes nothing away.
    assert compared("base", "moe", tmp_path, at="tokens").verdict.word == "better"


def test_schedules_that_are_a_step_apart_are_no_reason(grug, tmp_path):
    make_pairs(grug, seconds_a_step=0.1015)
    by_time = compared("base", "moe", tmp_path, at="time")
    assert by_time.deciding.progress[0] == pytest.approx((1.0, 0.985), abs=0.001)
    assert by_time.verdict.word == "better"


def test_a_training_loss_is_the_mean_over_the_end_of_the_budget(tmp_path):
    run = make_run(tmp_path / "run", seed=0, end=4.0)
    noisy = curve_of(read_record(str(run)), "train/loss", "tokens")
    # A twentieth of the budget holds its last row alone; at half of it, that of step 50.
    assert noisy.value_at(noisy.reach) == pytest.approx(4.0)
    assert noisy.value_at(noisy.reach / 2) == pytest.approx(loss_after(50, 4.0))
    assert noisy.value_at(1.0) is None
    assert noisy.value_at(2 * noisy.reach) is None


def test_seconds_leave_out_what_repeated_steps_cost(tmp_path):
    run = make_run(tmp_path / "run", seed=0, end=4.0, outcome=None, steps=50)
    second = make_run(tmp_path / "second", seed=0, end=4.0)
    rows = [json.loads(line) for line in (second / "metrics.jsonl").read_text().splitlines()]
    again = [{**row, "attempt": 2} for row in rows if row.get("step", 99) >= 29]
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in again)
    curve = curve_of(read_record(str(run)), "eval/loss", "time")
    assert curve.reach == pytest.approx(STEPS * 0.1)


def test_one_seed_is_told_apart_from_a_result(grug, tmp_path):
    make_pairs(grug, {0: -1.0})
    found = compared("base", "moe", tmp_path)
    assert found.verdict.word == "cannot tell"
    assert "one pair has no interval" in found.verdict.text


def test_seeds_without_a_partner_are_named(grug, tmp_path):
    make_pairs(grug)
    shutil.rmtree(grug / "moe-0003")
    found = compared("base", "moe", tmp_path)
    assert len(found.pairs) == 3
    assert "base: seed 3 has no partner and is left out" in found.notes


def test_no_common_seed_is_an_error_that_lists_both(grug, tmp_path):
    make_side(grug, "base", {0: 4.0, 1: 4.0})
    make_side(grug, "moe", {5: 4.0})
    with pytest.raises(ConfigError) as caught:
        compared("base", "moe", tmp_path)
    assert "base has seeds 0, 1, moe has seeds 5" in caught.value.given


def test_one_run_on_both_sides_is_an_error_even_as_a_copy(grug, tmp_path):
    make_side(grug, "base", BASE)
    with pytest.raises(ConfigError) as caught:
        compared("base", "base", tmp_path)
    assert "both sides" in caught.value.given
    copy = shutil.copytree(grug, tmp_path / "copied")
    with pytest.raises(ConfigError) as caught:
        compared(grug, copy, tmp_path)
    assert "both sides" in caught.value.given


@pytest.mark.parametrize("outcome", [None, "KeyboardInterrupt"])
def test_a_run_that_did_not_end_is_left_out_and_named(grug, tmp_path, outcome):
    make_pairs(grug)
    shutil.rmtree(grug / "moe-0002")
    make_side(grug, "moe", {2: 4.0}, outcome=outcome, steps=50)
    found = compared("base", "moe", tmp_path)
    assert len(found.pairs) == 3
    [note] = [note for note in found.notes if "seed 2" in note]
    assert "moe-0002" in note


def test_a_half_written_record_is_compared_by_what_it_has_and_that_is_said(grug, tmp_path):
    make_pairs(grug)
    record = grug / "moe-0001/metrics.jsonl"
    record.write_text(record.read_text() + '{"step": 100, "train/lo')
    found = compared("base", "moe", tmp_path)
    assert len(found.pairs) == 4
    assert any("moe-0001" in note and "has no end" in note for note in found.notes)


@pytest.mark.parametrize("content", [None, ""])
def test_a_run_without_a_record_is_left_out_and_named(grug, tmp_path, content):
    make_pairs(grug)
    record = grug / "base-0000/metrics.jsonl"
    record.unlink() if content is None else record.write_text(content)
    found = compared("base", "moe", tmp_path)
    assert len(found.pairs) == 3
    [note] = [note for note in found.notes if "seed 0" in note]
    assert "base-0000 has not ended, or was killed" in note


def test_when_no_pair_has_ended_the_error_says_why(grug, tmp_path):
    make_side(grug, "base", {0: 4.0})
    make_side(grug, "moe", {0: 4.0}, outcome=None)
    with pytest.raises(ConfigError) as caught:
        compared("base", "moe", tmp_path)
    assert "seed 0" in caught.value.given
    assert "moe-0000" in caught.value.given


def test_a_seed_that_is_not_finite_takes_the_verdict_away(grug, tmp_path):
    make_pairs(grug)
    shutil.rmtree(grug / "moe-0002")
    make_side(grug, "moe", {2: math.nan})
    found = compared("base", "moe", tmp_path)
    assert found.verdict.word == "cannot tell"
    assert "seed 2: moe-0002 is not finite there. Of the others: -1.0" in found.verdict.text


def test_a_seed_that_ended_because_it_was_not_finite_is_a_result_too(grug, tmp_path):
    make_pairs(grug)
    shutil.rmtree(grug / "moe-0002")
    make_side(grug, "moe", {2: 4.0}, outcome="NonFiniteError", steps=30)
    found = compared("base", "moe", tmp_path)
    assert found.verdict.word == "cannot tell"
    assert "seed 2: moe-0002 ended with NonFiniteError" in found.verdict.text
    assert found.deciding.statistics is not None
    assert found.deciding.statistics.count == 3


@pytest.mark.parametrize("becomes", ["unfinished", "gone"])
def test_a_run_that_diverged_counts_whatever_became_of_its_partner(grug, tmp_path, becomes):
    make_pairs(grug)
    shutil.rmtree(grug / "moe-0002")
    make_side(grug, "moe", {2: 4.0}, outcome="NonFiniteError", steps=30)
    shutil.rmtree(grug / "base-0002")
    if becomes == "unfinished":
        make_side(grug, "base", {2: 4.0}, outcome=None, steps=30)
    found = compared("base", "moe", tmp_path)
    assert found.verdict.word == "cannot tell"
    assert "seed 2: moe-0002 ended with NonFiniteError" in found.verdict.text


def test_a_run_without_a_config_is_set_aside_and_the_rest_is_compared(grug, tmp_path):
    make_pairs(grug)
    # The newest by its start, with settings of its own as far as anybody can tell.
    make_side(grug, "moe", {9: 4.0})
    (grug / "moe-0009/config_resolved.json").write_text('{"model": ')
    for variant in ("moe", grug / "moe-*"):
        found = compared("base", variant, tmp_path)
        assert found.verdict.word == "better"
        assert any("moe-0009 is left out, as no config" in note for note in found.notes)


def test_where_no_run_tells_its_seed_the_error_says_why(grug, tmp_path):
    make_pairs(grug, {0: 0.1})
    (grug / "moe-0000/config_resolved.json").unlink()
    with pytest.raises(ConfigError) as caught:
        compared("base", "moe", tmp_path)
    assert "moe-0000" in caught.value.given


def test_seeds_that_differ_by_the_data_alone_are_told_apart(grug, tmp_path):
    for variant, data_seed in (("base", 1), ("moe", 2)):
        config = config_of(0, derived__train={"data_seed_effective": data_seed})
        make_side(grug, variant, {0: 4.0}, config=config)
    with pytest.raises(ConfigError) as caught:
        compared("base", "moe", tmp_path)
    assert "base has seeds 0/1" in caught.value.given
    assert "moe has seeds 0/2" in caught.value.given


def test_a_damaged_record_of_somebody_else_is_passed_over_and_named(grug, tmp_path):
    make_pairs(grug)
    make_side(grug, "other", {0: 4.0})
    (grug / "other-0000/.executor_info").write_text('{"na')
    found = compared("base", "moe", tmp_path)
    assert found.verdict.word == "better"
    assert any("other-0000 is passed over" in note for note in found.notes)
    with pytest.raises(ConfigError) as caught:
        compared("base", "other", tmp_path)
    assert "other-0000" in caught.value.given


def test_a_base_of_zero_is_compared_without_percent(grug, tmp_path):
    make_side(grug, "base", {0: 0.0, 1: 0.0, 2: 0.0}, evaluated=[STEPS])
    make_side(grug, "moe", {0: 0.2, 1: 0.21, 2: 0.22}, evaluated=[STEPS])
    found = compared("base", "moe", tmp_path, best="highest")
    assert found.verdict.text.startswith("better: +0.21 (96.5 % interval")
    print_comparison(found)


def test_one_loss_that_is_not_finite_among_many_is_left_out_and_said(tmp_path):
    run = make_run(tmp_path / "grug/base-0", seed=0, end=4.0)
    other = make_run(tmp_path / "grug/moe-0", seed=0, end=3.9, variant="moe")
    rows = [json.loads(line) for line in (other / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row.get("step") == STEPS - 1]
    # Six more rows of the last steps, one of them of a step that was skipped.
    for folder, skipped in ((run, None), (other, 97)):
        near = [
            {
                **steps[0],
                "step": step,
                "time": 1.0 + step + (folder == run),
                "train/loss": None if step == skipped else 3.9,
                "throughput/total_tokens": float((step + 1) * TOKENS_A_STEP),
            }
            for step in range(95, STEPS)
        ]
        with (folder / "metrics.jsonl").open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in near)
    found = compared("base", "moe", tmp_path, metric="train/loss")
    assert found.deciding.variant == pytest.approx((3.9,))
    assert "moe-0: 1 value of the mean not finite and left out" in found.deciding.notes


def test_a_run_that_began_at_a_checkpoint_has_the_seconds_of_its_own_steps(tmp_path):
    run = make_run(tmp_path / "run", seed=0, end=4.0)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    later = [{**row, "step": row["step"] + 1000} if "step" in row else row for row in rows]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in later))
    curve = curve_of(read_record(str(run)), "eval/loss", "time")
    assert curve.reach == pytest.approx(STEPS * 0.1)
    assert curve.spent[0] == pytest.approx(10 * 0.1)


@pytest.mark.parametrize("field", ["initialize_from", "load_checkpoint_path"])
def test_another_starting_point_is_another_setting_and_no_path(tmp_path, field):
    places = ["/home/me/one/step-100", "/home/me/two/step-100"]
    runs = [
        measured_run(
            str(
                make_run(
                    tmp_path / str(i),
                    seed=0,
                    end=4.0,
                    config=config_of(0, **{f"trainer__{field}": place}),
                )
            )
        )
        for i, place in enumerate(places)
    ]
    assert runs[0].settings_hash != runs[1].settings_hash
    [(_, before, after)] = differing_fields(*runs)
    assert "/home" not in f"{before}{after}"
    assert before.startswith("step-100 (")


def test_names_of_hub_datasets_are_whole_and_folders_are_not(tmp_path):
    def source(path: str) -> str:
        components = {"code": {"source": {"kind": "hf", "path": path}}}
        config = config_of(0, data__components=components)
        name = str(len(list(tmp_path.iterdir())))
        run = measured_run(str(make_run(tmp_path / name, seed=0, end=4.0, config=config)))
        return run.settings["data"]["components"]["code"]["source"]["path"]

    assert source("one/c4") == "one/c4"
    assert source("/home/me/c4") == "c4"


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"data__mask_boundary_loss": False}, "data.mask_boundary_loss: True -> False"),
        ({"data__packing_mode": "packed"}, "data.packing_mode: concat -> packed"),
        ({"data__packing": {"max_documents": 2}}, "data.packing: None -> "),
        (
            {"data__components__code__stream": {"max_validation_documents": 10}},
            "stream.max_validation_documents: 1000 -> 10",
        ),
    ],
)
def test_other_scored_positions_are_refused_by_field(grug, tmp_path, changed, told):
    usual = {
        "data__mask_boundary_loss": True,
        "data__packing_mode": "concat",
        "data__packing": None,
        "data__components__code__stream": {"max_validation_documents": 1000},
    }
    make_side(grug, "base", {0: 4.0}, config=config_of(0, **usual))
    make_side(grug, "moe", {0: 3.9}, config=config_of(0, **{**usual, **changed}))
    with pytest.raises(ConfigError) as caught:
        compared("base", "moe", tmp_path, is_other_data=True)
    assert told in caught.value.given
    assert "eval/loss" in caught.value.allowed


def test_held_out_text_without_a_hash_is_compared_by_config_and_that_is_said(grug, tmp_path):
    def config(path: str) -> dict[str, Any]:
        components = {"code": {"source": {"kind": "text", "paths": [path]}}}
        return config_of(0, derived__data={}, data__components=components)

    make_side(grug, "base", {0: 4.0}, config=config("a/*.txt"))
    make_side(grug, "moe", {0: 3.9}, config=config("a/*.txt"))
    found = compared("base", "moe", tmp_path)
    assert any("held-out text of code is compared by config" in note for note in found.notes)
    make_side(grug, "other", {0: 3.9}, config=config("b/*.txt"))
    with pytest.raises(ConfigError) as caught:
        compared("base", "other", tmp_path, is_other_data=True)
    assert "code.source.paths" in caught.value.given
    assert "eval/loss" in caught.value.allowed
    whole = config("a/*.txt")  # with weight 0, all of it is evaluated
    whole["data"]["components"]["code"]["weight"] = 0.0
    make_side(grug, "whole", {0: 3.9}, config=whole)
    with pytest.raises(ConfigError) as caught:
        compared("base", "whole", tmp_path, is_other_data=True)
    assert "components.code" in caught.value.given
    assert "eval/loss" in caught.value.allowed


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"derived__data__held_out_hashes": {"code": "bb"}}, "held-out data of code"),
        ({"eval__max_eval_batches": 2}, "evaluated rows: all -> 64"),
        ({"eval": None}, "evaluated rows: all -> none"),
        ({"trainer__seq_len": 64}, "train.seq_len, the context of evaluation: 128 -> 64"),
    ],
)
def test_other_held_out_data_is_refused_by_field(grug, tmp_path, changed, told):
    make_side(grug, "base", {0: 4.0})
    make_side(grug, "moe", {0: 3.9}, config=config_of(0, **changed))
    with pytest.raises(ConfigError) as caught:
        compared("base", "moe", tmp_path)
    assert told in caught.value.given
    assert "eval/loss" in caught.value.allowed


def test_other_training_data_is_refused_unless_it_is_the_change(grug, tmp_path):
    make_side(grug, "base", {0: 4.0})
    changed = config_of(0, data__components={"code": {"weight": 0.5}})
    make_side(grug, "moe", {0: 3.9}, config=changed, checkpoint={"data_fingerprint": "other"})
    with pytest.raises(ConfigError) as caught:
        compared("base", "moe", tmp_path)
    assert "data.components.code.weight: 1.0 -> 0.5" in caught.value.given
    assert "--other-data" in caught.value.fix
    found = compared("base", "moe", tmp_path, is_other_data=True)
    assert any("other training data, as allowed" in note for note in found.notes)


def test_equal_settings_over_other_content_are_other_data(grug, tmp_path):
    make_side(grug, "base", {0: 4.0})
    make_side(grug, "moe", {0: 3.9}, checkpoint={"data_fingerprint": "other"})
    with pytest.raises(ConfigError) as caught:
        compared("base", "moe", tmp_path)
    assert "training data" in caught.value.given


def test_without_checkpoints_the_config_has_to_do_and_that_is_said(grug, tmp_path):
    make_side(grug, "base", {0: 4.0}, checkpoint={})
    make_side(grug, "moe", {0: 3.9}, checkpoint={})
    found = compared("base", "moe", tmp_path)
    assert any("no checkpoint is left to prove it" in note for note in found.notes)


def test_another_tokenizer_needs_a_metric_per_byte_and_has_no_equal_tokens(grug, tmp_path):
    make_side(grug, "base", {0: 4.0, 1: 4.0})
    for seed in (0, 1):
        config = config_of(seed, data__tokenizer={"kind": "bpe"})
        config["derived"]["data"]["held_out_hashes"] = {"code": "in other tokens"}
        facts = {"tokenizer_hash": "other", "data_fingerprint": "other"}
        make_side(grug, "moe", {seed: 3.9}, config=config, checkpoint=facts)
    with pytest.raises(ConfigError) as caught:
        compared("base", "moe", tmp_path, is_other_data=True)
    assert "tokenizer" in caught.value.given
    assert "--metric eval/bpb" in caught.value.fix
    found = compared("base", "moe", tmp_path, metric="eval/bpb", at="flops", is_other_data=True)
    assert found.deciding.statistics is not None
    assert "tokens of different tokenizers" in found.budgets[1].notes[0]


def test_seconds_of_different_devices_are_left_out_and_the_rest_is_compared(grug, tmp_path):
    make_pairs(grug, device="NVIDIA A100")
    found = compared("base", "moe", tmp_path)
    assert found.verdict.word == "better"
    assert found.budgets[2].statistics is None
    assert found.budgets[2].notes == ("seconds of different devices: NVIDIA A100, NVIDIA H200",)
    by_time = compared("base", "moe", tmp_path, at="time")
    assert by_time.verdict.text.startswith("cannot tell: seconds of different devices")


def test_runs_that_evaluate_only_at_their_end_are_not_compared_half_way(grug, tmp_path):
    make_side(grug, "base", {0: 4.0}, evaluated=[STEPS])
    make_side(grug, "moe", {0: 3.9}, evaluated=[STEPS], flops_a_token=2 * 6e6)
    found = {each.budget: each for each in compared("base", "moe", tmp_path).budgets}
    assert found["tokens"].variant == (3.9,)
    assert found["flops"].statistics is None
    assert "no value at equal FLOPs: moe-0000" in found["flops"].notes[0]
    assert "eval.steps_per_eval" in found["flops"].notes[0]


def test_runs_of_different_lengths_are_compared_where_the_shorter_ends(grug, tmp_path):
    make_side(grug, "base", {0: 4.0})
    short = config_of(0, trainer__steps=50)
    make_side(grug, "moe", {0: 3.9}, config=short, steps=50)
    found = compared("base", "moe", tmp_path)
    assert found.deciding.spent == (50 * TOKENS_A_STEP,)
    assert found.deciding.base[0] == pytest.approx(loss_after(50, 4.0))
    assert "the base is 50 % through its schedule" in found.deciding.notes[0]
    assert ("trainer.steps", 100, 50) in found.changes


def test_a_metric_that_was_not_logged_is_an_error_with_those_that_were(grug, tmp_path):
    make_pairs(grug)
    with pytest.raises(ConfigError) as caught:
        compared("base", "moe", tmp_path, metric="eval/accuracy")
    assert "eval/accuracy" in caught.value.given
    assert "train/loss" in caught.value.allowed


def test_a_name_means_the_newest_settings_and_says_what_it_leaves_out(grug, tmp_path):
    make_pairs(grug)
    older = config_of(9, optimizer__lr=0.1)
    make_run(grug / "base-older", seed=9, end=9.0, config=older)
    # Older by its seed, as made runs begin in the order of their seeds.
    info = json.loads((grug / "base-older/.executor_info").read_text())
    (grug / "base-older/.executor_info").write_text(json.dumps({**info, "started": 1.0}))
    found = compared("base", "moe", tmp_path)
    assert len(found.pairs) == 4
    assert any("left out are 1 runs" in note and "base-older" in note for note in found.notes)


def test_a_folder_of_several_settings_is_refused_by_field(grug, tmp_path):
    make_pairs(grug)
    make_run(grug / "base-0009", seed=9, end=9.0, config=config_of(9, optimizer__lr=0.1))
    with pytest.raises(ConfigError) as caught:
        compared(grug / "base-*", "moe", tmp_path)
    assert "optimizer.lr: 0.003 -> 0.1" in caught.value.given


def test_two_runs_of_one_seed_are_refused_by_name(grug, tmp_path):
    make_pairs(grug)
    make_run(grug / "base-again", seed=0, end=4.1)
    with pytest.raises(ConfigError) as caught:
        compared("base", "moe", tmp_path)
    assert "base-0000 and base-again" in caught.value.given


def test_sides_may_be_folders_and_patterns(grug, tmp_path):
    make_pairs(grug)
    for seed in BASE:
        shutil.move(grug / f"moe-{seed:04}", tmp_path / f"elsewhere/moe-{seed:04}")
    found = compared(grug, tmp_path / "elsewhere", tmp_path)
    assert found.verdict.word == "better"
    by_pattern = compared(grug / "base-000[01]", tmp_path / "elsewhere/moe-*", tmp_path)
    assert [pair.seeds[0] for pair in by_pattern.pairs] == [0, 1]


def test_what_is_nowhere_is_an_error_that_says_what_there_is(grug, tmp_path):
    make_pairs(grug)
    with pytest.raises(ConfigError) as caught:
        compared("base", "mo", tmp_path)
    assert "did you mean moe?" in caught.value.given


def test_runs_that_ran_at_the_same_time_say_so_where_seconds_count(grug, tmp_path):
    make_pairs(grug, {0: -0.04})
    for name in ("base-0000", "moe-0000"):
        record = grug / name / "metrics.jsonl"
        rows = [json.loads(line) for line in record.read_text().splitlines()]
        times = [{**row, "time": 1000.0 + i + (name == "moe-0000")} for i, row in enumerate(rows)]
        record.write_text("".join(json.dumps(row) + "\n" for row in times))
    found = {each.budget: each for each in compared("base", "moe", tmp_path).budgets}
    assert any("at the same time" in note for note in found["time"].notes)
    assert not found["tokens"].notes


@pytest.mark.parametrize(
    ("of_base", "of_variant", "metric"),
    [
        (["eval/ema"], ["eval/ema"], "eval/ema/loss"),
        (["eval", "eval/ema"], ["eval/ema"], "eval/ema/loss"),
        (["eval", "eval/ema"], ["eval", "eval/ema"], "eval/loss"),
    ],
)
def test_averaged_weights_are_compared_where_some_run_evaluated_nothing_else(
    grug, tmp_path, of_base, of_variant, metric
):
    make_side(grug, "base", BASE, prefixes=of_base)
    ends = {seed: BASE[seed] + gain for seed, gain in GAINS.items()}
    make_side(grug, "moe", ends, prefixes=of_variant)
    found = compared("base", "moe", tmp_path)
    assert found.question.metric == metric
    assert found.verdict.word == "better"
    assert any("averaged weights" in note for note in found.notes) == (metric != "eval/loss")


def test_current_weights_are_not_compared_with_averaged_ones(grug, tmp_path):
    make_side(grug, "base", BASE, prefixes=["eval"])
    make_side(grug, "moe", BASE, prefixes=["eval/ema"])
    with pytest.raises(ConfigError) as caught:
        compared("base", "moe", tmp_path)
    assert "eval/loss" in caught.value.given
    assert "eval/ema/loss" in caught.value.allowed


def test_the_held_out_loss_has_the_prefix_that_the_runs_gave_it(grug, tmp_path):
    for variant in ("base", "moe"):
        config = config_of(0, eval__prefix="val")
        end = 4.0 if variant == "base" else 3.9
        make_run(
            grug / f"{variant}-0", seed=0, end=end, variant=variant, config=config, prefixes=["val"]
        )
    assert compared("base", "moe", tmp_path).question.metric == "val/loss"
