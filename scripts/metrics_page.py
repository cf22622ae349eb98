"""Print docs/references/metrics.md, made from the known metrics.

uv run python scripts/metrics_page.py > docs/references/metrics.md
"""

from chomp.tracking.metrics import METRICS, Metric

_INTRODUCTION = """# Metrics

Made by `python scripts/metrics_page.py` from `chomp.tracking.metrics`; do not edit.

The record of a run is `metrics.jsonl` in its folder (`logging.metrics_file`): strict JSON, one flat
object a line. It is written first; the console, W&B and TensorBoard show what it holds.

- A step's line has `step` and `global_step` (the 0-based index of the completed step), `attempt`,
  `time` (seconds since 1970) and then the metrics. There is one every `train.log_every` steps, one
  for the last step, and one for each evaluation.
- Each start of a run is an attempt, counted from 1. Steps that a resumed run repeats are there
  twice, with the attempt that made them. `chomp.tracking.latest_rows` gives each step once.
- `{"kind": "summary", ...}` holds values of the whole run; a later line replaces a name of an
  earlier. `{"kind": "artifact", ...}` names a file.
- JSON has no NaN. Such a value is null, and `<name>/nonfinite` says which it was.
- A metric that a device or a config does not give is absent, never zero.
- A damaged line is left out by every reader, which tells its number and how many there are. The run
  goes on from its checkpoints all the same: nothing is restored from the record.
- `throughput/duration` is seconds per step; `loading_time`, `hook_time`, `checkpoint_time`,
  `compile_time` and `eval/total_time` are seconds since the line before. `duration` times the steps
  of a line plus these is wall clock.

`chomp metrics show RUN` prints the newest values. `chomp metrics replay RUN --to wandb` (or
`tensorboard`) sends a record to a service again.

In a name, `<word>` and `*` stand for one or more characters. A short key is a second name under
which the same value is logged.
"""

_SECTIONS = (
    ("Step", ("train/", "global_step", "run_progress", "grad/norm/total", "optim/")),
    ("Tokens and memory", ("tokens_", "packing_", "first_step", "peak_memory", "memory/")),
    ("Throughput", ("throughput/",)),
    ("Kernels", ("kernels/",)),
    ("Data", ("mixture/", "data/")),
    ("Evaluation", ("eval/",)),
    ("lm-eval tasks", ("lm_eval/",)),
    ("Checkpoints", ("checkpoint/",)),
    ("The attempt", ("run/", "environment/")),
    ("Watch", ("grad/", "params/", "updates/", "opt_state/")),
)


def metrics_page() -> str:
    """The whole page, each metric in the first section that fits, the rest under `Other`."""
    sections: dict[str, list[Metric]] = {title: [] for title, _ in _SECTIONS}
    for metric in METRICS.values():
        sections.setdefault(_section_of(metric.key), []).append(metric)
    parts = [_INTRODUCTION]
    for title, metrics in sections.items():
        lines = [
            f"| `{m.key}` | {_short(m)} | {m.unit or '-'} | {m.description} |" for m in metrics
        ]
        head = ["| name | short key | unit | meaning |", "|---|---|---|---|"]
        parts.append("\n".join([f"## {title}", "", *head, *lines, ""]))
    return "\n".join(parts)


def _section_of(name: str) -> str:
    for title, prefixes in _SECTIONS:
        if name.startswith(prefixes):
            return title
    return "Other"


def _short(metric: Metric) -> str:
    return f"`{metric.short}`" if metric.short else "-"


if __name__ == "__main__":
    print(metrics_page(), end="")
