"""A start of a run that ends before the run does: after so many steps, with its state saved.

It is asked of one start and says nothing of the run, so it is no part of any config: the
environment carries it, to processes that this one starts too. The schedule stays that of the whole
run, and the next start goes on.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from chomp.errors import require

VARIABLE = "CHOMP_STOP_AFTER"


def steps_of_this_start() -> int | None:
    """How many steps this start may take; None: all that are left."""
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    require(
        text.isdecimal() and int(text) > 0,
        f"{VARIABLE}={text}",
        allowed="the number of steps after which a run saves its state and ends, 1 or more",
        fix=f"unset {VARIABLE}, or pass `chomp train --max-steps N`",
    )
    return int(text)


@contextmanager
def stopping_after(steps: int | None) -> Iterator[None]:
    """Let runs that start inside take at most so many steps; None leaves all as it is."""
    before = os.environ.get(VARIABLE)
    if steps is not None:
        os.environ[VARIABLE] = str(steps)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before
