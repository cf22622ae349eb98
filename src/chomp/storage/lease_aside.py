"""Words of a thread that must not be held up by them: a log can block for as long as it likes.

A pipe that nobody reads is full some day, and whoever writes to it then waits, with the lock of the
log in hand. A heartbeat that waits there is a holder that seems dead.
"""

import logging
import threading


class Aside:
    """Logs from a thread of its own, one message at a time; what comes meanwhile is left out."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._talking: threading.Thread | None = None

    def warn(self, text: str, *arguments: object) -> None:
        """Log a warning; returns at once. From one thread only."""
        # Not a queue, which would grow with every beat as long as nobody reads.
        if self._talking is not None and self._talking.is_alive():
            return
        self._talking = threading.Thread(
            target=self._log.warning, args=(text, *arguments), name="lease aside", daemon=True
        )
        self._talking.start()
