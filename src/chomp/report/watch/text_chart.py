"""Curves drawn in letters, with axes.

A column of dots stands for a span of steps and covers all values in it, from the lowest to the
highest, so a single spike is seen however long the run. Every value that a scale was made of lies
on it. Braille has eight dots to a letter; where a terminal's encoding has none, a letter of ASCII
is one dot, and its shape shows its layer. Drawing takes time linear in the values, with numpy (1 ms
for 100,000), and then only as much as there are letters.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
from jaxtyping import Bool, Float, Int
from rich.text import Text

# Larger than any metric that means something; sums of very many still fit a float.
LARGEST_DRAWN = 1e100
# Above this ratio of the largest to the smallest, equal steps would flatten all but the largest.
_LOG_RATIO = 100.0
_ROUND = (1.0, 2.0, 5.0, 10.0)
# The suffixes of `chomp.tracking.console.compact`.
_SUFFIXES = ("", "k", "M", "G", "T")
# The layers, drawn over each other in this order.
STYLES = {"resume": "yellow", "raw": "bright_black", "points": "green", "smooth": "bold cyan"}
# Bits of a braille letter, by column and row of its dots.
_BRAILLE_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
# From 50 values on, a mean over a twenty-fifth of the width is drawn over them.
_MIN_SMOOTHED = 50
_SMOOTHED_SPAN = 25
_LEAST_RANGE = 0.1  # of a sparkline, as a part of its median
_OUTLIER_MADS = 8  # median absolute deviations from the median
_NONFINITE_STYLE = "bold red"


@dataclass(frozen=True)
class Scale:
    """The values from `low` to `high`, which lie at 0 and 1; in between by logarithm or not."""

    low: float
    high: float
    is_log: bool = False

    def places(self, values: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
        """Where the values lie, from 0 to 1; a value outside of the scale at its nearer end."""
        low, high = self._shown(np.array([self.low, self.high]))
        within = np.clip(values, self.low, self.high)
        return np.clip((self._shown(within) - low) / (high - low), 0.0, 1.0)

    def ticks(self, count: int) -> list[float]:
        """About `count` round values on the scale, ascending."""
        if self.is_log:
            ticks = _round_powers(self.low, self.high)
            return ticks[:: max(1, math.ceil(len(ticks) / max(1, count)))]
        # One tick alone says where a value lies, but not how far apart values are.
        ticks = self._even_ticks(count)
        return ticks if len(ticks) > 1 else self._even_ticks(2 * count)

    def _even_ticks(self, count: int) -> list[float]:
        step = _round_step((self.high - self.low) / max(1, count))
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [number * step for number in range(first, last + 1)]

    def _shown(self, values: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
        return np.log(values) if self.is_log else values


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


def tick_labels(ticks: list[float]) -> list[str]:
    """The ticks in words, with as many digits as tell them apart: 2.5, 120k, 3e-04."""
    largest = max((abs(tick) for tick in ticks), default=0.0)
    if largest >= _LOG_RATIO * min(ticks, default=0.0) > 0:
        return [f"{tick:g}" for tick in ticks]
    gap = min((b - a for a, b in pairwise(ticks)), default=largest) or 1.0
    if largest != 0 and not 1e-3 <= largest < 1e15:
        digits = min(8, max(0, _exponent(largest) - _exponent(gap)))
        return [f"{tick:.{digits}e}" if tick else "0" for tick in ticks]
    thousands = min(len(_SUFFIXES) - 1, _exponent(largest) // 3 if largest >= 1e4 else 0)
    unit = 1000.0**thousands
    digits = min(8, max(0, -_exponent(gap / unit)))
    suffix = _SUFFIXES[thousands]
    return [f"{tick / unit:.{digits}f}{suffix}" if tick else "0" for tick in ticks]


def _round_step(at_least: float) -> float:
    """The smallest 1, 2 or 5 times a power of ten that is not below."""
    power = 10.0 ** _exponent(at_least)
    return next(power * factor for factor in _ROUND if power * factor >= at_least * (1 - 1e-9))


def _round_powers(low: float, high: float) -> list[float]:
    """The powers of ten from low to high; twice and five times them too where they are few."""
    exponents = range(_exponent(low), _exponent(high) + 1)
    factors = _ROUND[:3] if len(exponents) <= 3 else _ROUND[:1]
    found = [10.0**exponent * factor for exponent in exponents for factor in factors]
    return [value for value in found if low <= value <= high]


def _exponent(value: float) -> int:
    # A hair more, since 1000 may come as 999.9999999999999.
    return math.floor(math.log10(value * (1 + 1e-12)))


# Axes: N values.


@dataclass(frozen=True)
class Signs:
    """What a chart is drawn with."""

    dots_across: int  # in one letter
    dots_down: int
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
    dots_across=2,
    dots_down=4,
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
    dots_across=1,
    dots_down=1,
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


class Canvas:
    """Letters with dots in them, by layer, and signs that take a letter for themselves."""

    def __init__(
        self, columns: int, rows: int, signs: Signs, span: tuple[int, int], scale: Scale
    ) -> None:
        self.columns, self.rows, self.signs = columns, rows, signs
        self.span, self.scale = span, scale
        self._dots: dict[str, dict[tuple[int, int], int]] = {layer: {} for layer in STYLES}
        self._signs: dict[tuple[int, int], tuple[str, str]] = {}

    @property
    def dot_columns(self) -> int:
        """Dots from left to right."""
        return self.columns * self.signs.dots_across

    def across(
        self, steps: Int[np.ndarray, " N"], dots: int | None = None
    ) -> Int[np.ndarray, " N"]:
        """Columns of dots (or `dots` columns) where the steps lie, from the left."""
        first, last = self.span
        places = (steps - first) / (last - first)
        return np.rint(places * ((dots or self.dot_columns) - 1)).astype(np.int64)

    def down(self, values: Float[np.ndarray, " N"]) -> Int[np.ndarray, " N"]:
        """Rows of dots where the values lie, from the top."""
        last = self.rows * self.signs.dots_down - 1
        return np.rint((1 - self.scale.places(values)) * last).astype(np.int64)

    def fill(self, layer: str, column: int, top: int, bottom: int) -> None:
        """Set the dots of one column from `top` to `bottom`, both included."""
        across, down = self.signs.dots_across, self.signs.dots_down
        cell_column, dot_column = divmod(column, across)
        cells = self._dots[layer]
        for row in range(top // down, bottom // down + 1):
            bits = _BRAILLE_BITS[dot_column][
                max(0, top - row * down) : min(down, bottom - row * down + 1)
            ]
            cells[row, cell_column] = cells.get((row, cell_column), 0) | sum(bits)

    def sign(self, row: int, column: int, sign: str, style: str) -> None:
        """Put a sign in the place of a letter."""
        self._signs[row, column] = (sign, style)

    def lines(self) -> Iterable[Text]:
        """The rows, from the top."""
        for row in range(self.rows):
            cells = [self._cell(row, column) for column in range(self.columns)]
            line = Text()
            for style, run in groupby(cells, key=lambda cell: cell[1]):
                line.append("".join(letter for letter, _ in run), style)
            yield line

    def _cell(self, row: int, column: int) -> tuple[str, str]:
        found = self._signs.get((row, column))
        if found is not None:
            return found
        for layer in reversed(STYLES):
            bits = self._dots[layer].get((row, column))
            if bits:
                return self.signs.layers[layer] or chr(0x2800 + bits), STYLES[layer]
        return " ", ""


@dataclass(frozen=True)
class Points:
    """Values by step, ascending; NaN where one was not finite."""

    steps: Int[np.ndarray, " N"]
    values: Float[np.ndarray, " N"]

    @property
    def is_drawn(self) -> Bool[np.ndarray, " N"]:
        """Which of the values a scale has room for."""
        return np.abs(self.values) <= LARGEST_DRAWN  # false for NaN too

    def drawn(self) -> "Points":
        """Those that a scale has room for."""
        return Points(self.steps[self.is_drawn], self.values[self.is_drawn])


def is_smoothed(curve: Points) -> bool:
    """Whether a chart draws a mean over the values."""
    return int(curve.is_drawn.sum()) >= _MIN_SMOOTHED


def chart_lines(
    curve: Points,
    *,
    width: int,
    height: int,
    signs: Signs,
    points: Points | None = None,
    resumes: Sequence[tuple[int, int]] = (),
) -> list[Text]:
    """A chart of `height` lines at most `width` wide, axes and labels included.

    `points` are single values drawn on the same axes, such as evaluations; `resumes` are steps
    where a later attempt began, with its number. Values that are not finite are marked at the top.
    """
    marked = Points(np.zeros(0, np.int64), np.zeros(0)) if points is None else points.drawn()
    shown = curve.drawn()
    scale = scale_of(np.concatenate([shown.values, marked.values]))
    rows = max(1, height - 2)  # less the axis and its labels
    labels = _labels_by_row(scale, rows)
    margin = max(map(len, labels.values()), default=0)
    columns = max(2, width - margin - 1)
    span = _span([curve.steps, marked.steps])
    canvas = Canvas(columns, rows, signs, span, scale)
    _draw(canvas, curve, marked, resumes)
    upright, ticked = signs.axis[:2]
    lines = [
        Text.assemble(
            (f"{labels.get(row, ''):>{margin}}{ticked if row in labels else upright}", "dim"), line
        )
        for row, line in enumerate(canvas.lines())
    ]
    return [*lines, *_step_axis(canvas, resumes, margin)]


def spark(values: Float[np.ndarray, " N"], *, width: int, signs: Signs) -> str:
    """The values in one line of letters of different heights.

    A letter shows the mean of its span; one with a spike or a dip in it shows that instead.
    """
    is_drawn = np.abs(values) <= LARGEST_DRAWN  # false for NaN too
    if width < 1 or not is_drawn.any():
        return ""
    middle = float(np.median(values[is_drawn]))
    # Wider than noise ever is: a normal distribution has 1 value in 10 million out there.
    usual = _OUTLIER_MADS * float(np.median(np.abs(values[is_drawn] - middle)))
    spans = np.array_split(np.where(is_drawn, values, np.nan), min(width, len(values)))
    shown = np.array([_span_value(span, middle, usual) for span in spans])
    # Noise of a few percent is not stretched over the whole height.
    room = _LEAST_RANGE / 2 * abs(middle)
    ends = scale_of(np.append(shown[~np.isnan(shown)], [middle - room, middle + room]))
    # Never by logarithm, which cannot be told here: a learning rate's way to 0 would look sudden.
    scale = Scale(ends.low, ends.high)
    levels = np.rint(scale.places(shown) * (len(signs.levels) - 1))
    return "".join(signs.not_finite if np.isnan(n) else signs.levels[int(n)] for n in levels)


def _span_value(span: Float[np.ndarray, " N"], middle: float, usual: float) -> float:
    """What stands for a span: NaN if it holds one, its furthest value if that is unusual."""
    far = np.abs(span - middle)
    furthest = span[np.argmax(far)]  # of a span with NaN in it, that
    return float(furthest) if not far.max() <= usual else float(span.mean())


def _draw(
    canvas: Canvas, curve: Points, points: Points, resumes: Sequence[tuple[int, int]]
) -> None:
    """Everything inside of the axes."""
    shown = curve.drawn()
    for step in [step for step, _ in resumes if canvas.span[0] <= step <= canvas.span[1]]:
        column = int(canvas.across(np.array([step]))[0])
        canvas.fill("resume", column, 0, canvas.rows * canvas.signs.dots_down - 1)
    _draw_line(canvas, "raw" if is_smoothed(curve) else "smooth", shown)
    if is_smoothed(curve):
        _draw_smoothed(canvas, shown)
    _draw_points(canvas, points)
    for column in set(canvas.across(curve.steps[~curve.is_drawn], canvas.columns).tolist()):
        canvas.sign(0, column, canvas.signs.not_finite, _NONFINITE_STYLE)


def _draw_points(canvas: Canvas, points: Points) -> None:
    """A sign for each, or a line where the signs would cover the curve."""
    columns = canvas.across(points.steps, canvas.columns)
    if len(set(columns.tolist())) > canvas.columns // 4:
        return _draw_line(canvas, "points", points)
    rows = canvas.down(points.values) // canvas.signs.dots_down
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        canvas.sign(row, column, canvas.signs.point, STYLES["points"])
    return None


def _draw_line(canvas: Canvas, layer: str, points: Points) -> None:
    """A line through the points that covers each of them."""
    if not len(points.steps):
        return
    columns, rows = canvas.across(points.steps), canvas.down(points.values)
    starts = np.flatnonzero(np.diff(columns, prepend=-1))
    held = columns[starts]
    tops, bottoms = np.minimum.reduceat(rows, starts), np.maximum.reduceat(rows, starts)
    # Between columns that hold points the line goes straight on.
    every = np.arange(held[0], held[-1] + 1)
    between = np.rint(np.interp(every, held, (tops + bottoms) / 2)).astype(np.int64)
    top, bottom = between.copy(), between.copy()
    top[held - held[0]], bottom[held - held[0]] = tops, bottoms
    _join_up(top, bottom)
    for column, first, last in zip(every.tolist(), top.tolist(), bottom.tolist(), strict=True):
        canvas.fill(layer, column, first, last)


def _join_up(top: Int[np.ndarray, " N"], bottom: Int[np.ndarray, " N"]) -> None:
    """Lengthen columns, in place, so that neighbours meet half way where they are apart."""
    falls, climbs = top[1:] > bottom[:-1] + 1, bottom[1:] < top[:-1] - 1
    fall_half = (top[1:] + bottom[:-1]) // 2
    climb_half = (bottom[1:] + top[:-1]) // 2
    new_top, new_bottom = top.copy(), bottom.copy()
    new_bottom[:-1] = np.where(falls, fall_half, new_bottom[:-1])
    new_top[1:] = np.where(falls, fall_half + 1, new_top[1:])
    new_top[:-1] = np.where(climbs, np.minimum(new_top[:-1], climb_half + 1), new_top[:-1])
    new_bottom[1:] = np.where(climbs, np.maximum(new_bottom[1:], climb_half), new_bottom[1:])
    top[:], bottom[:] = new_top, new_bottom


def _draw_smoothed(canvas: Canvas, points: Points) -> None:
    """The mean over a window that lies around each column."""
    columns = canvas.across(points.steps)
    sums = np.bincount(columns, weights=points.values, minlength=canvas.dot_columns)
    counts = np.bincount(columns, minlength=canvas.dot_columns).astype(np.float64)
    window = np.ones(max(1, canvas.dot_columns // _SMOOTHED_SPAN) | 1)  # odd: it has a middle
    total, number = (np.convolve(each, window, mode="same") for each in (sums, counts))
    held = np.flatnonzero(counts)  # only where there are values: no curve beyond the last
    steps = points.steps[np.searchsorted(columns, held)]
    _draw_line(canvas, "smooth", Points(steps, total[held] / number[held]))


def _span(steps: Sequence[Int[np.ndarray, " N"]]) -> tuple[int, int]:
    """First and last step of all, never the same."""
    every = np.concatenate(steps)
    first, last = (int(every.min()), int(every.max())) if len(every) else (0, 1)
    return first, max(last, first + 1)


def _labels_by_row(scale: Scale, rows: int) -> dict[int, str]:
    """What is written beside the rows of letters, from the top."""
    ticks = scale.ticks(max(2, rows * 2 // 5))
    places = scale.places(np.array(ticks)) if ticks else np.zeros(0)
    found = np.rint((1 - places) * (rows - 1)).astype(int).tolist()
    return dict(zip(found, tick_labels(ticks), strict=True))


def _step_axis(canvas: Canvas, resumes: Sequence[tuple[int, int]], margin: int) -> list[Text]:
    """The line below the curve, with ticks and resumes on it, and the steps below that."""
    _, _, corner, flat, ticked = canvas.signs.axis
    axis, labels = [flat] * canvas.columns, [" "] * canvas.columns
    first, last = canvas.span
    ticks = [
        tick for tick in Scale(first, last).ticks(max(1, canvas.columns // 12)) if tick % 1 == 0
    ]
    free = 0
    for tick, label in zip(ticks, tick_labels(ticks), strict=True):
        column = int(canvas.across(np.array([tick]), canvas.columns)[0])
        start = min(max(0, column - len(label) // 2), canvas.columns - len(label))
        if start >= free:
            labels[start : start + len(label)] = label
            axis[column], free = ticked, start + len(label) + 1
    line = Text.assemble((" " * margin + corner + "".join(axis), "dim"))
    free = 0
    for step, attempt in resumes:
        column = int(canvas.across(np.array([step]), canvas.columns)[0])
        mark = f"{canvas.signs.resumed}{attempt}"[: max(0, canvas.columns - column)]
        if first <= step <= last and column >= free:
            place = margin + 1 + column
            line = Text.assemble(line[:place], (mark, STYLES["resume"]), line[place + len(mark) :])
            free = column + len(mark)
    return [line, Text(" " * (margin + 1) + "".join(labels).rstrip(), "dim")]
