"""A launch file with nothing to train, and texts small enough to know by heart."""

import json
from pathlib import Path

# As in templates: a class *LaunchConfig, and steps, whose last config has data and trainer.
LAUNCH_FILE = """
from __future__ import annotations

from dataclasses import dataclass, field, replace

from chomp.config import Config, setting
from chomp.data import LmComponentConfig, LmDataConfig, TextSource, JsonlSource, TokenizerConfig
from chomp.data import with_data_steps
from chomp.executor import ExecutorStep, this_output_path, versioned


@dataclass(frozen=True, kw_only=True)
class Trainer(Config):
    steps: int = 40
    batch_size: int | tuple[tuple[int, int], ...] = ((0, 3), (10, 5))
    seq_len: int = 16
    grad_accum: int = 2
    seed: int = 4
    data_seed: int | None = None


def small_data() -> LmDataConfig:
    return LmDataConfig(
        tokenizer=TokenizerConfig(kind="byte"),
        components={
            "poems": LmComponentConfig(source=TextSource(paths=("poems/*.txt",)), weight=0.6),
            "notes": LmComponentConfig(source=JsonlSource(paths=("notes.jsonl",)), weight=0.4),
        },
        validation_fraction=0.2,
    )


@dataclass(frozen=True, kw_only=True)
class SmallLaunchConfig(Config):
    data: LmDataConfig = field(default_factory=small_data)
    trainer: Trainer = setting(default_factory=Trainer, aliases=("train",))
    output_path: str = ""


def train(config):
    raise AssertionError("nothing here trains")


def steps(launch):
    config = replace(
        launch, data=versioned(with_data_steps(launch.data)), output_path=this_output_path()
    )
    return [ExecutorStep(name="small", fn=train, config=config)]
"""


def write_sources(folder: Path) -> None:
    """Twenty poems, each a file, and thirty notes in one file."""
    (folder / "poems").mkdir()
    for i in range(20):
        text = f"poem {i}\n" + "roses are red\n" * (i % 5 + 1)
        (folder / "poems" / f"{i:02}.txt").write_text(text)
    notes = [{"text": f"note {i}: " + "buy milk, " * (i % 3)} for i in range(30)]
    (folder / "notes.jsonl").write_text("".join(json.dumps(note) + "\n" for note in notes))


def store_folder(folder: Path, component: str, split: str) -> Path:
    """The one store of that component and split."""
    [path] = (folder / "outputs" / "tokens").glob(f"{component}-{split}-*")
    return path
