"""The view of a watched run: its parts under each other, or side by side on a wide terminal.

It is never higher than the terminal. Where there is little room the curve keeps some of it, and the
sample and the evaluations are cut short first.
"""

from collections.abc import Sequence

from rich.console import Group
from rich.text import Text

from chomp.report.watch.parts import (
    Page,
    chart_part,
    eval_lines,
    head_lines,
    number_lines,
    problem_lines,
    sample_lines,
)
from chomp.report.watch.watched_run import WatchedRun

_WIDE = 110  # columns from which there are two
_MIN_CHART, _MAX_CHART = 8, 30
_PRINTED_CHART = 16  # where the height of the terminal does not matter
_MIN_SIDE, _MAX_SIDE = 44, 64
_SAMPLE_LINES = 9  # as many as are wished for, title included
_UNLIMITED = 60  # lines of a view that nobody has to see at once


def view(
    run: WatchedRun, page: Page, *, metrics: Sequence[str], height: int | None = None
) -> Group:
    """All of it, as wide as the console; at most `height` lines where that is given."""
    width = page.console.width
    top = [*head_lines(run, page, width), *problem_lines(run, page)]
    room = (_UNLIMITED if height is None else height) - len(top) - 1
    is_wide = width >= _WIDE
    side_width = min(_MAX_SIDE, max(_MIN_SIDE, width // 3)) if is_wide else width
    chart_width = width - side_width - 3 if is_wide else width
    wished = _PRINTED_CHART if height is None else _MAX_CHART
    if is_wide:
        side = _side(run, page, side_width, room)
        high = room if height is not None else max(wished, len(side))
        charts = _charts(run, page, metrics, chart_width, min(high, room))
        body = _beside(charts, side, chart_width)
    else:
        least = min(room, _MIN_CHART * len(metrics))
        side = _side(run, page, side_width, room - least - 1)
        charts = _charts(
            run, page, metrics, chart_width, min(wished * len(metrics), room - len(side) - 1)
        )
        body = [*charts, Text(), *side] if side else charts
    lines = [*top, Text(), *body][:height]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
        line.no_wrap = True
    return Group(*lines)


def _charts(
    run: WatchedRun, page: Page, metrics: Sequence[str], width: int, height: int
) -> list[Text]:
    """The metrics' charts, in equal parts of the height."""
    each = min(_MAX_CHART, max(4, height // max(1, len(metrics))))
    found = (chart_part(run, name, page, width=width, height=each) for name in metrics)
    return [line for lines in found for line in lines]


def _side(run: WatchedRun, page: Page, width: int, room: int) -> list[Text]:
    """Numbers, evaluations and a sample, in this order as far as there is room."""
    numbers = number_lines(run, page, width)[: max(0, room)]
    left = room - len(numbers) - 1
    evaluated = _cut(eval_lines(run, page), left)
    left -= len(evaluated) + 1
    sample = sample_lines(run, page, width, min(_SAMPLE_LINES, left))
    lines: list[Text] = []
    for part in (numbers, evaluated, sample):
        lines += [Text(), *part] if lines and part else part
    return lines


def _cut(lines: list[Text], room: int) -> list[Text]:
    """As many of the lines as there is room for; the last says how many are missing."""
    if len(lines) <= room:
        return lines
    if room < 4:  # a title and its columns alone say nothing
        return []
    return [*lines[: room - 1], Text(f"{len(lines) - room + 1} more", "dim")]


def _beside(left: Sequence[Text], right: Sequence[Text], width: int) -> list[Text]:
    """Lines next to each other, the left ones filled up to their width."""
    lines = []
    for row in range(max(len(left), len(right))):
        line = left[row].copy() if row < len(left) else Text()
        line.truncate(width, overflow="ellipsis", pad=True)
        # Assembled, not added up: a sum takes the style of its first text for all of it.
        lines.append(Text.assemble(line, "   ", right[row]) if row < len(right) else line)
    return lines
