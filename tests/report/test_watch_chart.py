"""Charts in letters: nothing outside of the axes, nothing hidden, in braille and in ASCII."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chomp.report.curves import Curve
from chomp.report.text_chart import (
    ASCII,
    BRAILLE,
    Scale,
    Signs,
    chart_lines,
    scale_of,
    signs_for,
    spark,
    tick_labels,
)

FINITE = st.floats(-1e30, 1e30)
SIGNS = pytest.mark.parametrize("signs", [BRAILLE, ASCII], ids=["braille", "ascii"])


def points(values: list[float], *, first: int = 0, gap: int = 1) -> Curve:
    steps = np.arange(first, first + gap * len(values), gap, dtype=np.int64)
    return Curve(steps, np.array(values, np.float64))


def plain(curve: Curve, signs: Signs, width: int = 60, height: int = 12, **rest) -> list[str]:
    lines = chart_lines(curve, width=width, height=height, signs=signs, **rest)
    return [line.plain for line in lines]


def inside(lines: list[str], signs: Signs) -> list[str]:
    """The letters between the axes, from the top."""
    margin = lines[-2].index(signs.axis[2])
    assert all(line[margin] in signs.axis[:2] for line in lines[:-2])
    return [line[margin + 1 :] for line in lines[:-2]]


@given(st.lists(FINITE, min_size=1, max_size=30))
def test_every_value_lies_on_its_scale_in_their_order(values):
    scale = scale_of(np.array(values))
    assert scale.low <= min(values) <= max(values) <= scale.high
    places = scale.places(np.array(sorted(values)))
    assert np.all((places >= 0) & (places <= 1))
    assert np.all(np.diff(places) >= 0)


@given(st.lists(FINITE, min_size=1, max_size=30), st.integers(1, 12))
def test_ticks_are_on_the_scale_few_and_told_apart(values, count):
    scale = scale_of(np.array(values))
    ticks = scale.ticks(count)
    hair = 1e-9 * (scale.high - scale.low)
    assert all(scale.low - hair <= tick <= scale.high + hair for tick in ticks)
    assert len(ticks) <= 2 * count + 2
    labels = tick_labels(ticks)
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize(
    ("ticks", "labels"),
    [
        ([2.5, 3.0, 3.5], ["2.5", "3.0", "3.5"]),
        ([0.0, 20000.0, 40000.0], ["0", "20k", "40k"]),
        ([0.0, 1e-4, 2e-4], ["0", "1e-04", "2e-04"]),
        ([160500.0, 161000.0], ["160.5k", "161.0k"]),
        ([0.1, 1.0, 10.0], ["0.1", "1", "10"]),
    ],
)
def test_ticks_are_written_as_people_do(ticks, labels):
    assert tick_labels(ticks) == labels


def test_values_that_differ_a_hundredfold_have_a_logarithmic_scale():
    scale = scale_of(np.array([0.1, 1.0, 10.0]))
    assert scale.is_log
    assert scale.places(np.array([1.0])) == pytest.approx([0.5])
    assert not scale_of(np.array([0.0, 10.0])).is_log


@SIGNS
@given(values=st.lists(FINITE, min_size=1, max_size=200), width=st.integers(24, 120))
def test_a_chart_has_its_size_and_a_mark_for_every_value(signs, values, width):
    curve, height = points(values), 10
    lines = plain(curve, signs, width, height)
    assert len(lines) == height
    assert max(map(len, lines)) <= width
    letters = inside(lines, signs)
    columns = len(letters[0])
    last = max(1, len(values) - 1)
    down, across = signs.bits.shape
    dots_across, dots_down = columns * across, len(letters) * down
    places = scale_of(curve.values).places(curve.values)
    for step, place in enumerate(places):
        column = round(step / last * (dots_across - 1)) // across
        row = round((1 - place) * (dots_down - 1)) // down
        assert letters[row][column] != " "


@SIGNS
@pytest.mark.parametrize("place", [3, 40_321, 99_998])
def test_one_spike_in_a_hundred_thousand_values_reaches_the_top(signs, place):
    values = 3 + 0.1 * np.sin(np.arange(100_000))
    values[place] = 30.0
    letters = inside(plain(Curve(np.arange(100_000), values), signs), signs)
    (column,) = [at for at, letter in enumerate(letters[0]) if letter != " "]
    assert column == round(place / 99_999 * (len(letters[0]) - 1))


@SIGNS
def test_values_that_are_not_finite_are_marked_and_leave_the_rest_drawn(signs):
    values = [3.0, float("nan"), float("inf"), 2.0, *[1.0] * 30]
    letters = inside(plain(points(values), signs), signs)
    assert signs.not_finite in letters[0]
    assert letters[-1].strip()
    assert inside(plain(points([float("nan")] * 5), signs), signs)[0].count(signs.not_finite) == 5


@SIGNS
def test_resumes_and_evaluations_are_on_the_axes_at_their_steps(signs):
    curve = points([3.0] * 101, first=0, gap=10)
    lines = plain(
        curve, signs, width=106, resumes=[(500, 2)], points=points([2.0, 2.5], first=0, gap=1000)
    )
    letters, margin = inside(lines, signs), lines[-2].index(signs.axis[2]) + 1
    columns = len(letters[0])
    assert lines[-2][margin + round(0.5 * (columns - 1))] == signs.resumed
    assert f"{signs.resumed}2" in lines[-2]
    assert letters[-1][0] == signs.point
    assert any(row[-1] == signs.point for row in letters[:-1])


@SIGNS
def test_a_sparkline_shows_a_trend_and_a_spike_and_what_was_not_finite(signs):
    rising = spark(np.arange(1.0, 101.0), width=8, signs=signs)
    assert list(rising) == sorted(rising, key=signs.levels.index)
    assert (rising[0], rising[-1]) == (signs.levels[0], signs.levels[-1])
    values = np.full(10_000, 2.0)
    values[7_777] = 90.0
    spiked = spark(values, width=10, signs=signs)
    assert [at for at, letter in enumerate(spiked) if letter == signs.levels[-1]] == [7]
    values[100] = np.nan
    assert spark(values, width=10, signs=signs)[0] == signs.not_finite
    assert spark(np.full(3, np.nan), width=10, signs=signs) == ""
    assert len(set(spark(1 + 1e-4 * np.sin(np.arange(50.0)), width=20, signs=signs))) <= 2


def test_a_terminal_without_braille_gets_ascii():
    assert signs_for("utf-8") is BRAILLE
    assert signs_for("ascii") is ASCII
    assert signs_for("latin-1") is ASCII
    lines = plain(points([3.0, 2.0, 1.0] * 40), ASCII, resumes=[(10, 2)], points=points([2.0]))
    assert "".join(lines).isascii()


def test_a_scale_of_nothing_or_of_one_value_has_room():
    assert scale_of(np.zeros(0)) == Scale(0.0, 1.0)
    scale = scale_of(np.array([3.0]))
    assert scale.low < 3.0 < scale.high
