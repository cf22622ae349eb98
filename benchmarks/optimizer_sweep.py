"""Learning rates of AdamW and Muon on one small model: which is best, and by how much.

    uv run python -m benchmarks.optimizer_sweep [--quick]

Every run is the base template's launch file in a process of its own, on the embedded corpus, with
the same tokens in the same order. Each optimizer's best rate is run again from other seeds, which
says how much of a difference is luck. Losses only: how fast a step is, `benchmarks.model` tells.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.record import Figure, record

ROOT = Path(__file__).parents[1]
LAUNCH = ROOT / "experiments" / "grug" / "base" / "launch.py"

STEPS = 240
SIZE = (
    "model.hidden_dim=64",
    "model.intermediate_dim=256",
    "model.num_layers=3",
    "model.max_seq_len=128",
    "train.seq_len=128",
    "train.batch_size=16",
    "train.log_every=20",
    "train.z_loss_weight=0",
    "optim.warmup_steps=10%",
    "optim.min_lr_ratio=0",
    "samples.max_tokens=0",
    "eval.max_eval_batches=4",
)
OPTIMIZERS = {
    "adamw": ("optim.name=adamw",),
    "muon, consistent_rms 0.2": (
        "optim.name=muon",
        "optim.muon.consistent_rms=0.2",
        "optim.muon.lr_scale=1",
    ),
    "muon, lr_scale 100": ("optim.name=muon",),
}
# Equally coarse for each; a best rate at an end would say nothing.
RATES = {
    "adamw": (1e-3, 3e-3, 1e-2, 3e-2),
    "muon, consistent_rms 0.2": (3e-3, 1e-2, 3e-2, 1e-1),
    "muon, lr_scale 100": (3e-4, 1e-3, 3e-3, 1e-2),
}
SEEDS = (0, 1, 2)


def held_out_loss(prefix: Path, optimizer: str, rate: float, seed: int, steps: int) -> float:
    """Nats per token on held-out data after one run."""
    given = (*SIZE, *OPTIMIZERS[optimizer], f"optim.lr={rate}", f"train.steps={steps}")
    # The order of the data stays that of seed 0: only the first weights differ.
    given += (f"train.seed={seed}", "train.data_seed=0")
    run_id = f"{optimizer}-{rate:g}-{seed}".replace(" ", "_").replace(",", "")
    command = [sys.executable, str(LAUNCH), "--prefix", str(prefix), "-o", f"run_id={run_id}"]
    command += [word for override in given for word in ("-o", override)]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    (metrics,) = prefix.glob(f"grug/{run_id}-*/metrics.jsonl")
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    loss: float = [row["eval/loss"] for row in rows if "eval/loss" in row][-1]
    print(f"{run_id}: {loss:.4f}", flush=True)
    return loss


def swept(prefix: Path, optimizer: str, *, is_quick: bool) -> list[Figure]:
    """Held-out loss at every rate, and of the best one over the seeds."""
    steps, rates = (20, RATES[optimizer][:1]) if is_quick else (STEPS, RATES[optimizer])
    losses = {rate: held_out_loss(prefix, optimizer, rate, SEEDS[0], steps) for rate in rates}
    best = min(losses, key=lambda rate: losses[rate])
    again = [held_out_loss(prefix, optimizer, best, seed, steps) for seed in SEEDS[1:]]
    seeds = [losses[best], *again]
    figures = [_nats(f"{optimizer}: lr {rate:g}", loss) for rate, loss in losses.items()]
    figures.append(_nats(f"{optimizer}: mean of {len(SEEDS)} seeds at {best:g}", _mean(seeds)))
    spread = max(seeds) - min(seeds)
    return [*figures, _nats(f"{optimizer}: spread of those seeds", spread)]


def _nats(name: str, value: float) -> Figure:
    return Figure(name=name, value=value, unit="nats", better="lower")


def _mean(values: list[float]) -> float:
    return statistics.fmean(values)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few steps; nothing is written")
    parser.add_argument("--prefix", type=Path, help="keep the runs there; those done are skipped")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        prefix = given.prefix or Path(folder)
        found = [swept(prefix, name, is_quick=given.quick) for name in OPTIMIZERS]
    figures = [figure for part in found for figure in part]
    record("optimizer_sweep", figures, is_quick=given.quick)
