"""`infra/pre-commit.py` as its users meet it: run in a small git repository, judged by its output.

The script is copied into each repository, because it checks the repository it lies in.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "infra" / "pre-commit.py"
GUARD = "CHOMP_PRE_COMMIT_RERUN"
# Put together here, so that the repository's own check does not take this file for a breach.
REGISTRY = "https://" + "pypi" + ".org/simple"

PYPROJECT = """\
[tool.ruff]
line-length = 100

[tool.ruff.lint]
select = ["E", "F", "I"]

[tool.mypy]
strict = true
files = ["src/chomp"]
"""
CLEAN_TREE = {
    "pyproject.toml": PYPROJECT,
    ".gitignore": "ignored/\nuv.lock\n*_cache/\n",
    "tests/architecture/rules.py": (ROOT / "tests/architecture/rules.py").read_text(),
    "README.md": "# Title\n\nTitle\n=======\n",
    "src/chomp/__init__.py": '"""Empty on purpose."""\n',
    "configs/run.yaml": "train:\n  steps: 1\n---\nsecond: document\n",
    "results/figure.json": '{"value": 1.5, "note": "NaN is fine in a string"}\n',
    "results/metrics.jsonl": '{"step": 0}\n{"step": 1}\n',
    "empty.txt": "",
}


@dataclass(frozen=True)
class Repository:
    """A git repository with the script in it."""

    root: Path

    def write(self, name: str, content: str | bytes) -> Path:
        """Write one file, with its folders, and give its path."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def git(self, *arguments: str) -> None:
        """Run git here, by nobody's settings."""
        command = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost", *arguments]
        subprocess.run(command, cwd=self.root, env=environment(), check=True, capture_output=True)

    def check(
        self,
        *arguments: str,
        folder: str = ".",
        flags: tuple[str, ...] = (),
        variables: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run the script, from `folder`, with `flags` for the interpreter."""
        return subprocess.run(
            [sys.executable, *flags, str(self.root / "infra" / "pre-commit.py"), *arguments],
            cwd=self.root / folder,
            env=environment() | ({GUARD: "1"} if variables is None else variables),
            capture_output=True,
            text=True,
            timeout=60,
        )


def environment() -> dict[str, str]:
    """This process's environment without what git would take from it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    kept.pop(GUARD, None)
    return kept | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A clean repository with everything committed."""
    made = Repository(tmp_path / "repository")
    for name, content in CLEAN_TREE.items():
        made.write(name, content)
    (made.root / "infra").mkdir()
    shutil.copy(SCRIPT, made.root / "infra" / "pre-commit.py")
    made.git("init", "--quiet")
    made.git("add", "--all")
    made.git("commit", "--quiet", "--message=start")
    return made


def verdicts(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """What the output says of each check: `ok` or `FAIL (n)`."""
    rows = [line for line in done.stdout.splitlines() if not line.startswith("  ")]
    return {row.split("...")[0].rstrip("."): row.rpartition(".")[2] for row in rows}


def test_a_clean_repository_passes_every_check(repository: Repository) -> None:
    # The type checker takes seconds; its own test below shows what it accepts and what it does not.
    done = repository.check("--all-files", "--skip=types")
    assert done.returncode == 0, done.stdout + done.stderr
    names = ("ruff", "architecture", "texts", "secrets", "records")
    assert verdicts(done) == dict.fromkeys(names, "ok")


FAULTS = {
    "an unused import": ("ruff", "a.py", "import os\n", "a.py:1:8: F401"),
    "an unformatted file": ("ruff", "a.py", "x=1\n", "a.py:1:2:"),
    "python that does not parse": ("ruff", "a.py", "x = 1\ndef f(:\n", "a.py:2:"),
    "a room that imports a higher one": (
        "architecture",
        "src/chomp/config/files.py",
        "import chomp.cli\n",
        "src/chomp/config/files.py:1:",
    ),
    "broken TOML": ("texts", "a.toml", "a = 1\nb =\n", "a.toml:2:"),
    "broken YAML": ("texts", "a.yml", "a: 1\nb: [1\n", "a.yml:3:"),
    "YAML that would run code": ("texts", "a.yaml", "x: 1\na: !!python/name:os.x\n", "a.yaml:2:"),
    "broken JSON": ("texts", "a.json", '{\n"a": 1,\n}\n', "a.json:"),
    "NaN in JSON": ("texts", "a.json", '{"NaN":\n 1, "b":\n NaN}\n', "a.json:1:"),
    "a broken line of JSON": ("texts", "a.jsonl", '{"a": 1}\n{"a": }\n', "a.jsonl:2:"),
    "infinity in a line of JSON": ("texts", "a.jsonl", '{"a": 1}\n[-Infinity]\n', "a.jsonl:2:"),
    "a blank line among lines of JSON": ("texts", "a.jsonl", '{"a": 1}\n\n{}\n', "a.jsonl:2:"),
    "text that is not UTF-8": ("texts", "a.toml", b"a = '\xff'\n", "a.toml:1:"),
    "a large file": ("texts", "a.bin", b"\0" * (500 * 1024 + 1), "a.bin:1:"),
    "trailing spaces": ("texts", "a.md", "a\nb \t\nc\n", "a.md:2:"),
    "trailing spaces before a CRLF": ("texts", "a.md", "a\r\nb \r\n", "a.md:2:"),
    "no final newline": ("texts", "a.md", "a\nb", "a.md:2:"),
    "blank lines at the end": ("texts", "a.md", "a\nb\n\n\n", "a.md:3:"),
    "an index in pyproject": (
        "secrets",
        "pyproject.toml",
        "[tool.ruff]\n\n[[tool.uv.index]]\nname = 'inner'\n",
        "pyproject.toml:3:",
    ),
    "an index-url in pyproject": (
        "secrets",
        "pyproject.toml",
        "[tool.uv.pip]\nextra-index-url = ['https://packages.example']\n",
        "pyproject.toml:2:",
    ),
    "a registry in pyproject": (
        "secrets",
        "pyproject.toml",
        "[x]\nsource = { registry = 'https://packages.example' }\n",
        "pyproject.toml:2:",
    ),
    "a registry's address anywhere": (
        "secrets",
        "setup.sh",
        f"pip install --upgrade pip\npip install -i {REGISTRY} chomp\n",
        "setup.sh:2:",
    ),
    "a password in an address": ("secrets", "a.md", "see\ns3://me:word@host/x\n", "a.md:2:"),
    "a private key": (
        "secrets",
        "a.pem",
        "-" * 5 + "BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----\n",
        "a.pem:1:",
    ),
    "a variant that no archive knows": (
        "records",
        "experiments/grug/mine/model.py",
        "x = 1\n",
        "docs/reports/archive.yaml:1:",
    ),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_planted_fault_fails_its_check_with_the_place_and_the_fix(
    repository: Repository, fault: tuple[str, str, str | bytes, str]
) -> None:
    check, name, content, place = fault
    repository.write(name, content)
    done = repository.check("--only", check)
    assert done.returncode == 1, done.stdout + done.stderr
    assert verdicts(done)[check].startswith("FAIL")
    assert f"  {place}" in done.stdout
    assert "Fix: " in done.stdout


def test_every_conflict_marker_is_named_and_a_heading_is_not_one(repository: Repository) -> None:
    ours, theirs = "<" * 7 + " HEAD", ">" * 7 + " branch"
    repository.write("a.md", f"Title\n=======\n{ours}\na\n=======\nb\n{theirs}\nEnd\n=======\n")
    done = repository.check("--only=texts")
    assert done.returncode == 1
    assert verdicts(done) == {"texts": "FAIL (2)"}
    for line in (3, 7):
        assert f"a.md:{line}:" in done.stdout


def test_the_one_type_error_is_named_and_files_outside_src_start_no_type_checker(
    repository: Repository,
) -> None:
    repository.write("src/chomp/right.py", "def f() -> int:\n    return 1\n")
    repository.write("src/chomp/wrong.py", "def f() -> int:\n    return 'a'\n")
    skipped = repository.check("--only=types", "--files", "README.md", "infra/pre-commit.py")
    assert verdicts(skipped) == {"types": "ok"}
    done = repository.check("--only=types")
    assert done.returncode == 1
    assert verdicts(done) == {"types": "FAIL (1)"}
    assert "src/chomp/wrong.py:2: error: Incompatible return value" in done.stdout


def test_a_tracked_lock_file_fails_and_an_ignored_one_does_not(repository: Repository) -> None:
    repository.write("uv.lock", f'source = {{ registry = "{REGISTRY}" }}\n')
    assert repository.check("--only=secrets", "--all-files").returncode == 0
    repository.git("add", "--force", "uv.lock")
    done = repository.check("--only=secrets", "--all-files")
    assert done.returncode == 1
    assert verdicts(done) == {"secrets": "FAIL (1)"}
    assert "git rm --cached uv.lock" in done.stdout


def test_a_comment_about_registries_and_a_link_to_a_project_are_allowed(
    repository: Repository,
) -> None:
    repository.write("pyproject.toml", PYPROJECT + "# no index-url and no registry = here\n")
    repository.write("docs/a.md", "See https://" + "pypi" + ".org/project/jax/.\n")
    assert repository.check("--only=secrets").returncode == 0


def test_fix_repairs_what_can_be_repaired_and_leaves_the_rest(repository: Repository) -> None:
    source = repository.write("a.py", "import os\nx=1  \n\n\n")
    notes = repository.write("a.md", "a \r\nb")
    broken = repository.write("a.json", "{\n")
    names = ("--only=ruff", "--only=texts")
    before = repository.check(*names)
    assert "ok" not in verdicts(before).values()
    assert before.stdout.count("run infra/pre-commit.py --fix") >= 4

    done = repository.check(*names, "--fix")
    assert done.returncode == 1
    assert verdicts(done) == {"ruff": "ok", "texts": "FAIL (1)"}
    assert source.read_text() == "x = 1\n"
    assert notes.read_bytes() == b"a\r\nb\r\n"
    assert broken.read_text() == "{\n"


def test_a_variant_that_is_gone_is_noticed_though_no_changed_file_tells_and_fix_names_a_commit(
    repository: Repository,
) -> None:
    # What the archive's check finds is tested in tests/variants/test_archive.py.
    text = "# All.\n\nmine:\n  status: active\n  purpose: One.\n"
    archive = repository.write("docs/reports/archive.yaml", text)
    model = repository.write("experiments/grug/mine/model.py", "x = 1\n")
    for message in ("one", "two"):
        repository.git("add", "--all")
        repository.git("commit", "--quiet", "--allow-empty", f"--message={message}")
    assert verdicts(repository.check("--only=records")) == {"records": "FAIL (1)"}
    assert repository.check("--only=records", "--fix").returncode == 0
    assert verdicts(repository.check("--only=records")) == {"records": "ok"}
    assert "introduced: " in archive.read_text()
    assert "### mine" in (archive.parent / "grug-archive.md").read_text()
    model.unlink()
    done = repository.check("--only=records")
    assert done.returncode == 1
    assert "docs/reports/archive.yaml:3: mine: active, but there is no variant" in done.stdout


def test_a_ledger_that_its_results_do_not_make_is_noticed_and_fixed(repository: Repository) -> None:
    # What the pages say is tested in tests/ledger/test_compare_command.py.
    repository.write("docs/reports/archive.yaml", "")
    page = repository.write("docs/reports/ledger.md", "mine\n")
    done = repository.check("--only=records")
    assert verdicts(done) == {"records": "FAIL (3)"}
    assert "docs/reports/ledger.md:1: not the page" in done.stdout
    assert repository.check("--only=records", "--fix").returncode == 0
    assert page.read_text().startswith("# The ledger of variants")
    assert verdicts(repository.check("--only=records")) == {"records": "ok"}


def test_without_fix_no_file_is_written(repository: Repository) -> None:
    source = repository.write("a.py", "import os\nx=1  \n\n\n")
    assert repository.check("--skip=types").returncode == 1
    assert source.read_text() == "import os\nx=1  \n\n\n"


def test_binary_files_and_links_are_left_alone_by_text_checks(repository: Repository) -> None:
    content = b"a \n\0 \n" + b"<" * 7 + b" HEAD\n" + REGISTRY.encode()
    binary = repository.write("a.bin", content)
    (repository.root / "link").symlink_to("a.bin")
    (repository.root / "nowhere").symlink_to("no-such-file")
    done = repository.check("--skip=types", "--skip=ruff", "--fix", "--all-files")
    assert done.returncode == 0, done.stdout + done.stderr
    assert binary.read_bytes() == content


def test_the_default_is_what_changed_since_the_last_commit_and_what_is_new(
    repository: Repository,
) -> None:
    repository.write("committed.md", "a \n")
    repository.write("deleted.md", "a \n")
    repository.git("add", "--all")
    repository.git("commit", "--quiet", "--message=next")
    (repository.root / "deleted.md").unlink()
    assert repository.check("--only=texts").returncode == 0

    repository.write("README.md", "changed \n")
    repository.write("staged.md", "staged \n")
    repository.git("add", "staged.md")
    repository.write("new name.md", "new \n")
    repository.write("ignored/a.md", "ignored \n")
    done = repository.check("--only=texts")
    assert verdicts(done) == {"texts": "FAIL (3)"}
    for name in ("README.md", "staged.md", "new name.md"):
        assert f"{name}:1:" in done.stdout

    everything = repository.check("--only=texts", "--all-files")
    assert verdicts(everything) == {"texts": "FAIL (4)"}
    assert "committed.md:1:" in everything.stdout


def test_before_the_first_commit_everything_counts_as_changed(tmp_path: Path) -> None:
    young = Repository(tmp_path)
    (tmp_path / "infra").mkdir()
    shutil.copy(SCRIPT, tmp_path / "infra" / "pre-commit.py")
    young.git("init", "--quiet")
    young.write("staged.md", "a \n")
    young.git("add", "staged.md")
    assert verdicts(young.check("--only=texts")) == {"texts": "FAIL (1)"}


def test_files_names_the_only_files_looked_at_from_any_folder(repository: Repository) -> None:
    repository.write("docs/a.md", "a \n")
    repository.write("docs/b.md", "b \n")
    done = repository.check("--only=texts", "--files", "a.md", folder="docs")
    assert done.returncode == 1
    assert "docs/a.md:1:" in done.stdout
    assert "b.md" not in done.stdout


def test_only_and_skip_choose_the_checks(repository: Repository) -> None:
    chosen = repository.check("--only", "texts", "--only", "records", "--skip", "texts")
    assert set(verdicts(chosen)) == {"records"}
    rest = repository.check("--skip=types", "--skip=ruff")
    assert set(verdicts(rest)) == {"architecture", "texts", "secrets", "records"}


MISUSES = {
    "an unknown name to run": (["--only=spelling"], ["'spelling'", "texts"]),
    "an unknown name to skip": (["--skip=typos"], ["'typos'", "secrets"]),
    "a missing file": (["--files", "README.md", "no/such.md"], ["no/such.md", "Allowed"]),
    "a folder for a file": (["--files", "src"], ["src", "Allowed: existing files"]),
    "a file elsewhere": (["--files", sys.executable], [sys.executable, "Allowed"]),
    "two ways to choose files": (["--all-files", "--files", "README.md"], ["not allowed with"]),
    "an unknown flag": (["--everything"], ["unrecognized arguments"]),
}


@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES.keys())
def test_a_misused_command_ends_with_2_and_says_what_is_allowed(
    repository: Repository, misuse: tuple[list[str], list[str]]
) -> None:
    arguments, words = misuse
    done = repository.check(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    for word in words:
        assert word in done.stderr


def test_outside_a_git_checkout_the_command_says_so(repository: Repository) -> None:
    shutil.rmtree(repository.root / ".git")
    variables = {GUARD: "1", "GIT_CEILING_DIRECTORIES": str(repository.root.parent)}
    done = repository.check("--only=texts", variables=variables)
    assert done.returncode == 2
    assert "Fix: git init" in done.stderr


def fake_uv(folder: Path) -> Path:
    """A `uv` in `folder` that writes its arguments and the guard beside itself and ends with 7."""
    folder.mkdir()
    uv = folder / "uv"
    uv.write_text(
        f"#!{sys.executable} -S\n"
        "import json, os, pathlib, sys\n"
        f"said = [sys.argv[1:], os.environ.get({GUARD!r})]\n"
        "pathlib.Path(__file__).with_suffix('.json').write_text(json.dumps(said))\n"
        "sys.exit(7)\n"
    )
    uv.chmod(0o755)
    return uv


# `-I -S` is an interpreter without installed packages: neither ruff nor mypy nor yaml is there.
BARE = ("-I", "-S")


def test_without_the_tools_the_script_runs_itself_under_uv(
    repository: Repository, tmp_path: Path
) -> None:
    uv = fake_uv(tmp_path / "bin")
    done = repository.check(
        "--all-files", "--skip=types", flags=BARE, variables={"PATH": str(uv.parent)}
    )
    assert done.returncode == 7, done.stderr
    arguments, guard = json.loads(uv.with_suffix(".json").read_text())
    script = str(repository.root / "infra" / "pre-commit.py")
    assert arguments[0] == "run"
    assert arguments[-6:] == ["--group", "test", "python", script, "--all-files", "--skip=types"]
    assert guard == "1"


def test_without_the_tools_and_without_uv_the_script_says_how_to_get_it(
    repository: Repository, tmp_path: Path
) -> None:
    done = repository.check("--all-files", flags=BARE, variables={"PATH": str(tmp_path)})
    assert done.returncode == 2
    assert "pip install uv" in done.stderr


def test_a_second_run_that_still_lacks_the_tools_does_not_start_a_third(
    repository: Repository, tmp_path: Path
) -> None:
    uv = fake_uv(tmp_path / "bin")
    variables = {"PATH": str(uv.parent), GUARD: "1"}
    done = repository.check("--all-files", flags=BARE, variables=variables)
    assert done.returncode == 2
    assert "group test" in done.stderr
    assert not uv.with_suffix(".json").exists()


def test_the_command_and_the_ci_script_can_be_executed() -> None:
    assert os.access(SCRIPT, os.X_OK)
    assert os.access(SCRIPT.parent.parent / ".ci" / "run", os.X_OK)
