"""A prefix that may be read and not written: plans work, what is done is used, the rest is told."""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Start = Callable[..., subprocess.Popen[str]]

# Runs the steps it is given by name, at last as a user that may write nowhere. Root may, anywhere,
# so it becomes another once all is imported: that one need not be able to read the library.
READER = """
import json, os, sys
from pathlib import Path
from chomp.executor import ExecutorStep, output_path_of, plan_steps, run_plan, this_output_path

prefix, user, *names = sys.argv[1:]

def work(config):
    Path(config["out"], "made").touch()

def steps():
    last, found = None, []
    for name in names:
        needs = [output_path_of(last)] if last else []
        last = ExecutorStep(name, work, {"out": this_output_path(), "needs": needs})
        found.append(last)
    return found

plan_steps(steps(), prefix=prefix)
try:
    if user == "another" and os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
except PermissionError:
    print("null")
    sys.exit()
plan = plan_steps(steps(), prefix=prefix)
failures = run_plan(plan, lambda item: item.step.fn(item.config))
print(json.dumps({
    "plan": [[item.step.name, item.action] for item in plan],
    "failures": [
        [each.planned.step.name, None if each.error is None else str(each.error)]
        for each in failures
    ],
}))
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user can reach, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    for each in [folder, *folder.rglob("*")]:
        each.chmod(0o755)
    shutil.rmtree(folder)


def told_by(start: Start, *arguments: object) -> Any:
    process = start(READER, *arguments)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return json.loads(said)


def test_what_is_done_is_used_and_the_rest_fails_with_the_folder_named(shared: Path, start: Start):
    prefix = shared / "outputs"
    assert told_by(start, prefix, "this", "done")["failures"] == []
    for each in [*prefix.rglob("*"), prefix]:
        each.chmod(0o555 if each.is_dir() else 0o444)
    before = sorted(prefix.rglob("*"))
    told = told_by(start, prefix, "another", "done", "new", "above")
    if told is None:
        pytest.skip("root may not become another user here")
    assert told["plan"] == [["done", "skip"], ["new", "run"], ["above", "run"]]
    [(name, error), above] = told["failures"]
    assert name == "new"
    assert f"{prefix}/new-" in error
    assert "Allowed: " in error
    assert "permission" in error.lower()
    assert above == ["above", None]
    assert sorted(prefix.rglob("*")) == before
