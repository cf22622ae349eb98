"""`chomp config diff`: what differs between two configs, and what each change means for a run."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from chomp.cli.config_show import recorded_mapping
from chomp.cli.given_config import GivenConfig
from chomp.cli.launch_files import RUN_CLASS, loaded_launch
from chomp.cli.run_template import loaded_template
from chomp.cli.terminal import one_line, print_table, say
from chomp.tracking.run_files import TEMPLATE

if TYPE_CHECKING:  # for annotations alone
    from chomp.config import Difference, Mark

# What the executor fills in when a run is started: a file has nothing there.
_FILLED_IN = (
    "output_path",
    "resources",
    "data.tokenizer.path",
    "data.components.*.train_store",
    "data.components.*.validation_store",
)
_MEANINGS = {
    "identity": "another run",
    "schedule": "the same run, with --allow",
    "cosmetic": "the same run",
}


def diff_configs(before: GivenConfig, after: GivenConfig, *, is_trusted: bool) -> int:
    """Print the fields that differ, each with its mark; 0 whether any do or not."""
    found = differences(before, after, is_trusted=is_trusted)
    for side, given in zip("AB", (before, after), strict=True):
        say(f"{side}: {given.path}")
    say(_summary(found))
    if found:
        _print(found)
    return 0


def differences(before: GivenConfig, after: GivenConfig, *, is_trusted: bool) -> list[Difference]:
    """The fields that differ; between a file and a run, only those that a file can have."""
    from chomp.config import config_difference
    from chomp.tracking import without_secrets

    sides = _with_template_of_files(before, after)
    one, other = (_side(given, is_trusted=is_trusted) for given in sides)
    found = config_difference(one.config, other.config)
    found = [_marked(item, one.marks | other.marks) for item in found]
    kinds = {given.kind() == "run folder" for given in (before, after)}
    if len(kinds) > 1:
        found = [item for item in found if not _is_filled_in(item.path)]
    # Marks come from the configs themselves, so the values are cleaned only now.
    return [
        replace(item, before=without_secrets(item.before), after=without_secrets(item.after))
        for item in found
    ]


def _with_template_of_files(*sides: GivenConfig) -> tuple[GivenConfig, ...]:
    """The sides, --template for YAML files alone where there is one: a run has its own."""
    is_yaml = [given.kind() == "YAML file" for given in sides]
    if not any(is_yaml):
        return sides  # it is refused where they are read
    pairs = zip(sides, is_yaml, strict=True)
    return tuple(given if is_file else replace(given, template=None) for given, is_file in pairs)


class _Side(NamedTuple):
    """A config, and the marks that a run's config has for its sections.

    A launch file may leave those out: to it, all that it does not version is no part of a run.
    """

    config: Any
    marks: dict[str, Mark]


def _side(given: GivenConfig, *, is_trusted: bool) -> _Side:
    """The typed config of a file, or of a run by the run's own copy of its template."""
    from chomp.config import config_from_mapping
    from chomp.config.fields import mark_of, settings_of

    if given.kind() in ("YAML file", "launch file"):
        launch = loaded_launch(given)
        fields = () if launch.run_class is None else settings_of(launch.run_class)
        return _Side(launch.config, {item.name: mark_of(item.field) for item in fields})
    given.refuse_options()
    content = recorded_mapping(given)
    template = loaded_template(Path(given.path, TEMPLATE), is_trusted=is_trusted)
    return _Side(config_from_mapping(template.part(RUN_CLASS), content, source=given.path), {})


def _marked(item: Difference, marks: dict[str, Mark]) -> Difference:
    """The difference with the looser of its own mark and that of its section."""
    from chomp.config.fields import MARKS

    of_section = marks.get(item.path.partition(".")[0], item.mark)
    return replace(item, mark=max(item.mark, of_section, key=MARKS.index))


def _is_filled_in(path: str) -> bool:
    return any(fnmatchcase(path, each) or path.startswith(f"{each}.") for each in _FILLED_IN)


def _summary(found: Sequence[Difference]) -> str:
    if not found:
        return "no field differs"
    counts = {mark: sum(item.mark == mark for item in found) for mark in _MEANINGS}
    told = [f"{count} {mark} ({_MEANINGS[mark]})" for mark, count in counts.items() if count]
    return f"{len(found)} field{'s' * (len(found) > 1)} differ{'s' * (len(found) == 1)}: " + (
        ", ".join(told)
    )


def _print(found: Sequence[Difference]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table("field", "A", "B", "mark")
    for item in found:
        # Not as markup: a value may hold brackets of its own.
        values = (Text(one_line(repr(value))) for value in (item.before, item.after))
        table.add_row(item.path, *values, item.mark)
    print_table(table)
