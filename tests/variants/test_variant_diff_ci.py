"""`grug_variant_diff_ci.py` on real repositories, and the workflow that calls it."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from chomp.errors import ConfigError
from chomp.variants.ci_report import MARKER, change_reports, comment_markdown
from tests.variants.small_checkout import quiet_git

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "ci" / "grug_variant_diff_ci.py"
WORKFLOWS = ROOT / ".github" / "workflows"
WORKFLOW = WORKFLOWS / "grug-variant-diff.yaml"
GRUG = "experiments/grug"
MODEL = "".join(f"line {i}\n" for i in range(20))


@dataclass(frozen=True)
class Repository:
    """A git repository with variants in it."""

    root: Path

    def git(self, *arguments: str) -> str:
        """What git says, by nobody's settings."""
        command = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost", *arguments]
        done = subprocess.run(
            command, cwd=self.root, env=quiet_git(), check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def commit(self, files: dict[str, str | None]) -> str:
        """The hash of a commit with these files below the variants' folder; None removes one."""
        for name, text in files.items():
            path = self.root / GRUG / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if text is None:
                path.unlink()
            else:
                path.write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message=change")
        return self.git("rev-parse", "HEAD")

    def run(self, base: str, head: str, *more: str) -> subprocess.CompletedProcess[str]:
        """The program, in a folder of the repository, with nothing installed but Python."""
        asked = ["--base-sha", base, "--head-sha", head, "--output-dir", str(self.out)]
        command = [sys.executable, "-S", str(SCRIPT), *asked, "--manifest-path", str(self.manifest)]
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        cwd = self.root / GRUG
        return subprocess.run([*command, *more], cwd=cwd, env=env, capture_output=True, text=True)

    def reported(self, base: str, head: str, **options: Any) -> dict[str, Any]:
        """The manifest, without a process of its own."""
        return change_reports(self.root, base=base, head=head, out=self.out, **options)

    @property
    def out(self) -> Path:
        return self.root.parent / "reports"

    @property
    def manifest(self) -> Path:
        return self.root.parent / "reports" / "manifest.json"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """Base, and a variant two lines away from it."""
    made = Repository(tmp_path / "repository")
    made.root.mkdir()
    made.git("init", "--quiet", "--initial-branch=main")
    moe = MODEL.replace("line 3\n", "experts\n")
    made.commit({"__init__.py": "", "base/model.py": MODEL, "moe/model.py": moe})
    return made


def test_a_new_variant_is_compared_with_the_closest_there_was(repository):
    base = repository.git("rev-parse", "HEAD")
    near_moe = MODEL.replace("line 3\n", "experts\n") + "more\n"
    head = repository.commit({"fine_moe/model.py": near_moe, "fine_moe/README.md": "# Fine\n"})
    done = repository.run(base, head)
    assert done.returncode == 0, done.stderr
    assert "fine_moe: new, 2 lines from moe" in done.stdout
    manifest = json.loads(repository.manifest.read_text())
    (report,) = manifest.pop("reports")
    assert manifest == {
        "base_sha": base,
        "head_sha": head,
        "merge_base_sha": base,
        "added_variants": ["fine_moe"],
        "edited_variants": [],
        "report_count": 1,
    }
    assert report == {
        "variant": "fine_moe",
        "change": "new",
        "closest_variant": "moe",
        "distance_score": 2,
        "report_relpath": "fine_moe/index.html",
        "status_counts": {"changed": 1, "added": 1, "removed": 0, "unchanged": 0},
    }
    page = (repository.out / report["report_relpath"]).read_text()
    assert f"<span>fine_moe at {head[:7]}</span>" in page


def test_an_edited_variant_is_compared_with_itself_and_with_the_closest_other(repository):
    base = repository.git("rev-parse", "HEAD")
    head = repository.commit({"moe/model.py": MODEL.replace("line 3\n", "experts\nrouter\n")})
    manifest = repository.reported(base, head)
    assert manifest["added_variants"] == []
    assert manifest["edited_variants"] == ["moe"]
    (report,) = manifest["reports"]
    assert (report["closest_variant"], report["distance_score"]) == ("moe", 1)
    other = report["closest_other"]
    assert (other["variant"], other["distance_score"]) == ("base", 3)
    for path in (report["report_relpath"], other["report_relpath"]):
        assert (repository.out / path).is_file()


def test_an_edit_of_base_is_an_edit_and_a_new_base_is_no_new_variant(repository):
    base = repository.git("rev-parse", "HEAD")
    head = repository.commit({"base/model.py": MODEL + "x\n"})
    assert repository.reported(base, head)["edited_variants"] == ["base"]

    repository.git("checkout", "--quiet", "--orphan", "other")
    empty = repository.commit({"base/model.py": None, "moe/model.py": None})
    both = repository.commit({"base/model.py": MODEL, "moe/model.py": "x\n"})
    manifest = repository.reported(empty, both)
    assert manifest["added_variants"] == ["moe"]
    assert [report["closest_variant"] for report in manifest["reports"]] == ["base"]


def test_what_came_to_the_branch_since_is_not_the_doing_of_the_change(repository):
    repository.git("checkout", "--quiet", "-b", "change")
    head = repository.commit({"third/model.py": MODEL})
    repository.git("checkout", "--quiet", "main")
    later = repository.commit({"moe/model.py": "rewritten\n", "fourth/model.py": MODEL})
    manifest = repository.reported(later, head)
    assert manifest["added_variants"] == ["third"]
    assert manifest["edited_variants"] == []
    # Though a variant that is there by now may be the closest.
    assert manifest["reports"][0]["closest_variant"] == "base"


def test_ties_go_to_the_first_name_and_folders_without_source_are_no_variants(repository):
    base = repository.commit({"another/model.py": MODEL})
    head = repository.commit(
        {"new/model.py": MODEL, ".hidden/model.py": MODEL, "data/table.csv": "1\n"}
    )
    manifest = repository.reported(base, head)
    assert manifest["added_variants"] == ["new"]
    report = manifest["reports"][0]
    assert (report["closest_variant"], report["distance_score"]) == ("another", 0)


def test_a_change_of_no_variant_gives_an_empty_manifest_and_no_comment(repository):
    base = repository.git("rev-parse", "HEAD")
    head = repository.commit({"moe/notes.txt": "not source\n"})
    manifest = repository.reported(base, head)
    assert (manifest["report_count"], manifest["reports"]) == (0, [])
    assert comment_markdown(manifest, report_url=None) == ""
    assert repository.reported(base, head, extensions=None)["edited_variants"] == ["moe"]


def test_names_of_commits_work_and_an_unknown_one_is_told_with_code_2(repository):
    repository.commit({"moe/model.py": "x\n"})
    assert repository.reported("HEAD~1", "main")["edited_variants"] == ["moe"]
    with pytest.raises(ConfigError) as caught:
        repository.reported("--output=x", "main")
    assert "'--output=x'" in caught.value.given
    done = repository.run("0" * 40, "main")
    assert done.returncode == 2
    assert done.stderr.startswith("Error: ")
    assert "Traceback" not in done.stderr


def test_the_comment_has_the_marker_a_row_for_each_report_and_links(repository, tmp_path):
    base = repository.git("rev-parse", "HEAD")
    head = repository.commit({"moe/model.py": "x\n", "new/model.py": MODEL})
    comment = tmp_path / "comment.md"
    options = ["--comment-path", str(comment), "--report-url", "https://pages.test/pr-7/"]
    done = repository.run(base, head, *options)
    assert done.returncode == 0, done.stderr
    text = comment.read_text()
    assert text.splitlines()[0] == MARKER
    assert "| `new` | new | `base` | 0 | 1 unchanged | " in text
    assert "| `moe` | edited | itself before | 21 | 1 changed | " in text
    assert "[report](https://pages.test/pr-7/moe/against-base/index.html)" in text


def test_a_name_from_a_change_cannot_break_out_of_the_comment():
    counts = {"changed": 1, "added": 0, "removed": 0, "unchanged": 0}
    report = {
        "variant": "a|b`](https://evil.test)\n# x",
        "change": "new",
        "closest_variant": "base",
        "distance_score": 1,
        "report_relpath": "a|b`](x) y/index.html",
        "status_counts": counts,
    }
    manifest = {"reports": [report], "merge_base_sha": "0" * 40, "head_sha": "1" * 40}
    for url in ("https://pages.test", None):
        text = comment_markdown(manifest, report_url=url)
        (row,) = [line for line in text.splitlines() if line.startswith("| `")]
        assert row.replace("\\|", "").count("|") == 7
        assert "\n# x" not in text
        assert "](x)" not in row.replace("`a\\|b'](x) y/index.html`", "")


def test_the_workflow_has_few_permissions_and_one_comment():
    text = WORKFLOW.read_text()
    workflow = yaml.safe_load(text)
    report, publish = workflow["jobs"]["report"], workflow["jobs"]["publish"]
    assert workflow["permissions"] == {}
    assert report["permissions"] == {"contents": "read"}
    assert publish["permissions"] == {"contents": "write", "pull-requests": "write"}
    # What may write runs nothing that the change brings.
    assert publish["if"] == "github.event.pull_request.head.repo.full_name == github.repository"
    checkout = publish["steps"][0]["with"]
    assert checkout["ref"] == "${{ github.event.repository.default_branch }}"
    assert "python" not in json.dumps(publish)
    assert f'const marker = "{MARKER}"' in text
    assert "secrets." not in text
    steps = [*report["steps"], *publish["steps"]]
    actions = [step["uses"] for step in steps if "uses" in step]
    assert all(action.rpartition("@v")[2].isdigit() for action in actions)
    (kept,) = [step["with"] for step in steps if "upload-artifact" in step.get("uses", "")]
    assert kept["retention-days"] == 14
    # Text from a pull request reaches the shell as a variable, never as part of the script.
    assert all("${{" not in step["run"] for step in steps if "run" in step)


def test_one_workflow_runs_what_ci_runs_on_every_push_and_pull_request():
    text = (WORKFLOWS / "checks.yaml").read_text()
    workflow = yaml.safe_load(text)
    # `on` is a truth value in YAML 1.1.
    assert workflow[True] == {"push": None, "pull_request": None}
    (job,) = workflow["jobs"].values()
    assert (workflow["permissions"], job["permissions"]) == ({}, {"contents": "read"})
    *actions, checked = job["steps"]
    assert checked["run"] == ".ci/run"
    assert os.access(ROOT / checked["run"], os.X_OK)
    assert all(action["uses"].rpartition("@v")[2].isdigit() for action in actions)
    (python,) = [action["with"] for action in actions if "setup-python" in action["uses"]]
    assert python == {"python-version": "3.11"}
    assert "secrets." not in text
