"""What a run trains on and in which order, out of any CONFIG.

A run folder is read, never run: of its config only the data and the few settings of the trainer
that decide which rows a step takes. A launch file or a YAML file is planned, which reads only.
"""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from chomp.cli.given_config import GivenConfig
from chomp.cli.launch_files import launch_steps
from chomp.cli.terminal import say
from chomp.errors import ConfigError, message

if TYPE_CHECKING:  # for annotations alone
    from chomp.data import BatchSchedule, LmDataConfig, TrainDataset
    from chomp.executor import ExecutorStep


@dataclass(frozen=True, kw_only=True)
class TrainerFacts:
    """The settings of a trainer that decide which rows a step takes."""

    steps: int
    batch_size: int | tuple[tuple[int, int], ...]
    seq_len: int
    grad_accum: int = 1
    seed: int = 0
    data_seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class RunData:
    """What a run trains on, with the paths of stores and tokenizer filled in."""

    given: GivenConfig
    data: LmDataConfig
    seq_len: int
    batches: BatchSchedule
    total_steps: int
    seed: int
    completed_steps: int | None = None  # of a run folder; None: nothing has been run

    def dataset(self, *, must_last: bool = False) -> TrainDataset:
        """The examples of the run; with `must_last`, refuses data that does not last for it."""
        from chomp.data import build_train_dataset

        return build_train_dataset(
            self.data,
            self.data.tokenizer.load(),
            seq_len=self.seq_len,
            seed=self.seed,
            batches=self.batches,
            total_steps=self.total_steps if must_last else None,
        )


def run_data(given: GivenConfig) -> RunData:
    """The data of a CONFIG, whether it is built or not."""
    match given.kind():
        case "token store":
            raise ConfigError(
                message(
                    given=f"{given.path}, a token store",
                    allowed="a YAML file, a launch file or a run folder",
                    fix="pass the config of a run; verify and inspect take stores as well",
                )
            )
        case "run folder":
            return _data_of_run_folder(given)
        case _:
            return data_of_steps(given, launch_steps(given))


def data_of_steps(given: GivenConfig, steps: Iterable[ExecutorStep]) -> RunData:
    """The data of the last of a launch file's steps, its paths as a plan fills them in."""
    from chomp.data import LmDataConfig
    from chomp.executor import plan_steps

    last = plan_steps(steps, prefix=given.outputs)[-1]
    data, trainer = (getattr(last.config, name, None) for name in ("data", "trainer"))
    names = [field.name for field in fields(TrainerFacts)]
    if not isinstance(data, LmDataConfig) or not all(hasattr(trainer, name) for name in names):
        raise ConfigError(
            message(
                given=f"{given.path}, whose last step {last.step.name!r} has no data and trainer",
                allowed=f"a config with data, an LmDataConfig, and trainer with {', '.join(names)}",
                fix="name the fields of the launch config so, as in experiments/grug/base",
            )
        )
    return _run_data(given, data, TrainerFacts(**{name: getattr(trainer, name) for name in names}))


def _data_of_run_folder(given: GivenConfig) -> RunData:
    from chomp.config import config_from_mapping
    from chomp.data import LmDataConfig
    from chomp.storage import join, read_json
    from chomp.tracking.run_files import RESOLVED_CONFIG

    given.refuse_options()
    location = join(given.path, RESOLVED_CONFIG)
    content = read_json(location)
    sections = content if isinstance(content, dict) else {}
    trainer = sections.get("trainer")
    known = {field.name for field in fields(TrainerFacts)}
    # Sections and fields that a template of its own has are nobody's business here.
    facts = config_from_mapping(
        TrainerFacts,
        {k: v for k, v in trainer.items() if k in known} if isinstance(trainer, Mapping) else {},
        source=f"{location}, trainer",
    )
    data = config_from_mapping(LmDataConfig, sections.get("data", {}), source=f"{location}, data")
    data = _with_reached_stores(_with_run_tokenizer(data, given.path), given.path)
    return replace(
        _run_data(given, data, facts),
        completed_steps=completed_steps(given.path),
    )


def completed_steps(run_folder: str) -> int:
    """How many steps of a run were completed, as its checkpoints and its record tell."""
    from chomp.checkpoint import CHECKPOINTS, latest_checkpoint
    from chomp.storage import exists, join
    from chomp.tracking import read_metrics
    from chomp.tracking.run_files import record_of

    newest = latest_checkpoint(join(run_folder, CHECKPOINTS))
    record = record_of(run_folder)
    rows = read_metrics(record) if exists(record) else []
    # A row tells the index of a step that was completed. Either may be ahead of the other.
    logged = [row["step"] + 1 for row in rows if isinstance(row.get("step"), int)]
    return max([0 if newest is None else newest.metadata.step, *logged])


def _run_data(given: GivenConfig, data: LmDataConfig, trainer: TrainerFacts) -> RunData:
    from chomp.data import BatchSchedule

    return RunData(
        given=given,
        data=data,
        seq_len=trainer.seq_len,
        batches=BatchSchedule(trainer.batch_size, trainer.grad_accum),
        total_steps=trainer.steps,
        seed=trainer.seed if trainer.data_seed is None else trainer.data_seed,
    )


def _with_reached_stores(data: LmDataConfig, run_folder: str) -> LmDataConfig:
    """The data with stores that are not below this folder found from above the run, loudly."""
    from chomp.tracking.run_paths import reached_path

    found: dict[str, str] = {}

    def reached(path: str | None) -> str | None:
        place = None if path is None else reached_path(path, run_folder)
        if path is not None and place is not None and place != path:
            found[path] = place
        return place

    components = {
        name: replace(
            component,
            train_store=reached(component.train_store),
            validation_store=reached(component.validation_store),
        )
        for name, component in data.components.items()
    }
    tokenizer = replace(data.tokenizer, path=reached(data.tokenizer.path))
    for path, place in found.items():
        say(f"{path} is not in this folder, but above the run: {place}", style="yellow")
    return replace(data, components=components, tokenizer=tokenizer)


def _with_run_tokenizer(data: LmDataConfig, run_folder: str) -> LmDataConfig:
    """The data with the run's own copy of its tokenizer, if it has one: it outlives the other."""
    from chomp.storage import exists, join
    from chomp.tokenize.load import DESCRIPTION

    copy = join(run_folder, "tokenizer")
    if not exists(join(copy, DESCRIPTION)):
        return data
    return replace(data, tokenizer=replace(data.tokenizer, path=copy))
