"""Letters to draw in: each is a block of dots, in layers, over a span of steps and a scale.

Braille has eight dots to a letter. Where a terminal's encoding has none, a letter of ASCII is one
dot, and says by its shape which layer it is of.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from jaxtyping import Float, Int
from rich.text import Text

from chomp.report.watch.text_scale import Scale

# Axes: N values.

# The layers, drawn over each other in this order.
STYLES = {"resume": "yellow", "raw": "bright_black", "points": "green", "smooth": "bold cyan"}
# Bits of a braille letter, by column and row of its dots.
_BRAILLE_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


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
