"""What every checkpoint of a run says about the run."""

from typing import Any

from jax.sharding import Mesh

from chomp.checkpoint import CheckpointMetadata
from chomp.config import config_hash, config_to_mapping
from chomp.data import TrainLoader
from chomp.hooks.environment import environment
from chomp.hooks.run_folder import RunFolder
from chomp.storage.secrets import without_secrets
from chomp.tokenize import Tokenizer


def checkpoint_metadata(
    config: Any, folder: RunFolder, *, loader: TrainLoader, tokenizer: Tokenizer, mesh: Mesh
) -> CheckpointMetadata:
    """The metadata of a run's checkpoints before its first step; a save fills in where it is.

    `config` is the template's run config: a config class with a `run_id`.
    """
    return CheckpointMetadata(
        step=0,
        run_id=config.run_id,
        attempt=folder.attempt,
        config_hash=config_hash(config),
        config=without_secrets(config_to_mapping(config)),
        data_fingerprint=loader.dataset.fingerprint(),
        data_offset=0,
        tokens_seen=0,
        tokenizer_hash=tokenizer.content_hash,
        mesh=dict(mesh.shape),
        environment=environment(),
    )
