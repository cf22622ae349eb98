"""Keys on their way to a job: apart from its environment, which Ray keeps and shows to everybody.

The variables of a job's runtime_env are in Ray's table of jobs, in its logs and on its dashboard,
long after the job. Keys are uploaded under a name that cannot be guessed; the job takes them away
when it begins (`job_start.py`). That keeps them off all displays. It does not keep them from those
who have the cluster's token: they may run code there, and so read what any job can.
"""

import json
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chomp.launch import job_start

PACKAGE = "chomp_job_start"
# An upload that fails is told, and logged over there, with its first 15 bytes.
_PADDING = bytes(16)


def place_for_keys() -> str:
    """A place in the cluster's store that nobody else has, and that nobody can guess."""
    return f"gcs://_ray_pkg_{secrets.token_hex(16)}.zip"


def upload_keys(client: Any, place: str, keys: Mapping[str, str]) -> None:
    """Leave keys at a place of the cluster's store, until a job fetches them.

    Raises what Ray's client raises, which holds none of them.
    """
    _put(client, place, _PADDING + json.dumps(dict(keys)).encode())


def wipe_keys(client: Any, place: str) -> None:
    """Overwrite keys that a job never fetched: it ended before it began."""
    # The question itself makes Ray remove them, ten minutes later; there is no word to do so now.
    if client._package_exists(place):
        _put(client, place, b"")


def start_package(folder: Path) -> str:
    """The package for a job's nodes that fetches its keys, written below `folder`."""
    package = folder / PACKAGE
    package.mkdir()
    shutil.copyfile(job_start.__file__, package / "__main__.py")
    (package / "__init__.py").touch()
    return str(package)


def _put(client: Any, place: str, content: bytes) -> None:
    """Upload as Ray's client does packages; nothing in the job API reads them back."""
    protocol, _, name = place.partition("://")
    answer = client._do_request("PUT", f"/api/packages/{protocol}/{name}", data=content)
    if answer.status_code != 200:
        client._raise_error(answer)
