"""The sinks a config asks for, each on its own thread, ready to be handed the rows of a run."""

import importlib.util
import logging
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chomp.errors import ConfigError
from chomp.storage.files import require_links_inside
from chomp.storage.secrets import redacted, without_secrets
from chomp.tracking.background import BackgroundSink
from chomp.tracking.config import LoggingConfig, WandbConfig
from chomp.tracking.protocol import Tracker
from chomp.tracking.tensorboard_sink import TensorBoardSink
from chomp.tracking.wandb_process import WandbProcess
from chomp.tracking.wandb_sink import WandbStart

_logger = logging.getLogger(__name__)

# What each extra of the package installs.
_MODULES = {"wandb": "wandb", "tensorboard": "tensorboardX"}


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What sinks are told about a run besides its rows."""

    folder: str
    name: str
    attempt: int
    config: Mapping[str, Any]
    wandb_id: str | None = None  # None: not at W&B
    rows_before: int = 0  # that W&B was given by earlier attempts

    def wandb_start(self, config: LoggingConfig) -> WandbStart:
        """How the W&B run of this run begins; without secrets."""
        wandb = config.wandb
        return WandbStart(
            run_id=self.wandb_id or new_wandb_id(self.name),
            name=redacted(wandb.run_name or self.name),
            project=redacted(wandb.project or config.project),
            entity=None if wandb.entity is None else redacted(wandb.entity),
            mode=wandb.mode,
            tags=[redacted(tag) for tag in wandb.tags],
            config=without_secrets(dict(self.config)),
            attempt=self.attempt,
            process_id=os.getpid(),
            rows_before=self.rows_before,
        )


def wants_wandb(config: WandbConfig) -> bool:
    """Whether rows go to W&B. Raises `ConfigError` where it is asked for and not installed."""
    if config.mode == "disabled" or config.enabled is False:
        return False
    if config.enabled is None and not os.environ.get("WANDB_API_KEY"):
        return False
    if is_installed("wandb"):
        return True
    if config.enabled is None:
        _logger.warning(
            "WANDB_API_KEY is set, but wandb is not installed: nothing is sent to W&B. Install it "
            "with pip install 'chomp[wandb]', or set logging.wandb.enabled=false"
        )
        return False
    raise missing("wandb", "logging.wandb.enabled=true")


def require_installed(config: LoggingConfig) -> None:
    """Raise `ConfigError` for a sink that is asked for and not installed, before a run begins."""
    wants_wandb(config.wandb)
    if config.tensorboard.enabled and not is_installed("tensorboard"):
        raise missing("tensorboard", "logging.tensorboard.enabled=true")


def open_sinks(
    config: LoggingConfig, run: RunFacts, *, on_address: Callable[[str | None], None]
) -> list[Tracker]:
    """The remote sinks of a run: W&B where it has an id there, TensorBoard where it is enabled.

    `on_address` is called, from another thread, once W&B says where the run is shown.
    """
    sinks: list[Tracker] = []
    if run.wandb_id is not None:
        start = run.wandb_start(config)
        sinks.append(
            BackgroundSink(
                lambda: WandbProcess(start, on_open=on_address),
                title="W&B",
                remedy=f"chomp metrics replay {run.folder} --to wandb",
            )
        )
    if config.tensorboard.enabled:
        require_links_inside(run.folder, [config.tensorboard.folder])
        folder = Path(run.folder) / config.tensorboard.folder
        sinks.append(
            BackgroundSink(
                lambda: TensorBoardSink(folder, attempt=run.attempt),
                title="TensorBoard",
                remedy=f"chomp metrics replay {run.folder} --to tensorboard",
            )
        )
    return sinks


def new_wandb_id(name: str) -> str:
    """A key for a run at W&B that no other has, and that begins with its name."""
    readable = "".join(c if c.isalnum() or c in "-_" else "-" for c in name)
    return f"{readable[:48]}-{secrets.token_hex(4)}"


def is_installed(extra: str) -> bool:
    """Whether the package that an extra of chomp installs is there; it is not imported."""
    spec = importlib.util.find_spec(_MODULES[extra])
    # W&B's own files lie in ./wandb, which Python takes for a package without a file.
    return spec is not None and spec.origin is not None


def missing(extra: str, asked_by: str) -> ConfigError:
    """What to raise where a package is asked for that is not installed."""
    return ConfigError(
        f"{asked_by}, but {_MODULES[extra]} is not installed",
        allowed=f"an environment with chomp's extra {extra!r}",
        fix=f"pip install 'chomp[{extra}]', or uv run --extra {extra}",
    )
