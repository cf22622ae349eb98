"""What a page is told of runs: curves, tags, config, notes, texts, and never a secret."""

import base64
import json

import numpy as np
import pytest

from chomp.report.payload import page_payload
from chomp.report.record import read_record
from chomp.report.run_payload import MAX_POINTS, run_payload
from tests.report.recorded_run import CONFIG, RecordedRun


def part(run, **options):
    return run_payload(read_record(run.written()), **options)


def curve(payload, name, step="step", value="value"):
    packed = payload["series"][name]
    steps = np.frombuffer(base64.b64decode(packed[step]), "<i4")
    return steps, np.frombuffer(base64.b64decode(packed[value]), "<f4")


def noisy(step):
    return 3.0 + 0.1 * np.sin(step * 12.9898) + (4.0 if step == 3331 else 0.0)


def test_a_short_run_is_there_point_by_point(tmp_path):
    payload = part(RecordedRun(tmp_path).attempt(0, 40))
    steps, values = curve(payload, "train/loss")
    assert steps.tolist() == list(range(1, 40, 2))
    assert values == pytest.approx(5.0 * np.exp(-steps / 50))
    assert payload["series"]["train/loss"]["count"] == 20
    assert "mean" not in payload["series"]["train/loss"]
    assert "loss" not in payload["series"]  # the short key of the same value


def test_constants_are_two_points_and_still_count_their_rows(tmp_path):
    payload = part(RecordedRun(tmp_path).attempt(0, 40))
    steps, values = curve(payload, "optim/learning_rate")
    assert steps.tolist() == [1, 39]
    assert values == pytest.approx([1e-3, 1e-3])
    assert payload["series"]["optim/learning_rate"]["count"] == 20


def test_a_long_run_is_thinned_within_its_points_and_its_spike_is_named(tmp_path):
    run = RecordedRun(tmp_path / "a run", log_every=1).attempt(0, 20_000, loss=noisy)
    payload = part(run, points=3000)
    steps, values = curve(payload, "train/loss")
    assert 1000 < steps.size <= 3000 < MAX_POINTS
    assert values[np.searchsorted(steps, 3331)] == pytest.approx(noisy(3331))
    _, means = curve(payload, "train/loss", "mean_step", "mean")
    assert means.size <= 1500
    assert means.mean() == pytest.approx(3.0, abs=0.01)
    (spike,) = payload["spikes"]
    assert spike["step"] == 3331
    assert spike["usual"] == pytest.approx(3.0, abs=0.1)
    assert spike["command"] == f"chomp data where '{tmp_path}/a run' --step 3331"


def test_evaluations_are_a_tree_of_tags_with_their_last_numbers(tmp_path):
    run = RecordedRun(tmp_path).attempt(0, 8).evaluation(3, loss=4.0, bpb=2.0)
    run.evaluation(
        7, loss=3.0, bpb=1.5, web__loss=3.5, web__micro_loss=3.5, web__en__loss=3.25,
        web__en__bpb=1.25, web__en__loss_stderr=0.1, ema__loss=2.9, ema__web__en__loss=3.1,
    )  # fmt: skip
    tags = {entry["tag"]: entry for entry in part(run)["eval_tags"]}
    assert list(tags) == ["all", "web", "web/en", "ema: all", "ema: web/en"]
    assert tags["web/en"]["parent"] == "web"
    assert tags["ema: web/en"]["parent"] is None
    assert tags["all"]["series"] == {"loss": "eval/loss", "bpb": "eval/bpb", "macro_loss": None}
    assert tags["all"]["last"] == {"loss": 3.0, "bpb": 1.5}
    assert tags["web/en"]["last"] == {"loss": 3.25, "bpb": 1.25, "loss_stderr": 0.1}


def test_mixture_stages_begin_where_the_stage_changed(tmp_path):
    mixture = part(RecordedRun(tmp_path).attempt(0, 40))["mixture"]
    assert mixture["components"] == ["code", "prose"]
    assert mixture["stages"] == [
        {"first_step": 1, "weights": {"code": 0.7, "prose": 0.3}},
        {"first_step": 21, "weights": {"code": 0.5, "prose": 0.5}},
    ]


def test_samples_tell_the_prompt_from_what_was_written(tmp_path):
    run = RecordedRun(tmp_path).attempt(0, 4).sample(10, "once▸ upon").sample(2, "no mark")
    assert part(run)["samples"] == [
        {"step": 2, "prompt": "", "text": "no mark"},
        {"step": 10, "prompt": "once", "text": " upon"},
    ]


def test_the_template_is_compared_with_base_and_code_in_it_is_only_text(tmp_path):
    (tmp_path / "template").mkdir(parents=True)
    (tmp_path / "template" / "model.py").write_text("x = '<script>alert(1)</script>'\n")
    template = part(RecordedRun(tmp_path).attempt(0, 4))["template"]
    assert template["against"] == "experiments/grug/base"
    assert template["files"] == [{"path": "model.py", "lines": 1}]
    assert "<h3>model.py</h3>" in template["html"]
    assert "<script" not in template["html"]


def test_a_template_that_several_runs_share_is_in_the_page_once(tmp_path):
    parts = []
    for name in ("first", "second"):
        (tmp_path / name / "template").mkdir(parents=True)
        (tmp_path / name / "template" / "model.py").write_text("x = 1\n")
        config = {**CONFIG, "run_id": name}
        parts.append(part(RecordedRun(tmp_path / name, config=config).attempt(0, 4)))
    first, second = page_payload(parts)["runs"]
    assert first["template"]["html"]
    assert second["template"]["html"] is None
    assert "with first" in second["template"]["note"]


def test_no_secret_reaches_a_page(tmp_path, monkeypatch):
    secret = "planted-5ecret-value"
    monkeypatch.setenv("WANDB_API_KEY", secret)
    config = {**CONFIG, "notes": f"key {secret}", "url": "https://me:hunter22@host/x"}
    run = RecordedRun(tmp_path, config=config).attempt(0, 4).sample(4, f"say▸ {secret}")
    (tmp_path / "train.log").write_text(secret)
    text = json.dumps(page_payload([part(run)]))
    assert secret not in text
    assert "hunter22" not in text
    assert "<WANDB_API_KEY>" in text


def test_a_page_is_strict_json_even_where_the_loss_was_not_finite(tmp_path):
    run = RecordedRun(tmp_path).attempt(0, 40, loss=lambda step: None if step > 20 else 1.0)
    payload = page_payload([part(run)])
    json.dumps(payload, allow_nan=False)
    assert (
        "not finite at 10 logged steps, the first of them 21" in payload["runs"][0]["problems"][-1]
    )


def test_a_run_without_anything_is_a_page_that_says_so(tmp_path):
    payload = page_payload([part(RecordedRun(tmp_path, config={"run_id": "new"}))])
    json.dumps(payload, allow_nan=False)
    (run,) = payload["runs"]
    assert (run["state"], run["series"], run["waterfall"]) == ("empty", {}, [])
    assert "nothing was logged yet" in run["problems"][0]


def test_what_is_easily_overlooked_is_said_in_words(tmp_path):
    other = json.loads(json.dumps(CONFIG))
    other["run_id"], other["trainer"]["seed"] = "other", 1
    other["data"]["components"]["code"]["train_store"] = "elsewhere/tokens/code-xyz"
    other["data"]["tokenizer"] = {"path": "outputs/tokenizer/byte-123"}
    first = RecordedRun(tmp_path / "a").attempt(0, 8).evaluation(7, loss=1.0)
    second = RecordedRun(tmp_path / "b", config=other).attempt(0, 4)
    notes = "\n".join(page_payload([part(first), part(second)])["notes"])
    assert "different lengths: by_hand 8, other 4 steps" in notes
    assert "different data (data.components.code.train_store)" in notes
    assert "different seeds (trainer.seed)" in notes
    assert "different tokenizers" in notes
    assert "other was not evaluated" in notes


def test_one_run_and_runs_that_agree_need_no_notes(tmp_path):
    moved = json.loads(json.dumps(CONFIG))
    # Stores are named after their content: the same one elsewhere is the same data.
    moved["data"]["components"]["code"]["train_store"] = "/other/place/code-abc"
    runs = [
        part(RecordedRun(tmp_path / "a").attempt(0, 8)),
        part(RecordedRun(tmp_path / "b", config=moved).attempt(0, 8)),
    ]
    assert page_payload(runs[:1])["notes"] == []
    assert page_payload(runs)["notes"] == []


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path):
    runs = [part(RecordedRun(tmp_path / name).attempt(0, 4)) for name in ("a", "b")]
    payload = page_payload(runs)
    assert [run["name"] for run in payload["runs"]] == ["by_hand (a)", "by_hand (b)"]
    assert payload["config_difference"]["names"] == ["by_hand (a)", "by_hand (b)"]
    assert payload["config_difference"]["rows"] == []


def test_configs_differ_in_the_fields_that_are_not_equal_in_all(tmp_path):
    run = part(RecordedRun(tmp_path).attempt(0, 4))
    other = {**dict(run["config"]), "trainer.seed": "7", "extra": "1"}
    found = page_payload([run], against=("other", other))["config_difference"]
    assert found["names"] == ["by_hand", "other"]
    assert found["rows"] == [
        {"key": "extra", "values": [None, "1"]},
        {"key": "trainer.seed", "values": ["0", "7"]},
    ]


def test_the_table_has_a_column_for_what_any_run_knows(tmp_path):
    run = RecordedRun(tmp_path).attempt(0, 40).evaluation(39, loss=2.5, bpb=1.25)
    payload = page_payload([part(run)])
    keys = [column["key"] for column in payload["columns"]]
    numbers = payload["runs"][0]["numbers"]
    assert keys[:2] == ["eval/loss", "eval/bpb"]
    assert "throughput/mfu" not in keys
    assert (numbers["steps"], numbers["tokens"], numbers["flops"]) == (40, 20480.0, 80e9)
    assert (numbers["eval/loss"], numbers["throughput/parameter_count"]) == (2.5, 1000)
    assert payload["metrics"]["train/loss"]["unit"] == "nats/token"
