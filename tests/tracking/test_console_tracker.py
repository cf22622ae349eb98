"""The console shows a run on a terminal and in a file, and never gets in its way."""

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from chomp.tracking import ConsoleTracker, read_metrics
from chomp.tracking.console import Pace, clock, compact

ROW: dict[str, Any] = {
    "train/loss": 3.21456,
    "grad/norm/total": 0.5123,
    "optim/learning_rate": 3e-4,
    "throughput/duration": 0.5,
    "tokens_per_sec": 12_345.6,
    "throughput/tokens_per_second": 99_999.9,  # positions, which are no speed of training
}


@pytest.fixture(autouse=True)
def _not_under_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CI", "TTY_INTERACTIVE", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def environment(**changed: str) -> dict[str, str]:
    """That of this test, with the paths of this interpreter."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **changed}


def plain_console() -> Console:
    return Console(file=io.StringIO(), width=40)


def terminal(width: int = 120) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=True, record=True)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def shown(row: dict[str, Any], *, step: int = 0, total: int = 10, **options: Any) -> str:
    """What a console without a terminal shows of a row."""
    console = plain_console()
    tracker = ConsoleTracker(total, console=console, **options)
    tracker.log(row, step=step)
    tracker.finish()
    return printed(console)


def test_without_a_terminal_a_row_is_one_line_however_narrow_the_console() -> None:
    assert shown(ROW, step=119, total=1000) == (
        "step 120/1000 | loss 3.2146 | grad norm 0.512 | lr 3.00e-04 | time 0.500 s | "
        "12.3k tokens/s | ETA 0:07:20\n"
    )


def test_evaluations_short_keys_and_arrays_are_shown_where_a_row_has_them() -> None:
    extra = {"eval/loss": 3.5, "eval/bpb": 1.25, "packing_utilization": 0.981}
    assert (
        "| eval loss 3.5000 | eval bpb 1.2500 | packing 98.1% | memory 12.3 GB | ETA 0:00:00\n"
    ) in shown({**ROW, **extra, "peak_memory_gb": 12.34}, step=9)
    short = {"loss": np.float32(2), "grad_norm": np.array(1.5), "lr": 0.1, "tokens_per_sec": 10}
    assert shown(short) == (
        "step 1/10 | loss 2.0000 | grad norm 1.5 | lr 1.00e-01 | 10 tokens/s | ETA -\n"
    )
    assert "loss nan" in shown({"train/loss": float("nan")})
    assert shown({"grad/norm/head": 1.0, "mixture/stage": 1}) == ""  # not worth a line


def test_an_evaluation_of_averaged_weights_alone_is_shown_as_such() -> None:
    averaged = shown({"val/ema/loss": 3.25, "val/ema/bpb": 1.5}, eval_prefix="val")
    current = shown({"val/loss": 3.5, "val/ema/loss": 3.25}, eval_prefix="val")
    assert "eval loss (averaged weights) 3.2500 | eval bpb (averaged weights) 1.5000" in averaged
    assert "| eval loss 3.5000 |" in current
    assert "averaged" not in current


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"train/loss": None},
        {"train/loss": "odd", "loss": [1]},
        {"train/loss": {"nested": 1}, "throughput/duration": np.ones(3)},
        {"train/loss": 10**400, "tokens_per_sec": True},
        {"train/loss": 1.0, "throughput/duration": float("inf")},
        {"train/loss": 1.0, "throughput/duration": float("nan"), "[bold]": "[/]"},
        {"train/loss": 1.0, "throughput/duration": 0.0, "tokens_per_sec": -1e30},
        {"train/loss": 1.0, "throughput/duration": 1e300},
        {3: 4, None: 5},
    ],
)
@pytest.mark.parametrize("is_terminal", [False, True])
def test_odd_rows_are_never_an_error(row: dict[Any, Any], is_terminal: bool) -> None:
    console = terminal() if is_terminal else plain_console()
    tracker = ConsoleTracker(10, console=console)
    tracker.log(row, step=3)
    tracker.log(row, step=2)
    tracker.log(row, step=10**9)
    tracker.finish()


@pytest.mark.parametrize("width", [80, 120])
def test_on_a_terminal_a_bar_shows_step_loss_speed_and_time_left(width: int) -> None:
    console = terminal(width)
    tracker = ConsoleTracker(1_000_000, start_step=100, console=console)
    assert "step 100/1000000" in console.export_text(clear=False)  # where the run starts
    tracker.log(ROW, step=999_998)
    tracker.finish()
    last = console.export_text().splitlines()[-1]
    assert re.search(
        r"[━╸] step 999999/1000000 loss 3\.2146 12\.3k tokens/s ETA 0:00:0\d 0:0", last
    )
    assert " | " not in last


def test_beside_a_bar_rows_are_lines_but_no_more_than_can_be_read() -> None:
    console = terminal()
    tracker = ConsoleTracker(1000, console=console)
    for step in range(1000):
        tracker.log(ROW, step=step)
    tracker.finish()
    lines = [line for line in console.export_text().splitlines() if "| grad norm" in line]
    assert "step 1/1000 | loss 3.2146 | grad norm 0.512 | lr 3.00e-04" in lines[0]
    assert "step 1000/1000 | loss" in lines[-1]
    assert len(lines) < 500


def test_an_evaluation_is_a_line_above_the_bar() -> None:
    console = terminal()
    tracker = ConsoleTracker(1000, console=console)
    tracker.log(ROW, step=119)
    tracker.log({"eval/loss": 3.5}, step=119)
    tracker.finish()
    lines = console.export_text().splitlines()
    assert sum("step 120/1000 | eval loss 3.5000 | ETA" in line for line in lines) == 1
    assert "loss 3.2146" in lines[-1]  # the training loss stays on the bar


def test_finish_gives_the_cursor_back_once_and_may_be_called_twice() -> None:
    console = terminal()
    tracker = ConsoleTracker(10, console=console)
    tracker.finish()
    tracker.finish()
    text = printed(console)
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1
    assert text.endswith("\n\x1b[?25h")


@pytest.mark.parametrize("reason", ["CI=true", "TERM=dumb", "declined"])
def test_under_ci_on_a_dumb_terminal_or_when_declined_there_are_lines_and_no_bar(
    monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    if "=" in reason:
        monkeypatch.setenv(*reason.split("="))
    console = terminal()
    tracker = ConsoleTracker(1000, console=console, has_bar=reason != "declined")
    tracker.log(ROW, step=119)
    tracker.log(ROW, step=120)
    tracker.finish()
    assert "\x1b[?25l" not in printed(console)
    lines = console.export_text().splitlines()
    assert [line[:13] for line in lines] == ["step 120/1000", "step 121/1000"]


PRINT_BESIDE_THE_BAR = """
import logging, sys
logging.basicConfig(format="%(message)s")  # a handler that holds the real stderr
from chomp.tracking import ConsoleTracker
tracker = ConsoleTracker(3)
for step in range(3):
    tracker.log({"train/loss": 2.0, "throughput/duration": 0.1}, step=step)
    print("printed", step)
    print("to stderr", step, file=sys.stderr)
    logging.warning("logged %d", step)
if "--crash" in sys.argv:
    raise RuntimeError("the run has died")
tracker.finish()
logging.warning("logged after")
print("printed after")
"""


def output_on_a_terminal(*arguments: str, **streams: Any) -> str:
    """What a program writes to a terminal of its own."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", PRINT_BESIDE_THE_BAR, *arguments],
        **{"stdout": theirs, "stderr": theirs, **streams},
        env=environment(COLUMNS="100"),
    ):
        os.close(theirs)
        written = b""
        try:
            while block := os.read(ours, 4096):
                written += block
        except OSError:  # Linux: the other end of the terminal was closed
            pass
    os.close(ours)
    return written.decode()


def screen(written: str) -> list[str]:
    """The lines on a screen after `written`, by the few control sequences a bar uses."""
    lines, row, column = [""], 0, 0
    for token in re.findall(r"\x1b\[[?\d;]*[a-zA-Z]|.", written, re.DOTALL):
        if token == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif token == "\r":
            column = 0
        elif token.endswith("K") and token.startswith("\x1b"):
            lines[row] = ""
        elif token.endswith("A") and token.startswith("\x1b"):
            row -= int(token[2:-1] or 1)
        elif not token.startswith("\x1b"):
            lines[row] = lines[row].ljust(column)[:column] + token + lines[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]


def test_what_a_run_prints_and_logs_stands_above_the_bar_whole() -> None:
    written = output_on_a_terminal()
    # Rows have lines of their own, as many as the machine is slow.
    lines = [line for line in screen(written) if not re.match(r"step \d+/\d+ \| loss", line)]
    expected = [f"{how} {step}" for step in range(3) for how in ("printed", "to stderr", "logged")]
    assert lines[:9] == expected
    assert "step 3/3 loss 2.0000" in lines[9]
    assert sorted(lines[10:]) == ["", "logged after", "printed after"]
    assert written.count("\x1b[?25h") == 1


def test_a_run_that_dies_leaves_its_cursor_and_its_traceback() -> None:
    written = output_on_a_terminal("--crash")
    assert "RuntimeError: the run has died" in screen(written)
    assert written.count("\x1b[?25h") == 1


def test_errors_sent_to_a_file_are_not_taken_for_the_terminal(tmp_path: Path) -> None:
    with (tmp_path / "errors.txt").open("w") as errors:
        written = output_on_a_terminal(stderr=errors)
    assert "printed 2" in screen(written)
    assert "to stderr 2" not in screen(written)
    assert "to stderr 2\nlogged 2\n" in (tmp_path / "errors.txt").read_text()


LOG_INTO_A_PIPE = """
import sys
from chomp.tracking import CompositeTracker, ConsoleTracker, JsonlTracker
tracker = CompositeTracker(JsonlTracker(sys.argv[1], attempt=1), [ConsoleTracker(100)])
for step in range(100):
    tracker.log({"train/loss": 1.0}, step=step)
tracker.finish()
"""


def test_a_run_goes_on_when_nobody_reads_its_console_any_more(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(
        [sys.executable, "-c", LOG_INTO_A_PIPE, str(path)],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        check=False,
    )
    os.close(writer)
    assert result.returncode == 0
    assert result.stderr.count("nobody reads the console any more") == 1
    assert len(read_metrics(path)) == 100


def test_the_pace_is_measured_from_the_first_row_so_that_compiling_does_not_count() -> None:
    pace = Pace(total_steps=100)
    assert pace.seconds_left(1.0) is None
    pace.observe(10, 1000.0)
    assert pace.seconds_per_step is None
    assert pace.seconds_left(2.0) == 180.0
    pace.observe(20, 1005.0)
    pace.observe(20, 1009.0)  # an evaluation of the same step
    assert pace.seconds_per_step == 0.5
    assert pace.seconds_left(2.0) == 40.0


def test_the_pace_follows_a_change_of_speed_and_never_leaves_less_than_nothing() -> None:
    pace = Pace(total_steps=200)
    for step in range(100):
        pace.observe(step, 10.0 * step)
    for step in range(100, 301):
        pace.observe(step, 990.0 + (step - 99))
    assert pace.seconds_per_step == 1.0
    assert pace.seconds_left(None) == 0


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (7.126, "7.13"), (999.6, "1k"), (12_345, "12.3k"), (1.05e6, "1.05M"), (3e13, "30T")],
)
def test_a_large_number_is_shown_in_three_digits(number: float, text: str) -> None:
    assert compact(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00:00"), (3661.4, "1:01:01"), (90_000, "1 day, 1:00:00"), (1e300, "-"), (None, "-")],
)
def test_a_time_is_shown_as_a_clock(seconds: float | None, text: str) -> None:
    assert clock(seconds) == text


def shown_sample(text: str, tmp_path: Path, console: Console) -> str:
    """What is on a console after a sample and a file of another kind."""
    tracker = ConsoleTracker(10, console=console)
    for kind in ("sample", "config"):
        (tmp_path / f"{kind}.txt").write_text(f"{kind}: {text}")
        tracker.log_artifact(tmp_path / f"{kind}.txt", name=f"{kind}-step-3", kind=kind)
    tracker.finish()
    return printed(console)


def test_a_sample_is_shown_as_indented_lines_that_stay_whole(tmp_path: Path) -> None:
    long = "[bold]word[/] " * 8
    shown = shown_sample(f"{long}▸1 + 1\n= 2", tmp_path, plain_console())
    assert shown == f"sample-step-3:\n  sample: {long}▸1 + 1\n  = 2\n"


def test_the_last_sample_is_left_to_the_closing_table(tmp_path: Path) -> None:
    console = plain_console()
    tracker = ConsoleTracker(8, console=console)
    (tmp_path / "sample.txt").write_text("the end")
    tracker.log_artifact(tmp_path / "sample.txt", name="sample-step-8", kind="sample")
    assert printed(console) == ""


def test_above_a_bar_a_sample_is_framed(tmp_path: Path) -> None:
    console = terminal(width=60)
    shown_sample("a text begins▸ and goes on\nand on", tmp_path, console)
    lines = screen(printed(console).replace("\n", "\r\n"))  # as a terminal's driver does
    assert lines[0].startswith("╭─ sample-step-3 ─")
    assert lines[1].startswith("│ sample: a text begins▸ and goes on ")
    assert lines[2].startswith("│ and on ")
    assert "config" not in "".join(lines)
    assert "step 0/10" in lines[4]


def test_a_sample_cannot_give_orders_to_the_terminal(tmp_path: Path) -> None:
    shown = shown_sample("a\x1b[2Jb\rc\x07d\r\ne", tmp_path, plain_console())
    assert shown == "sample-step-3:\n  sample: a�[2Jb�c�d\n  e\n"


def test_a_sample_is_shown_where_the_console_has_no_letters_for_it(tmp_path: Path) -> None:
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding="ascii"), width=40)
    (tmp_path / "sample.txt").write_text("ein Öl▸é")
    ConsoleTracker(10, console=console).log_artifact(
        tmp_path / "sample.txt", name="sample-step-3", kind="sample"
    )
    console.file.flush()
    assert raw.getvalue() == b"sample-step-3:\n  ein ?l??\n"
