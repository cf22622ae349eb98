"""Which templates this user's own runs were made with, by the hash of their sources.

A run folder's `template/` is code, and whoever unpacks a stranger's folder owns its files. So a
template is known by what it holds: training leaves an empty file named by its hash in
`$XDG_STATE_HOME/chomp/templates` (`~/.local/state/chomp/templates`), where one is looked up later.
"""

import logging
import os
from pathlib import Path

_log = logging.getLogger(__name__)


def remember_template(digest: str) -> None:
    """Note that a run of this user has this template. No home to write to is no reason to stop."""
    try:
        folder = _folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(folder / digest, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        if not is_remembered(digest):
            raise PermissionError(f"{folder} is not this user's alone")
    except (OSError, RuntimeError) as error:  # the latter: there is no home at all
        _log.warning(
            "the run's template could not be noted as this user's own (%s); the run goes on, but "
            "`chomp eval` and others may ask for --trust before they run it",
            error,
        )


def is_remembered(digest: str) -> bool:
    """Whether a run of this user had this template. Notes that others could write do not count."""
    try:
        folder = _folder()
        found = [folder.stat(), (folder / digest).lstat()]
    except (OSError, RuntimeError):
        return False
    if not hasattr(os, "geteuid"):  # only POSIX tells
        return True
    return all(info.st_uid == os.geteuid() and not info.st_mode & 0o022 for info in found)


def _folder() -> Path:
    # A relative one would be looked up in the current folder, which may be anybody's.
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    home = state if state.is_absolute() else Path.home() / ".local/state"
    if not home.is_absolute():
        raise RuntimeError(f"the home folder is {str(Path.home())!r}")
    return home / "chomp" / "templates"
