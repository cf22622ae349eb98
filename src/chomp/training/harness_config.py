"""Which lm-eval tasks a run is asked, when, and how. Needs no lm-eval itself."""

from dataclasses import dataclass

from chomp.config import Config, setting
from chomp.errors import require


@dataclass(frozen=True, kw_only=True)
class HarnessConfig(Config):
    """lm-eval tasks that are run at the end of a run, and every `every` steps."""

    tasks: tuple[str, ...]
    every: int | None = setting(default=None, ge=1, lt=2**31)
    include_path: str | None = None  # a folder of task files (YAML)
    include_defaults: bool = False  # lm-eval's own tasks too, whose data is mostly on a hub
    # Examples in each prompt; None: as each task says.
    num_fewshot: int | None = setting(default=None, ge=0, le=1000)
    limit: int | None = setting(default=None, ge=1, lt=2**31)  # documents of each task; None: all
    # Rows of packed requests, each of `max_length` tokens.
    batch_size: int = setting(default=32, ge=1, le=2**20)
    # None: train.seq_len, which is what the model has learnt.
    max_length: int | None = setting(default=None, ge=1, le=2**20)
    allow_code: bool = False  # tasks may bring Python, or run a model's answers as programs

    def __post_init__(self) -> None:
        require(
            len(self.tasks) > 0,
            f"harness.tasks={list(self.tasks)}",
            allowed="at least one task",
            fix="name a task, or set eval.harness=null for none",
        )
        require(
            self.include_path is not None or self.include_defaults,
            f"harness.tasks={list(self.tasks)} and no folder of tasks",
            allowed="a folder of task files, or lm-eval's own tasks",
            fix="set harness.include_path, or harness.include_defaults=true",
        )
