"""A run small enough for a test and real in every part: text files, stores, training, resume."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from chomp.checkpoint import CheckpointConfig
from chomp.data import (
    LmComponentConfig,
    LmDataConfig,
    StoreBuildConfig,
    TextSource,
    TokenizerBuildConfig,
    TokenizerConfig,
    build_store,
    build_tokenizer,
    source_fingerprint,
)
from chomp.optim import AdamConfig, GrugOptimizerConfig
from chomp.tracking import LoggingConfig
from chomp.training import SamplesConfig
from experiments.grug.base.model import GrugModelConfig
from experiments.grug.base.train import GrugEvalConfig, GrugRunConfig, GrugTrainerConfig

VALIDATION_FRACTION = 0.2


def write_texts(folder: Path) -> None:
    """Two small bodies of text that are the same everywhere: sums and rhymes of numbers."""
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    for i in range(40):
        sums = [f"{a} + {b} = {a + b}\n" for a in range(i, i + 12) for b in range(12)]
        (folder / f"sums-{i:02}.txt").write_text("".join(sums))
        lines = [
            f"After {words[(i + j) % 10]} comes {words[(i + j + 1) % 10]}.\n" for j in range(60)
        ]
        (folder / f"words-{i:02}.txt").write_text("".join(lines))


def build_data(folder: Path) -> LmDataConfig:
    """The stores of both bodies of text, with the byte tokenizer."""
    write_texts(folder)
    sources = {
        name: TextSource(paths=(str(folder / f"{name}-*.txt"),)) for name in ("sums", "words")
    }
    tokenizer_path = str(folder / "tokenizer")
    build_tokenizer(
        TokenizerBuildConfig(
            output_path=tokenizer_path,
            tokenizer=TokenizerConfig(kind="byte"),
        )
    )
    for name, source in sources.items():
        for split in ("train", "validation"):
            build_store(
                StoreBuildConfig(
                    output_path=str(folder / f"{name}-{split}"),
                    name=name,
                    source=source,
                    source_fingerprint=source_fingerprint(source),
                    split=split,
                    validation_fraction=VALIDATION_FRACTION,
                    tokenizer_path=tokenizer_path,
                )
            )
    return LmDataConfig(
        tokenizer=TokenizerConfig(kind="byte", path=tokenizer_path),
        components={
            name: LmComponentConfig(
                source=source,
                weight=weight,
                tags=(f"text/{name}",),
                train_store=str(folder / f"{name}-train"),
                validation_store=str(folder / f"{name}-validation"),
            )
            for (name, source), weight in zip(sources.items(), (0.75, 0.25), strict=True)
        },
        validation_fraction=VALIDATION_FRACTION,
    )


def run_config(data: LmDataConfig, output: Path, **trainer: Any) -> GrugRunConfig:
    """A run of 12 steps of the smallest model; `trainer` changes its training."""
    settings = GrugTrainerConfig(steps=12, batch_size=8, seq_len=64, z_loss_weight=1e-4)
    return GrugRunConfig(
        model=GrugModelConfig(
            vocab_size=257,
            hidden_dim=32,
            intermediate_dim=64,
            num_layers=1,  # the compiler takes most of a small run's time, and takes it by layer
            num_heads=2,
            num_kv_heads=1,
            max_seq_len=64,
        ),
        data=data,
        optimizer=GrugOptimizerConfig(lr=1e-2, warmup_steps=2, adam=AdamConfig(b2=0.95)),
        trainer=replace(settings, **trainer),
        eval=GrugEvalConfig(max_eval_batches=2, eval_batch_size=8),
        samples=SamplesConfig(max_tokens=0),
        checkpoint=CheckpointConfig(save_interval_s=None),
        logging=LoggingConfig(console=False),
        run_id="tiny",
        output_path=str(output),
    )


def losses(run_folder: Path) -> dict[int, float]:
    """Training loss of every step, the newest attempt's where there are several."""
    found: dict[int, float] = {}
    for line in (run_folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if "train/loss" in row:
            found[row["step"]] = row["train/loss"]
    return found


def receipt(run_folder: Path, step: int) -> dict[str, str]:
    """Hash of every leaf of the state saved at `step`."""
    metadata = json.loads((run_folder / f"checkpoints/step-{step}/metadata.json").read_text())
    hashes: dict[str, str] = metadata["receipt"]
    return hashes
