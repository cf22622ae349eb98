"""Identities are those of the golden file, on any machine, in any process, below any prefix."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden.identity_steps import IDENTITIES, identities, text

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


def test_the_hash_is_that_of_the_canonical_values():
    for name, found in json.loads(IDENTITIES.read_text()).items():
        body = {"config": found["values"], "name": name}
        canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
        assert hashlib.sha256(canonical.encode()).hexdigest()[:12] == found["hash"]
