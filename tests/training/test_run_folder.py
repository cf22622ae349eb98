"""A run's folder describes the run, and its table is read from its files alone."""

import base64
import hashlib
import io
import json
import logging
import re
import sys
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from rich.console import Console

from chomp.config import Config
from chomp.errors import ConfigError, RunInterrupted, StorageError
from chomp.report.run_table import print_run_table
from chomp.tokenize import ByteTokenizer, load_tokenizer
from chomp.tracking import (
    JsonlTracker,
    LoggingConfig,
    TensorBoardConfig,
    WandbConfig,
    latest_rows,
    read_metrics,
    summary_of,
)
from chomp.tracking.run_files import is_remembered, record_of, sources_hash, template_sources
from chomp.training import RunFolder
from chomp.training.run_folder import environment, environment_summary
from tests.tracking.wandb_files import offline_runs


@dataclass(frozen=True, kw_only=True)
class Knobs(Config):
    """A config with a nested one."""

    lr: float = 0.1
    notes: dict[str, str] = field(default_factory=dict)
    logging: LoggingConfig = field(default_factory=LoggingConfig)


def table_of(path: Path) -> str:
    text = io.StringIO()
    print_run_table(str(path), Console(file=text, width=160))
    return text.getvalue()


def log_run(
    path: Path,
    *,
    attempt: int = 1,
    steps: int = 3,
    with_eval: bool = True,
    with_current: bool = True,
) -> None:
    tracker = JsonlTracker(path / "metrics.jsonl", attempt=attempt)
    for step in range(steps):
        tracker.log({"train/loss": 4.0 - step, "tokens_seen": 1000 * (step + 1)}, step=step)
    if with_eval:
        metrics = {
            "eval/loss": 2.5,
            "eval/bpb": 1.25,
            "eval/tokens": 3000.0,
            "eval/text/code/loss": 2.125,
            "eval/text/code/bpb": 1.0625,
            "eval/text/code/tokens": 2000.0,
            "eval/empty/tokens": 0.0,
            "eval/ema/loss": 9.75,
            "eval/ema/tokens": 3000.0,
            "eval/ema/code/tokens": 2000.0,
        }
        if not with_current:
            metrics = {key: value for key, value in metrics.items() if "/ema/" in key}
        tracker.log(metrics, step=steps - 1)
    tracker.log_summary({"run/tokens_per_sec": 12345.6, "run/tokens_per_second": 99999.9})
    tracker.finish()


def test_the_table_has_losses_speed_places_and_the_newest_sample(tmp_path):
    log_run(tmp_path)
    (tmp_path / "checkpoints" / "step-3").mkdir(parents=True)
    (tmp_path / "samples").mkdir()
    for step, text in ((9, "older text"), (10, "[bold]newest[/bold] text")):
        (tmp_path / "samples" / f"step-{step}.txt").write_text(text)
    (tmp_path / "samples" / "notes.txt").write_text("somebody's notes")
    shown = table_of(tmp_path)
    lines = {line.split()[1]: line for line in shown.splitlines() if len(line.split()) > 4}
    assert "2.1250" in lines["text/code"]
    assert "1.0625" in lines["text/code"]
    assert "2,000" in lines["text/code"]
    assert "2.5000" in lines["all"]
    assert "-" in lines["empty"]
    for words in ("2.0000", "3,000", "12,346", str(tmp_path / "checkpoints"), "newest[/bold] text"):
        assert words in shown
    assert "older text" not in shown
    assert "9.75" not in shown  # averaged weights are another model


def test_the_table_is_of_the_averaged_weights_where_only_those_were_evaluated(tmp_path):
    log_run(tmp_path, with_current=False)
    shown = table_of(tmp_path)
    lines = {line.split()[1]: line for line in shown.splitlines() if len(line.split()) > 4}
    assert "averaged weights" in shown
    assert "9.7500" in lines["all"]
    assert "2,000" in lines["code"]


def test_a_run_without_evaluation_has_a_table_without_held_out_losses(tmp_path):
    log_run(tmp_path, with_eval=False)
    shown = table_of(tmp_path)
    assert "held-out" not in shown
    assert "train loss" in shown
    assert "2.0000" in shown


def test_a_torn_last_line_is_left_out_of_the_table(tmp_path, caplog):
    log_run(tmp_path)
    metrics = tmp_path / "metrics.jsonl"
    whole = table_of(tmp_path)
    with metrics.open("ab") as file:
        file.write(b'{"step":3,"train/loss":99')
    assert table_of(tmp_path) == whole
    assert "torn" in caplog.text
    assert metrics.read_bytes().endswith(b":99")  # a reader changes nothing


def test_a_run_stopped_before_its_first_row_has_a_table(tmp_path):
    JsonlTracker(tmp_path / "metrics.jsonl", attempt=1).finish()
    assert "run folder" in table_of(tmp_path)


def test_steps_that_a_second_attempt_repeated_are_shown_as_it_left_them(tmp_path):
    log_run(tmp_path, with_eval=False)
    tracker = JsonlTracker(tmp_path / "metrics.jsonl", attempt=2)
    tracker.log({"train/loss": 1.5, "tokens_seen": 3000}, step=2)
    tracker.finish()
    assert "1.5000" in table_of(tmp_path)


def test_a_folder_whose_name_looks_like_a_pattern_is_only_a_name(tmp_path):
    folder = tmp_path / "run[1]*"
    (folder / "samples").mkdir(parents=True)
    (folder / "samples" / "step-3.txt").write_text("once upon a time")
    log_run(folder)
    assert "once upon a time" in table_of(folder)


def test_a_folder_without_a_record_is_refused_by_its_path(tmp_path):
    with pytest.raises(StorageError, match=r"metrics\.jsonl.*Allowed: .*Fix: "):
        table_of(tmp_path)


def test_each_opening_of_a_folder_that_logged_is_another_attempt(tmp_path):
    for attempt in (1, 2, 3):
        with RunFolder.open(str(tmp_path / "run")) as folder:
            assert folder.attempt == attempt
            with folder.tracker(
                LoggingConfig(console=False), total_steps=5, start_step=0
            ) as tracker:
                tracker.log({"train/loss": 1.0 * attempt}, step=0)
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["attempt"] for row in rows if "step" in row] == [1, 2, 3]
    assert latest_rows(rows)[0]["train/loss"] == 3.0


def test_the_console_shows_rows_only_when_asked(tmp_path, capsys):
    with RunFolder.open(str(tmp_path)) as folder:
        for console in (False, True):
            with folder.tracker(
                LoggingConfig(console=console), total_steps=5, start_step=0
            ) as tracker:
                tracker.log({"train/loss": 1.5}, step=0)
            assert ("loss 1.5000" in capsys.readouterr().out) is console


def test_the_log_takes_the_messages_of_all_while_it_is_open(tmp_path):
    root = logging.getLogger()
    handlers, level = list(root.handlers), logging.getLogger("chomp").level
    with RunFolder.open(str(tmp_path)):
        logging.getLogger("experiments.grug.base.train").info("starting from scratch")
        logging.getLogger("chomp.data").warning("a store is small")
        logging.getLogger("absl").info("a word of another library")
        logging.getLogger("absl").debug("a detail")
    logging.getLogger("chomp.data").warning("after the end")
    text = (tmp_path / "train.log").read_text()
    for words in ("INFO experiments.grug.base.train: starting from scratch", "a store is small"):
        assert words in text
    assert "INFO absl: a word of another library" in text
    assert "a detail" not in text
    assert "after the end" not in text
    assert root.handlers == handlers
    assert logging.getLogger("chomp").level == level


@pytest.mark.parametrize(("log_file", "kept"), [("logs.txt", ["logs.txt"]), (None, [])])
def test_the_log_has_the_name_and_the_level_that_are_asked_for(tmp_path, log_file, kept):
    with RunFolder.open(str(tmp_path), LoggingConfig(log_file=log_file, level="DEBUG")):
        logging.getLogger("absl").debug("a detail")
    assert [path.name for path in tmp_path.iterdir()] == kept
    assert all("a detail" in path.read_text() for path in tmp_path.iterdir())


def test_the_record_has_the_name_that_is_asked_for(tmp_path):
    config = LoggingConfig(console=False, metrics_file="rows.jsonl")
    for attempt in (1, 2):
        with RunFolder.open(str(tmp_path), config) as folder:
            assert folder.attempt == attempt
            folder.describe(Knobs(logging=config), template=tmp_path, tokenizer=ByteTokenizer())
            with folder.tracker(config, total_steps=1, start_step=0) as tracker:
                tracker.log({"train/loss": 1.25 * attempt, "tokens_seen": 1}, step=0)
    assert record_of(str(tmp_path)) == str(tmp_path / "rows.jsonl")
    assert not (tmp_path / "metrics.jsonl").exists()
    assert "2.5000" in table_of(tmp_path)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "finished"),
        (ValueError("no"), "ValueError"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (RunInterrupted("SIGTERM", exit_code=75), "RunInterrupted"),
        (RunInterrupted("--max-steps", exit_code=0), "piece finished"),
    ],
)
def test_the_summary_says_how_an_attempt_ended(tmp_path, error, outcome):
    with (
        pytest.raises(type(error)) if error else nullcontext(),
        RunFolder.open(str(tmp_path)) as folder,
        folder.tracker(LoggingConfig(console=False), total_steps=1, start_step=0),
    ):
        if error is not None:
            raise error
    summary = summary_of(read_metrics(tmp_path / "metrics.jsonl"))
    assert summary["run/outcome"] == outcome


QUIET = LoggingConfig(console=False)


def run_to_the_end(path, *, error=None):
    """A run of one step that ends well, or by `error`."""
    with (
        pytest.raises(type(error)) if error else nullcontext(),
        RunFolder.open(str(path)) as folder,
        folder.tracker(QUIET, total_steps=1, start_step=0) as tracker,
    ):
        tracker.log({"train/loss": 2.5, "tokens_seen": 1}, step=0)
        if error is not None:
            raise error


def test_a_run_that_ends_well_draws_its_page_and_another_attempt_removes_it(tmp_path):
    page = tmp_path / "report" / "index.html"
    run_to_the_end(tmp_path, error=ValueError("no"))
    assert not page.parent.exists()
    assert "run page" not in table_of(tmp_path)
    run_to_the_end(tmp_path)
    assert '"state":"finished"' in page.read_text()
    assert f"run page           {page}" in table_of(tmp_path)
    run_to_the_end(tmp_path, error=ValueError("no"))
    assert not page.exists()
    run_to_the_end(tmp_path)
    assert page.exists()


def test_a_page_that_cannot_be_written_is_told_loudly_and_harms_nothing(tmp_path, caplog):
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "index.html").write_text("<h1>mine</h1>")
    run_to_the_end(tmp_path)
    assert "its page could not be written" in caplog.text
    assert "was not written by this program" in caplog.text
    assert summary_of(read_metrics(tmp_path / "metrics.jsonl"))["run/outcome"] == "finished"
    assert (tmp_path / "report" / "index.html").read_text() == "<h1>mine</h1>"


def test_a_sink_that_is_not_installed_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "tensorboardX", raising=False)
    config = LoggingConfig(tensorboard=TensorBoardConfig(enabled=True))
    refused = pytest.raises(ConfigError, match=r"tensorboardX is not installed.*chomp\[tensorboard")
    with refused, RunFolder.open(str(tmp_path / "run"), config):
        pass
    assert not (tmp_path / "run").exists()


def test_pieces_of_a_run_end_well_at_wandb_and_their_rows_follow_each_other(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    config = LoggingConfig(console=False, wandb=WandbConfig(enabled=True, mode="offline"))
    run = tmp_path / "mine"
    for steps in (range(3), range(3, 5)):
        is_last = steps.stop == 5
        with (
            nullcontext() if is_last else pytest.raises(RunInterrupted),
            RunFolder.open(str(run), config) as folder,
            folder.tracker(config, total_steps=5, start_step=steps.start) as tracker,
        ):
            for step in steps:
                tracker.log({"train/loss": step / 8}, step=step)
                if step == 1:
                    tracker.log({"eval/loss": 1.0}, step=step)
            if not is_last:
                raise RunInterrupted("--max-steps", exit_code=0)
    pieces = offline_runs(tmp_path)
    assert len({piece.run_id for piece in pieces}) == 1
    assert [piece.exit_code for piece in pieces] == [0, 0]
    assert [piece.summary["run/outcome"] for piece in pieces] == ["piece finished", "finished"]
    # W&B keeps one row for each number of its own.
    rows = [row for piece in pieces for row in piece.rows]
    assert [row["_step"] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert [row["global_step"] for row in rows] == [0, 1, 1, 2, 3, 4]


def test_both_attempts_are_one_wandb_run_in_which_repeated_steps_are_there_twice(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef0123456789abcdef01234567")
    config = LoggingConfig(
        console=False,
        project="q",
        wandb=WandbConfig(mode="offline", tags=("a",)),
        tensorboard=TensorBoardConfig(enabled=True),
    )
    run = tmp_path / "mine"
    for steps in (range(3), range(1, 5)):
        with (
            suppress(ArithmeticError),
            RunFolder.open(str(run), config) as folder,
        ):
            secret = {"url": "https://0123456789abcdef0123456789abcdef01234567@host"}
            given = replace(config, original_config=f"# mine, {len(steps)} steps\n")
            knobs = Knobs(logging=given, notes=secret)
            folder.describe(knobs, template=tmp_path, tokenizer=ByteTokenizer())
            with folder.tracker(config, total_steps=5, start_step=0) as tracker:
                for step in steps:
                    tracker.log({"train/loss": step / 8}, step=step)
                if folder.attempt == 1:
                    raise ArithmeticError("the loss is not finite")
    first, second = offline_runs(tmp_path)
    assert first.run_id == second.run_id
    assert first.run_id.startswith("mine-")
    assert (first.name, first.project, first.tags) == ("mine", "q", ["a"])
    assert [(r["attempt"], r["global_step"]) for r in first.rows] == [(1, 0), (1, 1), (1, 2)]
    assert [(r["attempt"], r["global_step"]) for r in second.rows] == [(2, n) for n in range(1, 5)]
    assert (first.exit_code, second.exit_code) == (1, 0)
    assert [kind for kind, _ in first.artifacts] == ["config"]
    for attempt, text in ((first, b"# mine, 3 steps\n"), (second, b"# mine, 4 steps\n")):
        digest = base64.b64encode(hashlib.md5(text).digest()).decode()
        assert attempt.digests == {"config_original.yaml": digest}
    assert first.config["lr"] == 0.1
    assert first.config["notes"] == {"url": "https://<WANDB_API_KEY>@host"}
    assert len(read_metrics(run / "metrics.jsonl")) == 3 + 4 + 1 + 2  # one id, two outcomes
    assert sorted(path.name for path in (run / "tensorboard").iterdir()) == [
        "attempt-1",
        "attempt-2",
    ]
    for path in run.rglob("*"):
        assert not path.is_file() or b"0123456789abcdef" not in path.read_bytes()


def test_warnings_still_reach_the_terminal_where_nobody_else_shows_them(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with RunFolder.open(str(tmp_path)):
        logging.getLogger("chomp.training").warning("saving after this step")
        logging.getLogger("chomp.training").info("a detail")
    shown = capsys.readouterr().err
    assert "saving after this step" in shown
    assert "a detail" not in shown


def test_the_folder_holds_config_template_and_tokenizer(tmp_path):
    template = tmp_path / "variant"
    template.mkdir()
    (template / "model.py").write_bytes(b"# a model\r\n")
    (template / "notes.md").write_text("not source")
    run = tmp_path / "run"
    digest = sources_hash(template_sources(template))
    assert not is_remembered(digest)
    with RunFolder.open(str(run)) as folder:
        folder.describe(Knobs(lr=0.25), template=template, tokenizer=ByteTokenizer())
    assert json.loads((run / "config_resolved.json").read_text())["lr"] == 0.25
    assert "lr: 0.25" in (run / "config_original.yaml").read_text()
    assert (run / "template" / "model.py").read_bytes() == b"# a model\r\n"
    # So `chomp eval` runs it without asking.
    assert is_remembered(digest)
    assert sources_hash(template_sources(run / "template")) == digest
    assert sorted(path.name for path in (run / "template").iterdir()) == ["model.py"]
    assert load_tokenizer(str(run / "tokenizer")).content_hash == ByteTokenizer().content_hash
    assert folder.checkpoints == str(run / "checkpoints")


def test_a_folder_that_is_not_mounted_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused = pytest.raises(ConfigError, match=r"output_path=memory://run\. Allowed: .* Fix: ")
    with refused, RunFolder.open("memory://run"):
        pass
    assert not list(tmp_path.iterdir())


def test_the_environment_says_what_results_depend_on_bit_for_bit():
    found = environment()
    assert found["devices"] == 8
    assert found["cores"] >= 1
    assert {"python", "jax", "jaxlib", "numpy", "chomp", "device_kind"} <= set(found)
    assert json.loads(json.dumps(found)) == found
    summary = environment_summary()
    assert summary["environment/jax"] == found["jax"]
    # This is a checkout: the commit is known, and whether its files are as in it.
    assert re.fullmatch(r"[0-9a-f]{12}(-dirty)?", summary["environment/commit"])


def test_a_run_is_not_opened_where_its_checkpoints_could_not_be_read(tmp_path: Path):
    with pytest.raises(ConfigError), RunFolder.open(str(tmp_path / "run[1]")):
        pass
    assert not list(tmp_path.iterdir())


FILE = "# mine\r\nlr: 3e-4 # ½ of before\n\n\nlast: |\n  no line end"


def describe(run: Path, text: str) -> None:
    """One start of a run with that file, which leaves no row."""
    with RunFolder.open(str(run)) as folder:
        knobs = Knobs(logging=LoggingConfig(original_config=text))
        folder.describe(knobs, template=run.parent, tokenizer=ByteTokenizer())


def originals(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(run.glob("config_original*"))}


def test_the_folder_has_the_file_that_the_run_was_started_with_byte_for_byte(tmp_path: Path):
    for _ in range(3):
        describe(tmp_path / "run", FILE)
    assert originals(tmp_path / "run") == {"config_original.yaml": FILE.encode()}
    resolved = json.loads((tmp_path / "run/config_resolved.json").read_text())
    assert "original_config" not in resolved["logging"]


def test_another_file_is_the_original_and_those_that_trained_before_are_kept(tmp_path: Path):
    run = tmp_path / "run"
    # The first start of attempt 3 leaves no row, so the next has its number.
    for attempt, text, has_row in [
        (1, "a", True),
        (2, "b", True),
        (3, "c", False),
        (3, "d", False),
    ]:
        describe(run, text)
        if has_row:
            log_run(run, attempt=attempt, steps=1, with_eval=False)
    assert originals(run) == {
        "config_original.before-2.yaml": b"a",
        "config_original.before-3.yaml": b"b",
        "config_original.yaml": b"d",
    }


def test_an_original_that_is_damaged_is_kept_and_stops_no_run(tmp_path: Path):
    describe(tmp_path / "run", "a")
    log_run(tmp_path / "run", attempt=1, steps=1, with_eval=False)
    (tmp_path / "run/config_original.yaml").write_bytes(b"\xff")
    describe(tmp_path / "run", "a")
    assert originals(tmp_path / "run") == {
        "config_original.before-2.yaml": b"\xff",
        "config_original.yaml": b"a",
    }
