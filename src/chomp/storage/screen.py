"""Standard streams that may be closed, full, without a reader, or know only ASCII.

A command that only prints ends when it cannot: quietly where its reader is gone, else with an
error. One that works goes on without a screen, and its exit code is that of the work. No secret is
printed: all that a command writes goes through here.
"""

import io
import logging
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from chomp.errors import LaunchError
from chomp.storage.secrets import redactor

# What a shell reports for a command whose reader has gone.
NO_READER_EXIT_CODE = 141

_STDOUT = 1  # its file descriptor


class _Screen:
    """An output stream without secrets, whose faults count as errors or are logged once."""

    def __init__(self, stream: TextIO, *, counts: bool) -> None:
        self.stream = stream
        self._counts = counts
        self._redacted = redactor()
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for a terminal that knows only ASCII

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        try:
            self.stream.write(self._redacted(text))
        except OSError as error:
            self._lose(error)
        return len(text)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        if self._counts and isinstance(error, BrokenPipeError):
            raise error
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())
        self.stream.flush()  # what could not be written is still in its buffer
        if self._counts:
            raise LaunchError(
                f"{self.stream.name} cannot be written: {error.strerror}",
                allowed="an output with room for what the command prints",
                fix="send the output elsewhere, or free space where it goes",
            ) from error
        logging.getLogger(__name__).warning(
            "%s cannot be written any more (%s); the command goes on", self.stream.name, error
        )


@contextmanager
def checked_screen() -> Iterator[None]:
    """Around a whole command: open what was closed (`>&-`), and tell when stdout fails.

    stderr never fails a command: errors have no other place to go.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            _open_null(number)
            setattr(sys, name, open(os.devnull, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115
    with _screens(counts=True):
        yield


@contextmanager
def outliving_the_screen() -> Iterator[None]:
    """Around work: it goes on where stdout fails."""
    with _screens(counts=False):
        yield
        sys.stdout.flush()


def is_reader_gone(error: BaseException) -> bool:
    """Whether a command ends because nobody reads its output any more, as after `| head`.

    What it has left to print then goes nowhere.
    """
    if isinstance(error, SystemExit):  # as rich does it
        return isinstance(error.__context__, BrokenPipeError)
    # A socket or another pipe may be what broke.
    out = select.poll()
    out.register(_STDOUT, 0)
    if not out.poll(0):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
    return True


@contextmanager
def _screens(*, counts: bool) -> Iterator[None]:
    before = sys.stdout, sys.stderr
    out, err = (each.stream if isinstance(each, _Screen) else each for each in before)
    sys.stdout = cast(TextIO, _Screen(out, counts=counts))
    sys.stderr = cast(TextIO, _Screen(err, counts=False))
    try:
        yield
    finally:
        with suppress(ValueError):  # a test may have closed its own
            sys.stderr.flush()
        sys.stdout, sys.stderr = before


def _open_null(number: int) -> None:
    """Take a closed descriptor, which the next file would get: libraries print into 1 and 2."""
    try:
        os.fstat(number)
    except OSError:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, number)  # for child processes, too
        if null != number:
            os.close(null)
        else:
            os.set_inheritable(number, True)
