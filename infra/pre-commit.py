#!/usr/bin/env python3
"""Every check that a change must pass, behind one command; CI calls it with `--all-files`.

A check is a generator of problems (`file:line: what. Fix: how.`) over the files it is given; to add
one, write it and add its name to `CHECKS`. Only files that git knows are looked at, and none is
written to without `--fix`. Exit status: 0 all is well, 1 a check failed, 2 the command was misused.

An interpreter without the tools runs the script again under `uv run --group test`, so the top of
this file imports the standard library only.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
RERUN_GUARD = "CHOMP_PRE_COMMIT_RERUN"  # set in the second run, so that there is never a third
NEEDS = ("ruff", "mypy", "yaml", "jax", "chomp")  # jax stands for the project's dependencies
FIX = "run infra/pre-commit.py --fix"
MAX_FILE_KB = 500  # a clone stays small

# The dots are escaped, so that this file does not match. A link to a project's page is fine.
REGISTRY = re.compile(
    rb"pypi\.org(?!/project/)|pythonhosted\.org|download\.pytorch\.org/whl|jfrog\.io"
    rb"|pkg\.dev/|codeartifact\.|pkgs\.dev\.azure\.com|https?://\S+/simple\b"
)
INSTALLER_FILES = ("pyproject.toml", "uv.toml", "pip.conf", "setup.cfg", "requirements.txt")
INDEX_SETTING = re.compile(
    rb"^[^#]*(index[-_]url|find[-_]links|\bregistry\s*=|\[\[?\s*(tool\.uv\.)?index\b)|^\s*index\s*="
)
MARKERS = re.compile(rb"^(<{7} .*|>{7} .*|\|{7} .*)$", re.MULTILINE)  # ======= underlines a title
# Where secrets are planted on purpose, and where their forms are described.
SECRETS_ALLOWED = ("tests/", "src/chomp/storage/secrets.py")


def ruff(files: list[Path], fix: bool) -> Iterator[str]:
    """Findings of ruff's linter, and files that its formatter would write differently."""
    sources = [str(path) for path in files if path.suffix == ".py"]
    mode = ["--fix"] if fix else []
    hint = "edit the line, or say why not in a noqa comment"
    if sources:
        yield from _tool(["ruff", "check", "-q", "--output-format=concise", *mode, *sources], hint)
        mode = [] if fix else ["--check", "--output-format=concise"]
        yield from _tool(["ruff", "format", "-q", *mode, *sources], FIX)


def types(files: list[Path], fix: bool) -> Iterator[str]:
    """Errors of mypy on all of `src`: a change in one file can break another."""
    if any(path.parts[0] == "src" and path.suffix == ".py" for path in files):
        flags = ["--no-error-summary", "--no-color-output", "--no-pretty"]
        yield from _tool(["mypy", *flags], "correct the annotation or the code")


def _tool(command: list[str], hint: str) -> Iterator[str]:
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)
    found = re.findall(r"^(.+?:\d+:(?:\d+:)?) (?!note:)(.+)$", done.stdout, re.MULTILINE)
    if done.returncode and not found:  # the tool itself failed
        text = " ".join((done.stderr + done.stdout).split())
        yield f"{command[0]} ended with {done.returncode}: {text}. Fix: see its message."
    for where, what in found if done.returncode else ():
        yield f"{where} {what}. Fix: {FIX if '[*]' in what else hint}."


def architecture(files: list[Path], fix: bool) -> Iterator[str]:
    """Breaches of the rules on imports and names in tests/architecture."""
    rules = ROOT / "tests/architecture/rules.py"
    if rules.is_file() and any(path.suffix == ".py" for path in files):
        for rule in runpy.run_path(str(rules))["RULES"]:
            yield from rule(ROOT)


def texts(files: list[Path], fix: bool) -> Iterator[str]:
    """White space at line ends, final newlines, merge markers, syntax of data files, sizes."""
    for path in files:
        content = path.read_bytes()
        if len(content) > MAX_FILE_KB * 1024:
            yield f"{path}:1: more than {MAX_FILE_KB} KB. Fix: store it elsewhere, or generate it."
        if b"\0" in content:
            continue
        for found in MARKERS.finditer(content):
            line = content.count(b"\n", 0, found.start()) + 1
            yield f"{path}:{line}: merge marker. Fix: finish the merge by hand."
        clean = re.sub(rb"[ \t]+(?=\r?$)", b"", content, flags=re.MULTILINE).rstrip(b"\r\n")
        if clean:
            clean += b"\r\n" if b"\r\n" in content else b"\n"
        if clean != content and fix:
            path.write_bytes(clean)
        elif clean != content:
            lines = zip(clean.split(b"\n"), content.split(b"\n"), strict=False)
            end = min(clean.count(b"\n"), content.count(b"\n")) + 1
            line = next((i for i, (a, b) in enumerate(lines, 1) if a != b), end)
            yield f"{path}:{line}: white space at the end of a line or of the file. Fix: {FIX}."
        try:
            _parse(path.suffix, content.decode())
        except ValueError as error:
            line = (re.findall(r"line (\d+)", str(error)) or [1])[-1]
            what = " ".join(str(error).split())
            yield f"{path}:{line}: {what}. Fix: make it valid {path.suffix[1:].upper()}."


def _parse(suffix: str, text: str) -> None:
    """Raise `ValueError` for a data file that its own parser refuses, NaN in JSON included."""
    import tomllib  # noqa: PLC0415  # absent before Python 3.11

    import yaml  # noqa: PLC0415  # not in the standard library

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    if suffix == ".toml":
        tomllib.loads(text)
    elif suffix in (".json", ".ipynb"):
        json.loads(text, parse_constant=refuse)
    elif suffix == ".jsonl":
        for number, row in enumerate(text.splitlines(), 1):
            try:
                json.loads(row, parse_constant=refuse)
            except ValueError as error:
                raise ValueError(f"{error}, in line {number}") from error
    elif suffix in (".yaml", ".yml"):
        try:
            [*yaml.safe_load_all(text)]
        except yaml.YAMLError as error:
            raise ValueError(str(error)) from error


def secrets(files: list[Path], fix: bool) -> Iterator[str]:
    """Addresses of package registries, lock files that hold them, and secrets."""
    from chomp.storage.secrets import redactor  # noqa: PLC0415  # needs what the library needs

    redacted = redactor()
    for path in _git_files("ls-files", "--cached"):
        if path.name == "uv.lock":
            yield f"{path}:1: a lock file names a registry. Fix: git rm --cached {path}."
    for path in files:
        content = path.read_bytes()
        if b"\0" in content or path.name == "uv.lock":
            continue
        for number, line in enumerate(content.split(b"\n"), 1):
            is_setting = path.name in INSTALLER_FILES and INDEX_SETTING.search(line)
            if is_setting or REGISTRY.search(line):
                yield f"{path}:{number}: names a package registry. Fix: set UV_DEFAULT_INDEX."
        text = content.decode(errors="replace")
        if not str(path).startswith(SECRETS_ALLOWED) and (clean := redacted(text)) != text:
            pairs = enumerate(zip(text, clean, strict=False))
            start = next((place for place, (old, new) in pairs if old != new), len(clean))
            line = text.count("\n", 0, start) + 1
            yield f"{path}:{line}: a secret. Fix: delete it, and revoke it where it is used."


def records(files: list[Path], fix: bool) -> Iterator[str]:
    """Faults of the archive of variants, and pages of the ledger that its results do not make."""
    from chomp.ledger import pages  # noqa: PLC0415  # these need what the library needs
    from chomp.variants import archive  # noqa: PLC0415

    if fix:
        archive.fill_in_commits(ROOT)
    for problem in archive.archive_problems(ROOT):
        yield f"{problem.where} {problem.what}. Fix: {problem.fix}."
    if pages.has_ledger(ROOT):
        if fix:
            pages.write_ledger(ROOT)
        for name in pages.stale_pages(ROOT):
            yield f"{name}:1: not the page that docs/reports/results makes. Fix: {FIX}."


CHECKS = {check.__name__: check for check in (ruff, types, architecture, texts, secrets, records)}


def main(argv: list[str]) -> int:
    """Run the checks that `argv` asks for, print what they found, and return the exit status."""
    parser = argparse.ArgumentParser(prog="infra/pre-commit.py", description="Check what changed.")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--all-files", action="store_true", help="every file git knows")
    which.add_argument("--files", nargs="+", metavar="FILE", help="these files")
    parser.add_argument("--fix", action="store_true", help="repair what can be repaired")
    choice = {"action": "append", "choices": CHECKS, "default": []}
    parser.add_argument("--only", **choice, help="this check; repeatable")
    parser.add_argument("--skip", **choice, help="not this check; repeatable")
    options = parser.parse_args(argv)
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing or sys.version_info < (3, 11):
        uv = shutil.which("uv")
        if uv is None or RERUN_GUARD in os.environ:
            how = "run pip install uv" if uv is None else "add them to the group test"
            parser.error(f"{', '.join(missing)} cannot be imported. Fix: {how}")
        again = [uv, "run", "--project", str(ROOT), "--group", "test", "python", __file__, *argv]
        return subprocess.run(again, env={**os.environ, RERUN_GUARD: "1"}).returncode
    if options.files:
        files = {Path(os.path.abspath(name)) for name in options.files}
        wrong = [str(path) for path in files if not path.is_file() or ROOT not in path.parents]
        if wrong:
            parser.error(f"--files {' '.join(wrong)}. Allowed: existing files below {ROOT}")
        files = {path.relative_to(ROOT) for path in files}
    else:
        head = _git("rev-parse", "--verify", "--quiet", "HEAD")
        changed = ["diff", "--name-only", "--relative", "--diff-filter=d", "HEAD", "--"]
        is_all = options.all_files or head.returncode != 0  # before the first commit all is new
        files = {*_git_files(*(["ls-files", "--cached"] if is_all else changed))}
        files |= {*_git_files("ls-files", "--others", "--exclude-standard")}
    os.chdir(ROOT)
    files = sorted(path for path in files if path.is_file() and not path.is_symlink())
    count = 0
    for name, check in CHECKS.items():
        if name in options.skip or (options.only and name not in options.only):
            continue
        problems = [*check(files, options.fix)]
        print(f"{name:.<16}{f'FAIL ({len(problems)})' if problems else 'ok'}")
        print("".join(f"  {problem}\n" for problem in problems), end="", flush=True)
        count += len(problems)
    return 1 if count else 0


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)


def _git_files(command: str, *rest: str) -> list[Path]:
    """Paths that a git command lists, relative to `ROOT`."""
    done = _git(command, "-z", *rest)
    if done.returncode:
        print(f"git {command} failed: {done.stderr.strip()}. Fix: git init", file=sys.stderr)
        sys.exit(2)
    return [Path(name) for name in done.stdout.split("\0") if name]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
