"""The view of a watched run: everything it promises, within any terminal, and nothing it obeys."""

import io
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from chomp.executor.status import LOCK
from chomp.report.text_chart import ASCII, BRAILLE
from chomp.report.watch import View, WatchedRun
from chomp.storage import FileLock
from chomp.tracking import JsonlTracker, with_short_keys

TOTAL = 400


def write_attempt(folder: Path, attempt: int, steps: range) -> None:
    tracker = JsonlTracker(folder / "metrics.jsonl", attempt=attempt)
    for step in steps:
        row = {
            "train/loss": 2.0 + 8 / (step + 1) + (5.0 if step == 200 else 0.0),
            "grad/norm/total": 0.5,
            "optim/learning_rate": 1e-3 * (1 - step / TOTAL),
            "tokens_per_sec": 160_000.0,
            "throughput/tokens_per_second": 260_000.0,
            "throughput/mfu": 41.2,
            "run_progress": (step + 1) / TOTAL,
            "tokens_seen": 2048 * step,
        }
        tracker.log(with_short_keys(row), step=step)
        if (step + 1) % 100 == 0:
            names = ("", "code/", "web/", "web/de/", "ema/")
            losses = {f"eval/{name}loss": 3.0 - step / 1000 for name in names}
            bits = {f"eval/{name}bpb": 1.5 for name in names}
            tracker.log({"eval/tokens": 9, **losses, **bits}, step=step)
    tracker.finish()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in its second attempt, with evaluations and a sample."""
    folder = tmp_path_factory.mktemp("watched") / "run"
    (folder / "samples").mkdir(parents=True)
    (folder / "config_resolved.json").write_text(json.dumps({"run_id": "mine-\x1b[31m1"}))
    write_attempt(folder, 1, range(150))
    write_attempt(folder, 2, range(100, 320))
    text = "The prompt\n▸ goes\ton \x1b]0;owned\x07\x9b31m and on " + "word " * 80
    (folder / "samples" / "step-300.txt").write_text(text)
    tracker = JsonlTracker(folder / "metrics.jsonl", attempt=2)
    tracker.log_artifact("samples/step-300.txt", name="sample-step-300", kind="sample")
    tracker.finish()
    return folder


def watched(folder: Path) -> WatchedRun:
    run = WatchedRun(str(folder))
    while run.look():
        pass
    return run


def shown(
    run: WatchedRun,
    width: int,
    height: int | None = None,
    metrics: tuple[str, ...] = ("train/loss",),
    *,
    signs=BRAILLE,
    after_s: float = 3.0,
    last: int | None = None,
) -> str:
    file = io.TextIOWrapper(io.BytesIO(), "utf-8" if signs is BRAILLE else "ascii")
    console = Console(width=width, height=height, file=file, color_system=None)
    view = View(run, console, metrics, (run.last_line_s or 0.0) + after_s, last)
    console.print(view.lines(height))
    file.flush()
    return file.buffer.getvalue().decode()


@pytest.mark.parametrize("width", [60, 100, 160])
def test_all_of_it_is_there_at_any_usual_width(folder: Path, width: int):
    text = shown(watched(folder), width)
    for words in (
        "running",
        "attempt 2",
        "last line 3.0 s ago",
        "320/400 steps",
        "80.0%",
        "ETA 0:00:0",
        "train/loss",
        "▲2",
        "● eval",
        "grad norm",
        "learning rate",
        "160k",
        "41.2 %",
        "eval after 300 steps, change since 200",
        "web/de",
        "ema: all",
        "↓0.1000",
        "sample: step 300",
        "▸ goes",
    ):
        assert words in text, words


@pytest.mark.parametrize("height", [6, 10, 16, 24, 40, 80])
@pytest.mark.parametrize("width", [30, 60, 80, 120, 200])
def test_it_is_never_wider_or_higher_than_the_terminal_and_keeps_the_head(
    folder: Path, width: int, height: int
):
    run = watched(folder)
    for metrics in (("train/loss",), ("train/loss", "grad/norm/total")):
        lines = shown(run, width, height, metrics).splitlines()
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
        assert "steps" in lines[1]


@pytest.mark.parametrize("signs", [BRAILLE, ASCII])
def test_nothing_that_a_run_says_reaches_the_terminal_as_a_command(folder: Path, signs):
    text = shown(watched(folder), 100, signs=signs)
    assert not {"\x1b", "\x07", "\x9b", "\t"} & set(text)
    assert "owned" in text


def test_the_loss_is_drawn_with_its_spike_where_the_values_are(folder: Path):
    lines = shown(watched(folder), 60, last=150).splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("train/loss"))
    # Of the steps from 150 to 319, step 200 alone is above 2.1.
    assert sum(letter not in " │┤" for letter in lines[first + 2][3:]) <= 2
    assert any("⡇" in line or "⢸" in line for line in lines[first + 1 : first + 8])


def test_a_metric_that_was_not_logged_is_said_with_those_of_a_like_name(folder: Path):
    text = shown(watched(folder), 100, metrics=("train/los",))
    assert "train/los  no value so far; there is train/loss" in text


def test_the_legend_has_no_evaluations_where_there_are_none(tmp_path: Path):
    write_attempt(tmp_path, 1, range(50))
    assert "● eval" not in shown(watched(tmp_path), 100)


def test_a_folder_without_a_record_waits_and_says_so(tmp_path: Path):
    text = shown(watched(tmp_path), 80)
    assert "waiting: there is no line in metrics.jsonl yet" in text


def test_a_run_whose_process_is_gone_is_killed_at_once_until_another_goes_on(tmp_path: Path):
    write_attempt(tmp_path, 1, range(3))
    run = watched(tmp_path)
    assert "running" in shown(run, 80)
    locked_and_killed(tmp_path / LOCK)
    run.look()
    head, progress, *_ = shown(run, 80).splitlines()
    assert "killed: its process is gone" in head
    assert "ETA -" in progress
    # A process of another machine cannot be asked for.
    content = (tmp_path / LOCK).read_text()
    (tmp_path / LOCK).write_text(content.replace(socket.gethostname(), "elsewhere"))
    run.look()
    assert "running" in shown(run, 80)
    (tmp_path / LOCK).write_text(content)
    with FileLock.acquire(tmp_path / LOCK, timeout_s=0.0):
        run.look()
        assert "running" in shown(run, 80)


def locked_and_killed(path: Path) -> None:
    """What a process leaves that is killed while it holds a lock."""
    program = (
        "import os, sys; from chomp.storage import FileLock; "
        "FileLock.acquire(sys.argv[1], timeout_s=0.0); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], env=os.environ)
    assert path.exists()


def test_how_a_run_is_shows_in_its_first_line(tmp_path: Path):
    write_attempt(tmp_path, 1, range(3))
    run = watched(tmp_path)
    assert "running" in shown(run, 80)
    quiet = shown(run, 80, after_s=1800).splitlines()
    assert "no line for 30 min" in quiet[0]
    assert "ETA -" in quiet[1]
    tracker = JsonlTracker(tmp_path / "metrics.jsonl", attempt=1)
    for outcome, words in (
        ("RunInterrupted", "stopped, as it was asked to"),
        ("NonFiniteError\x1b[2J", "failed: NonFiniteError\ufffd[2J"),
        ("finished", "finished"),
    ):
        tracker.log_summary({"run/outcome": outcome})
        run.look()
        assert words in shown(run, 80).splitlines()[0]
        assert "ETA" not in shown(run, 80)


ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
KEYS = [
    "step",
    "attempt",
    "time",
    "kind",
    "run_progress",
    "train/loss",
    "train/loss/nonfinite",
    "grad/norm/total",
    "eval/loss",
    "eval/tokens",
    "eval/bpb",
    "train/skipped_steps",
    "run/outcome",
    "path",
    "artifact_kind",
    "tokens_seen",
]


@given(st.lists(st.dictionaries(st.sampled_from(KEYS), ANYTHING | st.just(10**400)), max_size=6))
def test_no_row_whatever_it_says_ends_the_watching(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, object]]
):
    folder = tmp_path_factory.mktemp("odd")
    steps = [{"step": number, **row} for number, row in enumerate(rows)]
    lines = [json.dumps(row, allow_nan=True) + "\n" for row in [*rows, *steps]]
    (folder / "metrics.jsonl").write_text("".join(lines))
    run = watched(folder)
    assert "\x1b" not in shown(run, 80)
    assert View(run, Console(), (), 10.0).one_line()


def test_what_cannot_be_shown_whole_says_how_much_is_missing(folder: Path):
    assert "2 more" in shown(watched(folder), 80, 24)


def test_one_line_tells_the_newest_numbers(folder: Path):
    run = watched(folder)
    line = View(run, Console(), (), (run.last_line_s or 0.0) + 1).one_line()
    assert line.startswith("step 320/400 | loss 2.0250 | eval loss 2.7010 | 160k tokens/s | ETA")
    assert line.endswith(" | attempt 2 | running")


def test_one_line_tells_the_loss_of_averaged_weights_where_only_those_are_evaluated(tmp_path: Path):
    tracker = JsonlTracker(tmp_path / "metrics.jsonl", attempt=1)
    tracker.log({"train/loss": 2.0, "eval/ema/loss": 2.5, "eval/ema/tokens": 9}, step=0)
    tracker.finish()
    assert "eval/ema loss 2.5000" in View(watched(tmp_path), Console(), (), 10.0).one_line()
