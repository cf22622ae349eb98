"""`chomp checkpoint verify`: whether checkpoints are as they were saved."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

from chomp.cli.checkpoint_printing import late_bar, use_the_cpu
from chomp.cli.terminal import say
from chomp.errors import CheckpointError, message

if TYPE_CHECKING:  # for annotations alone
    from chomp.checkpoint.layout import StepFolder, Unreadable

Verdict = Literal["whole", "damaged", "gone"]

_PROBLEMS_TOLD = 20
_LOOKS = 3  # at a place all of whose checkpoints go while they are read


def verify_place(path: str, *, every: bool) -> int:
    """Print a verdict for each checkpoint; `CheckpointError` at the end if any is damaged."""
    from chomp.checkpoint.places import place_of, some_at

    use_the_cpu()
    for _ in range(_LOOKS):
        newest_first = some_at(place_of(path))
        found = newest_first[::-1] if every else newest_first[:1]
        verdicts = {item.path: _verdict(item) for item in found}
        if set(verdicts.values()) != {"gone"}:
            break
    else:
        raise CheckpointError(
            message(
                given=f"all of {', '.join(verdicts)} were deleted while they were read",
                allowed="a place whose checkpoints stay",
                fix="name a step-N that its run keeps, or wait until that run has ended",
            )
        )
    damaged = [path for path, verdict in verdicts.items() if verdict == "damaged"]
    if damaged:
        raise CheckpointError(
            message(
                given=f"{len(damaged)} of {len(found)} checkpoints damaged: {', '.join(damaged)}",
                allowed="checkpoints that are as they were saved",
                fix="bring back a copy; a run that is continued passes damaged ones over and goes "
                "on from the newest whole one",
            )
        )
    return 0


def _verdict(item: StepFolder | Unreadable) -> Verdict:
    """Tell the verdict on one checkpoint."""
    from chomp.checkpoint.layout import is_gone

    began = time.monotonic()
    problems, contents = _looked_at(item)
    if not problems:
        say(f"whole: {item.path}, {contents}, {time.monotonic() - began:.1f} s")
        return "whole"
    if is_gone(item.path):
        say(f"gone: {item.path}, deleted since it was listed, as a run does that saves")
        return "gone"
    say(f"damaged: {item.path}", style="red")
    for problem in problems[:_PROBLEMS_TOLD]:
        say(f"  {problem}")
    if len(problems) > _PROBLEMS_TOLD:
        say(f"  and {len(problems) - _PROBLEMS_TOLD} more")
    return "damaged"


def _looked_at(item: StepFolder | Unreadable) -> tuple[list[str], str]:
    """What is wrong with a checkpoint, and in a few words what it holds."""
    from rich.filesize import decimal

    from chomp.checkpoint.layout import DamagedCheckpoint, Unreadable
    from chomp.checkpoint.read_on_host import array_bytes, problems_of

    if isinstance(item, Unreadable):
        return [item.reason], ""
    arrays = item.metadata.arrays
    try:
        num_bytes = sum(array_bytes(item, name) for name in arrays)
        with late_bar(f"step {item.metadata.step}", num_bytes) as on_bytes:
            return problems_of(
                item, on_bytes=on_bytes
            ), f"{len(arrays)} arrays, {decimal(num_bytes)}"
    except DamagedCheckpoint as error:  # so much that nothing could be read
        return [error.reason], ""
