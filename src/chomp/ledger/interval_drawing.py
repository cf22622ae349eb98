"""An interval around a mean, against zero: as a bar of characters, and as an SVG picture.

A mean that is not finite, as percent of 0 are, has no place: the axis is drawn alone.
"""

import math

_WIDTH = 31  # characters; odd, so that zero has one in the middle
# Of the picture, in its own units.
_PICTURE_WIDTH, _PICTURE_HEIGHT = 160, 18


def interval_bar(low: float | None, mean: float, high: float | None, scale: float) -> str:
    """The interval as characters on an axis from -scale to scale; without one, the mean alone.

    What goes on beyond the axis ends in an arrow.
    """
    middle = _WIDTH // 2

    def place(value: float) -> int:
        return min(max(round(middle + value / scale * middle), 0), _WIDTH - 1)

    drawn = [" "] * _WIDTH
    if not math.isfinite(mean):
        drawn[middle] = "│"
        return "".join(drawn)
    if low is not None and high is not None:
        drawn[place(low) : place(high) + 1] = "─" * (place(high) + 1 - place(low))
        drawn[place(low)] = "◄" if low < -scale else "├"
        drawn[place(high)] = "►" if high > scale else "┤"
    drawn[middle] = "┼" if drawn[middle] == "─" else "│" if drawn[middle] == " " else drawn[middle]
    drawn[place(mean)] = "●"
    return "".join(drawn)


def interval_picture(
    low: float | None, mean: float, high: float | None, scale: float, *, label: str
) -> str:
    """The same as SVG, in the colours of the page's classes; `label` is read aloud."""
    centre, reach = _PICTURE_WIDTH / 2, _PICTURE_WIDTH / 2 - 6
    middle = _PICTURE_HEIGHT / 2

    def x(value: float) -> float:
        return centre + max(-1.0, min(1.0, value / scale)) * reach

    def end(value: float, inwards: int) -> str:
        # A stroke, or an arrow's head where it goes on beyond the axis.
        tip = 4 * inwards if abs(value) > scale else 0
        at = x(value)
        return f"M{at + tip:.1f} {middle - 4:g}L{at:.1f} {middle:g}L{at + tip:.1f} {middle + 4:g}"

    line = circle = ""
    if math.isfinite(mean):
        circle = f'<circle cx="{x(mean):.1f}" cy="{middle:g}" r="3.5"/>'
    if circle and low is not None and high is not None:
        rule = f"M{x(low):.1f} {middle:g}H{x(high):.1f}"
        line = f'<path class="range" d="{rule}{end(low, 1)}{end(high, -1)}"/>'
    return (
        f'<svg role="img" aria-label="{label}" viewBox="0 0 {_PICTURE_WIDTH} {_PICTURE_HEIGHT}" '
        f'width="{_PICTURE_WIDTH}" height="{_PICTURE_HEIGHT}">'
        f'<path class="zero" d="M{centre:g} 0V{_PICTURE_HEIGHT}"/>{line}'
        f"{circle}</svg>"
    )
