"""Curves drawn in letters, with axes.

A column of dots stands for a span of steps and covers all values in it, from the lowest to the
highest, so a single spike is seen however long the run. Every value that a scale was made of lies
on it. Braille has eight dots to a letter; where a terminal's encoding has none, a letter of ASCII
is one dot, and its shape shows its layer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
from jaxtyping import Bool, Float, Int
from rich.text import Text

from chomp.report.curves import Curve

# Axes: N values, R rows of dots, C columns of them.

# Larger than any metric that means something; sums of very many still fit a float.
LARGEST_DRAWN = 1e100
# Above this ratio of the largest to the smallest, equal steps would flatten all but the largest.
_LOG_RATIO = 100.0
# The suffixes of `chomp.tracking.console.compact`.
_SUFFIXES = ("", "k", "M", "G", "T")
# The layers, drawn over each other in this order.
STYLES = {"resume": "yellow", "raw": "bright_black", "points": "green", "smooth": "bold cyan"}
_BRAILLE_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
# From 50 values on, a mean over a twenty-fifth of the width is drawn over them.
_MIN_SMOOTHED, _SMOOTHED_SPAN = 50, 25
_LEAST_RANGE = 0.1  # of a sparkline, as a part of its median
_OUTLIER_MADS = 8  # median absolute deviations from the median


@dataclass(frozen=True)
class Signs:
    """What a chart is drawn with."""

    bits: Int[np.ndarray, "down across"]  # of the dots in one letter
    layers: dict[str, str]  # the letter of a layer; empty: a letter made of its dots
    point: str
    not_finite: str
    resumed: str
    axis: tuple[str, ...]  # upright, upright with a tick, corner, flat, flat with a tick
    levels: str  # of a sparkline, from low to high
    bar: tuple[str, str]  # done, and to be done
    gap: str  # between facts on a line
    arrows: tuple[str, str]  # up, down


BRAILLE = Signs(
    bits=_BRAILLE_BITS,
    layers={"resume": "┊", "raw": "", "points": "", "smooth": ""},
    point="●",
    not_finite="✕",
    resumed="▲",
    axis=("│", "┤", "└", "─", "┬"),
    levels="▁▂▃▄▅▆▇█",
    bar=("█", "░"),
    gap="·",
    arrows=("↑", "↓"),
)
ASCII = Signs(
    bits=np.ones((1, 1), np.int64),
    layers={"resume": ":", "raw": ".", "points": "o", "smooth": "*"},
    point="o",
    not_finite="x",
    resumed="^",
    axis=("|", "+", "`", "-", "+"),
    levels="_.,-~=*#",
    bar=("#", "-"),
    gap="-",
    arrows=("+", "-"),
)


def signs_for(encoding: str) -> Signs:
    """Braille where the encoding has it, else ASCII."""
    try:
        "⣿┊●✕▲│┤└─┬▁█░·↑↓".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BRAILLE


# --- Scales ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """The values from `low` to `high`, which lie at 0 and 1; in between by logarithm or not."""

    low: float
    high: float
    is_log: bool = False

    def places(self, values: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
        """Where the values lie, from 0 to 1; a value outside of the scale at its nearer end."""
        ends = np.array([self.low, self.high])
        within = np.clip(values, self.low, self.high)
        if self.is_log:
            ends, within = np.log(ends), np.log(within)
        places: np.ndarray = np.clip((within - ends[0]) / (ends[1] - ends[0]), 0.0, 1.0)
        return places

    def ticks(self, count: int) -> list[float]:
        """About `count` round values on the scale, ascending."""
        if self.is_log:
            exponents = range(_exponent(self.low), _exponent(self.high) + 1)
            factors = (1.0, 2.0, 5.0) if len(exponents) <= 3 else (1.0,)
            powers = [10.0**exponent * factor for exponent in exponents for factor in factors]
            ticks = [value for value in powers if self.low <= value <= self.high]
            return ticks[:: max(1, math.ceil(len(ticks) / max(1, count)))]
        # One tick alone says where a value lies, but not how far apart values are.
        ticks = self._even_ticks(count)
        return ticks if len(ticks) > 1 else self._even_ticks(2 * count)

    def _even_ticks(self, count: int) -> list[float]:
        at_least = (self.high - self.low) / max(1, count)
        power = 10.0 ** _exponent(at_least)
        factors = (1.0, 2.0, 5.0, 10.0)
        step = next(power * each for each in factors if power * each >= at_least * (1 - 1e-9))
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [number * step for number in range(first, last + 1)]


def scale_of(values: Float[np.ndarray, " N"]) -> Scale:
    """The scale on which all of the values lie: logarithmic where they differ a hundredfold.

    The values are finite and at most `LARGEST_DRAWN`. Without any, or where all are the same, there
    is room around them.
    """
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    size = max(abs(low), abs(high))
    if high - low <= 1e-9 * max(size, 1e-290):
        room = 0.05 * size if size > 1e-290 else 1.0
        return Scale(low - room, high + room)
    return Scale(low, high, is_log=low > 1e-290 and high / low >= _LOG_RATIO)


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """The ticks in words, with as many digits as tell them apart: 2.5, 120k, 3e-04."""
    largest = max((abs(tick) for tick in ticks), default=0.0)
    if largest >= _LOG_RATIO * min(ticks, default=0.0) > 0:
        return [f"{tick:g}" for tick in ticks]
    gap = min((b - a for a, b in pairwise(ticks)), default=largest) or 1.0
    if largest != 0 and not 1e-3 <= largest < 1e15:
        digits = min(8, max(0, _exponent(largest) - _exponent(gap)))
        return [f"{tick:.{digits}e}" if tick else "0" for tick in ticks]
    thousands = min(len(_SUFFIXES) - 1, _exponent(largest) // 3 if largest >= 1e4 else 0)
    unit, suffix = 1000.0**thousands, _SUFFIXES[thousands]
    digits = min(8, max(0, -_exponent(gap / unit)))
    return [f"{tick / unit:.{digits}f}{suffix}" if tick else "0" for tick in ticks]


def _exponent(value: float) -> int:
    # A hair more, since 1000 may come as 999.9999999999999.
    return math.floor(math.log10(value * (1 + 1e-12)))


# --- Charts ---------------------------------------------------------------------------------------


def is_drawn(values: Float[np.ndarray, " N"]) -> Bool[np.ndarray, " N"]:
    """Which of the values a scale has room for: not NaN, and not beyond `LARGEST_DRAWN`."""
    is_there: np.ndarray = np.abs(values) <= LARGEST_DRAWN
    return is_there


def is_smoothed(curve: Curve) -> bool:
    """Whether a chart draws a mean over the values."""
    return int(is_drawn(curve.values).sum()) >= _MIN_SMOOTHED


def chart_lines(
    curve: Curve,
    *,
    width: int,
    height: int,
    signs: Signs,
    points: Curve | None = None,
    resumes: Sequence[tuple[int, int]] = (),
) -> list[Text]:
    """A chart of `height` lines at most `width` wide, axes and labels included.

    `points` are single values drawn on the same axes, such as evaluations; `resumes` are steps
    where a later attempt began, with its number. Values that are not finite are marked at the top.
    """
    shown = _drawn(curve)
    marked = Curve(np.zeros(0, np.int64), np.zeros(0)) if points is None else _drawn(points)
    scale = scale_of(np.concatenate([shown.values, marked.values]))
    steps = np.concatenate([curve.steps, marked.steps])
    first, last = (int(steps.min()), int(steps.max())) if len(steps) else (0, 1)
    last = max(last, first + 1)
    rows = max(1, height - 2)  # less the axis and its labels
    ticks = scale.ticks(max(2, rows * 2 // 5))
    tick_rows = np.rint((1 - scale.places(np.array(ticks, np.float64))) * (rows - 1)).astype(int)
    labels = dict(zip(tick_rows.tolist(), tick_labels(ticks), strict=True))
    margin = max(map(len, labels.values()), default=0)
    columns = max(2, width - margin - 1)
    down, across = signs.bits.shape
    layers = {name: np.zeros((rows * down, columns * across), bool) for name in STYLES}

    def column_of(steps: Int[np.ndarray, " N"], count: int) -> Int[np.ndarray, " N"]:
        return np.rint((steps - first) / (last - first) * (count - 1)).astype(np.int64)

    def draw(layer: str, line: Curve) -> None:
        """A line through the points that covers each of them."""
        dots = layers[layer]
        heights = np.rint((1 - scale.places(line.values)) * (len(dots) - 1)).astype(np.int64)
        _draw_line(dots, column_of(line.steps, columns * across), heights)

    marks: dict[tuple[int, int], tuple[str, str]] = {}  # by row and column: a sign and its style
    inside = [(step, number) for step, number in resumes if first <= step <= last]
    for step, _ in inside:
        layers["resume"][:, column_of(np.array([step]), columns * across)] = True
    draw("raw" if is_smoothed(curve) else "smooth", shown)
    if is_smoothed(curve):
        # The mean over a window that lies around each column.
        held_by = column_of(shown.steps, columns * across)
        counts = np.bincount(held_by, minlength=columns * across).astype(np.float64)
        sums = np.bincount(held_by, weights=shown.values, minlength=columns * across)
        window = np.ones(max(1, columns * across // _SMOOTHED_SPAN) | 1)  # odd: it has a middle
        sums, sizes = (np.convolve(each, window, mode="same") for each in (sums, counts))
        held = np.flatnonzero(counts)  # only where there are values: no curve beyond the last
        steps = shown.steps[np.searchsorted(held_by, held)]
        draw("smooth", Curve(steps, sums[held] / sizes[held]))
    point_columns = column_of(marked.steps, columns)
    if len(np.unique(point_columns)) > columns // 4:  # signs would cover the curve
        draw("points", marked)
    else:
        places = (1 - scale.places(marked.values)) * (rows * down - 1)
        point_rows = np.rint(places).astype(int) // down
        for at in zip(point_rows.tolist(), point_columns.tolist(), strict=True):
            marks[at] = (signs.point, STYLES["points"])
    for column in column_of(curve.steps[~is_drawn(curve.values)], columns).tolist():
        marks[0, column] = (signs.not_finite, "bold red")

    cells = [[(" ", "")] * columns for _ in range(rows)]
    for layer, dots in layers.items():
        bits = np.einsum("rdca,da->rc", dots.reshape(rows, down, columns, across), signs.bits)
        for row, column in np.argwhere(bits).tolist():
            letter = signs.layers[layer] or chr(0x2800 + bits[row, column])
            cells[row][column] = (letter, STYLES[layer])
    for (row, column), mark in marks.items():
        cells[row][column] = mark
    upright, ticked = signs.axis[:2]
    lines = []
    for row, each in enumerate(cells):
        label = f"{labels.get(row, ''):>{margin}}{ticked if row in labels else upright}"
        runs = groupby(each, key=lambda cell: cell[1])
        parts = [("".join(letter for letter, _ in run), style) for style, run in runs]
        lines.append(Text.assemble((label, "dim"), *parts))

    # The line below the curve, with ticks and resumes on it, and the steps below that.
    _, _, corner, flat, ticked = signs.axis
    axis, words = [flat] * columns, [" "] * columns
    steps_told = Scale(first, last).ticks(max(1, columns // 12))
    steps_told = [tick for tick in steps_told if tick % 1 == 0]
    free = 0
    for tick, label in zip(steps_told, tick_labels(steps_told), strict=True):
        column = int(column_of(np.array([tick]), columns)[0])
        start = min(max(0, column - len(label) // 2), columns - len(label))
        if start >= free:
            words[start : start + len(label)] = label
            axis[column], free = ticked, start + len(label) + 1
    line = Text.assemble((" " * margin + corner + "".join(axis), "dim"))
    free = 0
    for step, number in inside:
        column = int(column_of(np.array([step]), columns)[0])
        sign = f"{signs.resumed}{number}"[: columns - column]
        if column >= free:
            place, free = margin + 1 + column, column + len(sign)
            line = Text.assemble(line[:place], (sign, STYLES["resume"]), line[place + len(sign) :])
    return [*lines, line, Text(" " * (margin + 1) + "".join(words).rstrip(), "dim")]


def _drawn(curve: Curve) -> Curve:
    kept = is_drawn(curve.values)
    return Curve(curve.steps[kept], curve.values[kept])


def _draw_line(
    dots: Bool[np.ndarray, "R C"], columns: Int[np.ndarray, " N"], rows: Int[np.ndarray, " N"]
) -> None:
    """Set the dots of a line, from its ascending columns and a row for each."""
    if not len(columns):
        return
    starts = np.flatnonzero(np.diff(columns, prepend=-1))
    held = columns[starts]
    tops, bottoms = np.minimum.reduceat(rows, starts), np.maximum.reduceat(rows, starts)
    # Between columns that hold points the line goes straight on.
    every = np.arange(held[0], held[-1] + 1)
    top = np.rint(np.interp(every, held, (tops + bottoms) / 2)).astype(np.int64)
    bottom = top.copy()
    top[held - held[0]], bottom[held - held[0]] = tops, bottoms
    highest, lowest = int(top[0]), int(bottom[0])
    for column, first, last in zip(every.tolist(), top.tolist(), bottom.tolist(), strict=True):
        # Where it is apart from its neighbour, a column reaches up or down to it.
        highest, lowest = min(first, lowest + 1), max(last, highest - 1)
        dots[highest : lowest + 1, column] = True


# --- Sparklines -----------------------------------------------------------------------------------


def spark(values: Float[np.ndarray, " N"], *, width: int, signs: Signs) -> str:
    """The values in one line of letters of different heights.

    A letter shows the mean of its span; one with a spike or a dip in it shows that instead.
    """
    drawn = values[is_drawn(values)]
    if width < 1 or not drawn.size:
        return ""
    middle = float(np.median(drawn))
    # Wider than noise ever is: a normal distribution has 1 value in 10 million out there.
    usual = _OUTLIER_MADS * float(np.median(np.abs(drawn - middle)))
    shown = []
    for span in np.array_split(np.where(is_drawn(values), values, np.nan), min(width, len(values))):
        far = np.abs(span - middle)
        furthest = span[np.argmax(far)]  # of a span with NaN in it, that
        shown.append(span.mean() if far.max() <= usual else furthest)
    # Noise of a few percent is not stretched over the whole height.
    room = _LEAST_RANGE / 2 * abs(middle)
    known = [value for value in shown if not np.isnan(value)]
    ends = scale_of(np.array([*known, middle - room, middle + room]))
    # Never by logarithm, which cannot be told here: a learning rate's way to 0 would look sudden.
    levels = Scale(ends.low, ends.high).places(np.array(shown)) * (len(signs.levels) - 1)
    return "".join(
        signs.not_finite if np.isnan(n) else signs.levels[int(np.rint(n))] for n in levels
    )
