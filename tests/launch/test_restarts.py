"""A preempted command is started again, as often as that is allowed, and no other is."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chomp.errors import ConfigError
from chomp.launch.signals import require_restartable, run_with_restarts, this_command
from tests.launch.sent_steps import wait_for, wait_until

# Notes each start; ends with the code that stands for it, the last one for all that follow.
ENDING = """
import pathlib, sys
noted = pathlib.Path(sys.argv[1])
starts = len(noted.read_text()) if noted.exists() else 0
noted.write_text("x" * (starts + 1))
codes = [int(code) for code in sys.argv[2].split(",")]
sys.exit(codes[min(starts, len(codes) - 1)])
"""


@pytest.mark.parametrize(
    ("codes", "restarts", "code", "starts"),
    [
        ("75,75,0", 5, 0, 3),
        ("75,75,0", 2, 0, 3),
        ("75,75,0", 1, 75, 2),
        ("75", 0, 75, 1),
        ("1,0", 5, 1, 1),
        ("130,0", 5, 130, 1),
        ("0", 5, 0, 1),
    ],
)
def test_only_a_preempted_command_is_started_again(codes, restarts, code, starts, tmp_path):
    noted = tmp_path / "starts"
    command = [sys.executable, "-c", ENDING, str(noted), codes]
    assert run_with_restarts(command, restarts) == code
    assert len(noted.read_text()) == starts


def test_a_command_that_a_signal_ended_has_the_code_that_a_shell_gives_it():
    command = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    assert run_with_restarts(command, 3) == 128 + signal.SIGKILL


def test_a_signal_is_handed_on_and_ends_both(tmp_path):
    child = (
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n"
        "pathlib.Path(sys.argv[1]).touch()\n"
        "time.sleep(240)\n"
    )
    ready = tmp_path / "ready"
    parent = (
        "import sys\n"
        "from chomp.launch.signals import run_with_restarts\n"
        "sys.exit(run_with_restarts(sys.argv[1:], 5))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent, sys.executable, "-c", child, str(ready)]
    )
    wait_for(ready)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 75


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_while_the_process_is_started_reaches_it(number, monkeypatch):
    class SignalledPopen(subprocess.Popen):
        def __init__(self, command):
            super().__init__(command)
            signal.raise_signal(number)  # its handler has run before the next line of the caller

    monkeypatch.setattr(subprocess, "Popen", SignalledPopen)
    assert run_with_restarts(["sleep", "20"], 5) == 128 + number


def test_the_command_is_this_one_without_the_option(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["chomp", "train", "a.yaml", "--restarts", "3", "-o", "b=1"])
    assert this_command("-m", "chomp") == [
        *(sys.executable, "-m", "chomp", "train", "a.yaml", "-o", "b=1")
    ]
    monkeypatch.setattr(sys, "argv", ["launch.py", "--restarts=3", "--plan"])
    assert this_command("launch.py") == [sys.executable, "launch.py", "--plan"]


@pytest.mark.parametrize(("restarts", "force"), [(-1, []), (2, ["grug"])])
def test_what_cannot_be_or_would_lose_work_is_refused(restarts, force):
    with pytest.raises(ConfigError, match=r"--restarts .*Allowed: .*Fix: "):
        require_restartable(restarts, force)


@pytest.mark.slow
def test_a_preempted_run_goes_on_in_a_new_process(tmp_path):
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "chomp", "train", str(root / "configs/debug_smoke.yaml")),
            *("--template", str(root / "experiments/grug/base"), "--run-dir", "run"),
            *("-o", "train.steps=3000", "--restarts", "2"),
        ],
        cwd=tmp_path,
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    record = tmp_path / "run" / "metrics.jsonl"
    wait_until(
        lambda: (
            process.poll() is not None
            or (record.exists() and record.read_text().count('"train/loss"') > 5)
        )
    )
    assert process.poll() is None
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(child), signal.SIGTERM)
    _, said = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert "Starting again (restart 1 of 2)." in said
    assert {json.loads(line)["attempt"] for line in record.read_text().splitlines()} == {1, 2}
    assert (tmp_path / "run/checkpoints/step-3000").is_dir()
