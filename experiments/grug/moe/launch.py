"""A run of experts: what to train, on what, for how long. Start here.

    uv run experiments/grug/moe/launch.py            train (or say where the result is)
    uv run experiments/grug/moe/launch.py --plan     show the steps, run nothing
    uv run experiments/grug/moe/launch.py --dry-run  and what the run would take
    uv run experiments/grug/moe/launch.py -o train.steps=200 -o optim.lr=1e-3

Three kinds of step: a tokenizer, one token store per component and split, the training run.
"""

from __future__ import annotations  # a launch config may hold markers until the executor runs it

from dataclasses import dataclass, field, replace

from chomp import training
from chomp.checkpoint import CheckpointConfig
from chomp.config import setting
from chomp.data import (
    EmbeddedSource,
    LmComponentConfig,
    LmDataConfig,
    TokenizerConfig,
    with_data_steps,
)
from chomp.executor import ExecutorStep, Resources, this_output_path, versioned
from chomp.launch import executor_main
from chomp.optim import AdamConfig, GrugOptimizerConfig
from chomp.report.run_table import print_run_table
from experiments.grug.moe.model import GrugModelConfig
from experiments.grug.moe.train import (
    GrugRunConfig,
    GrugTrainerConfig,
    fresh_state,
    run_grug,
    train_step_of,
)

VARIANT = "moe"
VOCAB_SIZE = 2048  # of a tokenizer that is trained on the data, in seconds


def embedded_mixture() -> LmDataConfig:
    """Python's own standard library: its source, and what people wrote about it."""
    return LmDataConfig(
        tokenizer=TokenizerConfig(kind="bpe", vocab_size=VOCAB_SIZE),
        components={
            "code": LmComponentConfig(source=EmbeddedSource(part="code"), weight=0.6),
            "prose": LmComponentConfig(source=EmbeddedSource(part="prose"), weight=0.4),
        },
    )


@dataclass(frozen=True, kw_only=True)
class GrugMoeLaunchConfig(GrugRunConfig):
    """The knobs of a run; the defaults train on two CPU cores in a few minutes."""

    run_id: str = field(default_factory=lambda: training.default_run_id(VARIANT))
    model: GrugModelConfig = field(
        default_factory=lambda: GrugModelConfig(
            vocab_size=VOCAB_SIZE,
            hidden_dim=128,
            num_experts=8,
            experts_per_token=2,
            expert_dim=192,
            shared_dim=128,
            num_layers=4,
            num_heads=4,
            num_kv_heads=4,
            max_seq_len=512,  # rows of training are shorter; a recipe may lengthen them
        )
    )
    data: LmDataConfig = field(default_factory=embedded_mixture)
    optimizer: GrugOptimizerConfig = setting(
        default_factory=lambda: GrugOptimizerConfig(
            # 5e-3 ends equal on one Python's library and 0.3 nats worse on another's; a warmup of
            # 20 costs 0.1.
            lr=3e-3,
            weight_decay=0.1,
            warmup_steps=40,
            min_lr_ratio=0.05,
            adam=AdamConfig(b2=0.95),  # 0.999 would average over more steps than the run has
        ),
        aliases=("optim",),
    )
    trainer: GrugTrainerConfig = setting(
        default_factory=lambda: GrugTrainerConfig(
            # At as many tokens, 16 rows a step ended 0.17 nats below 32.
            steps=320,
            batch_size=16,
            seq_len=128,
            z_loss_weight=1e-4,  # PaLM's (arXiv 2204.02311)
            log_every=10,
        ),
        aliases=("train",),
    )
    # A save takes a fraction of a second here, so a kill costs at most these seconds.
    checkpoint: CheckpointConfig = setting(
        default_factory=lambda: CheckpointConfig(save_interval_s=15.0), mark="cosmetic"
    )
    resources: Resources = setting(default_factory=Resources, mark="cosmetic")
    output_path: str = ""  # filled in by the executor

    def __post_init__(self) -> None:
        """Check nothing yet: sections may be the executor's markers. `run_config` checks them."""


def run_config(launch: GrugMoeLaunchConfig) -> GrugRunConfig:
    """The config of the training run: all of the launch config but its resources."""
    return training.run_config(GrugRunConfig, launch)


def train_moe(launch: GrugMoeLaunchConfig) -> None:
    """The executor's entry point: the config arrives with every path filled in."""
    run_grug(run_config(launch))


def check(launch: GrugMoeLaunchConfig, is_here: bool = True) -> None:
    """Raise what would end the run later; the executor asks before it builds any data."""
    training.check_run(run_config(launch), fresh_state, train_step_of, is_here=is_here)


def dry_run(launch: GrugMoeLaunchConfig, is_data_ready: bool = False) -> None:
    """Show what the run would take, and compile its step; nothing is made."""
    training.dry_run(run_config(launch), fresh_state, train_step_of, is_data_ready=is_data_ready)


def steps(launch: GrugMoeLaunchConfig) -> list[ExecutorStep]:
    """All steps of the run. `versioned` marks what would make it another run."""
    training.require_no_output_path(launch)
    run_config(launch)  # a bad config is refused here, before anything is built
    config = replace(
        launch,
        model=versioned(launch.model),
        data=versioned(with_data_steps(launch.data)),
        optimizer=versioned(launch.optimizer),
        trainer=versioned(launch.trainer),
        mesh=versioned(launch.mesh),
        output_path=this_output_path(),
    )
    return [
        ExecutorStep(
            name=f"grug/{launch.run_id}",
            description="train the model",
            fn=train_moe,
            config=config,
            resources=launch.resources,
            check=check,
        )
    ]


if __name__ == "__main__":
    executor_main(
        steps,
        GrugMoeLaunchConfig(),
        description="Train a mixture of experts on Python's standard library.",
        report=print_run_table,
        dry_run=dry_run,
    )
