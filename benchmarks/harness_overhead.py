"""What lm-eval and everything of ours around the model take, beside the model itself.

A local multiple-choice task through lm-eval's own evaluator: from its files to the results, with
tokenising, packing, reading back and standard errors. The peer is the same batches through the same
program, ready on the device.
"""

import cProfile
import json
import pstats
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import datasets

from benchmarks.harness_requests import ModelAlone, Question, requests_of
from benchmarks.record import Figure
from benchmarks.timing import in_turn, note
from chomp.evaluation.harness import HarnessModel, run_tasks
from chomp.evaluation.request_scores import RequestScorer
from chomp.tokenize import Tokenizer

GOAL = 1.15  # times the model alone
TASK = "cut_out"
SHOWN = 25  # functions of a profile
_YAML = """task: cut_out
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: acc_norm, aggregation: mean, higher_is_better: true}
"""


class Task:
    """A task in files, a model that has been asked once, and the model's batches alone."""

    def __init__(
        self,
        params: Any,
        scorer: RequestScorer,
        tokenizer: Tokenizer,
        asked: Sequence[Question],
        folder: Path,
    ) -> None:
        datasets.config.HF_DATASETS_CACHE = folder / "cache"  # not in somebody's home
        datasets.disable_progress_bars()
        self._path = str(_task_folder(folder / "tasks", asked))
        self._model = HarnessModel(params, scorer, tokenizer=tokenizer)
        requests = requests_of(asked, tokenizer)
        self._num_requests = len(requests)
        model = ModelAlone(scorer, requests)
        self._alone = partial(model.take, params)
        model.take(params, num_batches=1)  # compiles

    def figures(self, name: str, rounds: int) -> list[Figure]:
        """Seconds of the whole task."""
        whole, alone = in_turn(rounds, self._whole, self._alone)
        count = self._num_requests
        note(f"outside the model: {1e3 * (whole - alone) / count:.3f} ms a request, of {count}")
        return [
            Figure(
                name=f"{name}, an lm-eval task of {count} requests",
                value=whole,
                unit="s",
                better="lower",
                peer="the model alone",
                peer_value=alone,
                goal=GOAL,
                goal_on="ratio",
            )
        ]

    def profile(self) -> None:
        """Say which functions take most time themselves; waiting for the model is one of them."""
        profile = cProfile.Profile()
        profile.runcall(self._whole)
        stats = pstats.Stats(profile)
        note(f"profiled, {stats.total_tt:.2f} s; seconds in functions themselves, of the longest:")  # type: ignore[attr-defined]
        rows = sorted(stats.stats.items(), key=lambda row: -row[1][2])  # type: ignore[attr-defined]
        for (file, line, function), (_, calls, own, total, _) in rows[:SHOWN]:
            where = "/".join(Path(file).parts[-2:])
            print(f"    {own:7.3f} of {total:7.3f} in {calls:7} calls: {function} {where}:{line}")

    def _whole(self) -> None:
        run_tasks(self._model, [TASK], include_path=self._path)


def _task_folder(folder: Path, asked: Sequence[Question]) -> Path:
    folder.mkdir()
    data = folder / "questions.jsonl"
    data.write_text("".join(json.dumps(question) + "\n" for question in asked))
    (folder / "task.yaml").write_text(_YAML.replace("DATA", str(data)))
    return folder
