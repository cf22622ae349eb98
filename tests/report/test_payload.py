"""What a page is told of runs: curves, tags, config, notes, texts, and never a secret."""

import base64
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import chomp
from chomp.executor.status import StepInfo, write_info
from chomp.report.page import page_payload
from chomp.report.record import read_record
from chomp.report.run_payload import MAX_POINTS, MAX_SAMPLE_CHARACTERS, run_payload
from chomp.variants.archive import read_archive
from chomp.variants.checkout import checkout_root
from chomp.variants.lifecycle import lines_beyond_name
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


@pytest.mark.parametrize("points", [220_000, 2000])
def test_a_line_is_drawn_row_by_row_where_all_fits_and_by_some_rows_where_not(tmp_path, points):
    run = RecordedRun(tmp_path, log_every=1).attempt(0, 300, loss=lambda step: 5 - step / 100)
    payload = part(run, points=points)
    rows = len(curve(payload, "optim/learning_rate")[0])
    assert rows == (300 if points > 2000 else 100)
    assert payload["series"]["optim/learning_rate"]["count"] == 300
    # However straight it is: of a loss every row is news, and its buckets are of equal count.
    steps, values = curve(payload, "train/loss")
    assert len(steps) > 200
    assert values == pytest.approx(5 - steps / 100)


def test_a_schedule_keeps_its_corners_and_the_mean_of_all_its_rows(tmp_path):
    lines = [
        {"step": step, "attempt": 1, "time": 1e9 + step, "optim/learning_rate": min(step, 37) / 37}
        for step in range(5000)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    payload = run_payload(read_record(str(tmp_path)))
    steps, values = curve(payload, "optim/learning_rate")
    assert {0, 37, 4999} <= set(steps.tolist())
    assert np.interp(np.arange(5000), steps, values) == pytest.approx(
        np.minimum(np.arange(5000), 37) / 37
    )
    _, means = curve(payload, "optim/learning_rate", "mean_step", "mean")
    assert means[0] == pytest.approx(np.minimum(np.arange(50), 37).mean() / 37)


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


def test_a_run_without_a_config_is_said_to_be_unknown_and_has_no_differences(tmp_path):
    known = RecordedRun(tmp_path / "known").attempt(0, 4)
    for config, why in ((None, "there is no config_resolved.json"), ([1, 2], "holds [1, 2]")):
        unknown = part(RecordedRun(tmp_path / f"unknown{config}", config=config).attempt(0, 4))
        assert any(why in problem for problem in unknown["problems"]), unknown["problems"]
        assert unknown["config"] == []
        notes = page_payload([part(known), unknown])["notes"]
        assert notes == [f"Of {unknown['name']} the config is unknown: it may be anything."]


def test_a_file_in_this_folder_is_a_run_with_the_folders_name(tmp_path, monkeypatch):
    RecordedRun(tmp_path / "by_itself", config=None).attempt(0, 4).written()
    monkeypatch.chdir(tmp_path / "by_itself")
    for given in ("metrics.jsonl", "."):
        assert run_payload(read_record(given))["name"] == "by_itself"


def test_tokens_processed_and_tokens_trained_on_are_two_numbers(tmp_path):
    line = {"step": 0, "attempt": 1, "time": 1.0, "throughput/total_tokens": 64, "tokens_seen": 60}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    payload = page_payload([run_payload(read_record(str(tmp_path)))])
    facts = dict(payload["runs"][0]["facts"])
    assert (facts["tokens processed"], facts["tokens trained on"]) == ("64", "60")
    labels = {column["label"]: column["key"] for column in payload["columns"]}
    assert payload["runs"][0]["numbers"][labels["tokens trained on"]] == 60


@pytest.mark.parametrize("is_below", [True, False])
def test_the_command_for_a_step_works_from_anywhere(tmp_path, monkeypatch, is_below):
    start = tmp_path / "a start"
    run = RecordedRun(start / "outputs/run" if is_below else tmp_path / "run").attempt(0, 4)
    (start / "outputs/tokens/code-abc").mkdir(parents=True)
    monkeypatch.chdir(start)
    command = part(run)["where_command"]
    # Stores above the run are found by the command itself; others only where it was started.
    assert command.startswith("chomp data where " if is_below else f"cd '{start}' && chomp data ")


@pytest.mark.parametrize(("starts", "second"), [([0, 20], 20), ([], 21)])
def test_mixture_stages_begin_where_the_config_says_and_tell_what_they_read(
    tmp_path, starts, second
):
    stages = [{"start_step": start, "weights": {}} for start in starts]
    config = {**CONFIG, "data": {**CONFIG["data"], "stages": stages}}
    mixture = part(RecordedRun(tmp_path, config=config).attempt(0, 40))["mixture"]
    assert mixture["components"] == ["code", "prose"]
    first, later = mixture["stages"]
    assert (first["first_step"], first["weights"]) == (0, {"code": 0.7, "prose": 0.3})
    assert (later["first_step"], later["weights"]) == (second, {"code": 0.5, "prose": 0.5})
    # Of `code` alone the epochs are logged: a tenth of one for each step, whatever its weight. So
    # what lies between two rows is shared as no mixture would.
    assert first["epochs"] == {"code": pytest.approx(0.1 * second, abs=0.02)}
    assert later["epochs"] == {"code": pytest.approx(0.1 * (40 - second), abs=0.02)}


def test_samples_tell_the_prompt_from_what_was_written(tmp_path):
    run = RecordedRun(tmp_path).attempt(0, 4).sample(10, "once▸ upon").sample(2, "no mark")
    run.sample(20, "nothing came▸")
    assert part(run)["samples"] == [
        {"step": 2, "prompt": "", "text": "no mark"},
        {"step": 10, "prompt": "once", "text": " upon"},
        {"step": 20, "prompt": "nothing came", "text": ""},
    ]


def test_a_sample_that_cannot_be_read_is_named_and_the_others_stay(tmp_path):
    run = RecordedRun(tmp_path).attempt(0, 4).sample(2, "a▸b").sample(5, "c▸d")
    (tmp_path / "samples/step-5.txt").write_bytes(b"\xff\xfe\xff")
    shown = part(run)
    assert [sample["step"] for sample in shown["samples"]] == [2]
    told = "the sample of step 5 is left out: step-5.txt is no text"
    assert told in shown["problems"]


def test_of_long_texts_what_is_around_the_mark_is_shown(tmp_path):
    size = MAX_SAMPLE_CHARACTERS
    run = RecordedRun(tmp_path).attempt(0, 4).sample(3, f"{'a' * size}bc▸de{'f' * size}")
    (sample,) = part(run)["samples"]
    assert sample["prompt"] == "a" * (size - 2) + "bc"
    assert sample["text"] == "de" + "f" * (size - 2)


def test_the_template_is_compared_with_base_and_code_in_it_is_only_text(tmp_path):
    (tmp_path / "template").mkdir(parents=True)
    (tmp_path / "template" / "model.py").write_text("x = '<script>alert(1)</script>'\n")
    template = part(RecordedRun(tmp_path).attempt(0, 4))["template"]
    assert template["against"] == "experiments/grug/base"
    assert template["files"] == [{"path": "model.py", "lines": 1}]
    assert "<h3>model.py</h3>" in template["html"]
    assert "<script" not in template["html"]


def test_a_templates_lines_are_counted_as_the_ledger_counts_them(tmp_path):
    root = checkout_root(Path(chomp.__file__).parent)
    shutil.copytree(root / "experiments/grug/moe", tmp_path / "template")
    config = {"<module>": "experiments.grug.moe.launch"}
    info = StepInfo(
        name="grug/moe", identity="0", values={}, fn="train", config=config, description="",
        dependencies=[], output_path=str(tmp_path), sources={}, started=0.0,
    )  # fmt: skip
    write_info(str(tmp_path), info)
    note = part(RecordedRun(tmp_path).attempt(0, 4))["template"]["note"]
    added, deleted = lines_beyond_name(root, read_archive(root), "moe")
    assert f"+{added:,} -{deleted:,} lines of Python, but for its own name" in note


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


def test_no_secret_is_in_a_templates_lines_however_html_would_write_it(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "s3cr3t&<tok>en = 1234567")
    (tmp_path / "template").mkdir(parents=True)
    lines = 'key = "s3cr3t&<tok>en = 1234567"\nurl = "https://me:hunter22@host/x"\n'
    (tmp_path / "template" / "model.py").write_text(lines)
    html = part(RecordedRun(tmp_path).attempt(0, 4))["template"]["html"]
    text = re.sub("<[^>]*>", "", html)  # without the marks of colours
    assert not re.search("s3cr3t|tok&gt;|hunter22", text)
    assert "&lt;WANDB_API_KEY&gt;" in text
    assert "<WANDB_API_KEY>" not in html


def test_a_page_is_strict_json_even_where_the_loss_was_not_finite(tmp_path):
    run = RecordedRun(tmp_path).attempt(0, 40, loss=lambda step: None if step > 20 else 1.0)
    payload = page_payload([part(run)])
    json.dumps(payload, allow_nan=False)
    assert (
        "not finite at 10 logged steps, the first of them 21" in payload["runs"][0]["problems"][-1]
    )
    once = RecordedRun(tmp_path / "once").attempt(0, 40, loss=lambda step: None if step == 9 else 1)
    assert part(once)["problems"] == ["the loss was not finite at 1 logged step: 9"]


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
    assert "Not evaluated: other." in notes


def test_a_run_whose_evaluation_is_not_finite_was_evaluated(tmp_path):
    runs = [
        RecordedRun(tmp_path / name, config={**CONFIG, "run_id": name}).attempt(0, 4)
        for name in ("good", "bad", "none")
    ]
    runs[0].evaluation(3, loss=1.0)
    runs[1].evaluation(3, loss=None, loss__nonfinite="nan")
    assert page_payload([part(run) for run in runs])["notes"] == [
        "Not evaluated: none.",
        "Evaluated, with a loss that is not finite: bad.",
    ]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("data.train_on_eos", False, "different data (data.train_on_eos)"),
        ("data.mask_boundary_loss", False, "different data (data.mask_boundary_loss)"),
        ("eval.max_eval_batches", 3, "different evaluations (eval.max_eval_batches)"),
        ("eval.eval_batch_size", 8, "different evaluations (eval.eval_batch_size)"),
        ("eval.steps_per_eval", 8, None),
    ],
)
def test_every_difference_of_data_and_evaluation_is_said(tmp_path, field, value, said):
    section, name = field.split(".")
    other = {**CONFIG, "run_id": "other", section: {**CONFIG[section], name: value}}
    runs = [RecordedRun(tmp_path / "a"), RecordedRun(tmp_path / "b", config=other)]
    notes = page_payload([part(run.attempt(0, 4)) for run in runs])["notes"]
    assert notes == ([] if said is None else [f"The runs have {said}."])


def test_a_run_evaluated_by_its_averaged_weights_alone_has_those_numbers_and_says_so(tmp_path):
    first = RecordedRun(tmp_path / "a").attempt(0, 8).evaluation(7, loss=3.0, ema__loss=2.5)
    averaged = RecordedRun(tmp_path / "b", config={**CONFIG, "run_id": "other"}).attempt(0, 8)
    averaged.evaluation(7, ema__loss=2.0, ema__bpb=1.0)
    payload = page_payload([part(first), part(averaged)])
    assert [run["numbers"]["eval/loss"] for run in payload["runs"]] == [3.0, 2.0]
    assert payload["runs"][1]["numbers"]["eval/bpb"] == 1.0
    assert ["evaluated", "averaged weights"] in payload["runs"][1]["facts"]
    assert payload["notes"] == [
        "The evaluations of other are of the averaged weights, the others' not."
    ]


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


def test_of_folders_of_one_name_as_much_is_told_as_tells_them_apart(tmp_path):
    folders = [tmp_path / "x" / "a", tmp_path / "y" / "a", tmp_path / "y" / "b"]
    payload = page_payload([part(RecordedRun(folder).attempt(0, 4)) for folder in folders])
    told = [run["name"] for run in payload["runs"]]
    assert told == ["by_hand (x/a)", "by_hand (y/a)", "by_hand (b)"]


def test_commands_name_the_folder_from_wherever_they_are_called(tmp_path, monkeypatch):
    RecordedRun(tmp_path).attempt(0, 4).written()
    monkeypatch.chdir(tmp_path)
    command = run_payload(read_record("."))["where_command"]
    assert command == f"chomp data where {tmp_path} --step {{step}}"


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
