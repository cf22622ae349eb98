"""A launch file whose run can be continued though its schedule has changed; it trains nothing."""

LAUNCH_FILE = """
from __future__ import annotations

from dataclasses import dataclass, field, replace

from chomp.config import Config, setting
from chomp.executor import ExecutorStep, this_output_path, versioned
from chomp.launch import executor_main


@dataclass(frozen=True, kw_only=True)
class Optimizer(Config):
    lr: float = setting(default=0.1, mark="schedule")


@dataclass(frozen=True, kw_only=True)
class Trainer(Config):
    steps: int = setting(default=100, mark="schedule")
    batch_size: tuple[tuple[int, int], ...] = setting(default=((0, 8),), mark="schedule")
    allow_changes: tuple[str, ...] = setting(default=(), mark="cosmetic", is_versioned=False)
    load_checkpoint: bool | None = setting(default=None, mark="cosmetic", is_versioned=False)
    initialize_from: str | None = None
    max_steps: int | None = setting(default=None, mark="cosmetic", is_versioned=False)


@dataclass(frozen=True, kw_only=True)
class TinyLaunchConfig(Config):
    width: int = 8
    optimizer: Optimizer = setting(default_factory=Optimizer, aliases=("optim",))
    trainer: Trainer = setting(default_factory=Trainer, aliases=("train",))
    output_path: str = ""


def train(config):
    told = f"{config.trainer.steps} steps, allowed {','.join(config.trainer.allow_changes)}\\n"
    with open(config.output_path + "/runs", "a") as file:
        file.write(told)


def steps(launch):
    config = replace(
        launch,
        width=versioned(launch.width),
        optimizer=versioned(launch.optimizer),
        trainer=versioned(launch.trainer),
        output_path=this_output_path(),
    )
    return [ExecutorStep(name="grug/tiny", fn=train, config=config)]


if __name__ == "__main__":
    executor_main(steps, TinyLaunchConfig())
"""
