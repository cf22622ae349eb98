"""The start of a command on a cluster that was sent keys: `python -m chomp_job_start COMMAND...`.

Takes the keys out of the cluster's store, where they are no longer from then on, and becomes the
command, with them in its environment. `job_keys` sends this file along as a package of its own: the
standard library and Ray have to do, whatever else the node has.
"""

import importlib
import json
import os
import sys
from typing import Any

# Names of variables: under which key the store has them, and what they are called.
PLACE = "CHOMP_JOB_KEYS"
NAMES = "CHOMP_JOB_KEY_NAMES"
_NOT_FOUND = 127  # as shells report it


def _become(command: list[str]) -> str:
    """Become the command; returns only if that cannot be, with the reason."""
    keys = _taken(os.environ.pop(PLACE))
    # By name, so that the steps of the command can be handed them, too.
    os.environ.update(keys, **{NAMES: " ".join(sorted(keys))})
    try:
        os.execvp(command[0], command)
    except OSError as error:
        return f"{command[0]}: {error.strerror}"


def _taken(place: str) -> dict[str, str]:
    """The keys that were left at that place of the store, which is empty afterwards."""
    try:
        # Ray's inside: one that connects as others do would be a second driver of this job.
        raylet: Any = importlib.import_module("ray._raylet")
    except ImportError as error:
        raise SystemExit(
            f"keys were sent to this job, and {sys.executable} has no Ray to fetch them with "
            f"({error}). Allowed: a python on the node's PATH that has the cluster's Ray. Fix: "
            "name such a one at the beginning of the command, or unset the keys before ray_run."
        ) from error
    store = raylet.GcsClient(address=os.environ["RAY_ADDRESS"])
    found: bytes | None = store.internal_kv_get(place.encode(), None)
    store.internal_kv_del(place.encode(), False, None)
    if not found:
        raise SystemExit(
            "the keys that were sent to this job are no longer there. Allowed: one start for each "
            "submission. Fix: submit it again."
        )
    # What stands before is no part of them; see `job_keys`.
    keys: dict[str, str] = json.loads(found.lstrip(b"\0"))
    return keys


if __name__ == "__main__":
    print(_become(sys.argv[1:]), file=sys.stderr)
    sys.exit(_NOT_FOUND)
