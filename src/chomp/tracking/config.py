"""What a run shows and where it sends its metrics. Nothing here changes what is trained."""

from dataclasses import dataclass, field
from typing import Literal

from chomp.config import Config, setting
from chomp.errors import require
from chomp.tracking.run_files import (
    ARTIFACTS,
    CHECKPOINTS,
    METRICS_FILE,
    ORIGINAL_CONFIG,
    PROFILER,
    REPORT,
    RESOLVED_CONFIG,
    SAMPLES,
    TEMPLATE,
    TOKENIZER,
)

# What a run folder holds beside the files that are named here.
_TAKEN = (
    *(RESOLVED_CONFIG, ORIGINAL_CONFIG, METRICS_FILE, SAMPLES, ARTIFACTS, PROFILER, TEMPLATE),
    *(TOKENIZER, REPORT, "train.log", "tensorboard", CHECKPOINTS),
)

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


@dataclass(frozen=True, kw_only=True)
class TensorBoardConfig(Config):
    """TensorBoard event files, one folder for each attempt under `folder` in the run folder."""

    enabled: bool = False
    folder: str = "tensorboard"

    def __post_init__(self) -> None:
        _require_own("logging.tensorboard.folder", self.folder, "tensorboard")


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
    # The config file as somebody wrote it, for the run folder. `chomp train` fills it in.
    original_config: str | None = setting(default=None, mark="cosmetic", is_versioned=False)

    def __post_init__(self) -> None:
        require(
            bool(self.project.strip()),
            f"logging.project={self.project!r}",
            allowed="a name that is not blank",
            fix="remove it, or name the project",
        )
        _require_own("logging.metrics_file", self.metrics_file, METRICS_FILE)
        if self.log_file is not None:
            _require_own("logging.log_file", self.log_file, "train.log")
        both = [self.metrics_file, *filter(None, [self.log_file])]
        places = [f"{place}/" for place in (*both, self.tensorboard.folder)]
        require(
            not any(a != b and b.startswith(a) for a in places for b in places)
            and len(set(places)) == len(places),
            f"logging.metrics_file={self.metrics_file}, logging.log_file={self.log_file} and "
            f"logging.tensorboard.folder={self.tensorboard.folder}",
            allowed="three different paths, none inside another",
            fix="rename one of them",
        )


def _require_own(name: str, value: str, usual: str) -> None:
    """Refuse a path that leaves the run folder, or that is taken there for something else.

    What a run writes must move and go with it.
    """
    parts = value.split("/")
    require(
        bool(value.strip())
        and not any(part in ("", ".", "..") for part in parts)
        and (value == usual or not (parts[0] in _TAKEN or parts[0].startswith("."))),
        f"{name}={value!r}",
        allowed=f"a path inside the run folder, other than {', '.join(_TAKEN)}",
        fix=f"set {name} to a plain name, such as {usual}",
    )
