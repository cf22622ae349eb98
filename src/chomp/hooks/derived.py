"""What follows from a run's config and is easier to read than to work out."""

from typing import Any

from chomp.data import BatchSchedule


def derived_values(config: Any) -> dict[str, Any]:
    """Plain values for `config_resolved.json`, under the sections they belong to.

    `config` is a template's run config.
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
    }
