"""What checkpoints, records and files of results say about a run: environment, config, data."""

import os
import platform
import re
import time
from contextlib import suppress
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

import chomp
from chomp.checkpoint import CheckpointMetadata
from chomp.config import config_hash, config_to_mapping
from chomp.data import BatchSchedule, TrainLoader
from chomp.data.store.token_store import read_manifest
from chomp.errors import ConfigError
from chomp.executor.status import read_info
from chomp.kernels.precision import Precision
from chomp.storage import is_local
from chomp.storage.secrets import without_secrets
from chomp.tokenize import Tokenizer
from chomp.tracking import metrics
from chomp.variants.checkout import checkout_root, described_head

_LIBRARIES = ("jax", "jaxlib", "numpy", "optax", "equinox", "orbax-checkpoint")


def environment() -> dict[str, Any]:
    """Versions, and the core and device counts on which results depend bit for bit."""
    # The cores that this process may use, where the system can tell (Linux).
    has_affinity = hasattr(os, "sched_getaffinity")
    return {
        "python": platform.python_version(),
        "chomp": chomp.__version__,  # not from an install: a checkout on the path has none
        **{name: version(name) for name in _LIBRARIES},
        "cores": len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1,
        "devices": jax.device_count(),
        "device_kind": jax.devices()[0].device_kind,
        "processes": jax.process_count(),
    }


def environment_summary() -> dict[str, Any]:
    """The environment of an attempt as values of its record, with the commit of the checkout."""
    values = environment()
    with suppress(ConfigError):  # an installed library has no checkout
        values["commit"] = described_head(checkout_root(Path(chomp.__file__).parent))
    return {
        metrics.name_from(metrics.ENVIRONMENT, name): value
        for name, value in values.items()
        if value is not None
    }


def result_header(
    step: int, weights: str, *, tokenizer: Tokenizer, mesh: Mesh, mp: Precision
) -> dict[str, Any]:
    """What every file of results begins with: which weights, and what computed the results.

    `step` counts completed steps; `weights` is `params`, `ema` or `both`. The loop and the commands
    write it alike.
    """
    return {
        "step": step,
        "weights": weights,
        "tokenizer_hash": tokenizer.content_hash,
        "precision": asdict(mp),  # bfloat16 gives other digits than float32
        "mesh": dict(mesh.shape),  # sums over more devices round differently, in the last digits
        "time": time.time(),
        "versions": environment(),
    }


def checkpoint_metadata(
    config: Any,
    folder: str,
    *,
    attempt: int,
    loader: TrainLoader,
    tokenizer: Tokenizer,
    mesh: Mesh,
) -> CheckpointMetadata:
    """The metadata of a run's checkpoints before its first step; a save fills in where it is."""
    config = _without_prefix(config, folder)
    return CheckpointMetadata(
        step=0,
        run_id=config.run_id,
        attempt=attempt,
        config_hash=config_hash(config),
        config=without_secrets(config_to_mapping(config)),
        data_fingerprint=loader.dataset.fingerprint(),
        data_offset=0,
        tokens_seen=0,
        tokenizer_hash=tokenizer.content_hash,
        mesh=dict(mesh.shape),
        environment=environment(),
    )


def derived_values(config: Any) -> dict[str, Any]:
    """What follows from a run's config, for `config_resolved.json`, by section.

    The stores of the config must be built.
    """
    trainer = config.trainer
    schedule = config.optimizer.schedule(trainer.steps)
    batches = BatchSchedule(trainer.batch_size, trainer.grad_accum)
    stores = {name: part.validation_store for name, part in sorted(config.data.components.items())}
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
        # A path may hold other data by the time somebody evaluates the run again.
        "data": {
            "held_out_hashes": {
                name: read_manifest(path).fingerprint()
                for name, path in stores.items()
                if path is not None
            }
        },
    }


def _without_prefix(config: Any, folder: str) -> Any:
    """The config with `train.initialize_from` relative to the output prefix that it lies in.

    Moving all outputs to another prefix makes no run another one.
    """
    source, info = config.trainer.initialize_from, read_info(folder)
    if source is None or info is None or not is_local(source):
        return config
    prefix = re.fullmatch(rf"(.*)/{re.escape(info.name)}-[0-9a-f]{{12}}", os.path.abspath(folder))
    path = os.path.abspath(source)
    if prefix is None or not path.startswith(f"{prefix[1]}/"):
        return config
    inside = f"<prefix>{path.removeprefix(prefix[1])}"
    return replace(config, trainer=replace(config.trainer, initialize_from=inside))
