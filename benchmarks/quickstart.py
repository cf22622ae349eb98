"""The first command a newcomer runs, timed from start to trained model, and started again.

    uv run python -m benchmarks.quickstart [--quick]

Runs the launch file in processes of its own, in an empty folder. The peer for speed is the same
step in a bare loop (`benchmarks/peers/bare_step.py`), in this run.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.record import Figure, record

ROOT = Path(__file__).parents[1]
LAUNCH = ROOT / "experiments" / "grug" / "base" / "launch.py"


def timed(command: list[str]) -> float:
    """Seconds that a command takes; it must succeed."""
    begin = time.perf_counter()
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def quickstart(steps: int | None) -> list[Figure]:
    """Figures of one run from nothing, and of starting it again when it is done."""
    with tempfile.TemporaryDirectory() as prefix:
        command = [sys.executable, str(LAUNCH), "--prefix", prefix]
        command += [] if steps is None else ["-o", f"train.steps={steps}"]
        begin = time.time()
        whole = timed(command)
        again = timed(command)
        (metrics,) = Path(prefix).glob("grug/*/metrics.jsonl")
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    trained = [row for row in rows if "train/loss" in row]
    first = trained[0]["time"] - begin
    # The first row holds the start-up of the loop; speed is that of the rows after it.
    speeds = [row["throughput/tokens_per_second"] for row in trained[1:]]
    speed = sum(speeds) / len(speeds)
    peer = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/peers/bare_step.py"), "20"],
        check=True, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    evaluated = [row for row in rows if "eval/loss" in row][-1]
    return [
        Figure(name="to the first logged step", value=first, unit="s", better="lower"),
        Figure(name="to the trained model", value=whole, unit="s", better="lower", goal=180.0),
        Figure(name="started again", value=again, unit="s", better="lower", goal=5.0),
        Figure(
            name="speed of a step in the loop",
            value=speed,
            unit="tokens/s",
            better="higher",
            peer="bare loop",
            peer_value=float(peer.stdout),
            goal=0.95,
            goal_on="ratio",
        ),
        Figure(name="held-out loss", value=evaluated["eval/loss"], unit="nats", better="lower"),
        Figure(
            name="held-out bits per byte",
            value=evaluated["eval/bpb"],
            unit="bits",
            better="lower",
        ),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few steps; nothing is written")
    quick = parser.parse_args().quick
    record("quickstart", quickstart(40 if quick else None), is_quick=quick)
