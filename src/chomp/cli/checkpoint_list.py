"""`chomp checkpoint list`: what lies in a folder of checkpoints, without reading an array."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from chomp.cli.checkpoint_printing import narrow_table
from chomp.cli.terminal import print_table, say

if TYPE_CHECKING:  # for annotations alone
    from chomp.checkpoint.layout import StepFolder, Unreadable
    from chomp.checkpoint.places import CheckpointPlace

_WITHOUT_YEAR_S = 180 * 86_400
_COUNTS = ((1_000_000_000, "B"), (1_000_000, "M"))
_AGES = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


@dataclass(frozen=True, kw_only=True)
class ListedCheckpoint:
    """One line of the list: texts, empty where nothing is known."""

    name: str
    kind: str = ""
    saved: str = ""
    size: str
    attempt: str = ""
    tokens: str = ""
    continues: str = ""
    state: str


def list_place(path: str) -> int:
    """Print a line for each checkpoint, and for each folder that is none and is there; the code."""
    from rich.text import Text

    from chomp.checkpoint.places import place_of

    place = place_of(path)
    lines = listed(place, now=time.time())
    say(place.folder)
    if not lines:
        say("no checkpoints yet")
        return 0
    table = narrow_table("step", "kind", "saved")
    for heading in ("size", "attempt", "tokens"):
        table.add_column(heading, justify="right")
    table.add_column("from")
    table.add_column("state")
    for line in lines:
        # As plain text: a reason may hold brackets of its own.
        table.add_row(*map(Text, vars(line).values()))
    print_table(table)
    return 0


def listed(place: CheckpointPlace, *, now: float) -> list[ListedCheckpoint]:
    """What lies in the folder, oldest step first; after them what is no checkpoint any more."""
    from chomp.checkpoint.layout import StepFolder, leftovers, moved_aside
    from chomp.checkpoint.places import found_at
    from chomp.storage import name_of

    lines = [
        _complete(item, now) if isinstance(item, StepFolder) else _unreadable(item)
        for item in reversed(found_at(place))
    ]
    if place.step is not None:
        return lines
    for state, paths in (
        ("moved aside", moved_aside(place.folder)),
        ("unfinished", leftovers(place.folder)),
    ):
        lines += [
            ListedCheckpoint(name=_step(name_of(path)), size=_size(path), state=state)
            for path in paths
        ]
    return lines


def _complete(found: StepFolder, now: float) -> ListedCheckpoint:
    from rich.filesize import decimal

    from chomp.checkpoint.layout import problem_with_files

    metadata = found.metadata
    problem = problem_with_files(found)
    return ListedCheckpoint(
        name=str(metadata.step),
        kind="temporary" if metadata.is_temporary else "permanent",
        saved=_saved(metadata.time, now),
        size=decimal(metadata.state_bytes),
        attempt=str(metadata.attempt),
        tokens=_count(metadata.tokens_seen),
        continues=continued(metadata.continues, metadata.run_id),
        state="complete" if problem is None else f"damaged: {problem}",
    )


def _unreadable(item: Unreadable) -> ListedCheckpoint:
    from chomp.storage import name_of

    return ListedCheckpoint(
        name=_step(name_of(item.path)), size=_size(item.path), state=f"unreadable: {item.reason}"
    )


def continued(continues: dict[str, Any] | None, run_id: str) -> str:
    """What a run went on from, in a few words: nothing, a step of its own, or another run's."""
    if continues is None:
        return ""
    weights_from = continues.get("initialize_from")  # later attempts hand it on
    if weights_from is not None and weights_from == continues.get("path", weights_from):
        return f"weights of {weights_from}"
    is_own = continues.get("run_id") == run_id
    return f"step {continues.get('step')}" if is_own else str(continues.get("path"))


def _saved(seconds: float, now: float) -> str:
    """When, and how long ago in the largest unit that fits."""
    age = now - seconds
    # The year in the place of the time, as `ls` does: nobody asks for both.
    form = "%b %d %H:%M" if age < _WITHOUT_YEAR_S else "%b %d  %Y"
    ago = next((f"{age // length:.0f} {unit}" for length, unit in _AGES if age >= length), "now")
    return f"{datetime.fromtimestamp(seconds):{form}} ({ago})"


def _count(number: int) -> str:
    """A number of tokens; in full only as long as somebody would read it."""
    for size, unit in _COUNTS:
        if number >= 10 * size:
            return f"{number / size:,.1f}{unit}"
    return f"{number:,}"


def _step(name: str) -> str:
    return name.removeprefix("step-")


def _size(path: str) -> str:
    from rich.filesize import decimal

    from chomp.errors import StorageError
    from chomp.storage import folder_size_bytes

    try:
        return decimal(folder_size_bytes(path))
    except StorageError:  # no folder, or the run has just removed it
        return ""
