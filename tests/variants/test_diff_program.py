"""`grug_dir_diff.py` as its users meet it, under both of its paths."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
PROGRAMS = [SCRIPTS / "grug_dir_diff.py", SCRIPTS / "ci" / "grug_dir_diff.py"]


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    for name, text in {"base": "a\nb\n", "moe": "a\nc\nd\n"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.py").write_text(text)
        (tmp_path / name / "notes.txt").write_text(name)
    return ["base", "moe"]


def ran(
    program: Path, *arguments: str, cwd: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """How the program ended; without a terminal."""
    env = {**os.environ, **variables}
    return subprocess.run(
        [sys.executable, str(program), *arguments], cwd=cwd, env=env, capture_output=True, text=True
    )


@pytest.mark.parametrize("program", PROGRAMS, ids=["scripts", "scripts/ci"])
def test_both_paths_are_the_same_program_from_any_folder(program, folders, tmp_path):
    done = ran(program, *folders, "--out", "report", "--no-open", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "1 changed, 0 added, 0 removed, 0 unchanged; +2 -1 lines",
        "report/index.html",
    ]
    names = sorted(path.name for path in (tmp_path / "report").iterdir())
    assert names == ["index.html", "summary.json", "summary.md"]


def test_all_files_or_other_extensions_are_looked_at_when_asked_for(folders, tmp_path):
    seen = {}
    for option in ("--all-files", "--extensions=txt,.md"):
        done = ran(PROGRAMS[0], *folders, "--out=r", option, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        facts = json.loads((tmp_path / "r" / "summary.json").read_text())
        seen[option] = [file["path"] for file in facts["files"]]
    assert seen == {
        "--all-files": ["model.py", "notes.txt"],
        "--extensions=txt,.md": ["notes.txt"],
    }


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["base"], "required: RIGHT"),
        (["base", "missing"], "missing does not exist. Allowed: two folders"),
        (["base", "moe", "--context-lines=-1"], "context_lines=-1. Allowed: 0 or more"),
        (["base", "moe", "--context-lines=x"], "invalid int value: 'x'"),
        (["base", "moe", "--extensions=.py,,"], "'.py,,' holds an empty extension"),
        (["base", "moe", "--extensions=.py", "--all-files"], "not allowed with"),
        (["base", "moe", "--out=moe/report"], "is inside moe"),
        (["base", "moe", "--colour"], "unrecognized arguments: --colour"),
    ],
)
def test_a_wrong_command_line_is_told_in_three_parts_with_code_2(
    arguments, told, folders, tmp_path
):
    done = ran(PROGRAMS[0], *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("Error: ")
    assert told in done.stderr
    assert "Fix: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("has_terminal", "options", "variables", "is_opened"),
    [
        (True, [], {}, True),
        (True, ["--open"], {}, True),
        (True, ["--no-open"], {}, False),
        (True, ["--open"], {"CI": "true"}, False),
        (False, ["--open"], {}, False),
    ],
)
def test_a_browser_opens_only_for_somebody_at_a_terminal(
    has_terminal, options, variables, is_opened, folders, tmp_path
):
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > "{tmp_path}/opened"\n')
    browser.chmod(0o755)
    env = {**os.environ, "CI": "", "BROWSER": f"{browser} %s", **variables}
    terminal, inner = pty.openpty()
    done = subprocess.run(
        [sys.executable, str(PROGRAMS[0]), *folders, "--out=r", *options],
        cwd=tmp_path,
        env=env,
        stdout=inner if has_terminal else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(inner)
    os.close(terminal)
    assert (done.returncode, done.stderr) == (0, "")
    opened = tmp_path / "opened"
    assert opened.exists() == is_opened
    if is_opened:
        assert opened.read_text().strip() == (tmp_path / "r" / "index.html").as_uri()
