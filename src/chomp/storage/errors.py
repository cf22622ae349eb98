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
from typing import Literal, TypeAlias

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
        raise storage_error(error, path, doing) from error


def storage_error(error: Exception, path: StrPath, doing: Doing) -> StorageError:
    """The `StorageError` that explains `error`, to be raised `from` it."""
    text = normalise(path)
    code = error.errno if isinstance(error, OSError) else None
    if code in _NO_ROOM:
        failure = _no_room(text, doing, _NO_ROOM[code])
    elif isinstance(error, PermissionError) or code == errno.EROFS:
        failure = _not_permitted(text, doing, is_read_only=code == errno.EROFS)
    elif isinstance(error, FileNotFoundError):
        failure = _missing(text, doing)
    elif isinstance(error, NotAFile):
        failure = StorageError(
            f"cannot {doing} {text}: it is a pipe, a device or a socket",
            allowed="a regular file",
            fix="remove it, and bring back the file if there was one",
        )
    elif code == errno.ELOOP:
        failure = StorageError(
            f"cannot {doing} {text}: it is a symbolic link, or there is a circle of them",
            allowed="a regular file",
            fix="remove the link",
        )
    elif isinstance(error, NotADirectoryError | IsADirectoryError | FileExistsError):
        failure = _wrong_kind(text, doing, error)
    else:
        failure = StorageError(
            f"cannot {doing} {text}: {str(error) or type(error).__name__}",
            allowed=f"a path this process can {doing}",
            fix="see the error above this one for what the filesystem said",
        )
    failure.errno = code
    return failure


def user_name() -> str:
    """The name of the user of this process, or "uid N" if it has none, as in some containers."""
    number = os.geteuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"uid {number}"


def _no_room(path: str, doing: Doing, reason: str) -> StorageError:
    folder = _nearest_folder(parent_of(path))
    return StorageError(
        f"cannot {doing} {path}: {reason}{_free_text(folder)}; nothing was replaced",
        allowed="a folder with room for the whole file",
        fix=f"free space below {folder} or choose another folder, then run again",
    )


def _not_permitted(path: str, doing: Doing, *, is_read_only: bool) -> StorageError:
    folder = _nearest_folder(parent_of(path))
    user = f"user {user_name()} (uid {os.geteuid()})"
    if is_read_only:
        reason = f"the filesystem of folder {folder} is read-only, for {user} as for all"
    elif is_local(path):
        reason = f"{user} is not permitted to do this in folder {folder}"
    else:
        reason = f"the credentials of {user} are not permitted to do this in folder {folder}"
    return StorageError(
        f"cannot {doing} {path}: {reason}",
        allowed=f"a path this user may {doing}",
        fix=f"change the permissions of {folder}, run as another user, or choose another folder",
    )


def _missing(path: str, doing: Doing) -> StorageError:
    parent = parent_of(path)
    folder = _nearest_folder(parent)
    if is_local(path) and (doing == "make" or (doing in _CREATING and os.path.isdir(parent))):
        # What /proc and some FUSE mounts answer: the folder is there, and takes no new files.
        return StorageError(
            f"cannot {doing} {path}: folder {folder} exists, but takes no new files",
            allowed="a folder on a filesystem that stores files",
            fix="choose another folder",
        )
    names = _names_in(folder)
    full = os.path.abspath(path) if is_local(path) else path
    wanted = full.removeprefix(folder).lstrip("/").partition("/")[0] or name_of(path)
    close = difflib.get_close_matches(wanted, names, n=1)
    absence = "leads nowhere" if wanted in names else "does not exist"
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    shown = ", ".join(names[:_NAMES_SHOWN]) + more if names else "nothing"
    return StorageError(
        f"cannot {doing} {path}: {wanted!r} {absence} in {folder}, which holds {shown}",
        allowed="a path in a folder that exists" if doing in _CREATING else "a path that exists",
        fix=f"did you mean {join(folder, close[0])}"
        if close
        else f"correct {wanted!r}, or make it",
    )


def _wrong_kind(path: str, doing: Doing, error: OSError) -> StorageError:
    if isinstance(error, IsADirectoryError):
        reason = "it is a folder, not a file"
        allowed, fix = "the path of a file", "name a file inside the folder"
    else:
        there = path
        with contextlib.suppress(Exception):
            while not _exists(there) and parent_of(there) != there:
                there = parent_of(there)
        if isinstance(error, NotADirectoryError):
            reason = f"{there} is a file, so it cannot be used as a folder"
            allowed, fix = (
                "a path whose parents are folders",
                "choose a path that is not below a file",
            )
        else:
            reason = f"{there} is already there"
            allowed, fix = "a path that is free", "choose another path, or remove what is there"
    return StorageError(f"cannot {doing} {path}: {reason}", allowed=allowed, fix=fix)


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
    return bool(filesystem.exists(inner))


def _is_folder(path: str) -> bool:
    if is_local(path):
        return os.path.isdir(path)
    filesystem, inner = filesystem_of(path)
    return bool(filesystem.isdir(inner))


def _names_in(folder: str) -> list[str]:
    with contextlib.suppress(Exception):
        if is_local(folder):
            return sorted(os.listdir(folder))
        filesystem, inner = filesystem_of(folder)
        return sorted(name_of(entry) for entry in filesystem.ls(inner, detail=False))
    return []


def _free_text(folder: str) -> str:
    try:
        facts = os.statvfs(folder)
    except OSError:
        return ""
    if facts.f_files and not facts.f_favail:
        return f" (no free inodes on the filesystem of {folder})"
    free = facts.f_bavail * facts.f_frsize
    return f" ({free / 2**20:,.0f} MiB free on the filesystem of {folder})"
