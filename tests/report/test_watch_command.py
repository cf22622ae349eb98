"""`chomp watch` in a real terminal, beside a run that is killed and resumed, and without one."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chomp.cli.main import exit_code
from chomp.tracking import JsonlTracker

PATIENCE_S = 120.0
ALTERNATE_SCREEN, NORMAL_SCREEN, SHOWN_CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A command in a terminal of its own, and all that it has printed there."""

    def __init__(self, *arguments: str, columns: int = 100, rows: int = 40, term: str = "xterm"):
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        environment = {**os.environ, "TERM": term, "PYTHONIOENCODING": "utf-8"}
        for name in ("CI", "COLUMNS", "LINES", "NO_COLOR"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "chomp", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
        )
        os.close(theirs)
        self.text = ""
        self._bytes = b""

    def wait_for(self, words: str) -> None:
        """Read until the command has printed the words."""
        end_s = time.monotonic() + PATIENCE_S
        while words not in CODES.sub("", self.text):
            assert time.monotonic() < end_s, f"no {words!r} in {self.text[-2000:]!r}"
            assert self._read(), f"it ended without {words!r}: {self.text[-2000:]!r}"

    def wait(self) -> int:
        """Read until the command has ended; its exit code."""
        end_s = time.monotonic() + PATIENCE_S
        while self._read():
            assert time.monotonic() < end_s, f"it goes on: {self.text[-2000:]!r}"
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        """End the command, if it still runs."""
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def _read(self) -> bool:
        """Take what there is to read within a second; false once nobody will write any more."""
        if not select.select([self._ours], [], [], 1.0)[0]:
            return True
        try:
            self._bytes += os.read(self._ours, 1 << 16)
        except OSError:  # how Linux tells that the other side is closed
            return False
        self.text = self._bytes.decode(errors="replace")
        return True


@pytest.fixture
def opened() -> Iterator[list[Terminal]]:
    """Terminals to be closed at the end of the test."""
    terminals: list[Terminal] = []
    yield terminals
    for terminal in terminals:
        terminal.close()


def write_run(folder: Path, attempt: int, steps: range, end: str) -> None:
    """Write an attempt that ended so; one that was killed leaves half a line."""
    tracker = JsonlTracker(folder / "metrics.jsonl", attempt=attempt)
    for step in steps:
        tracker.log({"train/loss": 3.0 - step / 40, "run_progress": (step + 1) / 40}, step=step)
    if end != "killed":
        tracker.log_summary({"run/outcome": end})
    tracker.finish()
    if end == "killed":
        with (folder / "metrics.jsonl").open("ab") as file:
            file.write(b'{"step":%d,"global_st' % steps.stop)


def test_a_run_is_watched_through_a_kill_and_a_resume_to_its_end(
    tmp_path: Path, opened: list[Terminal]
):
    terminal = Terminal("watch", str(tmp_path), "--every", "0.1")
    opened.append(terminal)
    terminal.wait_for("waiting: there is no line in metrics.jsonl yet")
    write_run(tmp_path, 1, range(20), "killed")
    terminal.wait_for("20/40 steps")
    write_run(tmp_path, 2, range(15, 30), "RunInterrupted")
    terminal.wait_for("stopped, as it was asked to · attempt 2")
    write_run(tmp_path, 3, range(30, 40), "finished")
    assert terminal.wait() == 0
    left = CODES.sub("", terminal.text.rpartition(NORMAL_SCREEN)[2])
    for words in ("finished · attempt 3", "40/40 steps", "▲2", "▲3", "train/loss  2.025"):
        assert words in left, words


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_the_terminal_as_it_was_with_the_last_view_in_it(
    tmp_path: Path, opened: list[Terminal], number: signal.Signals, code: int
):
    JsonlTracker(tmp_path / "metrics.jsonl", attempt=1).log({"train/loss": 2.5}, step=7)
    terminal = Terminal("watch", str(tmp_path), columns=60, rows=20)
    opened.append(terminal)
    terminal.wait_for("train/loss  2.5")
    assert ALTERNATE_SCREEN in terminal.text
    assert NORMAL_SCREEN not in terminal.text
    terminal.process.send_signal(number)
    assert terminal.wait() == code
    screens, _, left = terminal.text.rpartition(NORMAL_SCREEN)
    assert screens.count(ALTERNATE_SCREEN) == 1
    assert SHOWN_CURSOR in terminal.text[terminal.text.rindex("\x1b[?25l") :]
    assert "train/loss  2.5" in CODES.sub("", left)
    is_told = "Only the watching: the run is as it was." in CODES.sub("", left)
    assert is_told == (number == signal.SIGINT)
    assert "Traceback" not in terminal.text


def test_a_dumb_terminal_gets_one_view_without_control_codes(
    tmp_path: Path, opened: list[Terminal]
):
    JsonlTracker(tmp_path / "metrics.jsonl", attempt=1).log({"train/loss": 2.5}, step=7)
    terminal = Terminal("watch", str(tmp_path), term="dumb")
    opened.append(terminal)
    assert terminal.wait() == 0
    assert "train/loss  2.5" in terminal.text
    assert "\x1b" not in terminal.text


def test_without_a_terminal_it_prints_one_view_and_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    tracker = JsonlTracker(tmp_path / "metrics.jsonl", attempt=1)
    tracker.log({"train/loss": 2.5, "grad/norm/total": 0.25}, step=7)
    assert exit_code(["watch", str(tmp_path), "--once"]) == 0
    text = capsys.readouterr().out
    assert "train/loss  2.5" in text
    assert "\x1b" not in text
    tracker.log({"train/loss": 1.5, "grad/norm/total": 0.5}, step=2007)
    asked = ["--metric", "grad_norm", "--metric", "train/loss", "--last", "2000"]
    assert exit_code(["watch", str(tmp_path), *asked]) == 0
    text = capsys.readouterr().out
    assert text.index("grad/norm/total  0.5") < text.index("train/loss  1.5")
    axes = [line.split() for line in text.splitlines() if line.strip().startswith("2007")]
    assert axes == [["2007", "2008"]] * 2  # step 7 is not among the last 2000


def test_without_a_terminal_every_so_often_is_a_line_at_each_change_until_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write_run(tmp_path, 1, range(40), "finished")
    assert exit_code(["watch", str(tmp_path), "--every", "0.1"]) == 0
    assert capsys.readouterr().out == "step 40/40 | loss 2.0250 | finished\n"


@pytest.mark.parametrize(
    ("arguments", "faults"),
    [
        (["nowhere"], ["nowhere, which is no folder of this machine"]),
        ([".", "--once", "--every", "3"], ["--once with --every 3"]),
        # How the parser says the rest depends on its version.
        ([".", "--every", "0"], ["Invalid value for '--every': ", "0.1"]),
    ],
)
def test_wrong_arguments_are_told_in_three_parts(
    capsys: pytest.CaptureFixture[str], arguments: list[str], faults: list[str]
):
    assert exit_code(["watch", *arguments]) == 2
    told = capsys.readouterr().err
    for words in (*faults, "Allowed: ", "Fix: "):
        assert words in told


def test_a_folder_of_runs_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").touch()
    assert exit_code(["watch", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert f"{tmp_path}, which is no run folder but holds 2. Allowed: the folder of one" in told
    assert f"Fix: name one of them, such as {tmp_path}/two." in told
