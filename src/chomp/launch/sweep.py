"""One launch function, many configs: a grid or a list of overrides becomes steps, and then a table.

A point is the overrides of one run. Steps that several points share, such as token stores, are
equal and so are one step; each run is named by its hash, so a sweep that is extended reuses what is
there.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import yaml
from rich.console import Console
from rich.table import Table

from chomp.config import apply_overrides
from chomp.config.fields import ConfigClass
from chomp.config.files import MAX_YAML_BYTES, parse_yaml
from chomp.errors import ConfigError, require
from chomp.executor import ExecutorStep, PlannedStep, read_status
from chomp.storage import exists, read_text
from chomp.storage.printable import PlainConsole
from chomp.tracking import Row, latest_rows, read_metrics
from chomp.tracking.run_files import (
    AVERAGED,
    eval_prefix_in,
    held_out_prefix,
    is_of_averaged,
    record_in,
    resolved_config,
)

L = TypeVar("L", bound=ConfigClass)
Point = tuple[str, ...]  # `dotted=value`, as on a command line
# Text that needs no quotes in an override, unless YAML has another meaning for it.
_WORD = re.compile(r"[A-Za-z_][\w./-]*")
# Text in quotes, as YAML has it.
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\']|\'\')*\'')
_ALLOW_CODE = "allow_code"  # of tasks of the harness
MAX_POINTS = 1000  # more is a mistake: the values of several axes multiply
DEFAULT_METRIC = "eval/loss"
LOWEST, HIGHEST = "lowest", "highest"  # which value of the metric is the best
_DEFAULT_WITHOUT_EVAL = "train/loss"
_WIDTH = 1000


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The runs of a sweep: each point's overrides, and the step that is its run."""

    points: tuple[Point, ...]
    runs: tuple[ExecutorStep, ...]  # in the order of the points
    steps: tuple[ExecutorStep, ...]  # all that are to be planned, the runs among them


def sweep_of(
    steps_of: Callable[[L], Iterable[ExecutorStep]], config: L, points: Sequence[Point]
) -> Sweep:
    """The steps of `config` at each point; the last step of each is its run.

    Every point is built before anything is planned, so one that cannot be is refused at once.
    """
    require(
        0 < len(points) <= MAX_POINTS,
        f"a sweep of {len(points)} runs",
        allowed=f"1 to {MAX_POINTS}",
        fix="name fewer values, or sweep in parts",
    )
    steps: list[ExecutorStep] = []
    runs: list[ExecutorStep] = []
    configs: set[str] = set()
    for point in points:
        try:
            configured = apply_overrides(config, point)
        except ConfigError as error:
            error.within(f"in the sweep, at {' '.join(point)}")
            raise
        require(
            repr(configured) not in configs,
            f"a sweep with the config of {' '.join(point)} twice",
            allowed="each run once",
            fix="take the second one out",
        )
        configs.add(repr(configured))
        found = list(steps_of(configured))
        require(
            bool(found) and found[-1].override_output_path is None,
            f"a sweep over steps that end with {found[-1].name if found else 'nothing'}",
            allowed="a last step, the run, whose folder is named by what it is",
            fix="return it from the launch file's steps, without override_output_path",
        )
        steps += found
        runs.append(found[-1])
    return Sweep(points=tuple(points), runs=tuple(runs), steps=tuple(steps))


def grid_of(axes: Sequence[str]) -> list[Point]:
    """Every combination of the values of `dotted=a,b,c`, the last axis changing fastest."""
    choices: list[list[str]] = []
    for axis in axes:
        field, equals, values = axis.partition("=")
        found = _split(values)
        require(
            bool(field and equals) and all(found),
            f"--sweep {axis}",
            allowed="a dotted field and its values, such as optim.lr=1e-3,3e-3",
            fix="write the values behind =, with commas between them",
        )
        choices.append([f"{field}={value}" for value in found])
    return list(itertools.product(*choices))


def points_in_file(path: str) -> list[Point]:
    """The points of a YAML file: a list of mappings from dotted fields to values.

    What is text there stays text: "null" in quotes is no null, and "5" no number.
    """
    content = parse_yaml(read_text(path, max_bytes=MAX_YAML_BYTES), source=path)
    if not isinstance(content, list) or not all(isinstance(item, Mapping) for item in content):
        raise ConfigError(
            f"{path}, which is no list of mappings",
            allowed="one mapping for each run, such as `- {optim.lr: 1e-3, train.seed: 1}`",
            fix="write the overrides of each run behind a dash",
        )
    points = [tuple(f"{key}={_as_text(value)}" for key, value in item.items()) for item in content]
    for text in itertools.chain(*points):
        require(
            _ALLOW_CODE not in text,
            f"{text} in {path}",
            allowed=f"{_ALLOW_CODE} on the command line alone: a file may be anybody's",
            fix=f"read the code of the tasks and pass -o eval.harness.{_ALLOW_CODE}=true",
        )
    return points


def require_order(best: str) -> None:
    """Raise `ConfigError` unless `best` is an order of the table."""
    require(
        best in (LOWEST, HIGHEST),
        f"--sweep-best {best}",
        allowed=f"{LOWEST}, which is the default and right for a loss, or {HIGHEST}",
        fix=f"leave it out, or write --sweep-best {HIGHEST} for a metric such as an accuracy",
    )


def print_sweep(
    runs: Mapping[Point, PlannedStep],
    metric: str,
    *,
    best: str = LOWEST,
    console: Console | None = None,
) -> None:
    """Print the runs by their last value of `metric`, the `best` first; those without one last.

    The default metric is each run's held-out loss, which is of the averaged weights where the run
    evaluated nothing else, and the training loss where no run was evaluated.
    """
    found = {point: _last_row(planned, metric) for point, planned in runs.items()}
    if metric == DEFAULT_METRIC and not any(row for _, row in found.values()):
        metric = _DEFAULT_WITHOUT_EVAL
        found = {point: _last_row(planned, metric) for point, planned in runs.items()}
    fields = dict.fromkeys(text.split("=", 1)[0] for point in runs for text in point)
    shown = " or ".join(sorted({name for name, row in found.values() if row})) or metric
    table = Table("", *fields, title=f"sweep, by {shown}, {best} first")
    for heading in (shown, "steps"):
        table.add_column(heading, justify="right")
    table.add_column("run")
    # A loss that is not finite is null in the record, so such runs have no value either.
    values = {
        point: float(row[name])
        for point, (name, row) in found.items()
        if isinstance(row.get(name), int | float)
    }
    sign = 1.0 if best == LOWEST else -1.0
    in_order = sorted(runs, key=lambda point: sign * values[point] if point in values else math.inf)
    for place, point in enumerate(in_order, start=1):
        given = dict(text.split("=", 1) for text in point)
        name, row = found[point]
        if point in values:
            weights = f" ({AVERAGED})" if is_of_averaged(name) else ""
            value, steps = f"{values[point]:.4f}{weights}", f"{row['step'] + 1:,}"
        else:
            status = read_status(runs[point].path)
            value, steps = "not run" if status is None else status.state.lower(), "-"
        number = str(place) if point in values else "-"
        shown_fields = (given.get(field, "-") for field in fields)
        table.add_row(number, *shown_fields, value, steps, runs[point].path)
    # As wide as its content: a path that is cut cannot be copied.
    (console or PlainConsole(width=_WIDTH)).print(table)


def _split(values: str) -> list[str]:
    """The parts between commas; not those inside brackets or quotes, which belong to one value."""
    parts, depth, at = [""], 0, 0
    while at < len(values):
        before = parts[-1].rstrip()
        # Only where a text begins: the quote in it's opens nothing.
        quoted = None if before and before[-1] not in "[{(,:" else _QUOTED.match(values, at)
        piece = quoted.group() if quoted else values[at]
        at += len(piece)
        depth += (piece in "[{(") - (piece in "]})")
        if piece == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += piece
    return [part.strip() for part in parts]


def _as_text(value: Any) -> str:
    """A value of a file as an override writes it: read again, it is that value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # In quotes where it would mean something else without: "null" and "5" would.
        if _WORD.fullmatch(value) and parse_yaml(value, source="a word") == value:
            return value
        quoted: str = yaml.safe_dump(value, default_style='"', width=math.inf, allow_unicode=True)
        return quoted.rstrip("\n")
    if isinstance(value, list):
        return f"[{', '.join(map(_as_text, value))}]"
    if isinstance(value, Mapping):
        entries = (f"{_as_text(key)}: {_as_text(item)}" for key, item in value.items())
        return f"{{{', '.join(entries)}}}"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else f"{'-' * (value < 0)}.inf"
    return str(value)


def _last_row(planned: PlannedStep, metric: str) -> tuple[str, Row]:
    """The metric by its name in a run, and the newest row that has it; empty where none has."""
    config = resolved_config(planned.path)
    record = record_in(planned.path, config)
    rows = latest_rows(read_metrics(record)) if exists(record) else []
    if metric == DEFAULT_METRIC:
        metric = f"{held_out_prefix(eval_prefix_in(config), set().union(*rows))}/loss"
    return metric, next((row for row in reversed(rows) if metric in row), {})
