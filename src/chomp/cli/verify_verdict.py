"""Whether two runs came out the same: every loss they logged, and the state they ended with.

On one number of devices, the same means bit for bit. A run that moves between numbers of devices
adds sums up in another order, which rounds otherwise. How far that grows is measured by runs that
are not killed, each on one number: a moved run may differ by that much, and by nothing where
those runs are equal to the bit.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite, isnan
from os.path import join
from typing import Any

from chomp.checkpoint import CHECKPOINTS, METADATA, read_step_folder
from chomp.checkpoint.inspect import array_differences
from chomp.cli.verify_lives import Life, RunFacts, newest_checkpoint
from chomp.storage import read_json
from chomp.tracking import metrics, read_metrics

_LOSS = re.compile(r".+/(?:\w+_)?loss")
# Counted, not summed: the same on any number of devices.
_EXACT = (metrics.TOKENS_SEEN,)
_COMPARED = (metrics.GRAD_NORM, *_EXACT)
# A moved run crosses between numbers of devices several times, at other steps than the runs it is
# measured by: a different sample of the same noise. A forgotten moment or batch is a thousandfold.
MOVED_FACTOR = 10.0


@dataclass(frozen=True)
class Logged:
    """One compared value of the record."""

    step: int
    name: str
    attempt: int
    value: Any

    def __str__(self) -> str:
        return f"{self.name} of step {self.step}"


@dataclass(frozen=True)
class Outcome:
    """What came of a run, read from its folder."""

    folder: str
    facts: RunFacts

    @cached_property
    def logged(self) -> list[Logged]:
        """Every compared value, by step, then by attempt."""
        rows = [row for row in read_metrics(join(self.folder, self.facts.record)) if "step" in row]
        found = [
            Logged(row["step"], name, row["attempt"], row[name])
            for row in rows
            for name in row
            if _LOSS.fullmatch(name) or name in _COMPARED
        ]
        return sorted(found, key=lambda item: (item.step, item.attempt))

    @cached_property
    def values(self) -> dict[tuple[int, str], Any]:
        """The newest attempt's values, by step and name."""
        return {(item.step, item.name): item.value for item in self.logged}

    @property
    def final_step(self) -> int:
        """The step of the newest checkpoint."""
        return newest_checkpoint(self.folder)

    @property
    def final_path(self) -> str:
        """The folder of the newest checkpoint."""
        return join(self.folder, CHECKPOINTS, f"step-{self.final_step}")

    @cached_property
    def receipt(self) -> dict[str, str]:
        """Hash of every array in the newest checkpoint."""
        found: dict[str, str] = read_json(join(self.final_path, METADATA))["receipt"]
        return found


@dataclass(frozen=True)
class Spread:
    """The largest relative differences between two runs, and where they are."""

    loss: float = 0.0
    loss_at: str = "no step"
    state: float = 0.0
    state_at: str = "no array"


def first_difference(unbroken: Outcome, killed: Outcome, lives: Sequence[Life]) -> str | None:
    """The first thing that is not the same to the bit, in words; None if all of it is."""
    return (
        _lost_progress(lives)
        or _other_values(unbroken, killed)
        or _missing_values(unbroken, killed)
        or _other_state(unbroken, killed)
    )


def first_moved_difference(
    unbroken: Outcome, killed: Outcome, lives: Sequence[Life], *, devices: int, allowed: Spread
) -> str | None:
    """The first thing that moving between numbers of devices does not explain; None: nothing.

    `devices` is how many the unbroken run had: until the run is on others, it must be the same.
    """
    moved = [life for life in lives if life.devices != devices]
    steps = [life.first_step for life in moved if life.first_step is not None]
    first_moved = min(steps, default=unbroken.facts.steps)
    early = _other_values(unbroken, killed, until=first_moved)
    counted = _other_values(unbroken, killed, only=_EXACT)
    found = _lost_progress(lives) or early or counted or _missing_values(unbroken, killed)
    if found is not None or unbroken.final_step != killed.final_step:
        return found or _other_state(unbroken, killed)
    if not (isfinite(allowed.loss) and isfinite(allowed.state)):
        return (
            "runs that are not killed differ without bound between these numbers of devices "
            f"({allowed.loss_at}, {allowed.state_at}), so a moved run cannot be judged"
        )
    spread = spread_between(unbroken, killed)
    if spread.loss > MOVED_FACTOR * allowed.loss:
        return f"{spread.loss_at} differs by {spread.loss:.1e} of its value"
    if spread.state > MOVED_FACTOR * allowed.state:
        return f"the final {spread.state_at} differs by {spread.state:.1e} of its length"
    return None


def spread_between(one: Outcome, other: Outcome) -> Spread:
    """How far apart two runs are, of the same steps but not on the same devices."""
    losses: dict[str, float] = {}
    for item in other.logged:
        value = one.values.get((item.step, item.name))
        if _LOSS.fullmatch(item.name) and value:
            # Of several attempts, the one that is furthest off.
            off = abs(item.value - value) / abs(value)
            losses[str(item)] = max(off, losses.get(str(item), 0.0))
    loss_at, loss = _largest(losses)
    state_at, state = _largest(_array_spread(one, other))
    return Spread(loss, loss_at, state, state_at)


def widest_spread(spreads: Iterable[Spread]) -> Spread:
    """The largest of each."""
    found = list(spreads)
    loss = max(found, key=lambda item: item.loss)
    state = max(found, key=lambda item: item.state)
    return Spread(loss.loss, loss.loss_at, state.state, state.state_at)


def _largest(differences: Mapping[str, float]) -> tuple[str, float]:
    # What is not a number is no distance, and larger than all of them.
    sizes = ((name, inf if isnan(size) else size) for name, size in differences.items())
    return max(sizes, key=lambda item: item[1], default=("nothing", 0.0))


def _array_spread(one: Outcome, other: Outcome) -> dict[str, float]:
    sides = (read_step_folder(one.final_path), read_step_folder(other.final_path))
    # What is no number with a rounding, a counter or a key, must be the same anywhere.
    return {
        item.name: item.relative if item.is_float else inf
        for item in array_differences(*sides)
        if item.kind != "equal"
    }


def _lost_progress(lives: Sequence[Life]) -> str | None:
    for number, life in enumerate(lives, start=1):
        if life.first_step is not None and life.first_step < life.began_at:
            return (
                f"life {number} began after {life.first_step} steps, although the checkpoint of "
                f"step {life.began_at} was complete"
            )
    return None


def _other_values(
    unbroken: Outcome,
    killed: Outcome,
    *,
    until: int | None = None,
    only: Sequence[str] | None = None,
) -> str | None:
    """The first value of any attempt that is not that of the unbroken run."""
    for item in killed.logged:
        if (until is not None and item.step >= until) or (only and item.name not in only):
            continue
        wanted = unbroken.values.get((item.step, item.name))
        if wanted != item.value:
            return (
                f"{item}: {wanted!r} in the unbroken run, {item.value!r} in the killed one "
                f"(attempt {item.attempt})"
            )
    return None


def _missing_values(unbroken: Outcome, killed: Outcome) -> str | None:
    missing = sorted(unbroken.values.keys() - killed.values.keys())
    if not missing:
        return None
    step, name = missing[0]
    return f"{name} of step {step}: logged by the unbroken run, and by no attempt of the killed one"


def _other_state(unbroken: Outcome, killed: Outcome) -> str | None:
    if unbroken.final_step != killed.final_step:
        return (
            f"the final checkpoint: step {unbroken.final_step} of the unbroken run, "
            f"step {killed.final_step} of the killed one"
        )
    leaves = sorted(unbroken.receipt.keys() | killed.receipt.keys())
    other = [leaf for leaf in leaves if unbroken.receipt.get(leaf) != killed.receipt.get(leaf)]
    if not other:
        return None
    hashes = (str(run.receipt.get(other[0]))[:16] for run in (unbroken, killed))
    return (
        f"{other[0]} of the final state ({' and '.join(hashes)}), the first of {len(other)} arrays "
        f"out of {len(leaves)}; every loss is the same"
    )
