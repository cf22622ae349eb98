"""From what a filesystem raises to a `StorageError` a person can act on.

Every function of this room that touches a filesystem does so inside `storage_errors`, so no bare
`OSError` leaves it. Explaining only looks around (free space, user, neighbouring names) and must
never fail itself: what cannot be found out is left out.
"""

import contextlib
import difflib
import errno
import os
import pwd
from collections.abc import Iterator
from typing import Literal, TypeAlias

from chomp.errors import ChompError, StorageError, message
from chomp.storage.locations import (
    StrPath,
    filesystem_of,
    is_local,
    join,
    name_of,
    normalise,
    parent_of,
)

Doing: TypeAlias = Literal[
    "look at", "read", "list", "measure", "write", "append to", "make", "remove", "rename", "lock"
]

_CREATING: frozenset[Doing] = frozenset({"write", "append to", "make", "lock"})
_NO_ROOM = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk is full for this user, whose quota is used up",
    errno.EFBIG: "the disk is full for this process, which reached its file-size limit (ulimit -f)",
}
_NAMES_SHOWN = 8


class NotAFile(OSError):
    """A pipe, a device or a socket, and no regular file"""


@contextlib.contextmanager
def storage_errors(path: StrPath, doing: Doing) -> Iterator[None]:
    """Raise whatever the filesystem raises inside as a `StorageError` about `path`.

    The cause is chained, and its errno is kept, so that a caller can still tell "missing" from
    "full" without reading the text.
    """
    try:
        yield
    except ChompError:
        raise
    except OSError as error:
        raise storage_error(error, path, doing) from error
    except Exception as error:
        # Cloud clients raise families of their own (no credentials, no endpoint, …). On a local
        # path the same exception is a bug of ours and keeps its traceback.
        if is_local(path):
            raise
        raise storage_error(error, path, doing) from error


def storage_error(error: Exception, path: StrPath, doing: Doing) -> StorageError:
    """The `StorageError` that explains `error`, to be raised `from` it."""
    text = normalise(path)
    code = error.errno if isinstance(error, OSError) else None
    if code in _NO_ROOM:
        explanation = _no_room(text, doing, _NO_ROOM[code])
    elif isinstance(error, PermissionError) or code == errno.EROFS:
        explanation = _not_permitted(text, doing, is_read_only=code == errno.EROFS)
    elif isinstance(error, FileNotFoundError):
        explanation = _missing(text, doing)
    elif isinstance(error, NotAFile):
        explanation = message(
            given=f"cannot {doing} {text}: it is a pipe, a device or a socket",
            allowed="a regular file",
            fix="remove it, and bring back the file if there was one",
        )
    elif isinstance(error, NotADirectoryError | IsADirectoryError | FileExistsError):
        explanation = _wrong_kind(text, doing, error)
    else:
        explanation = message(
            given=f"cannot {doing} {text}: {str(error) or type(error).__name__}",
            allowed=f"a path this process can {doing}",
            fix="see the error above this one for what the filesystem said",
        )
    failure = StorageError(explanation)
    failure.errno = code
    return failure


def _no_room(path: str, doing: Doing, reason: str) -> str:
    folder = _nearest_folder(parent_of(path))
    free = _free_text(folder)
    return message(
        given=f"cannot {doing} {path}: {reason}{free}; nothing was replaced",
        allowed="a folder with room for the whole file",
        fix=f"free space below {folder} or choose another folder, then run again",
    )


def _not_permitted(path: str, doing: Doing, *, is_read_only: bool) -> str:
    folder = _nearest_folder(parent_of(path))
    user = f"user {_user_text()}"
    if is_read_only:
        reason = f"the filesystem of folder {folder} is read-only, for {user} as for all"
    elif is_local(path):
        reason = f"{user} is not permitted to do this in folder {folder}"
    else:
        reason = f"the credentials of {user} are not permitted to do this in folder {folder}"
    return message(
        given=f"cannot {doing} {path}: {reason}",
        allowed=f"a path this user may {doing}",
        fix=f"change the permissions of {folder}, run as another user, or choose another folder",
    )


def _missing(path: str, doing: Doing) -> str:
    parent = parent_of(path)
    folder = _nearest_folder(parent)
    if is_local(path) and (doing == "make" or (doing in _CREATING and os.path.isdir(parent))):
        # What /proc and some FUSE mounts answer: the folder is there, and takes no new files.
        return message(
            given=f"cannot {doing} {path}: folder {folder} exists, but takes no new files",
            allowed="a folder on a filesystem that stores files",
            fix="choose another folder",
        )
    names = _names_in(folder)
    wanted = _first_part_below(folder, path)
    close = difflib.get_close_matches(wanted, names, n=1)
    fix = f"did you mean {join(folder, close[0])}" if close else f"correct {wanted!r}, or make it"
    absence = "leads nowhere" if wanted in names else "does not exist"
    return message(
        given=f"cannot {doing} {path}: {wanted!r} {absence} in {folder}, which holds "
        f"{_names_text(names)}",
        allowed="a path in a folder that exists" if doing in _CREATING else "a path that exists",
        fix=fix,
    )


def _wrong_kind(path: str, doing: Doing, error: OSError) -> str:
    if isinstance(error, NotADirectoryError):
        reason = f"{_nearest_entry(path)} is a file, so it cannot be used as a folder"
        allowed, fix = "a path whose parents are folders", "choose a path that is not below a file"
    elif isinstance(error, IsADirectoryError):
        reason = "it is a folder, not a file"
        allowed, fix = "the path of a file", "name a file inside the folder"
    else:
        reason = f"{_nearest_entry(path)} is already there"
        allowed, fix = "a path that is free", "choose another path, or remove what is there"
    return message(given=f"cannot {doing} {path}: {reason}", allowed=allowed, fix=fix)


def _nearest_entry(path: str) -> str:
    """The path itself if anything is there, otherwise its nearest parent that exists."""
    with contextlib.suppress(Exception):
        while not _exists(path) and parent_of(path) != path:
            path = parent_of(path)
    return path


def _nearest_folder(path: str) -> str:
    """The path itself if it is a folder, otherwise its nearest parent that is one."""
    path = os.path.abspath(path) if is_local(path) else path
    with contextlib.suppress(Exception):
        while not _is_folder(path) and parent_of(path) != path:
            path = parent_of(path)
    return path


def _exists(path: str) -> bool:
    if is_local(path):
        return os.path.lexists(path)
    filesystem, inner = filesystem_of(path)
    return filesystem.exists(inner)


def _is_folder(path: str) -> bool:
    if is_local(path):
        return os.path.isdir(path)
    filesystem, inner = filesystem_of(path)
    return filesystem.isdir(inner)


def _names_in(folder: str) -> list[str]:
    with contextlib.suppress(Exception):
        if is_local(folder):
            return sorted(os.listdir(folder))
        filesystem, inner = filesystem_of(folder)
        return sorted(name_of(entry) for entry in filesystem.ls(inner, detail=False))
    return []


def _names_text(names: list[str]) -> str:
    if not names:
        return "nothing"
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _first_part_below(folder: str, path: str) -> str:
    path = os.path.abspath(path) if is_local(path) else path
    return path.removeprefix(folder).lstrip("/").partition("/")[0] or name_of(path)


def _free_text(folder: str) -> str:
    try:
        facts = os.statvfs(folder) if is_local(folder) else None
    except OSError:
        facts = None
    if facts is None:
        return ""
    if facts.f_files and not facts.f_favail:
        return f" (no free inodes on the filesystem of {folder})"
    free = facts.f_bavail * facts.f_frsize
    return f" ({free / 2**20:,.0f} MiB free on the filesystem of {folder})"


def _user_text() -> str:
    number = os.geteuid()
    try:
        return f"{pwd.getpwuid(number).pw_name} (uid {number})"
    except KeyError:
        return f"uid {number}"  # a container may run as a user without a name
