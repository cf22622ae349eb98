"""The start of a command on a cluster that was sent keys: `python -m chomp_job_start COMMAND...`.

`ray_run` sends this file along as a package of its own. The keys come in two halves that say
nothing alone: a file in this package, which is removed here, and a variable. This puts the keys in
the environment and becomes the command. Standard library only: nothing else of chomp is on the
node yet.
"""

import json
import os
import sys
from pathlib import Path

KEYS_FILE = "keys.bin"
# The variable with the other half of the keys, as hexadecimal digits.
HALF = "CHOMP_JOB_KEYS"
# The variable that names the keys, so that the command can hand them to its steps.
NAMES = "CHOMP_JOB_KEY_NAMES"
_NOT_FOUND = 127  # as shells report it


def _become(command: list[str]) -> str:
    """Become the command; returns only if that cannot be, with the reason."""
    place, pad = Path(__file__).with_name(KEYS_FILE), bytes.fromhex(os.environ.pop(HALF))
    try:
        half = place.read_bytes()
        place.unlink()
    except OSError:
        raise SystemExit(
            "the keys that were sent to this job are no longer there. Allowed: one start for each "
            "submission. Fix: submit it again."
        ) from None
    keys: dict[str, str] = json.loads(bytes(a ^ b for a, b in zip(half, pad, strict=True)))
    os.environ.update(keys, **{NAMES: " ".join(sorted(keys))})
    try:
        os.execvp(command[0], command)
    except OSError as error:
        return f"{command[0]}: {error.strerror}"


if __name__ == "__main__":
    print(_become(sys.argv[1:]), file=sys.stderr)
    sys.exit(_NOT_FOUND)
