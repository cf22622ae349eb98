"""The page on profiling: its commands run, one after the other, on a real run."""

import os
import shlex
from pathlib import Path

import pytest

from chomp.report.trace import CATEGORIES
from tests.forked_commands import ForkedCommands
from tests.test_docs import commands

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/recipes/profile.md"
# A program that another test has compiled would come from the suite's cache without its scopes. In
# the environment this would be too late: JAX is imported before commands are forked.
UNCACHED = f"""
import runpy

import jax

jax.config.update("jax_enable_compilation_cache", False)
runpy.run_path({str(ROOT / "src/chomp/__main__.py")!r}, run_name="__main__")
"""
# A fifth less to compile and to run; the traced steps are the page's.
SIZES = {"train.steps": 16, "train.seq_len": 16, "model.hidden_dim": 8, "model.intermediate_dim": 8}
SMALLER = [word for name, size in SIZES.items() for word in ("-o", f"{name}={size}")]


def test_the_page_explains_every_category():
    text = PAGE.read_text()
    assert all(f"**{category}**" in text for category in CATEGORIES)


@pytest.mark.slow
def test_the_pages_commands_trace_a_run_and_sum_it_up(
    base_launches: ForkedCommands, tmp_path: Path
):
    for name in ("configs", "experiments"):
        (tmp_path / name).symlink_to(ROOT / name)
    inherited = {key: value for key, value in os.environ.items() if key != "CHOMP_PREFIX"}
    env = {**inherited, "JAX_NUM_CPU_DEVICES": "1"}
    program = tmp_path / "uncached.py"
    program.write_text(UNCACHED)
    for command in commands(PAGE):
        words = shlex.split(command)
        assert words[:3] == ["uv", "run", "chomp"]
        more = SMALLER if words[3] == "train" else []
        done = base_launches.run(program, *words[3:], *more, env=env, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert "CPU 0: steps 5 to 14, " in done.stdout
    for word in ("attention", "loss", "matmul", "loading"):
        assert f"│ {word} " in done.stdout, done.stdout
    assert '"busy_ms"' in (tmp_path / "runs/traced/report/index.html").read_text()
