"""What every checkpoint of a run says about the run."""

import os
import re
from dataclasses import replace
from typing import Any

from jax.sharding import Mesh

from chomp.checkpoint import CheckpointMetadata
from chomp.config import config_hash, config_to_mapping
from chomp.data import TrainLoader
from chomp.executor.status import read_info
from chomp.storage import is_local
from chomp.storage.secrets import without_secrets
from chomp.tokenize import Tokenizer
from chomp.training.environment import environment
from chomp.training.run_folder import RunFolder


def checkpoint_metadata(
    config: Any, folder: RunFolder, *, loader: TrainLoader, tokenizer: Tokenizer, mesh: Mesh
) -> CheckpointMetadata:
    """The metadata of a run's checkpoints before its first step; a save fills in where it is.

    `config` is the template's run config: a config class with a `run_id`.
    """
    config = _without_prefix(config, folder.path)
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


def _without_prefix(config: Any, folder: str) -> Any:
    """The config with `train.initialize_from` relative to the output prefix that it lies in.

    Outputs may be moved to another prefix as a whole: that makes no run another one.
    """
    source, info = config.trainer.initialize_from, read_info(folder)
    if source is None or info is None or not is_local(source):
        return config
    named = re.fullmatch(rf"(.*)/{re.escape(info.name)}-[0-9a-f]{{12}}", os.path.abspath(folder))
    place = os.path.abspath(source)
    if named is None or not place.startswith(f"{named[1]}/"):
        return config
    inside = f"<prefix>{place.removeprefix(named[1])}"
    return replace(config, trainer=replace(config.trainer, initialize_from=inside))
