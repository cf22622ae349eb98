"""What an install brings: the library in the wheel, the templates only in a checkout."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import chomp

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_wheel_holds_the_library_and_no_template(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "chomp/py.typed" in names
    assert "chomp/executor/plan.py" in names
    tops = {name.split("/")[0] for name in names}
    assert tops == {"chomp", f"chomp-{chomp.__version__}.dist-info"}


def test_a_checkout_makes_templates_importable_from_anywhere(base_launches, tmp_path):
    file = tmp_path / "elsewhere.py"
    file.write_text("import chomp, experiments.grug.base.launch as l; print(l.VARIANT)\n")
    env = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
    done = base_launches.run(file, env=env, cwd=tmp_path)
    assert done.stdout.strip() == "base", done.stderr


def test_the_version_is_said_once_and_the_same():
    assert PYPROJECT["project"]["version"] == chomp.__version__


def test_every_dependency_has_a_pinned_version():
    pinned = {
        re.split("==", item)[0] for item in PYPROJECT["tool"]["uv"]["constraint-dependencies"]
    }
    groups = PYPROJECT["dependency-groups"].values()
    asked = PYPROJECT["project"]["dependencies"] + [item for group in groups for item in group]
    names = {re.split(r"[\[><=~!]", item)[0] for item in asked}
    assert names <= pinned


def test_a_plain_run_installs_no_group():
    assert PYPROJECT["tool"]["uv"]["default-groups"] == []
