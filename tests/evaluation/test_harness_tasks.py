"""Local lm-eval tasks through lm-eval's own evaluator, against numbers computed by hand."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from chomp.errors import ConfigError
from chomp.evaluation.harness import (
    HarnessModel,
    HarnessResults,
    Request,
    load_tasks,
    run_tasks,
)
from chomp.evaluation.request_scores import TruncationCounts
from chomp.tokenize import ByteTokenizer
from tests.evaluation.harness_model import (
    CFG,
    EOS,
    by_hand,
    greedy_ids,
    model_on,
    scorer_on,
)
from tests.evaluation.local_tasks import TASKS, local_tasks


@pytest.fixture
def folder(tmp_path) -> Iterator[Path]:
    with local_tasks(tmp_path) as tasks:
        yield tasks


def documents(name: str) -> list[dict]:
    return [json.loads(line) for line in (TASKS / f"{name}.jsonl").read_text().splitlines()]


def harness(mesh, **how) -> HarnessModel:
    return HarnessModel(model_on(mesh), scorer_on(mesh), tokenizer=ByteTokenizer(), **how)


def accuracies(mesh) -> dict[str, float]:
    """Share of questions whose answer is the likeliest choice, in all and per byte."""
    hits = {"acc": 0, "acc_norm": 0}
    asked = documents("colours")
    for item in asked:
        context = f"Q: {item['question']}\nA:".encode()
        choices = [f" {choice}".encode() for choice in item["choices"]]
        requests = [Request((*context, *choice), len(context)) for choice in choices]
        scores = np.asarray([score.log_likelihood for score in by_hand(mesh, requests)])
        # lm-eval divides by the length of the choice without the space before it.
        lengths = np.asarray([len(choice) for choice in item["choices"]])
        hits["acc"] += scores.argmax() == item["answer"]
        hits["acc_norm"] += (scores / lengths).argmax() == item["answer"]
    return {name: count / len(asked) for name, count in hits.items()}


def bytes_perplexity(mesh) -> float:
    texts = [item["text"].encode() for item in documents("lines")]
    total = 0.0
    for ids in texts:
        requests = [Request((EOS, *ids[:63]), 1)]
        if len(ids) > 63:
            requests.append(Request(tuple(ids[-64:]), 64 - (len(ids) - 63)))
        total += sum(score.log_likelihood for score in by_hand(mesh, requests))
    return math.exp(-total / sum(len(ids) for ids in texts))


def test_local_tasks_give_the_numbers_computed_by_hand(one_device_mesh, folder):
    mesh = one_device_mesh
    drawn = np.random.get_state()[1]
    results = run_tasks(harness(mesh), ["colours", "lines"], include_path=str(folder))
    np.testing.assert_array_equal(np.random.get_state()[1], drawn)  # lm-eval seeds it
    metrics, expected = results.metrics(), accuracies(mesh)
    assert 0.0 < expected["acc"] < 1.0  # or any model would pass
    assert metrics["lm_eval/colours/acc"] == expected["acc"]
    assert metrics["lm_eval/colours/acc_norm"] == expected["acc_norm"]
    variance = expected["acc"] * (1 - expected["acc"]) / 7  # of 8 samples
    assert math.isclose(metrics["lm_eval/colours/acc_stderr"], math.sqrt(variance))
    perplexity = metrics["lm_eval/lines/byte_perplexity"]
    assert math.isclose(perplexity, bytes_perplexity(mesh), rel_tol=1e-5)
    assert metrics["lm_eval/averages/macro_avg_acc"] == expected["acc"]
    assert metrics["lm_eval/truncated_requests"] == 0.0
    assert {row.task: row.num_samples for row in results.rows} == {"colours": 8, "lines": 3}
    written = json.dumps(results.as_json(), allow_nan=False)
    assert HarnessResults.from_json(json.loads(written)) == results


def test_few_shot_prompts_that_do_not_fit_are_counted_and_limits_hold(
    one_device_mesh, folder, caplog, capfd, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    model = harness(one_device_mesh)
    results = run_tasks(model, ["col*"], include_path=str(folder), num_fewshot=4, limit=3)
    assert results.cuts.truncated == 9  # all choices of three questions
    assert results.metrics()["lm_eval/truncated_requests"] == 9.0
    assert {(row.num_samples, row.num_fewshot) for row in results.rows} == {(3, 4)}
    assert "9 of 9 requests are longer" in caplog.text
    assert "git" not in capfd.readouterr().err  # which lm-eval asks, in a checkout or not


def test_a_generating_task_compares_what_the_sampler_wrote(one_device_mesh, folder):
    answers = {b"Say one:": b"one. And", b"Say two:": b"too\n", b"Say three:": b"three\n\n"}

    def generate(prompts, *, max_tokens, temperature, **how):
        assert (max_tokens, temperature) == (16, 0.0)
        model_says = greedy_ids(one_device_mesh, tuple(prompts[0]), 2)
        assert max(model_says) < CFG.vocab_size
        return [list(answers.get(bytes(prompt), b"4")) for prompt in prompts]

    model = harness(one_device_mesh, generate=generate)
    results = run_tasks(model, ["echo"], include_path=str(folder))
    assert results.metrics()["lm_eval/echo/exact_match"] == 0.5


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        (["colour"], "did you mean colours"),
        (["colours", "sudoku*"], "sudoku"),
        (["on_a_hub"], "on_a_hub"),
    ],
)
def test_a_task_that_cannot_be_run_is_named(one_device_mesh, folder, tasks, words):
    with pytest.raises(ConfigError) as caught:
        run_tasks(harness(one_device_mesh), tasks, include_path=str(folder))
    assert words in caught.value.given


def test_a_folder_that_is_not_there_or_none_at_all_is_refused(one_device_mesh, tmp_path):
    with pytest.raises(ConfigError) as caught:
        run_tasks(harness(one_device_mesh), ["colours"])
    assert "folder" in caught.value.allowed
    with pytest.raises(ConfigError) as caught:
        run_tasks(harness(one_device_mesh), ["colours"], include_path=str(tmp_path / "none"))
    assert "folder" in caught.value.allowed


def test_files_that_are_passed_over_are_named(one_device_mesh, folder, caplog):
    (folder / "broken.yaml").write_text("task: [broken\n")
    (folder / "lonely.yaml").write_text("include: nowhere.yaml\ntask: lonely\n")
    (folder / "short.yml").write_text("include: colours.yaml\ntask: short\n")
    with pytest.raises(ConfigError) as caught:
        run_tasks(harness(one_device_mesh), ["broken"], include_path=str(folder))
    assert "broken.yaml" in caught.value.given
    load_tasks(["col*"], include_path=str(folder))
    assert "lonely.yaml is no task that could be asked: it includes nowhere.yaml" in caplog.text
    assert "short.yml is no task" in caplog.text


@pytest.mark.parametrize(("first", "words"), [("", "test split"), ("train: ", "test")])
def test_a_split_without_a_record_is_named(folder, first, words):
    (folder / "none.jsonl").write_text("")
    before = f"{first}{folder / 'colours.jsonl'}, " if first else ""
    files = f"{{data_files: {{{before}test: {folder / 'none.jsonl'}}}}}"
    (folder / "none.yaml").write_text(
        f"include: colours.yaml\ntask: none\ndataset_kwargs: {files}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_tasks(["none"], include_path=str(folder))
    assert "task none" in caught.value.given
    assert words in caught.value.given


def test_code_beside_a_task_runs_only_when_allowed(one_device_mesh, folder):
    (folder / "loud.py").write_text("def text(doc):\n    return 'Q: ' + doc['question']\n")
    named = "doc_to_text: !function loud.text\n"
    (folder / "loud.yaml").write_text(f"include: colours.yaml\ntask: loud\n{named}")
    model = harness(one_device_mesh)
    with pytest.raises(ConfigError) as caught:
        run_tasks(model, ["colours"], include_path=str(folder))
    assert "loud.yaml" in caught.value.given
    assert "allow_code" in caught.value.fix
    results = run_tasks(model, ["loud"], include_path=str(folder), allow_code=True)
    assert {row.task for row in results.rows} == {"loud"}


def test_a_group_of_groups_runs_each_task_once(one_device_mesh, folder):
    (folder / "inner.yaml").write_text(
        "group: inner\ntask: [colours]\n"
        "aggregate_metric_list: [{metric: acc, weight_by_size: true}]\n"
    )
    (folder / "outer.yaml").write_text(
        "group: outer\ntask: [inner, lines]\n"
        "aggregate_metric_list: [{metric: acc, weight_by_size: true}]\n"
    )
    model = harness(one_device_mesh)
    results = run_tasks(model, ["inner"], include_path=str(folder))
    accuracy = {row.task: row.value for row in results.rows if row.metric == "acc"}
    assert accuracy["inner"] == accuracy["colours"] == accuracies(one_device_mesh)["acc"]
    assert results.metrics()["lm_eval/averages/macro_avg_acc"] == accuracy["colours"]
    tasks = {row.task for row in run_tasks(model, ["outer"], include_path=str(folder)).rows}
    assert {"colours", "lines"} <= tasks
    with pytest.raises(ConfigError) as caught:
        run_tasks(model, ["inner", "outer"], include_path=str(folder))
    assert "colours" in caught.value.given


def test_a_task_that_runs_answers_as_programs_is_refused(one_device_mesh, folder):
    (folder / "unsafe.yaml").write_text("include: colours.yaml\ntask: unsafe\nunsafe_code: true\n")
    with pytest.raises(ConfigError) as caught:
        run_tasks(harness(one_device_mesh), ["unsafe"], include_path=str(folder))
    assert "the task unsafe" in caught.value.given


@pytest.mark.parametrize("how", [{"tasks": []}, {"num_fewshot": -1}, {"limit": 0}])
def test_numbers_that_mean_nothing_are_refused(one_device_mesh, folder, how):
    settings = {"tasks": ["colours"], "include_path": str(folder), **how}
    with pytest.raises(ConfigError) as caught:
        run_tasks(harness(one_device_mesh), **settings)
    assert "one task" in caught.value.allowed


def test_averages_count_each_task_once_and_leave_groups_out():
    results = HarnessResults.from_lm_eval(
        {
            "results": {
                "both": {"alias": "both", "acc,none": 0.1, "acc_stderr,none": "N/A"},
                "a": {"alias": "a", "acc,none": 0.5, "acc_stderr,none": 0.1},
                "b": {"acc,none": 0.0, "acc_stderr,none": "N/A", "match,strict": 1.0},
            },
            "n-samples": {"a": {"effective": 10}, "b": {"effective": 30}},
        },
        TruncationCounts(),
    )
    assert results.metrics() == {
        "lm_eval/both/acc": 0.1,
        "lm_eval/a/acc": 0.5,
        "lm_eval/a/acc_stderr": 0.1,
        "lm_eval/b/acc": 0.0,
        "lm_eval/b/match,strict": 1.0,
        "lm_eval/averages/macro_avg_acc": 0.25,
        "lm_eval/averages/micro_avg_acc": 0.125,
        "lm_eval/averages/macro_avg_match,strict": 1.0,
        "lm_eval/averages/micro_avg_match,strict": 1.0,
        "lm_eval/truncated_requests": 0.0,
    }
    assert results.table()[2] == ("a", "acc", "0.5000", "0.1000", "10", "")
