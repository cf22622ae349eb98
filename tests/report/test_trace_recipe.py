"""The page on profiling: its commands run, one after the other, on a real run."""

import os
import shlex
from pathlib import Path

from chomp.report.trace.kinds import CATEGORIES
from tests.forked_commands import ForkedCommands
from tests.test_docs import commands

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/recipes/profile.md"


def test_the_page_explains_every_category():
    text = PAGE.read_text()
    assert all(f"**{category}**" in text for category in CATEGORIES)


def test_the_pages_commands_trace_a_run_and_sum_it_up(
    base_launches: ForkedCommands, tmp_path: Path
):
    for name in ("configs", "experiments"):
        (tmp_path / name).symlink_to(ROOT / name)
    inherited = {key: value for key, value in os.environ.items() if key != "CHOMP_PREFIX"}
    env = {**inherited, "JAX_NUM_CPU_DEVICES": "1"}
    for command in commands(PAGE):
        words = shlex.split(command)
        assert words[:3] == ["uv", "run", "chomp"]
        done = base_launches.run(ROOT / "src/chomp/__main__.py", *words[3:], env=env, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert "CPU 0: steps 5 to 14, " in done.stdout
    assert all(f"│ {word} " in done.stdout for word in ("attention", "loss", "matmul", "loading"))
    assert '"busy_ms"' in (tmp_path / "runs/traced/report/index.html").read_text()
