#!/usr/bin/env python3
"""Every check a change must pass, behind one command; CI calls it with `--all-files`.

A check is one row of `CHECKS`: a name, a function from files to problems, and the modules it needs.
Adding a check is adding a row. Only files git knows are looked at, and none of them is written to
unless `--fix` is given. Exit status: 0 all is well, 1 a check failed, 2 the command was misused.

When the running interpreter lacks a tool, the script runs itself again under `uv run --group test`.
It therefore imports only what any Python 3.9 has; everything newer waits inside a check.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RERUN_GUARD = "CHOMP_PRE_COMMIT_RERUN"  # set in the second run, so that there is never a third
FIX_COMMAND = "run infra/pre-commit.py --fix"
MAX_FILE_KB = 500  # a clone stays small; results and goldens worth committing are far below this
PYTHON_SUFFIXES = (".py", ".pyi")

# The dots are escaped here, so that this file does not match its own pattern. A link to a project's
# page (`/project/NAME`) is documentation, not a place that packages are installed from.
REGISTRY_HOST = re.compile(
    rb"pypi\.org(?!/project/)|pythonhosted\.org|download\.pytorch\.org/whl|jfrog\.io"
    rb"|pkg\.dev/|codeartifact\.|pkgs\.dev\.azure\.com|https?://\S+/simple\b"
)
INDEX_SETTING = re.compile(
    rb"index[-_]url|find[-_]links|\bregistry\s*=|^\s*index\s*=|\[\[?\s*(tool\.uv\.)?index\b"
)
INSTALLER_FILES = re.compile(r"pyproject\.toml|uv\.toml|pip\.conf|setup\.cfg|requirements.*\.txt")


@dataclass(frozen=True)
class Problem:
    """One fault: where it is (`file:line`), what is wrong, how to put it right."""

    where: str
    what: str
    fix: str


@dataclass(frozen=True)
class Check:
    """One row of the table: `run(files, fix)` gives the problems that are left afterwards."""

    name: str
    run: Callable[[list[Path], bool], list[Problem]]
    needs: tuple[str, ...] = ()  # modules without which the check cannot run in this interpreter


class UsageError(Exception):
    """The command cannot be carried out as given; the message says what would work."""


# --- tools --------------------------------------------------------------------------------------


def ruff_lint(files: list[Path], fix: bool) -> list[Problem]:
    """Findings of `ruff check` that are left, after its own fixes when `fix` is set."""
    arguments = ["check", "--quiet", "--output-format=concise", *(["--fix"] if fix else [])]
    return _ruff(arguments, files, "edit the line, or say why not in a noqa comment")


def ruff_format(files: list[Path], fix: bool) -> list[Problem]:
    """Files that `ruff format` would write differently."""
    arguments = ["format", "--quiet"]
    if not fix:
        arguments += ["--check", "--output-format=concise"]
    return _ruff(arguments, files, FIX_COMMAND)


def types(files: list[Path], fix: bool) -> list[Problem]:
    """Errors of mypy on the whole of `src`, as pyproject.toml configures it.

    A change in one file can break another, so the check is all or nothing: it runs on everything
    when any source file is among `files`, and not at all otherwise.
    """
    if not any(path.parts[0] == "src" for path in _python(files)):
        return []
    command = ["mypy", "--no-error-summary", "--no-color-output", "--no-pretty"]
    return _tool_problems(command, "correct the annotation or the code")


def _ruff(arguments: list[str], files: list[Path], fix_hint: str) -> list[Problem]:
    sources = [str(path) for path in _python(files)]
    if not sources:
        return []
    return _tool_problems(["ruff", *arguments, "--force-exclude", "--", *sources], fix_hint)


def _tool_problems(command: list[str], fix_hint: str) -> list[Problem]:
    """The lines `python -m command` printed, as problems; none when it ended well."""
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)
    if done.returncode == 0:
        return []
    found = re.findall(r"^(.+?:\d+:(?:\d+:)?) (.+)$", done.stdout, re.MULTILINE)
    if not found:  # the tool itself failed: show all it said
        said = " ".join((done.stderr + done.stdout).split()) or "it printed nothing"
        return [Problem(f"{command[0]} ended with {done.returncode}:", said, "see its message")]
    return [
        # ruff stars what it can repair itself; mypy's notes belong to the error above them.
        Problem(where, what, FIX_COMMAND if "[*]" in what else fix_hint)
        for where, what in found
        if not what.startswith("note:")
    ]


# --- what a file says ---------------------------------------------------------------------------


def parse(files: list[Path], fix: bool) -> list[Problem]:
    """Files that their own format's parser refuses."""
    problems = []
    for path in files:
        syntax_fault = SYNTAX_FAULTS.get(path.suffix)
        if syntax_fault is None or path.is_symlink():
            continue
        try:
            fault = syntax_fault(path.read_bytes().decode("utf-8"))
        except UnicodeDecodeError:
            fault = (1, "not UTF-8")
        if fault is not None:
            line, what = fault
            problems.append(
                Problem(f"{path}:{line}:", what, f"make it valid {path.suffix[1:].upper()}")
            )
    return problems


def _python_fault(text: str) -> tuple[int, str] | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a doubtful escape is for the linter, not for the parser
        try:
            ast.parse(text)
        except SyntaxError as error:
            return error.lineno or 1, error.msg
        except ValueError as error:  # a NUL byte, before Python 3.11.4
            return 1, str(error)
    return None


def _toml_fault(text: str) -> tuple[int, str] | None:
    import tomllib  # noqa: PLC0415  (absent before Python 3.11, where the script re-runs itself)

    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at_line = re.search(r"at line (\d+)", str(error))
        return int(at_line[1]) if at_line else text.count("\n") + 1, str(error)
    return None


def _yaml_fault(text: str) -> tuple[int, str] | None:
    import yaml  # noqa: PLC0415  (the one third-party import; only this check needs it)

    try:
        for _ in yaml.safe_load_all(text):
            pass
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        return mark.line + 1 if mark else 1, error.problem or "not YAML"
    except yaml.YAMLError as error:
        return 1, " ".join(str(error).split())
    return None


def _json_fault(text: str) -> tuple[int, str] | None:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON; write null or a string")

    try:
        json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        return error.lineno, error.msg
    except ValueError as error:
        # The parser does not say where: the constant's first place outside any string.
        bare = re.sub(r'"(?:\\.|[^"\\])*"', '""', text)
        place = re.search(r"NaN|Infinity", bare)
        return bare.count("\n", 0, place.start() if place else 0) + 1, str(error)
    return None


def _jsonl_fault(text: str) -> tuple[int, str] | None:
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else [], start=1):
        fault = _json_fault(line)
        if fault is not None:
            return number, fault[1]
    return None


SYNTAX_FAULTS: dict[str, Callable[[str], tuple[int, str] | None]] = {
    ".py": _python_fault,
    ".pyi": _python_fault,
    ".toml": _toml_fault,
    ".yaml": _yaml_fault,
    ".yml": _yaml_fault,
    ".json": _json_fault,
    ".jsonl": _jsonl_fault,
}


def conflict_markers(files: list[Path], fix: bool) -> list[Problem]:
    """Lines a merge left behind.

    A row of equals signs is also a heading's underline, so it counts only below an opening marker.
    """
    problems = []
    for path, content in _texts(files):
        is_open = False
        for number, line in enumerate(content.split(b"\n"), start=1):
            is_opening = line.startswith(b"<<<<<<< ")
            is_closing = line.startswith(b">>>>>>> ")
            is_middle = is_open and (line.rstrip() == b"=======" or line.startswith(b"||||||| "))
            if is_opening or is_closing or is_middle:
                what = f"merge conflict marker {line[:7].decode()}"
                problems.append(Problem(f"{path}:{number}:", what, "finish the merge by hand"))
            is_open = (is_open or is_opening) and not is_closing
    return problems


def large_files(files: list[Path], fix: bool) -> list[Problem]:
    """Files of more than `MAX_FILE_KB`, which every clone would carry for ever."""
    sizes = ((path, path.stat().st_size) for path in files if not path.is_symlink())
    return [
        Problem(
            f"{path}:1:",
            f"{size / 1024:.0f} KB, more than the {MAX_FILE_KB} KB a tracked file may have",
            "store it elsewhere, or generate it in the test that needs it",
        )
        for path, size in sizes
        if size > MAX_FILE_KB * 1024
    ]


def trailing_whitespace(files: list[Path], fix: bool) -> list[Problem]:
    """Lines that end in spaces or tabs. Markdown's two-space break counts: nobody can see it."""
    problems = []
    trailing = re.compile(rb"[ \t]+(?=\r?$)", re.MULTILINE)
    for path, content in _texts(files):
        if fix:
            _write_if_changed(path, content, trailing.sub(b"", content))
            continue
        for match in trailing.finditer(content):
            line = content.count(b"\n", 0, match.start()) + 1
            problems.append(Problem(f"{path}:{line}:", "trailing whitespace", FIX_COMMAND))
    return problems


def final_newline(files: list[Path], fix: bool) -> list[Problem]:
    """Text files that do not end in exactly one newline; an empty file is fine."""
    problems = []
    for path, content in _texts(files):
        body = content.rstrip(b"\r\n")
        newline = b"\r\n" if b"\r\n" in content else b"\n"
        wanted = body + newline if body else b""
        if content == wanted:
            continue
        if fix:
            _write_if_changed(path, content, wanted)
            continue
        what = "blank lines at the end" if content.startswith(wanted) else "no newline at the end"
        line = body.count(b"\n") + 1
        problems.append(Problem(f"{path}:{line}:", what, FIX_COMMAND))
    return problems


def registry_addresses(files: list[Path], fix: bool) -> list[Problem]:
    """Places where the repository would tell an installer which package registry to ask.

    That choice belongs to the machine (an environment variable, a user's uv.toml). Versions are
    pinned by `constraint-dependencies` in pyproject.toml instead of by a lock file.
    """
    problems = [
        Problem(
            f"{path}:1:",
            "a lock file holds the addresses of a package registry",
            f"run git rm --cached {path}, and pin versions in pyproject.toml",
        )
        for path in _git_files("ls-files", "--cached")
        if path.name == "uv.lock"
    ]
    for path, content in _texts(files):
        if path.name == "uv.lock":
            continue  # its one problem is that it is tracked
        is_installer_file = INSTALLER_FILES.fullmatch(path.name) is not None
        for number, line in enumerate(content.split(b"\n"), start=1):
            setting = None
            if is_installer_file and not line.lstrip().startswith(b"#"):
                setting = INDEX_SETTING.search(line)
            found = REGISTRY_HOST.search(line) or setting
            if found:
                what = f"names a package registry ({found[0].decode(errors='replace').strip()})"
                fix_hint = "delete it; set UV_DEFAULT_INDEX on the machine that needs it"
                problems.append(Problem(f"{path}:{number}:", what, fix_hint))
    return problems


def grug_archive(files: list[Path], fix: bool) -> list[Problem]:
    """Variants that the archive does not know, entries without a folder, entries that lack a field.

    A folder that is gone is not among `files`, so the archive is looked at whatever has changed.
    """
    from chomp.variants.archive import (  # noqa: PLC0415  (needs what the library needs)
        archive_problems,
        fill_in_commits,
    )

    if fix:
        fill_in_commits(ROOT)
    return [Problem(found.where, found.what, found.fix) for found in archive_problems(ROOT)]


def grug_ledger(files: list[Path], fix: bool) -> list[Problem]:
    """Pages of the ledger that are not what the results and the archive make them."""
    from chomp.ledger.pages import (  # noqa: PLC0415  (needs what the library needs)
        has_ledger,
        stale_pages,
        write_ledger,
    )

    if not has_ledger(ROOT):
        return []
    if fix:
        write_ledger(ROOT)
    what = "not what docs/reports/results and the archive make it"
    return [Problem(f"{name}:1:", what, FIX_COMMAND) for name in stale_pages(ROOT)]


def _python(files: Iterable[Path]) -> list[Path]:
    return [path for path in files if path.suffix in PYTHON_SUFFIXES]


def _texts(files: Iterable[Path]) -> Iterator[tuple[Path, bytes]]:
    """Each text file with its bytes. A NUL byte makes a file binary, as it does for git."""
    for path in files:
        if path.is_symlink():  # its target is either a file of its own or not ours
            continue
        content = path.read_bytes()
        if b"\0" not in content:
            yield path, content


def _write_if_changed(path: Path, old: bytes, new: bytes) -> None:
    if new != old:
        path.write_bytes(new)


# The order matters only to --fix: what one row writes, the rows below it see.
CHECKS = (
    Check("ruff-lint", ruff_lint, needs=("ruff",)),
    Check("ruff-format", ruff_format, needs=("ruff",)),
    # jax stands for the project's own dependencies; without them mypy refuses every import of one.
    Check("types", types, needs=("mypy", "jax")),
    Check("parse", parse, needs=("tomllib", "yaml")),
    Check("conflict-markers", conflict_markers),
    Check("large-files", large_files),
    Check("trailing-whitespace", trailing_whitespace),
    Check("final-newline", final_newline),
    Check("registry-addresses", registry_addresses),
    Check("grug-archive", grug_archive, needs=("chomp",)),
    Check("grug-ledger", grug_ledger, needs=("chomp",)),
)


# --- the command --------------------------------------------------------------------------------


def main(argv: list[str]) -> int:
    """Run the checks `argv` asks for, print what they found, and give the exit status."""
    arguments = _arguments(argv)
    try:
        checks = selected_checks(arguments.only, arguments.skip)
        missing = {
            name for check in checks for name in check.needs if not importlib.util.find_spec(name)
        }
        if missing:
            return rerun_under_uv(argv, sorted(missing))
        files = selected_files(arguments.files, arguments.all_files)
        os.chdir(ROOT)  # file names are relative to the root from here on, printed ones too
        problem_counts = [report(check, files, arguments.fix) for check in checks]
    except UsageError as error:
        print(f"pre-commit: {error}", file=sys.stderr)
        return 2
    return 1 if any(problem_counts) else 0


def report(check: Check, files: list[Path], fix: bool) -> int:
    """Number of problems `check` found, after its line and theirs have been printed."""
    problems = check.run(files, fix)
    width = max(len(row.name) for row in CHECKS) + 6
    print(check.name.ljust(width, ".") + (f"FAIL ({len(problems)})" if problems else "ok"))
    for problem in problems:
        print(f"  {problem.where} {problem.what}. Fix: {problem.fix}.")
    return len(problems)


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="infra/pre-commit.py",
        description="Check the files changed since the last commit, or those asked for.",
        epilog="checks: " + ", ".join(check.name for check in CHECKS),
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--all-files", action="store_true", help="every file git knows")
    which.add_argument("--files", nargs="+", metavar="FILE", help="these files")
    parser.add_argument("--fix", action="store_true", help="repair what can be repaired")
    names = "checks, by commas; repeatable"
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help=names)
    parser.add_argument("--skip", action="append", default=[], metavar="NAME", help=names)
    return parser.parse_args(argv)


def selected_checks(only: list[str], skip: list[str]) -> list[Check]:
    """The rows of `CHECKS` that `--only` and `--skip` leave, in the order of the table."""
    wanted = [name for value in only for name in value.split(",")]
    unwanted = [name for value in skip for name in value.split(",")]
    known = [check.name for check in CHECKS]
    unknown = [name for name in [*wanted, *unwanted] if name not in known]
    if unknown:
        raise UsageError(
            f"unknown check {', '.join(map(repr, unknown))}. "
            f"Allowed: {', '.join(known)}. Fix: use one of these names."
        )
    names = [name for name in wanted or known if name not in unwanted]
    if not names:
        raise UsageError(
            "--only and --skip leave no check. Allowed: at least one check. Fix: drop one of them."
        )
    return [check for check in CHECKS if check.name in names]


def selected_files(named: list[str] | None, is_everything: bool) -> list[Path]:
    """The files to look at, relative to `ROOT`: those named, all, or those changed since HEAD."""
    if named is not None:
        return sorted({_named_file(name) for name in named})
    untracked = _git_files("ls-files", "--others", "--exclude-standard")
    has_commit = _git("rev-parse", "--verify", "--quiet", "HEAD").returncode == 0
    if is_everything or not has_commit:  # before the first commit everything is a change
        tracked = _git_files("ls-files", "--cached")
    else:
        tracked = _git_files("diff", "--name-only", "--relative", "--diff-filter=d", "HEAD", "--")
    return sorted({path for path in [*tracked, *untracked] if (ROOT / path).is_file()})


def _named_file(name: str) -> Path:
    path = Path(os.path.abspath(name))  # not resolve(): a link is checked as a link
    if not path.is_file():
        raise UsageError(
            f"--files {name}: no such file. Allowed: existing files. "
            "Fix: correct the path, or leave --files out to check what has changed."
        )
    if ROOT not in path.parents:
        path = path.resolve()
    if ROOT not in path.parents:
        raise UsageError(
            f"--files {name}: outside the repository. Allowed: files below {ROOT}. "
            "Fix: use the pre-commit.py of the repository the file belongs to."
        )
    return path.relative_to(ROOT)


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)


def _git_files(*arguments: str) -> list[Path]:
    """Paths a git command lists, relative to `ROOT`."""
    command, *rest = arguments
    listed = _git(command, "-z", *rest)
    if listed.returncode != 0:
        raise UsageError(
            f"git {command} failed ({listed.stderr.strip()}). Allowed: a git checkout. "
            f"Fix: run git init in {ROOT}, or clone the repository."
        )
    return [Path(name) for name in listed.stdout.split("\0") if name]


def rerun_under_uv(argv: list[str], missing: list[str]) -> int:
    """Exit status of this same command in the environment of the `test` group."""
    what = f"{', '.join(missing)} cannot be imported by {sys.executable}"
    if RERUN_GUARD in os.environ:
        raise UsageError(
            f"{what}, under uv too. Allowed: an environment with the test group. "
            "Fix: add them to the test group in pyproject.toml."
        )
    uv = shutil.which("uv")
    if uv is None:
        raise UsageError(
            f"{what}, and uv, which would provide them, is not on the path. "
            "Allowed: uv, or an environment with the test group. Fix: pip install uv."
        )
    command = [uv, "run", "--project", str(ROOT), "--group", "test", "python", __file__, *argv]
    return subprocess.run(command, env={**os.environ, RERUN_GUARD: "1"}).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
