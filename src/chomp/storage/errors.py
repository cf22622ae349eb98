"""From what a filesystem raises to a `StorageError` that a person can act on.

Every function of this room touches a filesystem inside `storage_errors`, so no bare `OSError`
leaves it. Explaining looks around (free space, user, neighbouring names) and never fails itself:
what cannot be found out is left out.
"""

import contextlib
import difflib
import errno
import os
import pwd
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

from chomp.errors import ChompError, StorageError
from chomp.storage.paths import (
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

    The cause is chained and its errno is kept: a caller can tell "missing" from "full" by it.
    """
    try:
        yield
    except ChompError:
        raise
    except Exception as error:
        # Cloud clients raise families of their own (no credentials, no endpoint, …). On a local
        # path the same exception is a bug of ours and keeps its traceback.
        if not isinstance(error, OSError) and is_local(path):
            raise
        text = normalise(path)
        reason, allowed, fix = _explain(error, text, doing)
        failure = StorageError(f"cannot {doing} {text}: {reason}", allowed=allowed, fix=fix)
        failure.errno = error.errno if isinstance(error, OSError) else None
        raise failure from error


def user_name() -> str:
    """The name of the user of this process, or "uid N" if it has none, as in some containers."""
    number = os.geteuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"uid {number}"


def _explain(error: Exception, path: str, doing: Doing) -> tuple[str, str, str]:
    """What went wrong, what is allowed, and how to fix it."""
    code = error.errno if isinstance(error, OSError) else None
    if isinstance(error, FileNotFoundError):
        return _explain_missing(path, doing)
    if code in _NO_ROOM:
        folder = _nearest_folder(path)
        return (
            f"{_NO_ROOM[code]}{_free_text(folder)}; nothing was replaced",
            "a folder with room for the whole file",
            f"free space below {folder} or choose another folder, then run again",
        )
    if isinstance(error, PermissionError) or code == errno.EROFS:
        folder, user = _nearest_folder(path), f"user {user_name()} (uid {os.geteuid()})"
        who = f"{user} is" if is_local(path) else f"the credentials of {user} are"
        reason = f"{who} not permitted to do this in folder {folder}"
        if code == errno.EROFS:
            reason = f"the filesystem of folder {folder} is read-only, for {user} as for all"
        return (
            reason,
            f"a path this user may {doing}",
            f"change the permissions of {folder}, run as another user, or choose another folder",
        )
    if isinstance(error, NotAFile):
        fix = "remove it, and bring back the file if there was one"
        return "it is a pipe, a device or a socket", "a regular file", fix
    if code == errno.ELOOP:
        reason = "it is a symbolic link, or there is a circle of them"
        return reason, "a regular file", "remove the link"
    if isinstance(error, IsADirectoryError):
        fix = "name a file inside the folder"
        return "it is a folder, not a file", "the path of a file", fix
    if isinstance(error, FileExistsError):
        fix = "choose another path, or remove what is there"
        return f"{path} is already there", "a path that is free", fix
    if isinstance(error, NotADirectoryError):
        there = path
        with contextlib.suppress(Exception):
            while not _ask(there, "exists") and parent_of(there) != there:
                there = parent_of(there)
        return (
            f"{there} is a file, so it cannot be used as a folder",
            "a path whose parents are folders",
            "choose a path that is not below a file",
        )
    return (
        str(error) or type(error).__name__,
        f"a path this process can {doing}",
        "see the error above this one for what the filesystem said",
    )


def _explain_missing(path: str, doing: Doing) -> tuple[str, str, str]:
    parent, folder = parent_of(path), _nearest_folder(path)
    if is_local(path) and (doing == "make" or (doing in _CREATING and os.path.isdir(parent))):
        # What /proc and some FUSE mounts answer: the folder is there, and takes no new files.
        return (
            f"folder {folder} exists, but takes no new files",
            "a folder on a filesystem that stores files",
            "choose another folder",
        )
    names: list[str] = []
    with contextlib.suppress(Exception):
        names = sorted(map(name_of, _ask(folder, "names")))
    full = os.path.abspath(path) if is_local(path) else path
    wanted = full.removeprefix(folder).lstrip("/").partition("/")[0] or name_of(path)
    close = difflib.get_close_matches(wanted, names, n=1)
    absence = "leads nowhere" if wanted in names else "does not exist"
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    shown = ", ".join(names[:_NAMES_SHOWN]) + more if names else "nothing"
    return (
        f"{wanted!r} {absence} in {folder}, which holds {shown}",
        "a path in a folder that exists" if doing in _CREATING else "a path that exists",
        f"did you mean {join(folder, close[0])}" if close else f"correct {wanted!r}, or make it",
    )


def _nearest_folder(path: str) -> str:
    """The folder of a path, or its nearest parent that is there."""
    folder = os.path.abspath(parent_of(path)) if is_local(path) else parent_of(path)
    with contextlib.suppress(Exception):
        while not _ask(folder, "isdir") and parent_of(folder) != folder:
            folder = parent_of(folder)
    return folder


def _ask(path: str, what: Literal["exists", "isdir", "names"]) -> Any:
    """What the filesystem says of a path, without the checks that the room's functions have."""
    if is_local(path):
        if what == "names":
            return os.listdir(path)
        return os.path.lexists(path) if what == "exists" else os.path.isdir(path)
    filesystem, inner = filesystem_of(path)
    if what == "names":
        return filesystem.ls(inner, detail=False)
    return filesystem.exists(inner) if what == "exists" else filesystem.isdir(inner)


def _free_text(folder: str) -> str:
    try:
        facts = os.statvfs(folder)
    except OSError:
        return ""
    if facts.f_files and not facts.f_favail:
        return f" (no free inodes on the filesystem of {folder})"
    free = facts.f_bavail * facts.f_frsize
    return f" ({free / 2**20:,.0f} MiB free on the filesystem of {folder})"
