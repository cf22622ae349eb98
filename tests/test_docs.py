"""Every command in the pages is one that runs, and what they promise is so."""

import os
import re
import shlex
from pathlib import Path

import pytest

from benchmarks.record import README as BENCHMARKS
from benchmarks.record import overview
from scripts.drawings import DRAWINGS, require_defined

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "experiments/grug/README.md", *(ROOT / "docs").rglob("*.md")]

# Commands that other tests run in full, or that would run this very suite.
RUN_ELSEWHERE = {
    "pip install uv": "the environment these tests run in",
    "uv run --group test pytest -n 2": "this suite",
    "uv run --group test pytest tests/data": "part of this suite",
    "uv run --group test pytest -m slow": "the slow part of this suite",
    "uv run experiments/grug/base/launch.py": "tests/test_quickstart.py",
    "uv run experiments/grug/base/launch.py -o train.steps=500 -o optim.lr=3e-3": (
        "tests/test_quickstart.py, with other values"
    ),
    "uv run experiments/grug/base/launch.py --on process --max-concurrent 2": (
        "tests/launch/test_process_runner.py and tests/cli/test_train_command.py, on smaller runs"
    ),
    "uv run chomp launch local --processes 2 --devices-per-process 2 -- "
    "python experiments/grug/base/launch.py": "tests/launch/test_launch_local.py, on a smaller run",
    "uv run experiments/grug/base/launch.py --sweep optim.lr=1e-3,3e-3 --sweep train.seed=0,1 "
    "--on process --max-concurrent 2": "tests/launch/test_launch_command.py, on a smaller file",
    "uv run --group test chomp variant new wide_mlp --from base "
    '--purpose "A wider MLP at equal parameters."': (
        "tests/variants/test_variant_commands.py, the recipe in order"
    ),
    "uv run chomp compare base wide_mlp --seeds 3": "tests/ledger/test_compare_command.py",
    "uv run chomp compare base wide_mlp": "tests/ledger/test_compare_command.py",
    'uv run chomp compare base wide_mlp --save --note "two CPU cores, shared"': (
        "tests/ledger/test_compare_command.py"
    ),
    "uv run chomp variant ledger": "tests/ledger/test_compare_command.py",
    "uv run chomp variant list": "tests/variants/test_variant_commands.py",
    "uv run chomp variant diff wide_mlp": "tests/variants/test_variant_commands.py",
    "uv run chomp variant retire wide_mlp --status superseded --superseded-by base": (
        "tests/variants/test_variant_commands.py"
    ),
    "uv run experiments/grug/wide_mlp/launch.py": "a copy of base: tests/test_quickstart.py",
    "uv run --group test pytest tests/test_grug_variant_contracts.py": "part of this suite",
    "uv run python -m experiments.speedrun.grugformer_20260129.grugformer_speedrun": (
        "tests/test_grugformer_speedrun.py, on a smaller run"
    ),
    "SPEEDRUN_TRACK=h200 uv run python -m "
    "experiments.speedrun.grugformer_20260129.grugformer_speedrun": "needs a GPU",
    "uv run --group test infra/pre-commit.py --all-files": "tests/test_pre_commit.py and .ci/run",
    "uv run --group test infra/pre-commit.py --fix": "tests/test_pre_commit.py",
    "uv run --group test infra/pre-commit.py --only types": "tests/test_pre_commit.py",
    "uv run --group test python -m tests.golden.regenerate": "tests/test_golden.py, its function",
    "uv run python -m benchmarks.quickstart": "a benchmark: minutes",
    "uv run python -m benchmarks.quickstart --quick": "a benchmark: a minute",
    "uv run --group bench python -m benchmarks.data": "a benchmark: minutes",
    "uv run --group bench python -m benchmarks.data --quick": "a benchmark: a minute",
    "uv run python -m benchmarks.record": "below, its function",
    "uv run chomp train configs/debug_smoke.yaml": "tests/cli/test_train_command.py",
    "uv run chomp metrics replay outputs/grug/base-<hash> --to tensorboard": (
        "tests/cli/test_metrics_commands.py"
    ),
    "uv run chomp verify-resume configs/debug_smoke.yaml --kills 3": (
        "tests/cli/test_verify_resume.py, on a smaller config"
    ),
    "uv run chomp checkpoint list outputs/grug/base-<hash>": (
        "tests/cli/test_checkpoint_commands.py"
    ),
    "uv run chomp checkpoint verify outputs/grug/base-<hash>": (
        "tests/cli/test_checkpoint_commands.py"
    ),
    "uv run chomp checkpoint diff outputs/grug/base-<hash> outputs/grug/mine-<hash>": (
        "tests/cli/test_checkpoint_commands.py"
    ),
    "uv run chomp checkpoint export outputs/grug/base-<hash> --out exported": (
        "tests/cli/test_checkpoint_commands.py"
    ),
    "uv run chomp metrics show outputs/grug/base-<hash>": "tests/cli/test_metrics_commands.py",
    "uv run chomp report outputs/grug/base-<hash>": "tests/report/test_report_command.py",
    "uv run chomp report outputs/grug/base-<hash> outputs/grug/mine-<hash> --out report": (
        "tests/report/test_report_command.py"
    ),
    "uv run chomp report outputs/grug/mine-<hash> --against outputs/grug/base-<hash>": (
        "tests/report/test_report_command.py"
    ),
    "uv run chomp watch outputs/grug/base-<hash>": "tests/report/test_watch_command.py",
    "uv run chomp watch outputs/grug/base-<hash> --once": "tests/report/test_watch_command.py",
    "uv run chomp watch outputs/grug/base-<hash> --metric train/loss --metric grad/norm/total "
    "--last 2000": "tests/report/test_watch_command.py",
    "uv run chomp train configs/debug_smoke.yaml --run-dir runs/traced "
    "-o train.profiler.enabled=true -o train.profiler.num_steps=10": (
        "tests/report/test_trace_recipe.py, the page in order"
    ),
    "uv run chomp report runs/traced --profile": "tests/report/test_trace_recipe.py",
    "uv run chomp train configs/debug_smoke.yaml --run-dir runs/first": (
        "tests/cli/test_train_allow.py, the page in order"
    ),
    "uv run chomp train configs/debug_smoke.yaml --run-dir runs/first -o train.steps=40 -o "
    "optim.schedule_start=20 -o optim.lr=3e-3 -o optim.warmup_steps=10% --allow train.steps "
    "--allow optim.schedule_start --allow optim.lr --allow optim.warmup_steps": (
        "tests/cli/test_train_allow.py, the page in order"
    ),
    "uv run chomp train configs/debug_smoke.yaml --run-dir runs/cooldown -o "
    "train.load_checkpoint_path=runs/first/checkpoints/step-20 -o train.steps=30 -o "
    "optim.schedule_start=20 -o optim.lr_schedule=linear -o optim.warmup_steps=0 --allow "
    "train.steps --allow optim.schedule_start --allow optim.lr_schedule --allow "
    "optim.warmup_steps": ("tests/cli/test_train_allow.py, the page in order"),
}


def commands(page: Path) -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL)
    lines = (line.split("  #")[0].strip() for block in blocks for line in block.splitlines())
    return [line.removesuffix(" #").strip() for line in lines if line]


ALL_COMMANDS = sorted({command for page in PAGES for command in commands(page)})


def test_the_pages_have_commands():
    assert "uv run experiments/grug/base/launch.py" in commands(ROOT / "README.md")
    assert len(ALL_COMMANDS) > 8


@pytest.mark.parametrize("command", [c for c in ALL_COMMANDS if c not in RUN_ELSEWHERE])
def test_a_command_in_the_pages_runs(command, base_launches, tmp_path):
    words = shlex.split(command)
    assert words[:2] == ["uv", "run"], f"{command!r} is in no list of what is tested"
    arguments = words[2:] if words[2] != "python" else words[3:]
    env = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
    # `--prefix` keeps the outputs of a launch file out of the checkout.
    done = base_launches.run(*arguments, "--prefix", str(tmp_path), env=env, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_no_command_is_excused_that_no_page_has():
    assert set(RUN_ELSEWHERE) <= set(ALL_COMMANDS)


def test_ci_runs_the_checks_and_then_exactly_the_readme_command():
    lines = [line.strip() for line in (ROOT / ".ci/run").read_text().splitlines()]
    said = [line for line in lines if line and not line.startswith("#")]
    assert said[-1] == "uv run --group test pytest -n 2"
    assert said[-2].endswith("infra/pre-commit.py --all-files")
    assert said[-1] in commands(ROOT / "README.md")


def test_links_in_the_pages_lead_somewhere():
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_benchmark_overview_is_made_from_the_results():
    assert BENCHMARKS.read_text() == overview()


def test_files_and_functions_that_the_tour_names_are_there():
    named = re.findall(r"`([\w/]+\.py)` `([\w.]+)`", (ROOT / "docs/tour.md").read_text())
    assert len(named) > 20
    for file, name in named:
        require_defined(ROOT, file, name)


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_is_what_the_source_draws(name: str):
    drawn = (ROOT / "docs/images" / name).read_text()
    assert drawn == DRAWINGS[name](), "run: python scripts/drawings.py"
