"""Evaluation beside training, packed harness requests beside single ones, and lm-eval's overhead.

    uv run --group test python -m benchmarks.evaluation [--quick]

The base template at one size: a small model in float32 on a CPU, 124M in bfloat16 on a GPU. Data,
step, loader, evaluator and scorer are a run's own. Where lm-eval is not installed its overhead is
left out, and that is said.
"""

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from benchmarks.harness_requests import PACKED, packing_figures, questions, requests_of
from benchmarks.model_sizes import SIZES, ModelSize, measured_platform
from benchmarks.record import Figure, record
from benchmarks.timing import in_turn, note
from benchmarks.training_step import model_config
from chomp.data import GrugLmExample, iter_from_step
from chomp.evaluation import TaggedEvaluator
from chomp.evaluation.request_scores import RequestScorer
from chomp.executor import plan_steps, run_plan
from chomp.kernels.precision import Precision
from chomp.mesh import compiler_options, create_mesh, prepare_devices
from chomp.tokenize import bytes_per_token
from chomp.training import open_data, row_limits
from chomp.training.setup import OpenData, compile_step
from experiments.grug.base import launch, train
from experiments.grug.base.launch import GrugBaseLaunchConfig
from experiments.grug.base.train import GrugRunConfig

HAS_LM_EVAL = find_spec("lm_eval") is not None
EVALUATION_GOAL = 2.5  # times the tokens of training
PRECISION = {"cpu": "params=float32,compute=float32", "gpu": "params=float32,compute=bfloat16"}


@dataclass(frozen=True, kw_only=True)
class Amounts:
    """How much is measured."""

    rounds: int
    steps: int  # of training, in a round
    batches: int  # of evaluation, in a round, of each of two components
    single: int  # questions that are also scored one by one
    rows: int  # of a batch of requests; the last batch is seldom full, which many batches even out
    asked: int  # questions of the lm-eval task
    task_rounds: int  # in which the task is run


AMOUNTS = {
    "cpu": Amounts(rounds=3, steps=3, batches=2, single=50, rows=8, asked=350, task_rounds=2),
    "gpu": Amounts(rounds=5, steps=50, batches=25, single=1000, rows=32, asked=5000, task_rounds=3),
}
QUICK = Amounts(rounds=1, steps=2, batches=1, single=4, rows=4, asked=8, task_rounds=1)
QUICK_SIZE = replace(SIZES["cpu"], hidden_dim=64, num_layers=1, batch_size=4)


class Sides:
    """Training and evaluation of one run, each of which can be given its turn."""

    def __init__(self, config: GrugRunConfig, data: OpenData, mesh: Mesh, amounts: Amounts) -> None:
        trainer, mp = config.trainer, Precision.parse(config.trainer.precision)
        self.step_tokens = data.loader.batches.examples(0) * trainer.seq_len
        self.eval_tokens = 0  # of an evaluation, known after one
        self._seq_len, self._steps = trainer.seq_len, amounts.steps
        self._state = train.fresh_state(config)
        step, options = train.train_step_of(config), compiler_options(mesh)
        self._step = compile_step(step, self._state, data.loader.batch(0), options)
        self._batches: Iterator[GrugLmExample] = iter_from_step(data.loader, 0, trainer.steps)
        self._evaluator = TaggedEvaluator(
            data.eval_datasets,
            partial(train.losses_of, mp),
            mesh=mesh,
            batch_size=data.loader.batches.examples(0),
            max_batches=amounts.batches,
            bytes_per_token=bytes_per_token(data.tokenizer),
        )

    def train(self) -> None:
        """A round of steps on batches as they come from the loader."""
        for _ in range(self._steps):
            self._state, metrics = self._step(self._state, next(self._batches))
        jax.block_until_ready((self._state, metrics))

    def evaluate(self) -> None:
        """One evaluation of the weights, from the stores to the metrics."""

        def count(_done: int, rows: int) -> None:
            self.eval_tokens = rows * self._seq_len

        self._evaluator.evaluate(self._state.params, count)

    @property
    def params(self) -> Any:
        """The weights as they are now."""
        return self._state.params


def speed_figure(name: str, sides: Sides, amounts: Amounts) -> Figure:
    """Tokens of evaluation beside those of training, in turn, both from store to result."""
    for way in (sides.train, sides.evaluate, sides.train):
        way()  # compiles, and fills the loader
    training, evaluation = in_turn(amounts.rounds, sides.train, sides.evaluate)
    return Figure(
        name=f"{name}, evaluation",
        value=sides.eval_tokens / evaluation / 1e3,
        unit="k tokens/s",
        better="higher",
        peer="training",
        peer_value=amounts.steps * sides.step_tokens / training / 1e3,
        goal=EVALUATION_GOAL,
        goal_on="ratio",
    )


def run_with_data(size: ModelSize, platform: str, amounts: Amounts, prefix: str) -> GrugRunConfig:
    """The config of a run of that size, its tokenizer and stores made as its launch file does."""
    quickstart = GrugBaseLaunchConfig()
    config = replace(
        quickstart,
        model=model_config(size),
        # Half of the documents are held out, so that there is enough to evaluate.
        data=replace(quickstart.data, validation_fraction=0.5),
        optimizer=replace(quickstart.optimizer, lr=6e-4),  # the quickstart's is for 128 wide
        trainer=replace(
            quickstart.trainer,
            steps=max(100, (amounts.rounds + 2) * amounts.steps),
            batch_size=size.batch_size,
            seq_len=size.seq_len,
            precision=PRECISION[platform],
        ),
    )
    *data, run = plan_steps(launch.steps(config), prefix=prefix)
    for failure in run_plan(data, lambda planned: planned.step.fn(planned.config)):
        raise failure.error or RuntimeError(f"{failure.planned.title} did not run")
    return launch.run_config(run.config)


def harness_figures(
    name: str,
    params: Any,
    config: GrugRunConfig,
    data: OpenData,
    mesh: Mesh,
    *,
    amounts: Amounts,
    folder: Path,
    is_profiled: bool,
) -> list[Figure]:
    """What packing brings, and what lm-eval costs."""
    mp = Precision.parse(config.trainer.precision)

    def make_scorer(batch_size: int, row_len: int, max_requests: int) -> RequestScorer:
        limits = row_limits(config, mesh, seq_len=row_len)
        return RequestScorer(
            partial(train.scores_of, mp),
            mesh=mesh,
            batch_size=batch_size,
            row_len=row_len,
            pad_id=data.tokenizer.eos_id,
            max_requests=max_requests,
            counts_documents=limits.counts_documents,
        )

    shape = {"batch_size": amounts.rows, "row_len": config.trainer.seq_len}
    asked = questions(amounts.asked)
    single = requests_of(asked[: amounts.single], data.tokenizer)
    figures = packing_figures(name, params, make_scorer, single, **shape, rounds=amounts.rounds)
    if not HAS_LM_EVAL:
        note("NOT MEASURED: the overhead of lm-eval, which is not installed here")
        return figures
    # Not at the top: it needs lm-eval.
    from benchmarks.harness_overhead import Task  # noqa: PLC0415

    scorer = make_scorer(shape["batch_size"], shape["row_len"], PACKED)
    task = Task(params, scorer, data.tokenizer, asked, folder)
    if is_profiled:
        task.profile()
    return figures + task.figures(name, amounts.task_rounds)


def main() -> None:
    """Make the data, take turns, tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny; nothing is written")
    parser.add_argument(
        "--profile", action="store_true", help="say where an lm-eval task's time goes"
    )
    asked = parser.parse_args()
    is_quick = asked.quick
    prepare_devices()  # before the platform is asked for
    platform = measured_platform()
    name = "124m" if platform == "gpu" else "cpu"
    size, amounts = (QUICK_SIZE, QUICK) if is_quick else (SIZES[name], AMOUNTS[platform])
    with tempfile.TemporaryDirectory() as prefix:
        config = run_with_data(size, platform, amounts, prefix)
        mesh = create_mesh(config.mesh)
        note("tokenizer and stores are made")
        with jax.set_mesh(mesh):
            data = open_data(config, mesh)
            with closing(data.loader):
                sides = Sides(config, data, mesh, amounts)
                figures = [speed_figure(name, sides, amounts)]
                note(f"evaluation is {figures[0].ratio:.2f} times as fast as training")
                figures += harness_figures(
                    name,
                    sides.params,
                    config,
                    data,
                    mesh,
                    amounts=amounts,
                    folder=Path(prefix),
                    is_profiled=asked.profile,
                )
    record("evaluation", figures, is_quick=is_quick)


if __name__ == "__main__":
    main()
