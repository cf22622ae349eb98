"""What `chomp verify-resume` says: each life as it ends, all of them in a table, the verdict."""

import os
from collections.abc import Sequence

from rich.table import Table

from chomp.cli.terminal import say
from chomp.cli.verify_lives import Life
from chomp.cli.verify_verdict import MOVED_FACTOR, Outcome, Spread


def tell_life(life: Life, kill: int, kills: int) -> None:
    """How a life ended, on a line; `kill` tells how many were killed by then."""
    if not life.was_killed:
        say(f"came to its end after {life.seconds:.1f} s")
        return
    on = "" if life.devices is None else f" on {life.devices} devices"
    say(f"kill {kill} of {kills}{on}: after {life.seconds:.1f} s, {life.place}")


def kill_table(lives: Sequence[Life]) -> Table:
    """What became of every process, one line each."""
    table = Table("run", "kill", "devices", "resumed from", "lived", "was then")
    kill = 0
    for life in lives:
        kill += life.was_killed
        table.add_row(
            os.path.basename(life.folder),
            str(kill) if life.was_killed else "none",
            "-" if life.devices is None else str(life.devices),
            f"step-{life.began_at}" if life.began_at else "scratch",
            f"{life.seconds:.1f} s",
            life.place if life.was_killed else "done",
        )
    return table


def tell_spread(spread: Spread, allowed: Spread) -> None:
    """How far a moved run is from the unbroken one, and why that much is allowed."""
    say(
        f"Moved between numbers of devices: losses differ by up to {spread.loss:.1e} of their "
        f"value ({spread.loss_at}), the final state by up to {spread.state:.1e} "
        f"({spread.state_at}).\nRuns that stay on one number differ from each other by up to "
        f"{allowed.loss:.1e} and {allowed.state:.1e}: sums in another order. The bound is "
        f"{MOVED_FACTOR:g} times that."
    )


def praise(reference: Outcome, lives: Sequence[Life], allowed: Spread | None) -> str:
    """The verdict on a run without a fault, and how much it is worth."""
    steps, arrays = reference.facts.steps, len(reference.receipt)
    kills = sum(life.was_killed for life in lives)
    if allowed is None:
        verdict = (
            f"Equal: killed {kills} times, the run logged the same losses in all of its {steps} "
            f"steps and ended with the same {arrays} arrays, bit for bit."
        )
    else:
        verdict = (
            f"Equal: killed and moved {kills} times, the run was the same bit for bit until it was "
            f"first moved, and within the bound in all of its {steps} steps and {arrays} arrays."
        )
    resumed = sum(0 < life.began_at < steps for life in lives)
    inside = sum(life.was_killed and life.saving is not None for life in lives)
    if resumed:
        return (
            f"{verdict} It went on from the middle {resumed} times; {inside} of the kills fell "
            "into a save."
        )
    return (
        f"{verdict} But it never went on from the middle: each life began at its start or at its "
        "end, so this says little about resuming. Give it more --steps, or another --seed."
    )
