"""The command itself: help, version, wrong arguments, and how it ends."""

import inspect
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

from chomp import __version__
from chomp.cli import commands
from chomp.cli.main import app
from chomp.cli.options import Command
from tests.cli.conftest import Chomp, assert_refused

ROOT = Path(__file__).parents[2]


def test_help_answers_without_the_heavy_imports():
    code = (
        "import sys\n"
        "from chomp.cli.main import exit_code\n"
        "for words in (['data'], ['train'], ['checkpoint', 'export'], ['compare'], ['eval']):\n"
        "    assert exit_code([*words, '--help']) == 0\n"
        "print(*{'jax', 'numpy', 'tensorstore', 'chomp.config'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for words in ("forecast", "--dry-run", "chomp checkpoint export runs/mine --out exported"):
        assert words in found.stdout
    assert found.stdout.splitlines()[-1] == ""


def declared_commands() -> list[type[Command]]:
    """Every command, as the class that its options become."""
    found = [each for each in vars(commands).values() if isinstance(each, type)]
    return [each for each in found if issubclass(each, Command) and hasattr(each, "work")]


def test_every_command_names_the_function_that_takes_it():
    assert len(declared_commands()) == 29
    for each in declared_commands():
        module, _, name = each.work.partition(":")
        function = getattr(import_module(f"chomp.cli.{module}"), name)
        [parameter] = inspect.signature(function).parameters.values()
        assert parameter.annotation is each


def test_every_page_of_help_fits_into_80_columns_cuts_nothing_and_names_real_files(
    chomp: Chomp, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "80")

    def paths(group: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield path
        for name, inner in getattr(group, "commands", {}).items():
            yield from paths(inner, (*path, name))

    examples = []
    for path in paths(typer.main.get_command(app), ()):
        told = chomp(*path, "--help")
        assert (told.code, told.err) == (0, "")
        assert max(map(len, told.out.splitlines())) <= 80, path
        listed = told.out.partition("Commands:")[2].splitlines()
        assert not any(line.endswith("...") for line in listed), path
        examples += re.findall(r"(?:configs|experiments)/(?!mine)\S+\.\w+", told.out)
    assert len(examples) >= 15
    assert [path for path in examples if not (ROOT / path).is_file()] == []


def test_python_m_chomp_is_the_command():
    found = subprocess.run(
        [sys.executable, "-m", "chomp", "--version"], capture_output=True, text=True, check=True
    )
    assert found.stdout == f"chomp {__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["data"], ["--help"], ["data", "where", "--help"]])
def test_help_is_shown_where_nothing_is_asked_for(chomp: Chomp, arguments: list[str]):
    told = chomp(*arguments)
    assert (told.code, told.err) == (0, "")
    assert "Usage: chomp" in told.out


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["dta"], "No such command 'dta'"),
        (["data", "biuld", "x.yaml"], "Did you mean 'build'"),
        (["data", "build"], "Missing argument"),
        (["data", "build", "x.yaml", "--fast"], "No such option: --fast"),
        (["data", "where", "x.yaml", "--step", "two"], "'--step'"),
        (["data", "where", "x.yaml"], "neither --step nor --doc"),
        (["data", "where", "x.yaml", "--step", "1", "--doc", "a"], "both --step and --doc"),
        (["data", "where", "x.yaml", "--doc", "a", "--row", "1"], "--doc with --row"),
    ],
)
def test_wrong_arguments_are_told_in_three_parts(chomp: Chomp, arguments: list[str], fault: str):
    told = chomp(*arguments)
    assert_refused(told, fault)
    assert told.err.startswith("Error: ")


@pytest.mark.parametrize(
    "words",
    [
        "train mine.yaml",
        "verify-resume mine.yaml",
        "eval run",
        "compare a b",
        "report run",
        "config show mine.yaml",
        "data build mine.yaml",
        "variant list",
        "checkpoint list run",
    ],
)
def test_a_current_folder_that_was_deleted_is_told(
    chomp: Chomp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    told = chomp(*words.split())
    assert (told.code, told.out) == (1, "")
    assert "the current folder, which was deleted. Allowed: " in told.err


@pytest.mark.parametrize("words", ["train x.yaml", "eval run", "generate run", "harness run"])
@pytest.mark.parametrize(("kind", "flag"), [("RLIMIT_AS", "-v"), ("RLIMIT_NOFILE", "-n")])
def test_a_limit_that_jax_would_abort_for_is_told(
    chomp: Chomp, monkeypatch: pytest.MonkeyPatch, words: str, kind: str, flag: str
):
    low = {getattr(resource, kind): (63, 63)}
    every = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda asked: low.get(asked, every))
    told = chomp(*words.split())
    assert (told.code, told.out) == (1, "")
    assert f"ulimit {flag}" in told.err
    assert "config_resolved.json" in chomp("report", "nothing").err  # it needs no device


def test_a_bug_in_a_launch_file_keeps_its_traceback(chomp: Chomp, folder: Path):
    (folder / "broken.py").write_text("1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        chomp("data", "build", "broken.py")


def test_ctrl_c_ends_with_the_code_of_an_interrupted_command(chomp: Chomp, folder: Path):
    (folder / "interrupted.py").write_text("raise KeyboardInterrupt\n")
    told = chomp("data", "build", "interrupted.py")
    assert (told.code, told.err) == (130, "Stopped. Run the same command again to go on.\n")


@pytest.mark.parametrize(
    "arguments", [["config", "schema", "--template", "base"], ["train", "--help"]]
)
def test_a_command_whose_reader_has_gone_ends_quietly(arguments: list[str]):
    command = [sys.executable, "-m", "chomp", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, cwd=ROOT, **pipes) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()  # as `| head` does, sooner or later
        assert process.stderr.read() == ""
    assert process.returncode == 141


def test_a_pipe_that_breaks_elsewhere_keeps_its_traceback(chomp: Chomp, folder: Path):
    (folder / "broken.py").write_text("raise BrokenPipeError\n")
    with pytest.raises(BrokenPipeError):
        chomp("data", "build", "broken.py")
