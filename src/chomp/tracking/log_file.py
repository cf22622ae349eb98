"""A run's log file: Python's log messages, of this project and of the libraries it calls.

The file takes everything from a level on. The terminal takes warnings, as if there were no file: a
library that tells of each array it saves would scroll the progress away.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from chomp.storage.errors import storage_errors
from chomp.storage.files import open_regular
from chomp.storage.printable import PlainFormatter
from chomp.storage.secrets import redacted

# Loggers with a level of their own, which that of the root does not reach. Orbax logs by absl.
_OWN_LEVELS = ("absl", "chomp", "experiments", "jax", "jaxlib", "orbax")
_FORM = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@contextmanager
def logged_to(path: str | None, level: str = "INFO") -> Iterator[None]:
    """While it is open, messages from `level` on go to the file too; None: only the terminal."""
    root = logging.getLogger()
    others = list(root.handlers)
    handlers: list[logging.Handler] = [] if path is None else [_file_handler(path, level)]
    if not others:  # Python shows warnings by itself only while nobody else handles them
        handlers.append(_terminal_handler())
    loggers = [root, *map(logging.getLogger, _OWN_LEVELS)]
    listening: list[logging.Logger | logging.Handler] = [*loggers, *others]
    before = [(item, item.level) for item in listening]
    if path is not None:
        for other in others:
            # What opens up for the file stays closed for whoever listened before.
            other.setLevel(max(other.level, root.level))
        for logger in loggers:
            logger.setLevel(level)
    for handler in handlers:
        root.addHandler(handler)
    try:
        yield
    finally:
        for item, old in before:
            item.setLevel(old)
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()


class _WithoutSecrets(PlainFormatter):
    """A formatter whose lines hold no secret, tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, redacted."""
        return redacted(super().format(record))


def _file_handler(path: str, level: str) -> logging.Handler:
    with storage_errors(path, "write"):  # a pipe would be waited for
        os.close(open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT))
        handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(_WithoutSecrets(_FORM))
    handler.setLevel(level)
    return handler


def _terminal_handler() -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter())
    handler.setLevel(logging.WARNING)
    return handler
