"""What the training loop costs beside its step, what Muon costs beside AdamW, and the state's room.

    uv run python -m benchmarks.loop [--quick]

One real run of the base template in a folder of its own, every step logged: the quickstart's model
on a CPU, 124M on a GPU. Between stretches of it the same step runs bare, on batches that are on the
device already, with AdamW and with Muon. They take turns because a machine's speed drifts.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter
from typing import Any, Literal

import jax

from benchmarks.model_sizes import SIZES, measured_platform
from benchmarks.record import Figure, record
from benchmarks.timing import note
from benchmarks.training_step import model_config
from chomp import training
from chomp.checkpoint import CheckpointConfig
from chomp.data import GrugLmExample
from chomp.executor import plan_steps, run_plan
from chomp.mesh import compiler_options, prepare_devices
from chomp.tracking import LoggingConfig, Row, WandbConfig, read_metrics
from chomp.tracking.metrics import LOADING_TIME, PEAK_MEMORY_GB, TRAIN_LOSS
from chomp.tracking.run_files import record_of
from chomp.training import Run
from experiments.grug.base import launch, train
from experiments.grug.base.launch import GrugBaseLaunchConfig

OVERHEAD_GOALS = {"cpu": 1.02, "gpu": 1.01}
MUON_GOALS = {"cpu": None, "gpu": 1.05}
LOADING_GOAL = 1.0  # % of the wall clock
IN_PLACE_GOAL = 99.0  # % of the state

Optimizer = Literal["adamw", "muon"]
OPTIMIZERS: tuple[Optimizer, ...] = ("adamw", "muon")


@dataclass(frozen=True, kw_only=True)
class Turns:
    """How the run and the bare steps take turns, in steps."""

    rounds: int
    settling: int  # of the run after each change of turns, which do not count
    counted: int
    muon: int

    @property
    def period(self) -> int:
        """Steps of the run from turn to turn."""
        return self.settling + self.counted


# 160 steps count on a CPU, in short stretches because other work on its cores comes and goes, and
# 300 on a GPU. At a change the loader has 8 batches ready and a GPU's queue is empty: settling uses
# up the ones and fills the other.
TURNS = {
    "cpu": Turns(rounds=16, settling=8, counted=10, muon=4),
    "gpu": Turns(rounds=3, settling=20, counted=100, muon=100),
}
# The quickstart warms up for 40 steps, and a run has to be longer.
QUICK_TURNS = Turns(rounds=3, settling=4, counted=10, muon=4)


class BareSteps:
    """The step of a run compiled as the loop compiles it, with a state and nothing around it."""

    def __init__(self, run: Run, optimizer: Optimizer, batches: Sequence[GrugLmExample]) -> None:
        config = replace(run.config, optimizer=replace(run.config.optimizer, name=optimizer))
        self._step: Any = train.train_step_of(config)
        self._options = compiler_options(run.mesh)
        self._state = train.fresh_state(config)
        # Attention may need another program for a batch of very many documents.
        kinds = {jax.tree.structure(batch): batch for batch in batches}
        programs = {kind: self._compiled(batch) for kind, batch in kinds.items()}
        self._turns = [(programs[jax.tree.structure(batch)], batch) for batch in batches]
        self.seconds: list[float] = []  # of a step, one entry for each turn

    def take(self, steps: int) -> None:
        """Time that many steps, over the batches again and again."""
        begin = perf_counter()
        for i in range(steps):
            program, batch = self._turns[i % len(self._turns)]
            self._state, metrics = program(self._state, batch)
        jax.block_until_ready((self._state, metrics))
        self.seconds.append((perf_counter() - begin) / steps)

    def memory(self) -> dict[str, int]:
        """Bytes of the state, of what the step writes where it lies, and of all the step needs."""
        used = self._turns[0][0].memory_analysis()
        both = used.argument_size_in_bytes + used.output_size_in_bytes
        return {
            "state": sum(leaf.nbytes for leaf in jax.tree.leaves(self._state)),
            "in place": used.alias_size_in_bytes,
            "all": both - used.alias_size_in_bytes + used.temp_size_in_bytes,
        }

    def _compiled(self, batch: GrugLmExample) -> Any:
        return self._step.lower(self._state, batch).compile(compiler_options=self._options)


@dataclass
class BetweenStretches:
    """A hook of the run that gives the bare steps their turn."""

    run: Run
    turns: Turns
    bare: dict[Optimizer, BareSteps] = field(default_factory=dict)
    # Where the weights lay at each turn.
    addresses: list[list[int]] = field(default_factory=list)

    def __call__(self, state: Any, completed_steps: int) -> None:
        """One turn; at the first one the bare steps are made, and take some that do not count."""
        if not self.bare:
            batches = [self.run.loader.batch(step) for step in range(self.turns.counted)]
            self.bare = {name: BareSteps(self.run, name, batches) for name in OPTIMIZERS}
            for steps in self.bare.values():
                steps.take(2 + self.turns.settling)
                steps.seconds.clear()
        self.addresses.append(list(map(_address, jax.tree.leaves(state.params))))
        self.bare["adamw"].take(self.turns.counted)
        self.bare["muon"].take(self.turns.muon)
        seconds = [steps.seconds[-1] for steps in self.bare.values()]
        told = ", ".join(f"{s * 1e3:.2f} ms" for s in seconds)
        note(f"{completed_steps} steps of the run; bare steps of AdamW and Muon: {told}")


def _address(leaf: jax.Array) -> int:
    return leaf.addressable_shards[0].data.unsafe_buffer_pointer()


@contextmanager
def _with_turns(turns: Turns) -> Iterator[list[BetweenStretches]]:
    """Inside, a run of the template calls a hook of ours too; the list then holds it."""
    made: list[BetweenStretches] = []
    own = training.open_run

    @contextmanager
    def with_ours(config: Any, **given: Any) -> Iterator[Run]:
        with own(config, **given) as run:
            made.append(BetweenStretches(run, turns))
            run.every(turns.period, made[-1])
            yield run

    training.open_run = with_ours
    try:
        yield made
    finally:
        training.open_run = own


def measured_launch(platform: str, turns: Turns) -> GrugBaseLaunchConfig:
    """What is run: every step logged; no evaluation, and one checkpoint at the end."""
    quickstart = GrugBaseLaunchConfig()
    trainer = replace(quickstart.trainer, steps=turns.rounds * turns.period, log_every=1)
    quickstart = replace(
        quickstart,
        trainer=trainer,
        eval=None,
        checkpoint=CheckpointConfig(save_interval_s=None),
        logging=LoggingConfig(console=False, wandb=WandbConfig(enabled=False)),
    )
    if platform == "cpu":
        return quickstart
    size = SIZES["124m"]
    return replace(
        quickstart,
        model=model_config(size),
        optimizer=replace(quickstart.optimizer, lr=6e-4),  # the quickstart's is for 128 wide
        trainer=replace(
            trainer,
            batch_size=size.batch_size,
            seq_len=size.seq_len,
            precision="params=float32,compute=bfloat16",
        ),
    )


def rows_of_run(config: GrugBaseLaunchConfig, prefix: str) -> list[Row]:
    """Make tokenizer, token stores and the run in this process; one row for each of its steps."""
    plan = plan_steps(launch.steps(config), prefix=prefix)
    for failure in run_plan(plan, lambda planned: planned.step.fn(planned.config)):
        raise failure.error or RuntimeError(f"{failure.planned.title} did not run")
    # Not merged with later rows of the same step, such as the cost of the last checkpoint.
    return [row for row in read_metrics(record_of(plan[-1].path)) if TRAIN_LOSS in row]


def stretches(rows: Sequence[Row], turns: Turns) -> list[tuple[float, float]]:
    """Of each stretch of the run: seconds of a step by the wall clock, and % spent on loading."""
    found = []
    for end in range(turns.period, len(rows) + 1, turns.period):
        before, *counted = rows[end - turns.counted - 1 : end]
        seconds = counted[-1]["time"] - before["time"]
        loading = sum(row[LOADING_TIME] for row in counted)
        found.append((seconds / turns.counted, 100 * loading / seconds))
    return found


def figures_of(rows: Sequence[Row], hook: BetweenStretches, platform: str) -> list[Figure]:
    """All figures of the run that `hook` was part of."""
    name = "124m" if platform == "gpu" else "quickstart"
    steps, loading = zip(*stretches(rows, hook.turns), strict=True)
    bare, muon = hook.bare["adamw"].seconds, hook.bare["muon"].seconds
    pairs = [ours / peers for ours, peers in zip(steps, bare, strict=True)]
    told = " ".join(f"{pair:.4f}" for pair in pairs)
    note(f"loop over bare step, stretch by stretch: {told}; of all {sum(steps) / sum(bare):.4f}")
    figures = [
        _milliseconds(
            f"{name}, a step in the loop", steps, "the bare step", bare, OVERHEAD_GOALS[platform]
        ),
        Figure(
            name=f"{name}, waiting for batches",
            value=median(loading),
            unit="% of the wall clock",
            better="lower",
            goal=LOADING_GOAL,
        ),
        _milliseconds(f"{name}, a bare step of Muon", muon, "AdamW's", bare, MUON_GOALS[platform]),
    ]
    return [*figures, *_memory_figures(name, rows, hook)]


def _memory_figures(name: str, rows: Sequence[Row], hook: BetweenStretches) -> list[Figure]:
    first, last = hook.addresses[0], hook.addresses[-1]
    stayed = sum(a == b for a, b in zip(first, last, strict=True))
    used = hook.bare["adamw"].memory()
    figures = [
        Figure(
            name=f"{name}, state that a step writes in place",
            value=100 * used["in place"] / used["state"],
            unit="% of its bytes",
            better="higher",
            goal=IN_PLACE_GOAL,
        ),
        Figure(
            name=f"{name}, weights of the run that stayed where they were",
            value=100 * stayed / len(first),
            unit="% of the arrays",
            better="higher",
            goal=100.0,
        ),
        _mebibytes(f"{name}, memory of a step", used["all"], "the state", used["state"]),
    ]
    # Before the bare steps had states of their own. A state held twice would show here.
    peak = rows[hook.turns.period - 1].get(PEAK_MEMORY_GB)
    if peak is not None:
        what = f"{name}, peak memory of the run"
        figures.append(_mebibytes(what, 1e9 * peak, "a step", used["all"]))
    return figures


def _mebibytes(name: str, ours: float, peer: str, peers: float) -> Figure:
    return Figure(
        name=name,
        value=ours / 2**20,
        unit="MiB",
        better="lower",
        peer=peer,
        peer_value=peers / 2**20,
    )


def _milliseconds(
    name: str, ours: Sequence[float], peer: str, peers: Sequence[float], goal: float | None
) -> Figure:
    return Figure(
        name=name,
        value=1e3 * median(ours),
        unit="ms",
        better="lower",
        peer=peer,
        peer_value=1e3 * median(peers),
        goal=goal,
        goal_on="ratio",
    )


def main() -> None:
    """Run, read what the run recorded, and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few steps; nothing is written")
    is_quick = parser.parse_args().quick
    prepare_devices()  # before the platform is asked for
    platform = measured_platform()
    turns = QUICK_TURNS if is_quick else TURNS[platform]
    with tempfile.TemporaryDirectory() as prefix, _with_turns(turns) as hooks:
        rows = rows_of_run(measured_launch(platform, turns), prefix)
    record("loop", figures_of(rows, hooks[-1], platform), is_quick=is_quick)


if __name__ == "__main__":
    main()
