"""Which lm-eval tasks a run is asked, when, and how. Needs no lm-eval itself."""

from dataclasses import dataclass

from chomp.config import Config
from chomp.errors import require, require_positive


@dataclass(frozen=True, kw_only=True)
class HarnessConfig(Config):
    """lm-eval tasks that are run at the end of a run, and every `every` steps."""

    tasks: tuple[str, ...]
    every: int | None = None
    include_path: str | None = None  # a folder of task files (YAML)
    include_defaults: bool = False  # lm-eval's own tasks too, whose data is mostly on a hub
    num_fewshot: int | None = None  # examples in each prompt; None: as each task says
    limit: int | None = None  # documents of each task; None: all
    batch_size: int = 32  # rows of packed requests, each of `max_length` tokens
    max_length: int | None = None  # None: train.seq_len, which is what the model has learnt
    allow_code: bool = False  # tasks may bring Python, or run a model's answers as programs

    def __post_init__(self) -> None:
        require_positive(self, "every", "limit", "batch_size", "max_length")
        require(
            len(self.tasks) > 0 and (self.num_fewshot or 0) >= 0,
            f"harness.tasks={list(self.tasks)} with num_fewshot={self.num_fewshot}",
            allowed="at least one task, and 0 or more examples",
            fix="name a task, or set eval.harness=null for none",
        )
        require(
            self.include_path is not None or self.include_defaults,
            f"harness.tasks={list(self.tasks)} and no folder of tasks",
            allowed="a folder of task files, or lm-eval's own tasks",
            fix="set harness.include_path, or harness.include_defaults=true",
        )
