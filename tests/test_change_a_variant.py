"""What a researcher does first: a copy of base with another activation, a metric and a hook.

All of it in the variant's own folder, in fewer than 15 lines, with the contracts green.
"""

import difflib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from chomp.tracking import latest_rows, read_metrics

ROOT = Path(__file__).resolve().parents[1]
VARIANT = "experiments/grug/mine"

# (file, what is there, what is written instead)
CHANGES = [
    (
        "model.py",
        "            inner = jnp.square(jax.nn.relu(up))  # Primer, arXiv 2109.08668\n",
        "            inner = jax.nn.gelu(up)\n",
    ),
    (
        "train.py",
        "        loss = mp.for_compute(params).next_token_loss(\n",
        "        model = mp.for_compute(params)\n        loss = model.next_token_loss(\n",
    ),
    (
        "train.py",
        "        return loss, {TRAIN_LOSS: loss, TRAINED_TOKENS: jnp.sum(micro.loss_weight)}\n",
        "        plain = model.next_token_loss(\n"
        '            micro.tokens, micro.loss_weight, mask=micro.attn_mask, reduction="sum"\n'
        "        )\n"
        '        sums = {TRAIN_LOSS: loss, "train/z_loss": loss - plain}\n'
        "        return loss, {**sums, TRAINED_TOKENS: jnp.sum(micro.loss_weight)}\n",
    ),
    (
        "train.py",
        "        state = run.state  # fresh, or restored and proven\n",
        "        def log_norm(state: GrugTrainState, completed: int) -> None:\n"
        '            run.log({"my/embed_norm": float(jnp.linalg.norm(state.params.token_embed))})\n'
        "\n"
        "        run.every(50, log_norm)\n"
        "        state = run.state  # fresh, or restored and proven\n",
    ),
]
SMALL = ("train.steps=100", "model.num_layers=1", "samples.max_tokens=0", "eval.max_eval_batches=1")


@pytest.mark.slow
def test_an_activation_a_metric_and_a_hook_are_a_few_lines_of_ones_own(tmp_path: Path):
    checkout = tmp_path / "checkout"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, checkout / name)
    run = {"cwd": checkout, "env": {**os.environ, "PYTHONPATH": f"{checkout}/src:{checkout}"}}
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for command in (["init", "-q"], ["add", "-A"], [*author, "commit", "-qm", "all"]):
        subprocess.run(["git", *command], check=True, **run)

    new = ["variant", "new", "mine", "--from", "base", "--purpose", "To try gelu."]
    subprocess.run([sys.executable, "-m", "chomp", *new], check=True, **run)
    changed = 0
    for file, old, written in CHANGES:
        path = checkout / VARIANT / file
        before = path.read_text()
        assert before.count(old) == 1, f"{file} has {old!r} {before.count(old)} times"
        path.write_text(before.replace(old, written))
        lines = difflib.ndiff(old.splitlines(), written.splitlines())
        changed += sum(line.startswith("+ ") for line in lines)
    assert changed < 15

    contracts = ["pytest", "-q", "tests/test_grug_variant_contracts.py", "-k", "mine"]
    subprocess.run([sys.executable, "-m", *contracts], check=True, **run)
    overrides = [word for each in SMALL for word in ("-o", each)]
    launch = [sys.executable, f"{VARIANT}/launch.py", "--prefix", str(tmp_path / "out"), *overrides]
    subprocess.run(launch, check=True, **run)
    (record,) = (tmp_path / "out" / "grug").glob("mine-*/metrics.jsonl")
    rows = latest_rows(read_metrics(record))
    assert [row["step"] for row in rows if "my/embed_norm" in row] == [49, 99]
    z_losses = [row["train/z_loss"] for row in rows if "train/loss" in row]
    assert len(z_losses) == 10
    # logsumexp^2 of 2,048 logits near 0 is about 58, and its weight 1e-4.
    assert all(0.001 < z_loss < 0.02 for z_loss in z_losses)
