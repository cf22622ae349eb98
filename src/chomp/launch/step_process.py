"""The process of one step: `python -m chomp.launch.step_process OUTCOME < payload`.

Calls the step's function with its config and leaves at OUTCOME how that ended. The exit code is
that of a launch file which ran the step itself: 0, an error's own, 75 and 130 for interruptions.
What the step prints goes where this process was told to print.
"""

import faulthandler
import sys
import traceback

from chomp.errors import ChompError
from chomp.launch.outcome import outcome_of, write_outcome
from chomp.launch.step_payload import loaded_step
from chomp.launch.telling import tell_warnings_only


def run_sent_step(payload: bytes, outcome: str) -> int:
    """Run a step that was sent here; the exit code. `outcome` is where to say how it ended."""
    tell_warnings_only()
    error: BaseException | None = None
    try:
        fn, config = loaded_step(payload)
        fn(config)
    # All of them: sys.exit in a step is no success, and Ctrl-C is told to the one that waits.
    except BaseException as raised:
        error = raised
        _show(raised)
    ended = outcome_of(error)
    # Before this process ends: at its exit, one of several may wait for the others, or not at all.
    write_outcome(outcome, ended)
    return ended.exit_code


def _show(error: BaseException) -> None:
    """For the log. A `ChompError` says all in its message; any other is a bug."""
    if isinstance(error, ChompError):
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    else:
        traceback.print_exception(error)


if __name__ == "__main__":
    faulthandler.enable()  # a crash in native code leaves where it was in the log
    sys.exit(run_sent_step(sys.stdin.buffer.read(), sys.argv[1]))
