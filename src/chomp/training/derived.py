"""What follows from a run's config and is easier to read than to work out."""

from collections.abc import Mapping
from typing import Any

from chomp.data import BatchSchedule
from chomp.data.store.token_store import read_manifest


def derived_values(config: Any) -> dict[str, Any]:
    """Plain values for `config_resolved.json`, under the sections they belong to.

    `config` is a template's run config, whose stores are built.
    """
    trainer = config.trainer
    schedule = config.optimizer.schedule(trainer.steps)
    batches = BatchSchedule(trainer.batch_size, trainer.grad_accum)
    return {
        "optim": {
            "warmup_steps_effective": schedule.warmup_steps,
            "decay_steps_effective": schedule.decay_steps,
        },
        "train": {
            "data_seed_effective": trainer.seed if trainer.data_seed is None else trainer.data_seed,
            "total_tokens": batches.examples_before(trainer.steps) * trainer.seq_len,
            "flops_per_token": config.model.flops_per_token(trainer.seq_len),
        },
        # A path may hold other data by the time somebody evaluates the run once more.
        "data": {"held_out_hashes": _held_out_hashes(config.data.components)},
    }


def _held_out_hashes(components: Mapping[str, Any]) -> dict[str, str]:
    """The content of the held-out stores, by component; one that has none is left out."""
    stores = {name: part.validation_store for name, part in sorted(components.items())}
    return {
        name: read_manifest(path).fingerprint() for name, path in stores.items() if path is not None
    }
