"""A step on its way to another process, and how its end comes back."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from chomp import errors
from chomp.cli.load_config import load_module
from chomp.errors import ChompError, ConfigError, DataError, LaunchError, RunInterrupted
from chomp.executor import ExecutorStep, plan_steps, run_plan
from chomp.launch.process import ProcessRunner
from chomp.launch.step_result import error_of, outcome_of, read_outcome, write_outcome
from tests.launch import sent_steps

# A launch file with all that makes its way to another process hard: classes of its own, annotations
# as text, a module beside it, and a part that only `__main__` runs.
LAUNCH_FILE = """
from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from chomp.config import Config
from chomp.executor import ExecutorStep, plan_steps, run_plan, this_output_path
from chomp.launch.process import ProcessRunner
from words import WORD


@dataclass(frozen=True, kw_only=True)
class Settings(Config):
    out: str
    width: int = 3


def work(settings: Settings) -> None:
    assert isinstance(settings, Settings)
    Path(settings.out, "made").write_text(f"{WORD} {settings.width} {__name__} {sys.argv[1:]}")


def steps(settings):
    return [ExecutorStep("own", work, Settings(out=this_output_path()))]


if __name__ == "__main__":
    plan = plan_steps(steps(None), prefix=sys.argv[1])
    with ProcessRunner(plan) as runner:
        failures = run_plan(plan, runner, room=runner.room)
    sys.exit("; ".join(str(failure.error) for failure in failures) or 0)
"""


@pytest.fixture
def launch_file(tmp_path: Path) -> Path:
    folder = tmp_path / "template"
    folder.mkdir()
    (folder / "words.py").write_text("WORD = 'beside'\n")
    (folder / "launch.py").write_text(LAUNCH_FILE)
    return folder / "launch.py"


def made_in(prefix: Path) -> str:
    [made] = prefix.glob("own-*/made")
    return made.read_text()


def test_what_a_launch_file_defines_is_found_again_though_it_was_run_as_main(launch_file, tmp_path):
    prefix = tmp_path / "out"
    command = [sys.executable, "-W", "error", str(launch_file), str(prefix)]
    # From elsewhere: nothing of the launch file is found by the working folder.
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert made_in(prefix) == f"beside 3 __mp_main__ [{str(prefix)!r}]"


def test_what_a_command_loaded_by_its_path_is_found_again(launch_file, tmp_path):
    module = load_module(str(launch_file))
    try:
        plan = plan_steps(module.steps(None), prefix=str(tmp_path / "out"))
        with ProcessRunner(plan) as runner:
            assert run_plan(plan, runner, room=runner.room) == []
    finally:
        del sys.modules[module.__name__], sys.modules["words"]
    assert made_in(tmp_path / "out").startswith(f"beside 3 {module.__name__} ")


def test_a_launch_file_is_loaded_again_only_after_it_has_changed(launch_file):
    first = load_module(str(launch_file))
    try:
        # Another one would take the names by which its steps are sent from those of the first.
        assert load_module(str(launch_file)) is first
        launch_file.write_text(LAUNCH_FILE + "\nMORE = 1\n")
        assert load_module(str(launch_file)).MORE == 1
    finally:
        del sys.modules[first.__name__], sys.modules["words"]


def local_function(config: object) -> object:
    def inside(config: object) -> None:
        pass

    return inside


@pytest.mark.parametrize(
    "fn",
    [lambda config: None, local_function(None), threading.Lock().acquire],
    ids=["lambda", "inside another", "of an object"],
)
def test_a_function_that_cannot_be_sent_is_refused_before_anything_begins(fn, tmp_path):
    steps = [sent_steps.step("good"), ExecutorStep("own", fn, {})]
    plan = plan_steps(steps, prefix=str(tmp_path / "out"))
    with pytest.raises(LaunchError, match=r"step 'own' cannot be sent .*Allowed: .*--on local"):
        ProcessRunner(plan)
    assert not (tmp_path / "out").exists()


class OfOwnFile(DataError):
    """Known to this file alone."""


ENDS = [
    (ConfigError("a config"), ConfigError, "a config", 2),
    (errors.StorageError("a file"), errors.StorageError, "a file", 1),
    (OfOwnFile("rare"), DataError, "OfOwnFile: rare", 1),
    (RunInterrupted("saved", exit_code=75), RunInterrupted, "saved", 75),
    (KeyboardInterrupt(), RunInterrupted, "The same command continues.", 130),
    (ZeroDivisionError("a bug"), ZeroDivisionError, "a bug", 1),
    (SystemExit("gave up"), SystemExit, "gave up", 1),
    # Cannot be made of a text, so its base stands in.
    (UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"), UnicodeError, "UnicodeDecodeError: ", 1),
]


@pytest.mark.parametrize(
    ("error", "kind", "text", "code"), ENDS, ids=[type(e[0]).__name__ for e in ENDS]
)
def test_an_error_comes_back_as_the_nearest_class_that_is_known_here(
    error, kind, text, code, tmp_path
):
    error.add_note("a note")
    path = str(tmp_path / "outcome.json")
    assert read_outcome(path) is None
    write_outcome(path, outcome_of(error))
    outcome = read_outcome(path)
    assert outcome == outcome_of(error)
    again = error_of(outcome)
    assert type(again) is kind
    assert str(again).startswith(text)
    assert again.__notes__ == ["a note"]
    assert type(error).__name__ in str(again.__cause__)
    assert outcome.exit_code == code
    if isinstance(again, ChompError):
        assert again.exit_code == code


def test_every_error_of_chomp_comes_back_as_itself():
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    kinds = [each for each in kinds if issubclass(each, ChompError) and each is not RunInterrupted]
    assert len(kinds) > 5
    for kind in kinds:
        again = error_of(outcome_of(kind("why")))
        assert (type(again), str(again), again.exit_code) == (kind, "why", kind.exit_code)
