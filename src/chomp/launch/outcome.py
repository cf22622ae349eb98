"""How a step ended in another process, as a small file that the process leaves behind.

The file holds text alone, so that no end of a step can harm the process that reads of it. What the
step raised is raised again over there, by the nearest class that this process knows.
"""

import builtins
import traceback
from dataclasses import asdict, dataclass
from typing import Any

from chomp import errors
from chomp.errors import ChompError, RunInterrupted
from chomp.storage import exists, read_json, write_json_atomic

PREEMPTED_EXIT_CODE = 75  # what sysexits.h calls a temporary failure
INTERRUPTED_EXIT_CODE = 130  # as shells report Ctrl-C


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a step ended: it returned, or what it raised."""

    kinds: tuple[str, ...] = ()  # names of the error's class and its bases; none: it returned
    text: str = ""
    notes: tuple[str, ...] = ()
    exit_code: int = 0
    traceback: str = ""

    @property
    def is_preempted(self) -> bool:
        """Whether the step was told to make room: it has saved its state and may go on anywhere."""
        return "RunInterrupted" in self.kinds and self.exit_code == PREEMPTED_EXIT_CODE

    def told(self) -> str:
        """The end in one line."""
        return f"{self.kinds[0]}: {self.text}" if self.kinds else "it returned"


class RaisedElsewhere(Exception):
    """The traceback of another process, to stand above the error that is raised again here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def outcome_of(error: BaseException | None) -> Outcome:
    """The outcome of a step that raised `error`, or that returned."""
    if error is None:
        return Outcome()
    usual = INTERRUPTED_EXIT_CODE if isinstance(error, KeyboardInterrupt) else 1
    return Outcome(
        kinds=tuple(kind.__name__ for kind in type(error).__mro__),
        text=str(error),
        notes=tuple(getattr(error, "__notes__", ())),
        exit_code=error.exit_code if isinstance(error, ChompError) else usual,
        traceback="".join(traceback.format_exception(error)),
    )


def write_outcome(path: str, outcome: Outcome) -> None:
    """Leave an outcome at `path`, whole or not at all."""
    write_json_atomic(path, asdict(outcome))


def read_outcome(path: str) -> Outcome | None:
    """The outcome at `path`; None where a process ended before it could say."""
    if not exists(path):
        return None
    found: dict[str, Any] = read_json(path)
    return Outcome(**{**found, "kinds": tuple(found["kinds"]), "notes": tuple(found["notes"])})


def error_of(outcome: Outcome) -> BaseException:
    """What the step raised: a `ChompError` as itself, another by the nearest builtin class.

    Its cause shows the traceback of the other process. Ctrl-C there is a `RunInterrupted` here,
    where nobody pressed a key.
    """
    error = _raised_again(outcome)
    for note in outcome.notes:
        error.add_note(note)
    error.__cause__ = RaisedElsewhere(outcome.traceback)
    return error


def _raised_again(outcome: Outcome) -> BaseException:
    if "KeyboardInterrupt" in outcome.kinds:
        return RunInterrupted("The same command continues.", exit_code=INTERRUPTED_EXIT_CODE)
    if "RunInterrupted" in outcome.kinds:
        return RunInterrupted(outcome.text, exit_code=outcome.exit_code)
    # By name alone: what another process wrote must not decide what is imported here.
    for name in outcome.kinds:
        kind = getattr(errors, name, None) or getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception | SystemExit):
            # A class that could not come along is named in the text.
            text = outcome.text if name == outcome.kinds[0] else outcome.told()
            try:
                return kind(text)
            except TypeError:
                continue  # one of the few builtins that want more than a text
    return RuntimeError(outcome.told())
