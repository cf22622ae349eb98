"""Payloads as the run page reads them, with curves whose every number a test knows."""

import base64
import math
from typing import Any

import numpy as np

from chomp.variants.diff import line_hunks
from chomp.variants.diff_page import rows_html

# Tries to end a script, to add an element, to run a handler: whatever text reaches the page may.
EVIL = (
    "</script><script>document.title='broken'</script><img src=http://evil.test/x onerror=alert(1)>"
)
SPIKE_STEP = 612
SPIKE_LOSS = 9.25
LAST_STEP = 1000
TOKENS_PER_STEP = 4096
FLOPS_PER_STEP = 3e14
SECONDS_PER_STEP = 0.5
COMPONENTS = ["web", "code"]

METRICS = {
    "train/loss": {"unit": "nats/token", "meaning": "training loss of the just-completed step"},
    "eval/loss": {"unit": "nats/token", "meaning": "loss over all evaluation tokens"},
    "grad/norm/total": {"unit": "-", "meaning": "norm of the whole gradient, before clipping"},
    "optim/learning_rate": {"unit": "-", "meaning": "learning rate of the completed step"},
    "throughput/tokens_per_second": {"unit": "tokens/s", "meaning": "positions per second"},
    "throughput/mfu": {"unit": "%", "meaning": "model FLOPs over the theoretical peak"},
    "throughput/duration": {"unit": "s", "meaning": "time per step"},
    "peak_memory_gb": {"unit": "GB", "meaning": "peak device memory"},
    "run/seconds": {"unit": "s", "meaning": "time of the run"},
}
COLUMNS = [
    {"key": "train/loss", "label": "train loss (median)", "better": "lower"},
    {"key": "eval/loss", "label": "eval loss", "better": "lower"},
    {"key": "throughput/tokens_per_second", "label": "tokens/s", "better": "higher"},
    {"key": "run/seconds", "label": "time", "better": None},
]


def packed(values: Any, dtype: str) -> str:
    """Base64 of little-endian bytes."""
    return base64.b64encode(np.asarray(values, dtype=dtype).tobytes()).decode()


def series(group: str, steps: Any, values: Any, *, is_thinned: bool = False) -> dict[str, Any]:
    """A curve; `is_thinned` gives it bucket means too, ten of its points to a bucket."""
    made = {
        "group": group,
        "step": packed(steps, "<i4"),
        "value": packed(values, "<f4"),
        "count": len(steps) * (10 if is_thinned else 1),
    }
    if is_thinned:
        length = len(steps) // 10 * 10
        means = np.asarray(values, float)[:length].reshape(-1, 10).mean(1)
        made |= {"mean_step": packed(steps[:length:10], "<i4"), "mean": packed(means, "<f4")}
    return made


def loss_curve(index: int, steps: np.ndarray) -> np.ndarray:
    """The loss of run `index` at each step; run 0 has the spike."""
    random = np.random.default_rng(index)
    values = 2.6 + 0.12 * index + 6 * np.exp(-steps / 120) + random.normal(0, 0.05, len(steps))
    if index == 0:
        values[steps == SPIKE_STEP] = SPIKE_LOSS
    return values.astype(np.float32)


def run(index: int = 0, *, last_step: int = LAST_STEP, **changes: Any) -> dict[str, Any]:
    """One run; every second step of it logged, an evaluation each hundred steps."""
    steps = np.arange(0, last_step + 1, 2)
    name = changes.get("name", f"run-{'abcdefghijkl'[index]}")
    made: dict[str, Any] = {
        "id": f"run-{index}",
        "name": name,
        "folder": f"outputs/{name}",
        "state": "finished",
        "outcome": "finished",
        "problems": [],
        "facts": [["template", "base"], ["parameters", "12.4 M"], ["folder", f"outputs/{name}"]],
        "numbers": {
            "train/loss": float(loss_curve(index, steps)[-1]),
            "eval/loss": 3.0 + 0.1 * index,
            "throughput/tokens_per_second": 100_000.0 - 1000 * index,
            "run/seconds": 500.0 + index,
        },
        "axes": axes(last_step),
        "resumes": [{"step": 400, "attempt": 2, "note": "the machine was lost"}]
        if not index
        else [],
        "series": metric_series(index, steps),
        "eval_tags": eval_tags(index),
        "mixture": mixture(),
        "waterfall": waterfall(),
        "ceiling": {"theoretical_flops": 9.89e14, "measured_flops": 7.1e14},
        "spikes": spikes(name) if index == 0 and last_step >= SPIKE_STEP else [],
        "where_command": f"chomp data where outputs/{name} --step {{step}}",
        "samples": samples(),
        "config": [
            ["model.model_dim", "512"],
            ["optim.lr", str(3e-4 * (index + 1))],
            ["train.seed", "0"],
        ],
        "template": template(),
        "environment": [["python", "3.11.9"], ["jax", "0.10.2"], ["device", "NVIDIA H200"]],
        "profile": None,
    }
    return made | changes


def axes(last_step: int) -> dict[str, Any]:
    """Two straight pieces: the second half of the run is twice as slow."""
    middle = last_step // 2
    knots = [0, middle, last_step]
    seconds = [0, middle * SECONDS_PER_STEP, (middle + 2 * (last_step - middle)) * SECONDS_PER_STEP]
    return {
        "step": packed(knots, "<i4"),
        "tokens": packed([knot * TOKENS_PER_STEP for knot in knots], "<f4"),
        "flops": {"f64": packed([knot * FLOPS_PER_STEP for knot in knots], "<f8")},
        "seconds": packed(seconds, "<f4"),
    }


def metric_series(index: int, steps: np.ndarray) -> dict[str, Any]:
    """The curves of a run, by metric."""
    random = np.random.default_rng(100 + index)
    count, evals = len(steps), steps[::50]
    rate = 3e-4 * np.minimum(steps / 100, 1) * (0.55 + 0.45 * np.cos(math.pi * steps / LAST_STEP))
    noise = random.lognormal(0, 0.3, count)
    made = {
        "train/loss": series("loss", steps, loss_curve(index, steps), is_thinned=True),
        "optim/learning_rate": series("optim", steps, rate),
        "grad/norm/total": series("optim", steps, (0.4 + 4 * np.exp(-steps / 90)) * noise),
        "train/skipped_steps": series("optim", steps, (steps > SPIKE_STEP).astype(float)),
        "throughput/tokens_per_second": series("speed", steps, 1e5 * random.normal(1, 0.01, count)),
        "throughput/mfu": series("speed", steps, 48 + random.normal(0, 0.6, count)),
        "throughput/duration": series("speed", steps, 0.5 * random.normal(1, 0.01, count)),
        "peak_memory_gb": series("memory", steps, np.full(count, 61.5)),
        "train/router/entropy": series("other", steps, 2 + random.normal(0, 0.02, count)),
        "params/norm/total": series("other", steps, 30 + np.sqrt(steps)),
    }
    for at, component in enumerate(COMPONENTS):
        made[f"mixture/epoch/{component}"] = series("data", steps, steps / (400.0 + 900 * at))
    for at, tag in enumerate(["", "code/", "code/python/", "web/"]):
        values = 3 + 0.1 * index + 0.2 * at + 5 * np.exp(-evals / 150)
        made[f"eval/{tag}loss"] = series("eval", evals, values)
        made[f"eval/{tag}bpb"] = series("eval", evals, values / 3)
    return made


def eval_tags(index: int) -> list[dict[str, Any]]:
    """The whole and two tags, one of them with a tag below it."""
    tree = [("all", None, ""), ("code", None, "code/"), ("code/python", "code", "code/python/")]
    tree += [("web", None, "web/")]
    return [
        {
            "tag": tag,
            "parent": parent,
            "series": {"loss": f"eval/{path}loss", "bpb": f"eval/{path}bpb", "macro_loss": None},
            "last": {
                "loss": 3.2 + 0.2 * at + 0.1 * index,
                "loss_stderr": 0.021,
                "bpb": 1.1 + at / 10,
            },
        }
        for at, (tag, parent, path) in enumerate(tree)
    ]


def mixture() -> dict[str, Any]:
    stages = [
        {"first_step": 0, "weights": {"web": 0.8, "code": 0.2}, "epochs": {"web": 1.75}},
        {"first_step": 700, "weights": {"web": 0.4, "code": 0.6}, "epochs": {"web": 0.5}},
    ]
    return {"components": COMPONENTS, "stages": stages}


def waterfall() -> list[dict[str, Any]]:
    parts = {"step": 420, "loading": 12, "hooks": 6, "eval": 38, "checkpoint": 9, "compile": 15}
    return [{"label": label, "seconds": seconds} for label, seconds in parts.items()]


def spikes(name: str) -> list[dict[str, Any]]:
    command = f"chomp data where outputs/{name} --step {SPIKE_STEP}"
    return [{"step": SPIKE_STEP, "value": SPIKE_LOSS, "usual": 2.65, "command": command}]


def samples() -> list[dict[str, Any]]:
    texts = {0: " qj zx kk", 500: " the the of the", 1000: " a small house\nby the river, where"}
    return [{"step": at, "prompt": "Once upon a time", "text": text} for at, text in texts.items()]


def template() -> dict[str, Any]:
    old = ["def f(x):\n", "    return x\n"]
    new = ["def f(x):\n", "    return 2 * x  # doubled\n"]
    rows = rows_html("model.py", old, new, line_hunks(old, new), 3)
    return {
        "name": "base",
        "files": [{"path": "model.py", "lines": 2}],
        "against": "experiments/grug/base",
        "html": f'<h3>model.py</h3><div class="code">{rows}</div>',
        "note": None,
    }


def profile() -> dict[str, Any]:
    shares = {"matmul": 0.61, "attention": 0.14, "element-wise": 0.18, "other": 0.02}
    kinds = [{"name": name, "ms": 100 * share, "share": share} for name, share in shares.items()]
    operation = {"name": "dot.1", "category": "matmul", "ms": 31.0, "share": 0.31, "count": 24}
    operation["place"] = "mlp/dot_general"
    return {
        "steps": 3,
        "device": "NVIDIA H200",
        "total_ms": 100.0,
        "busy_ms": 95.0,
        "categories": kinds,
        "operations": [operation],
        "gaps": [{"after": "fusion.3", "ms": 2.5, "count": 4, "longest_ms": 1.0}],
        "programs": [{"name": "jit_step", "ms": 95.0, "share": 0.95}],
        "phases": [{"name": "waiting for data", "ms": 3.0, "share": 0.03}],
        "note": None,
    }


def payload(*runs: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The whole payload of a page of these runs."""
    made: dict[str, Any] = {
        "version": 1,
        "made_at": "2026-11-16 08:40 UTC",
        "chomp_version": "0.1.0",
        "notes": [],
        "metrics": METRICS,
        "columns": COLUMNS,
        "runs": list(runs),
        "config_difference": None,
    }
    if len(runs) > 1:
        rates = [dict(run["config"]).get("optim.lr") for run in runs]
        names = [run["name"] for run in runs]
        rows = [{"key": "optim.lr", "values": rates}]
        made["config_difference"] = {"names": names, "rows": rows}
    return made | changes
