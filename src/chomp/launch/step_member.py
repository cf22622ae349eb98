"""A step's process on this machine: started, watched, and ended with the one that started it."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from chomp.launch.outcome import Outcome, read_outcome
from chomp.launch.tether import tethered

_MODULE = "chomp.launch.step_process"


class StepMember:
    """A process that runs a step which was packed by `payload_of`; a `Member` of a gang.

    `environment` is its whole environment. It prints to `log`. It ends with this process, and
    Ctrl-C at the terminal does not reach it: whoever watches it hands that on. `close` it in the
    end.
    """

    def __init__(self, payload: bytes, *, environment: Mapping[str, str], log: BinaryIO) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="chomp-step-")
        self._outcome = str(Path(self._folder.name, "outcome.json"))
        with tempfile.TemporaryFile() as sent:
            # As a file and not through a pipe, which the process might never empty.
            sent.write(payload)
            sent.seek(0)
            self._process = subprocess.Popen(
                tethered([sys.executable, *_warning_flags(), "-m", _MODULE, self._outcome]),
                stdin=sent,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={"PYTHONUNBUFFERED": "1", **environment},
                start_new_session=True,
            )

    @property
    def process_id(self) -> int:
        """Its id on this machine."""
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit code, below 0 for a signal that ended it; None while it runs."""
        return self._process.poll()

    def terminate(self) -> None:
        """Ask it to save and end."""
        self._process.terminate()

    def kill(self) -> None:
        """End it now, and what it has started; does nothing to one that has ended."""
        if self._process.poll() is None:
            # Its group, which it leads: what it has started must not write any more either.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def outcome(self) -> Outcome | None:
        """How the step ended; None if its process could not say so any more."""
        return read_outcome(self._outcome)

    def close(self) -> None:
        """Take away what the process left behind. To be called once it has ended."""
        self._folder.cleanup()


def _warning_flags() -> list[str]:
    # What this process takes for an error is one there, too.
    return [flag for option in sys.warnoptions for flag in ("-W", option)]
