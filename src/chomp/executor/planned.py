"""A step of a plan: where its output is, what it was given, and what is to be done about it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from chomp.executor.identity import Identity
from chomp.executor.status import StepStatus
from chomp.executor.step import ExecutorStep

Action = Literal["run", "skip", "wait"]


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """One step with its place on disk and what is to be done about it."""

    step: ExecutorStep
    identity: Identity
    path: str
    config: Any  # the step's config with every marker replaced
    plain_config: Any  # the same as plain data, with the names of classes
    dependencies: tuple[str, ...]  # output folders
    sources: Mapping[str, str]  # the template's files when the plan was made, as SHA-256
    action: Action
    reason: str
    is_forced: bool
    found: StepStatus | None  # what the folder said when the plan was made
    # What differs from the recorded run although the identity is the same.
    differences: tuple[str, ...]
    # The identity of the run in the folder, if that is another and is to be gone on with as this.
    continues: str | None = None

    @property
    def title(self) -> str:
        """Name and hash, as in the output path."""
        return f"{self.step.name}-{self.identity.hash}"
