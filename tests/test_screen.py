"""Commands whose stdout or stderr is closed, full, without a reader, or knows only ASCII."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Ends as commands do: 141 where nobody reads, 1 with an error on stderr, else with the code.
PROGRAM = """
import os, sys
from pathlib import Path
from chomp.errors import LaunchError
from chomp.storage.screen import checked_screen, is_reader_gone, outliving_the_screen

def work():
    for _ in range(9):
        print("\\u2192 " * 9999, flush=True)
    print("fault", file=sys.stderr)
    Path("done").write_text(str([os.fstat(number).st_rdev != 0 for number in range(3)]))
    return 3

with checked_screen():
    try:
        code = outliving_the_screen()(work)() if sys.argv[1] == "work" else work()
        sys.stdout.flush()
    except BrokenPipeError as error:
        code = 141 if is_reader_gone(error) else 99
    except LaunchError as error:
        print(error, file=sys.stderr)
        code = 1
sys.exit(code)
"""
SCREENS = {
    "| head -c 1": 141,
    "> /dev/full": 1,
    "> ascii.txt": 3,
    ">&-": 3,
    "> out.txt 2>&-": 3,
    "> out.txt 2>/dev/full": 3,
    "<&- >&- 2>&-": 3,
}


@pytest.fixture(params=["work", "print"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("screen", SCREENS)
def test_work_goes_on_without_a_screen_and_what_only_prints_says_that_it_cannot(
    tmp_path: Path, kind: str, screen: str
):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = f"set -o pipefail; {sys.executable} program.py {kind} {screen}"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(
        ["bash", "-c", command],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    expected = 3 if kind == "work" else SCREENS[screen]
    assert done.returncode == expected, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert (tmp_path / "done").exists() == (expected == 3)
    if expected == 1:
        assert "Allowed: " in done.stderr


def test_the_descriptors_of_closed_streams_are_taken(tmp_path: Path):
    # Else the next file that is opened gets what libraries print into 1 and 2.
    (tmp_path / "program.py").write_text(PROGRAM)
    command = f"{sys.executable} program.py work <&- >&- 2>&-"
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=False)
    assert (tmp_path / "done").read_text() == "[True, True, True]"
