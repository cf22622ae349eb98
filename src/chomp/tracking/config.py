"""What a run shows and where it sends its metrics. Nothing here changes what is trained."""

from dataclasses import dataclass, field
from typing import Literal

from chomp.config import Config
from chomp.errors import require

Level = Literal["DEBUG", "INFO", "WARNING", "ERROR"]


@dataclass(frozen=True, kw_only=True)
class WandbConfig(Config):
    """Weights & Biases, a copy of the record for the browser. Its files go to ./wandb or WANDB_DIR.

    `enabled` null: when WANDB_API_KEY is set. `mode` null: WANDB_MODE, or online.
    """

    enabled: bool | None = None
    project: str | None = None  # null: that of `logging.project`
    entity: str | None = None  # null: the account's own
    run_name: str | None = None  # null: the run's id
    mode: Literal["online", "offline", "disabled"] | None = None
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("project", "entity", "run_name"):
            _require_text(f"logging.wandb.{name}", getattr(self, name))
        for tag in self.tags:
            _require_text("logging.wandb.tags", tag)


@dataclass(frozen=True, kw_only=True)
class TensorBoardConfig(Config):
    """TensorBoard event files, one folder for each attempt under `folder` in the run folder."""

    enabled: bool = False
    folder: str = "tensorboard"

    def __post_init__(self) -> None:
        _require_inside("logging.tensorboard.folder", self.folder)


@dataclass(frozen=True, kw_only=True)
class LoggingConfig(Config):
    """What a run shows and keeps while it runs. Files lie in the run folder."""

    project: str = "chomp"
    console: bool = True  # false: neither bar nor lines
    console_use_rich: bool = True  # false: lines, on a terminal too
    level: Level = "INFO"  # of the log file; the terminal shows warnings
    log_file: str | None = "train.log"  # null: no log file
    metrics_file: str = "metrics.jsonl"
    wandb: WandbConfig = field(default_factory=WandbConfig)
    tensorboard: TensorBoardConfig = field(default_factory=TensorBoardConfig)

    def __post_init__(self) -> None:
        _require_text("logging.project", self.project)
        _require_inside("logging.metrics_file", self.metrics_file)
        if self.log_file is not None:
            _require_inside("logging.log_file", self.log_file)
        require(
            self.log_file != self.metrics_file,
            given=f"logging.log_file and logging.metrics_file both {self.metrics_file}",
            allowed="two files",
            fix="rename one of them",
        )


def _require_text(name: str, value: str | None) -> None:
    require(
        value is None or bool(value.strip()),
        given=f"{name}={value!r}",
        allowed="a text that is not blank",
        fix=f"give {name} a name, or leave it out",
    )


def _require_inside(name: str, value: str) -> None:
    """Refuse a path that leaves the run folder: what a run wrote must move and go with it."""
    parts = value.split("/")
    require(
        bool(value.strip()) and not any(part in ("", ".", "..") for part in parts),
        given=f"{name}={value!r}",
        allowed="a path inside the run folder",
        fix=f"set {name} to a plain name",
    )
