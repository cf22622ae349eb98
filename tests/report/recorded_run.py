"""A run folder made by hand: rows as a loop logs them, several attempts, config, samples."""

import json
from pathlib import Path

import numpy as np

CONFIG = {
    "model": {"hidden_dim": 32},
    "data": {"components": {"code": {"weight": 0.7, "train_store": "outputs/tokens/code-abc"}}},
    "trainer": {"steps": 40, "seed": 0, "batch_size": 8, "log_every": 2},
    "eval": {"prefix": "eval"},
    "logging": {"metrics_file": "metrics.jsonl"},
    "run_id": "by_hand",
    "output_path": "somewhere",
    "derived": {"train": {"total_tokens": 1}},
}
# Seconds that a line accounts for, besides its steps.
PHASES = {"loading": 0.5, "hook": 0.25, "checkpoint": 0.0, "compile": 0.0}
STEP_SECONDS = 2.0
SET_UP_SECONDS = 3.0


class RecordedRun:
    """Writes a run's lines with a clock of its own, so that every sum is known."""

    def __init__(self, folder: Path, *, config=CONFIG, log_every=2):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._every = folder, log_every
        self.now = 1_700_000_000.0
        self._attempt = 0
        self._lines: list[str] = []
        if config is not None:
            (folder / "config_resolved.json").write_text(json.dumps(config))

    def attempt(self, first: int, last: int, *, outcome="finished", loss=None):
        """An attempt from step `first` up to, not including, `last`."""
        self._attempt += 1
        self._line({"kind": "summary", "throughput/parameter_count": 1000})
        self.now += SET_UP_SECONDS
        before = first - 1
        for step in range(first, last):
            if (step + 1) % self._every and step + 1 != last:
                continue
            compile_s = 4.0 if before == first - 1 else 0.0
            self._row(step, step - before, compile_s, loss)
            before = step
        if outcome is not None:
            self._line({"kind": "summary", "run/outcome": outcome})
        return self

    def evaluation(self, step: int, **values: float):
        """A line of an evaluation that took a second; after an attempt's end, a late one."""
        self.now += 1.0
        named = {f"eval/{name.replace('__', '/')}": value for name, value in values.items()}
        self._step_line(step, {**named, "eval/total_time": 1.0})
        return self

    def save(self, step: int):
        """A line about a checkpoint after `step` completed steps."""
        self._step_line(step - 1, {"checkpoint/step": step})
        return self

    def pause(self, seconds: float):
        """Nothing happens."""
        self.now += seconds
        return self

    def sample(self, step: int, text: str):
        """A text that the model wrote."""
        (self.folder / "samples").mkdir(exist_ok=True)
        (self.folder / "samples" / f"step-{step}.txt").write_text(text)
        return self

    def written(self) -> str:
        """The folder, with its record."""
        (self.folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in self._lines))
        return str(self.folder)

    def _row(self, step, steps, compile_s, loss):
        phases = {**PHASES, "compile": compile_s}
        self.now += STEP_SECONDS * steps + sum(phases.values())
        value = 5.0 * np.exp(-step / 50) if loss is None else loss(step)
        row = {
            "train/loss": value,
            "grad/norm/total": 1.0,
            "throughput/duration": STEP_SECONDS,
            "throughput/total_tokens": 512.0 * (step + 1),
            "throughput/total_gflops": 2.0 * (step + 1),
            "throughput/tokens_per_second": 256.0,
            **{f"throughput/{name}_time": seconds for name, seconds in phases.items()},
            "optim/learning_rate": 1e-3,
            "mixture/stage": int(step >= 20),
            "mixture/weight/code": 0.7 if step < 20 else 0.5,
            "mixture/weight/prose": 0.3 if step < 20 else 0.5,
            "mixture/epoch/code": 0.1 * (step + 1),
            "loss": value,
        }
        self._step_line(step, row)

    def _step_line(self, step, row):
        self._line({"step": step, "global_step": step, **row})

    def _line(self, row):
        self._lines.append(json.dumps({**row, "attempt": self._attempt, "time": self.now}))
