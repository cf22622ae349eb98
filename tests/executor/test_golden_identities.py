"""Identities are those of the golden file, on any machine, in any process, below any prefix."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chomp.executor import ExecutorStep, InputName, this_output_path, versioned
from chomp.executor.identity import Identities
from tests.golden.identity_steps import IDENTITIES, Inner, identities, run, steps, text

ROOT = Path(__file__).parents[2]


def test_identities_are_those_of_the_golden_file():
    assert text(identities()) == IDENTITIES.read_text()


@pytest.mark.parametrize("prefix", ["/elsewhere/outputs", "memory://bucket", "file:///x"])
def test_neither_prefix_nor_order_nor_what_is_unversioned_matters(prefix: str):
    assert identities(prefix=prefix, is_turned=True) == json.loads(IDENTITIES.read_text())


def test_another_process_elsewhere_with_other_hashes_finds_the_same(tmp_path: Path):
    environment = {
        "PYTHONHASHSEED": "4321",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        "LANG": "C",
        "TZ": "Asia/Tokyo",
        "HOME": str(tmp_path),
    }
    command = [sys.executable, "-m", "tests.golden.identity_steps"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == IDENTITIES.read_text()


def test_the_hash_is_that_of_canonical_json_which_anybody_can_write():
    title = f"scalars-{identities()['scalars']['hash']}"
    body = {
        "config": {
            "/a~1b/<class>": "Inner",
            "/a~1b/rate": 0.001,
            "/a~1b/store": f"{title}/x",
            "/a~1b/width": 8,
            "/list": [{"c": "<prefix>/raw"}],
            "/own": "<output>",
        },
        "marks": {
            "/a~1b/<class>": ["class"],
            "/a~1b/store": ["step", title, "x"],
            "/list/0/c": ["prefix", "raw"],
            "/own": ["output"],
        },
        "name": "by hand",
    }
    config = {
        "a/b": versioned(Inner(store=steps()[0] / "x")),
        "list": versioned([{"c": InputName.hardcoded("raw")}]),
        "own": versioned(this_output_path()),
        "loose": Inner(),
    }
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    found = Identities().of(ExecutorStep("by hand", run, config)).hash
    assert found == hashlib.sha256(canonical.encode()).hexdigest()[:12]
