"""Fields by the dotted names that people write for them."""

from dataclasses import dataclass, field

import pytest

from chomp.config import Config, setting
from chomp.config.overrides import find_field


@dataclass(frozen=True, kw_only=True)
class Source(Config):
    weight: float = 1.0
    note: str = setting(default="", mark="cosmetic")


@dataclass(frozen=True, kw_only=True)
class Trainer(Config):
    steps: int = setting(default=10, aliases=("num_steps",), mark="schedule")
    stages: tuple[Source, ...] = (Source(), Source())
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Run(Config):
    trainer: Trainer = setting(default_factory=Trainer, aliases=("train",))
    quiet: Trainer = setting(default_factory=Trainer, mark="cosmetic")
    sources: dict[str, Source] = field(default_factory=lambda: {"web.edu": Source()})


@pytest.mark.parametrize(
    ("name", "path", "mark"),
    [
        ("trainer.steps", ("trainer", "steps"), "schedule"),
        ("train.num_steps", ("trainer", "steps"), "schedule"),
        ("train.seed", ("trainer", "seed"), "identity"),
        ("train", ("trainer",), "identity"),
        ("quiet.seed", ("quiet", "seed"), "cosmetic"),  # the section's mark covers it
        ("quiet.steps", ("quiet", "steps"), "cosmetic"),
        ("train.stages.1.note", ("trainer", "stages", 1, "note"), "cosmetic"),
        ('sources."web.edu".weight', ("sources", "web.edu", "weight"), "identity"),
    ],
)
def test_any_spelling_leads_to_the_field_and_the_loosest_mark_on_the_way(
    name: str, path: tuple[str | int, ...], mark: str
):
    assert find_field(Run(), name) == (path, mark)


@pytest.mark.parametrize(
    "name", ["", "steps", "trainer.stepz", "trainer.steps.0", "train.stages.2", "sources.web.edu"]
)
def test_a_name_that_leads_nowhere_gives_none(name: str):
    assert find_field(Run(), name) is None
