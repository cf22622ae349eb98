"""Histograms in rows: how a row, which holds plain values only, carries one.

`<key>` is the text of a JSON list of counts; `<key>/min` and `<key>/max` are the outer edges, and
the bins between them are of equal width.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from chomp.tracking.protocol import PlainValue

_MARK = "/hist/"


@dataclass(frozen=True)
class Histogram:
    """Counts of equal bins from `low` to `high`."""

    counts: list[float]
    low: float
    high: float

    @property
    def edges(self) -> list[float]:
        """One more than there are counts."""
        width = (self.high - self.low) / len(self.counts)
        return [self.low + width * index for index in range(len(self.counts))] + [self.high]


def histograms_of(row: Mapping[str, PlainValue]) -> dict[str, Histogram]:
    """The histograms in a row by name; what only looks like one is left out."""
    found = {}
    for name, value in row.items():
        low, high = row.get(f"{name}/min"), row.get(f"{name}/max")
        if _MARK in name and isinstance(value, str) and _is_number(low) and _is_number(high):
            counts = _counts(value)
            if counts:
                found[name] = Histogram(counts, float(low or 0), float(high or 0))
    return found


def _counts(text: str) -> list[float]:
    try:
        values = json.loads(text)
    except ValueError:
        return []
    is_list = isinstance(values, list) and all(_is_number(value) for value in values)
    return [float(value) for value in values] if is_list else []


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
