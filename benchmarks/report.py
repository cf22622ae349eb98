"""How long a page over ten runs of 100,000 logged steps takes, how large it is, how soon it is up.

    uv run python -m benchmarks.report [--quick]

The rows are as a run on a GPU logs them: 40 metrics, 1.2 kB a row, an evaluation every 500 steps,
1.2 GB in all. The whole command is timed, with Python's start in it. The peer reads the same lines
with `json.loads` and does nothing else with them.

Predicted before it was measured: the parser of pydantic, a block of lines at a time, takes 5 µs a
row and the columns 2 µs more, so 7 s on one core; two processes then meet the goal of 5 s, barely.
orjson takes 3.8 µs. A page holds 220,000 points at 16 bytes, so 3.5 MB of curves.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.record import Figure, record
from benchmarks.timing import note, phase
from chomp.tracking.record import json_line
from chomp.tracking.run_files import METRICS_FILE, RESOLVED_CONFIG
from tests.chromium_pipe import MISSING, ChromiumPage, browser

RUNS, ROWS = 10, 100_000
QUICK_RUNS, QUICK_ROWS = 3, 5_000
ROUNDS = 3
PAGE_GOAL_S, SIZE_GOAL_MB, READY_GOAL_S = 5.0, 5.0, 1.0
EVAL_EVERY = 500
SPIKE_STEP = 41_137


def main() -> None:
    """Make the runs, draw the page, open it, and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rows; nothing is written")
    is_quick = parser.parse_args().quick
    runs, rows = (QUICK_RUNS, QUICK_ROWS) if is_quick else (RUNS, ROWS)
    with tempfile.TemporaryDirectory() as folder:
        with phase(f"writing {runs} runs of {rows:,} rows"):
            folders = [written_run(Path(folder, f"run-{index}"), rows) for index in range(runs)]
        figures = measured(folders, Path(folder, "page"))
    record("report", figures, is_quick=is_quick)


def measured(folders: list[Path], out: Path) -> list[Figure]:
    """Every figure of a page over the runs."""
    naive_s = naive_seconds(folders)
    note(f"json.loads of every line: {naive_s:.2f} s")
    page_s = median(page_seconds(folders, out) for _ in range(ROUNDS))
    size_mb = (out / "index.html").stat().st_size / 1e6
    note(f"the page: {page_s:.2f} s, {size_mb:.2f} MB")
    what = f"{len(folders)} runs of {sum(1 for _ in rows_of(folders[0])):,} lines"
    figures = [
        Figure(
            name=f"`chomp report` of {what}",
            value=page_s,
            unit="s",
            better="lower",
            peer="json.loads of every line",
            peer_value=naive_s,
            goal=PAGE_GOAL_S,
        ),
        Figure(
            name="size of that page", value=size_mb, unit="MB", better="lower", goal=SIZE_GOAL_MB
        ),
    ]
    program = browser()
    if program is None:
        note(MISSING)
        return figures
    ready_s = median(ready_seconds(program, out / "index.html") for _ in range(ROUNDS))
    ready = Figure(
        name="Chromium until that page is interactive",
        value=ready_s,
        unit="s",
        better="lower",
        goal=READY_GOAL_S,
    )
    return [*figures, ready]


def page_seconds(folders: list[Path], out: Path) -> float:
    """Wall clock of the whole command."""
    words = [sys.executable, "-m", "chomp", "report", *map(str, folders), "--out", str(out)]
    begin = time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def naive_seconds(folders: list[Path]) -> float:
    """Wall clock of the least that any reader has to do, without a parser made for speed."""
    begin = time.perf_counter()
    for folder in folders:
        for line in rows_of(folder):
            json.loads(line)
    return time.perf_counter() - begin


def ready_seconds(program: str, page: Path) -> float:
    """From opening the page until it says that it can be used."""
    with ChromiumPage(program) as chromium:
        chromium.look()
        chromium.open(page.as_uri())
        while (ready := chromium.value("document.documentElement.dataset.ready ?? ''")) == "":
            time.sleep(0.02)
        assert not chromium.errors, chromium.errors
        return float(ready) / 1000


def rows_of(folder: Path) -> "list[bytes]":
    """The lines of a run's record."""
    with (folder / METRICS_FILE).open("rb") as file:
        return file.readlines()


def written_run(folder: Path, rows: int) -> Path:
    """A run folder with that many rows. All runs have the rows of the first, which are noise."""
    folder.mkdir()
    config = {"run_id": folder.name, "trainer": {"steps": rows, "seed": 0}, "data": {"a": 1}}
    (folder / RESOLVED_CONFIG).write_text(json.dumps(config))
    first = folder.parent / "run-0" / METRICS_FILE
    if first.exists():
        shutil.copy(first, folder / METRICS_FILE)
        return folder
    draw = random.Random(0)
    with (folder / METRICS_FILE).open("wb") as file:
        for step in range(rows):
            file.write(json_line(row_of(step, rows, draw)))
            if (step + 1) % EVAL_EVERY == 0:
                file.write(json_line(evaluation_of(step, draw)))
        end = {"kind": "summary", "attempt": 1, "time": 1.7e9 + rows, "run/outcome": "finished"}
        file.write(json_line(end))
    return folder


def row_of(step: int, rows: int, draw: random.Random) -> dict[str, float | int | str]:
    """A row with the names, the digits and the noise of a real one."""
    loss = 2.5 + 8 / (1 + step / 300) + draw.gauss(0, 0.03) + (5.0 if step == SPIKE_STEP else 0.0)
    seconds = 0.31 * draw.lognormvariate(0, 0.02)
    tokens = 524_288
    speed = tokens / seconds
    return {
        "step": step,
        "global_step": step,
        "attempt": 1,
        "time": round(1.7e9 + 0.33 * step, 6),
        "grad/norm/total": draw.lognormvariate(0, 0.3),
        "train/loss": loss,
        "throughput/duration": seconds,
        "throughput/examples_per_second": speed / 2048,
        "throughput/tokens_per_second": speed,
        "throughput/tokens_per_second_wall": speed * draw.uniform(0.95, 1),
        "throughput/total_tokens": float(tokens * (step + 1)),
        "throughput/total_gflops": 3.1e5 * (step + 1),
        "tokens_per_sec": speed * draw.uniform(0.99, 1),
        "throughput/gflops_per_second": speed * 0.6,
        "throughput/mfu": 45 + draw.gauss(0, 1),
        "throughput/mfu_of_measured": 58 + draw.gauss(0, 1),
        "throughput/loading_time": abs(draw.gauss(0, 1e-3)),
        "throughput/hook_time": abs(draw.gauss(0, 1e-3)),
        "throughput/checkpoint_time": 0.0,
        "throughput/compile_time": 0.0 if step else 31.4159,
        "optim/learning_rate": 3e-4 * min(1, step / 2000) * (1 - step / rows),
        "optim/weight_decay": 0.1,
        "run_progress": (step + 1) / rows,
        "tokens_seen": tokens * (step + 1) - draw.randrange(1000),
        "train/skipped_steps": 0,
        "peak_memory_gb": 71.25,
        "mixture/stage": int(step > rows // 2),
        "packing_mode": "concat",
        "packing_utilization": 1.0 - draw.random() / 100,
        **{f"mixture/weight/{name}": 0.25 for name in ("web", "code")},
        **{f"mixture/examples/{name}": 64 * (step + 1) for name in ("web", "code")},
        **{f"mixture/tokens/{name}": tokens // 4 * (step + 1) for name in ("web", "code")},
        **{f"mixture/epoch/{name}": 1.2345e-6 * (step + 1) for name in ("web", "code")},
        "grad_norm": draw.lognormvariate(0, 0.3),
        "loss": loss,
        "lr": 3e-4,
    }


def evaluation_of(step: int, draw: random.Random) -> dict[str, float | int]:
    """A row of an evaluation of three tags."""
    row: dict[str, float | int] = {"step": step, "global_step": step, "attempt": 1}
    row["time"] = round(1.7e9 + 0.33 * step + 0.01, 6)
    for tag in ("", "web/", "code/", "code/python/"):
        row[f"eval/{tag}loss"] = 2.6 + 8 / (1 + step / 300) + draw.gauss(0, 0.01)
        row[f"eval/{tag}bpb"] = 0.9 + 3 / (1 + step / 300) + draw.gauss(0, 0.01)
        row[f"eval/{tag}tokens"] = 1_000_000.0
    return {**row, "eval/total_time": 12.5}


if __name__ == "__main__":
    main()
