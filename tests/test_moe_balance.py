"""Experts on real text: the bias of the routers evens them out while the model learns."""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parent.parent
STEPS = 200


@pytest.mark.slow
def test_the_busiest_expert_has_less_than_a_fifth_too_much_within_200_steps(tmp_path):
    done = subprocess.run(
        [
            *(sys.executable, "experiments/grug/moe/launch.py", "--prefix", str(tmp_path)),
            *("-o", f"train.steps={STEPS}", "-o", "train.log_every=1", "-o", "train.batch_size=32"),
            *("-o", "model.hidden_dim=64", "-o", "model.num_layers=2", "-o", "eval=null"),
        ],
        cwd=ROOT,
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (record,) = tmp_path.glob("grug/moe-*/metrics.jsonl")
    rows = [json.loads(line) for line in record.read_text().splitlines()]
    loads = [row["train/router/load_max"] for row in rows if "train/router/load_max" in row]
    assert len(loads) == STEPS
    assert max(loads[:20]) > 1.5  # without which there was nothing to even out
    # The mean over layers of one step's busiest expert; a batch differs from the next.
    assert median(loads[-40:]) < 1.2
    assert all(row.get("train/router/dropped_fraction", 0.0) == 0.0 for row in rows)
