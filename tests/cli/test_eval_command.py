"""`chomp eval`: the loop's own numbers afterwards, on the run's data and on other data."""

import gzip
import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from chomp.checkpoint import read_step_folder
from chomp.checkpoint.format import write_metadata
from chomp.data import TokenStore
from chomp.tokenize import save_tokenizer, train_bpe
from chomp.tracking import JsonlTracker, latest_rows, read_metrics
from chomp.tracking.metrics import WANDB_RUN_ID
from tests.cli.conftest import Chomp, assert_refused
from tests.tracking.wandb_files import offline_runs


def rows(run: Path) -> list[dict[str, Any]]:
    """The record of a run."""
    return read_metrics(run / "metrics.jsonl")


def in_loop(run: Path, step: int = 12) -> dict[str, float]:
    """What the loop evaluated after a step, without the time it took."""
    row = next(row for row in rows(run) if "eval/loss" in row and row["step"] == step - 1)
    return timeless({key: value for key, value in row.items() if key.startswith("eval/")})


def timeless(metrics: dict[str, Any]) -> dict[str, float]:
    return {key: value for key, value in metrics.items() if not key.endswith("_time")}


def evaluated(chomp: Chomp, *arguments: str) -> dict[str, Any]:
    """What `chomp eval --json` prints, which is JSON and nothing else."""
    told = chomp("eval", *arguments, "--json")
    assert told.code == 0, told.err
    found: dict[str, Any] = json.loads(told.out)
    return found


refused = partial(assert_refused, code=None)


def edit_config(run: Path, **sections: Any) -> None:
    """Change the config that the run folder tells."""
    path = run / "config_resolved.json"
    content = json.loads(path.read_text())
    for name, changes in sections.items():
        content[name] |= changes
    path.write_text(json.dumps(content))


# ---- The run's own data


@pytest.mark.parametrize(("place", "step"), [("run", 12), ("run/checkpoints/step-6", 6)])
def test_numbers_afterwards_are_those_of_the_loop_to_the_bit(
    chomp: Chomp, trained: Path, place: str, step: int
):
    before = in_loop(trained, step)
    by_step = {row["step"]: row for row in latest_rows(rows(trained))}
    found = evaluated(chomp, place)
    assert timeless(found["metrics"]) == before
    for name in ("loss", "ema/loss", "text/sums/bpb", "text/macro_loss"):
        assert f"eval/{name}" in before
    assert (found["step"], found["run_id"]) == (step, "tiny")
    assert found["checkpoint"].endswith(f"/run/checkpoints/step-{step}")
    assert found["data"]["sums"]["hash"] != found["data"]["words"]["hash"]
    assert found["data"]["sums"]["tags"] == ["sums", "text/sums"]
    assert (found["weights"], found["changed"], found["differs_from_run"]) == ("both", {}, [])
    assert found["precision"] == {"params": "float32", "compute": "float32"}
    assert len(found["template_hash"]) == 64
    assert found == json.loads((trained / f"artifacts/eval-step-{step}.json").read_text())
    # The record has them once more, at the same step of the same attempt; times stay the loop's.
    row, artifact = rows(trained)[-2:]
    assert (row["step"], row["attempt"], row["eval_loss"]) == (step - 1, 1, before["eval/loss"])
    assert {key: row[key] for key in row if key.startswith("eval/")} == before
    (now,) = [row for row in latest_rows(rows(trained)) if row["step"] == step - 1]
    assert now["eval/total_time"] == by_step[step - 1]["eval/total_time"]
    assert artifact["path"].endswith(f"artifacts/eval-step-{step}.json")


def test_a_service_that_the_run_is_sent_to_has_the_row_too(chomp: Chomp, trained: Path):
    evaluated(chomp, "run", "--weights", "params", "-o", "logging.tensorboard.enabled=true")
    (events,) = (trained / "tensorboard/attempt-1").iterdir()
    assert b"eval/text/sums/bpb" in events.read_bytes()
    assert rows(trained)[-2]["eval/loss"] == in_loop(trained)["eval/loss"]
    # A part of what the run evaluates is logged, and is not the file of the whole.
    assert [path.name for path in (trained / "artifacts").iterdir()] == ["eval-step-12-params.json"]


def test_while_a_run_trains_its_record_has_the_row_and_wandb_is_left_to_the_run(
    chomp: Chomp, trained: Path, caplog: pytest.LogCaptureFixture
):
    run = JsonlTracker(trained / "metrics.jsonl", attempt=2)
    run.log_summary({WANDB_RUN_ID: "tiny-0"})
    wandb = ["-o", "logging.wandb.enabled=true", "-o", "logging.wandb.mode=offline"]
    evaluated(chomp, "run", "--weights", "params", *wandb)
    run.log({"train/loss": 1.0}, step=12)
    run.finish()
    *_, row, _, last = rows(trained)
    assert (row["step"], row["attempt"], last["step"]) == (11, 2, 12)
    assert row["eval/loss"] == in_loop(trained)["eval/loss"]
    assert "nothing is sent to W&B" in caplog.text
    assert not Path("wandb").exists()


def test_at_wandb_the_row_comes_after_those_of_the_run_each_once(
    chomp: Chomp, trained: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WANDB_DIR", str(trained))
    run = JsonlTracker(trained / "metrics.jsonl", attempt=1)
    run.log_summary({WANDB_RUN_ID: "tiny-0"})
    run.finish()
    before = [row for row in rows(trained) if "kind" not in row]
    wandb = ["-o", "logging.wandb.enabled=true", "-o", "logging.wandb.mode=offline"]
    evaluated(chomp, "run", *wandb)
    (found,) = offline_runs(trained)
    assert [row["_step"] for row in found.rows] == list(range(len(before) + 1))
    row = found.rows[-1]
    assert (row["global_step"], found.exit_code) == (11, 0)
    assert row["eval/loss"] == in_loop(trained)["eval/loss"]
    # A second evaluation sends its own row alone.
    evaluated(chomp, "run", "--weights", "params", *wandb)
    again = offline_runs(trained)[-1]
    assert [row["_step"] for row in again.rows] == [len(before) + 1]


def test_a_table_tells_each_tag_below_its_parent(chomp: Chomp, trained: Path):
    before = in_loop(trained)
    told = chomp("eval", "run/checkpoints/step-12", "--weights", "ema", "--out", "mine.json")
    assert told.code == 0, told.err
    labels = [line.split("│")[1].rstrip()[1:] for line in told.out.splitlines() if "│" in line]
    assert labels == ["sums", "text", "  sums", "  words", "words", "all", "mean over tags"]
    assert "averaged weights of step 12" in told.out
    assert f"{before['eval/ema/loss']:.4f} ± {before['eval/ema/loss_stderr']:.4f}" in told.out
    assert "tokens/s" in told.out
    assert not (trained / "artifacts").exists()
    written = json.loads(Path("mine.json").read_text())["metrics"]
    assert timeless(written) == {k: v for k, v in before.items() if k.startswith("eval/ema/")}


def test_what_the_template_in_the_run_folder_says_is_what_is_evaluated(
    chomp: Chomp, trained: Path, caplog: pytest.LogCaptureFixture
):
    record = trained / "metrics.jsonl"
    record.unlink()
    source = trained / "template/train.py"
    before = source.read_text()
    with source.open("a") as file:
        file.write(
            "\n\ndef losses_of(mp, params, batch):\n    return batch.loss_weight * 0.0 + 2.5\n"
        )
    refused(chomp("eval", "run"), "run/template", "--trust")
    refused(chomp("eval", "run", "--trust"), "run/template", "--allow-changed")
    refused(chomp("checkpoint", "export", "run", "--out", "exported"), "--allow-changed")
    found = evaluated(chomp, "run", "--weights", "params", "--allow-changed", "--trust")
    assert found["metrics"]["eval/loss"] == 2.5
    assert found["differs_from_run"] == ["another template"]
    # And a record that is not there is not begun by an evaluation.
    source.write_text(before)
    evaluated(chomp, "run", "--weights", "params")
    assert "metrics.jsonl is not there" in caplog.text
    assert not record.exists()


def test_a_config_that_is_not_the_checkpoints_is_refused_or_told(chomp: Chomp, trained: Path):
    before = rows(trained)
    edit_config(trained, model={"layer_norm_eps": 0.3})
    commands = (["eval", "run"], ["generate", "run", "--prompt", "a"])
    for command in commands:
        refused(chomp(*command), "model.layer_norm_eps=0.3", "--allow-changed")
    found = evaluated(chomp, "run", "--weights", "params", "--allow-changed")
    (told,) = found["differs_from_run"]
    assert told.startswith("model.layer_norm_eps ")
    assert rows(trained) == before
    # What a later attempt may change is no damage, and the results say it.
    (trained / "config_resolved.json").unlink()
    assert evaluated(chomp, "run", "--weights", "params")["differs_from_run"] == []


def test_a_checkpoint_without_a_template_hash_is_used_and_that_is_said(
    chomp: Chomp, trained: Path, caplog: pytest.LogCaptureFixture
):
    path = trained / "checkpoints/step-12"
    found = read_step_folder(str(path))
    assert len(found.metadata.template_hash) == 64
    write_metadata(str(path), replace(found.metadata, template_hash=""))
    assert chomp("checkpoint", "export", str(path), "--out", "exported").code == 0
    assert "without a hash of its template" in caplog.text


def test_numbers_that_are_not_the_runs_have_files_of_their_own_and_no_row(
    chomp: Chomp, trained: Path, caplog: pytest.LogCaptureFixture
):
    before, loss = rows(trained), in_loop(trained)["eval/loss"]
    shutil.copytree(trained / "template", "twice")
    with Path("twice/train.py").open("a") as file:
        file.write("\n\n_once = losses_of\n\n\ndef losses_of(mp, params, batch):\n")
        file.write("    return 2.0 * _once(mp, params, batch)\n")
    less = evaluated(chomp, "run", "--weights", "params", "-o", "eval.max_eval_batches=1")
    assert less["metrics"]["eval/tokens"] < in_loop(trained)["eval/tokens"]
    assert less["differs_from_run"] == ["eval.max_eval_batches is changed"]
    doubled = evaluated(chomp, "run", "--weights", "params", "--template", "twice", "--trust")
    assert doubled["metrics"]["eval/loss"] == pytest.approx(2 * loss)
    assert doubled["differs_from_run"] == ["another template"]
    kernel = evaluated(chomp, "run", "--weights", "params", "-o", "model.attention=reference")
    assert kernel["changed"] == {"model.attention": "reference"}
    tagged = ["--weights", "params", "-o", "data.components.sums.tags=[words/x]"]
    told = chomp("eval", "run", *tagged)
    assert "record      left as it is: data.components.sums.tags is changed" in told.out
    # `words` is data of its own here, which does not count what is in `words/x`.
    assert "│ words          │" in told.out
    assert "│ words/x        │" in told.out
    # What is at the same path by now may be something else.
    components = json.loads((trained / "config_resolved.json").read_text())["data"]["components"]
    components["sums"]["validation_store"] = components["words"]["validation_store"]
    edit_config(trained, data={"components": components})
    moved = evaluated(chomp, "run", "--weights", "params")
    assert moved["differs_from_run"] == ["other data in sums"]
    assert "the held-out store of sums" in caplog.text
    assert rows(trained) == before
    names = [path.name for path in (trained / "artifacts").iterdir()]
    assert len(names) == 5
    assert all(name.startswith("eval-step-12-") for name in names)


def test_a_store_that_was_moved_is_named_and_then_as_good_as_before(chomp: Chomp, trained: Path):
    components = json.loads((trained / "config_resolved.json").read_text())["data"]["components"]
    shutil.copytree(components["sums"]["validation_store"], "moved")
    components["sums"]["validation_store"] = "outputs/sums"
    edit_config(trained, data={"components": components})
    option = "data.components.sums.validation_store"
    refused(chomp("eval", "run"), "where the run was started", "is not there", f"-o {option}=PATH")
    refused(chomp("generate", "run"), "where the run was started", f"-o {option}=PATH")
    found = evaluated(chomp, "run", "--weights", "params", "-o", f"{option}=moved")
    assert found["differs_from_run"] == []
    assert rows(trained)[-2]["eval/loss"] == in_loop(trained)["eval/loss"]


# ---- Other data


def test_files_are_evaluated_whole_as_the_store_of_the_same_documents_is(
    chomp: Chomp, trained: Path, caplog: pytest.LogCaptureFixture
):
    before, record = in_loop(trained), rows(trained)
    data = json.loads((trained / "config_resolved.json").read_text())["data"]
    store = data["components"]["sums"]["validation_store"]
    texts = [Path(name).read_text() for name in documents_of(store)]
    lines = "".join(json.dumps({"body": text}) + "\n" for text in texts)
    Path("sums.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    Path("folder").mkdir()
    Path("folder/one.log").write_text(texts[0])
    asked = ["run", "--weights", "params", "--text-key", "body"]
    asked += ["--data", "sums.jsonl.gz", "--data", f"the/store={store}", "--data", "folder"]
    found = evaluated(chomp, *asked)
    metrics = found["metrics"]
    for name in ("sums", "the/store"):
        assert metrics[f"eval/{name}/loss"] == before["eval/sums/loss"]
        assert metrics[f"eval/{name}/bpb_stderr"] == before["eval/sums/bpb_stderr"]
    assert metrics["eval/folder/documents"] == 1
    assert "folder/one.log is read as plain text" in caplog.text
    assert found["data"]["sums"]["made_from"] == "sums.jsonl.gz"
    assert rows(trained) == record
    # The second time nothing is tokenized, and the file is the same one.
    times = [path.stat().st_mtime_ns for path in Path("outputs").rglob("manifest.json")]
    told = chomp("eval", *asked)
    assert (told.code, told.err) == (0, "")
    assert [path.stat().st_mtime_ns for path in Path("outputs").rglob("manifest.json")] == times
    assert len(list((trained / "artifacts").iterdir())) == 1


def documents_of(store: str) -> list[str]:
    """The files that the documents of a store are, in its order."""
    locations = TokenStore.open(store).locations
    return [locations.document_id(number) for number in range(len(locations))]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--data nowhere*", ["no file at nowhere*"]),
        ("--data mixed", ["a.jsonl is JSON lines", "b.txt is text"]),
        ("--data text.gz", ["not JSON lines by its name"]),
        ("--data one.json", ["each line of it is a record", ".jsonl"]),
        ("--data EMPTY.JSONL", ["EMPTY.JSONL", "no document in"]),
        ("--data ema.txt", ["the name 'ema'", "=ema.txt"]),
        ("--data ../../evil=ema.txt", ["the name '../../evil'"]),
        ("--data a//b=ema.txt", ["the name 'a//b'"]),
        ("--data mixed/a.jsonl --out mixed", ["is a folder"]),
        ("--data mixed/a.jsonl --data a=mixed/b.txt", ["the name a twice"]),
        # An override that an option makes void.
        ("--data a.txt -o data.components.sums.tags=[b]", ["with --data, which takes its place"]),
        ("--weights params -o eval.eval_ema=false", ["eval.eval_ema with --weights"]),
        # What cannot be changed afterwards.
        ("-o model.num_layers=3", ["part of what was trained"]),
        ("-o train.steps=9", ["has no effect"]),
        ("-o checkpoint.every=1", ["has no effect"]),
        ("-o train.eval_every=3", ["eval.steps_per_eval=3, which has no effect"]),
        ("-o eval=null", ["eval=None, which has no effect"]),
        ("-o eval.max_eval_batch=1", ["did you mean max_eval_batches"]),
        ("-o mesh.data=3", ["sizes whose product is 8"]),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_weights_are_read(
    chomp: Chomp, trained: Path, arguments: str, words: list[str]
):
    Path("mixed").mkdir()
    files = {"mixed/a.jsonl": "{}\n", "mixed/b.txt": "b", "text.gz": "", "one.json": "[]"}
    files |= {"EMPTY.JSONL": "", "ema.txt": "text", "a.txt": "a"}
    for name, text in files.items():
        Path(name).write_text(text)
    shutil.rmtree(trained / "checkpoints/step-12/state")
    refused(chomp("eval", "run", *arguments.split()), *words)


# ---- Which checkpoint, which tokenizer, which devices


def damage(step: Path) -> None:
    """Flip bytes in the largest array file, so close that some are in what is read of it."""
    largest = max((step / "state").rglob("*"), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    for at in range(500, len(content), 1000):
        content[at] ^= 1
    largest.write_bytes(content)


def test_a_damaged_checkpoint_is_passed_over_aloud_unless_it_is_the_one_named(
    chomp: Chomp, trained: Path, caplog: pytest.LogCaptureFixture
):
    damage(trained / "checkpoints/step-12")
    found = evaluated(chomp, "run", "--weights", "params")
    assert found["step"] == 6
    assert rows(trained)[-2]["step"] == 5
    assert "step-12 is damaged and passed over" in caplog.text
    named = chomp("eval", "run/checkpoints/step-12")
    refused(named, "no undamaged checkpoint", "step-12: ")


def test_a_checkpoint_outside_of_a_run_needs_a_template_and_a_tokenizer(
    chomp: Chomp, trained: Path, tmp_path: Path
):
    before = in_loop(trained)
    shutil.copytree(trained / "checkpoints/step-12", "alone/step-12")
    refused(chomp("eval", "alone/step-12"), "in no run folder", "--template FOLDER")
    template = ["alone/step-12", "--template", "run/template"]
    refused(chomp("eval", *template), "without a tokenizer", "--tokenizer")
    found = evaluated(chomp, *template, "--tokenizer", "run/tokenizer", "--weights", "params")
    assert found["metrics"]["eval/loss"] == before["eval/loss"]


def test_a_run_without_its_tokenizer_names_the_one_it_was_built_with(chomp: Chomp, trained: Path):
    built = json.loads((trained / "config_resolved.json").read_text())["data"]["tokenizer"]["path"]
    shutil.rmtree(trained / "tokenizer")
    refused(chomp("eval", "run"), "run/tokenizer has no", f"--tokenizer {built}")


def test_another_tokenizer_is_refused_with_both_hashes(chomp: Chomp, trained: Path):
    other = train_bpe(["some words and some more"] * 3, vocab_size=257)
    save_tokenizer(other, "other")
    trained_with = json.loads((trained / "checkpoints/step-12/metadata.json").read_text())
    told = chomp("eval", "run", "--tokenizer", "other")
    refused(told, other.content_hash[:12], trained_with["tokenizer_hash"][:12])


def test_a_mesh_of_another_machine_is_replaced_aloud(
    chomp: Chomp, trained: Path, caplog: pytest.LogCaptureFixture
):
    before = in_loop(trained)
    edit_config(trained, mesh={"data": 64})
    found = evaluated(chomp, "run", "--weights", "params")
    assert found["mesh"]["data"] == 8
    assert "the run's mesh does not fit this machine" in caplog.text
    assert found["metrics"]["eval/loss"] == pytest.approx(before["eval/loss"], rel=1e-6)


def test_an_average_that_is_not_there_is_refused(chomp: Chomp, trained: Path):
    for step in (6, 12):
        path = trained / f"checkpoints/step-{step}"
        found = read_step_folder(str(path))
        arrays = {k: v for k, v in found.metadata.arrays.items() if not k.startswith("ema_")}
        write_metadata(str(path), replace(found.metadata, arrays=arrays))
    for weights in ("ema", "both"):
        refused(chomp("eval", "run", "--weights", weights), "no averaged weights", "params")


def test_a_template_without_what_evaluation_calls_is_told_what_it_lacks(
    chomp: Chomp, trained: Path
):
    source = trained / "template/train.py"
    source.write_text(source.read_text().replace("def losses_of(", "def losses_by("))
    refused(chomp("eval", "run", "--allow-changed", "--trust"), "without losses_of")
