"""Looking at, listing, making and removing files and folders, local or behind fsspec.

The text of paths (`locations`) and the content of files (`reading`) are offered here too; writing
lives in `atomic`. Plain local paths go straight to the operating system, every other address goes
through fsspec, and whatever goes wrong is a `StorageError` naming the path.
"""

import errno
import glob
import os
import shutil
import stat
from collections.abc import Iterable

from chomp.errors import StorageError, message
from chomp.storage.failures import storage_errors
from chomp.storage.locations import (
    StrPath,
    filesystem_of,
    is_local,
    join,
    name_of,
    normalise,
    parent_of,
)
from chomp.storage.reading import read_bytes, read_json, read_text
from chomp.storage.temporary import is_temporary, sync_name, temporary_beside, temporary_with

__all__ = [
    "exists",
    "folder_size_bytes",
    "glob_files",
    "is_folder",
    "is_local",
    "join",
    "list_folder",
    "make_folder",
    "name_of",
    "normalise",
    "parent_of",
    "read_bytes",
    "read_json",
    "read_text",
    "remove_tree",
    "rename_folder",
    "require_writable_folder",
]

# A whole filesystem block, so that a full disk shows at the start and not hours later.
_PROBE_BYTES = 4096


def exists(path: StrPath) -> bool:
    """Whether anything is at the path; a link that leads nowhere counts as nothing."""
    text = normalise(path)
    with storage_errors(text, "look at"):
        if is_local(text):
            return _mode_of(text) is not None
        filesystem, inner = filesystem_of(text)
        return filesystem.exists(inner)


def is_folder(path: StrPath) -> bool:
    """Whether a folder is at the path."""
    text = normalise(path)
    with storage_errors(text, "look at"):
        if is_local(text):
            mode = _mode_of(text)
            return mode is not None and stat.S_ISDIR(mode)
        filesystem, inner = filesystem_of(text)
        return filesystem.isdir(inner)


def list_folder(path: StrPath) -> list[str]:
    """Names of what the folder holds, sorted; unfinished temporary files are left out."""
    text = normalise(path)
    with storage_errors(text, "list"):
        if is_local(text):
            names = os.listdir(text)
        else:
            filesystem, inner = filesystem_of(text)
            _require_folder(text)
            # Object stores may list the folder's own placeholder among what it holds.
            entries = (entry.rstrip("/") for entry in filesystem.ls(inner, detail=False))
            names = [name_of(entry) for entry in entries if entry != inner]
    return sorted(name for name in names if not is_temporary(name))


def glob_files(pattern: StrPath) -> list[str]:
    """Files that match the pattern, sorted and spelled like it; none is an empty list.

    `*` stays within a folder, `**` goes down. As in a shell, hidden local files need a pattern
    with the dot, and local folders this user cannot read are passed over.
    """
    text = normalise(pattern)
    with storage_errors(text, "list"):
        if is_local(text):
            found = [path for path in glob.glob(text, recursive=True) if os.path.isfile(path)]
        else:
            found = _glob_addresses(text)
    return sorted({path for path in found if not is_temporary(name_of(path))})


def folder_size_bytes(path: StrPath) -> int:
    """Bytes of all files below the folder; files that vanish meanwhile count as nothing."""
    text = normalise(path)
    with storage_errors(text, "measure"):
        _require_folder(text)
        if not is_local(text):
            filesystem, inner = filesystem_of(text)
            return filesystem.du(inner)
        return _local_size(text)


def make_folder(path: StrPath, *, inside: StrPath | None = None) -> None:
    """Make the folder and its parents; one that is there already is fine, a file is not.

    With `inside`, a folder that it lies in, a link that leads out of that one is refused.
    """
    text = normalise(path)
    if inside is not None:
        require_inside(text, inside)
    with storage_errors(text, "make"):
        if is_local(text):
            os.makedirs(text, exist_ok=True)
        else:
            filesystem, inner = filesystem_of(text)
            if filesystem.exists(inner) and not filesystem.isdir(inner):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), text)
            filesystem.makedirs(inner, exist_ok=True)


def remove_tree(path: StrPath) -> None:
    """Remove the file, or the folder with all it holds; nothing there is fine.

    A symbolic link is removed, not what it points to. The root of a filesystem or of a bucket is
    refused.
    """
    text = normalise(path)
    where = os.path.abspath(text) if is_local(text) else text
    if parent_of(where) == where:
        raise StorageError(
            message(
                given=f"cannot remove {text}: it is the root of its filesystem",
                allowed="a file or a folder below the root",
                fix="look where this path was put together; one of its parts is probably unset",
            )
        )
    with storage_errors(text, "remove"):
        if not is_local(text):
            filesystem, inner = filesystem_of(text)
            if filesystem.exists(inner):
                filesystem.rm(inner, recursive=True)
        elif os.path.isdir(text) and not os.path.islink(text):
            shutil.rmtree(text)
        elif os.path.lexists(text):
            os.unlink(text)


def rename_folder(source: StrPath, target: StrPath) -> None:
    """Give a folder a new path on the same filesystem; a target that exists is refused.

    Local: one atomic rename, and the new name survives a power cut (the files inside only if they
    were synced before). Elsewhere: copy, then remove. That is **not atomic**: whoever looks
    meanwhile, or after a crash, may find part of the folder at either path.
    """
    old, new = normalise(source), normalise(target)
    with storage_errors(old, "rename"):
        _require_folder(old)
        _require_same_filesystem(old, new)
    with storage_errors(new, "rename"):
        if exists(new) or (is_local(new) and os.path.islink(new)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
        if not is_local(new):
            filesystem, inner = filesystem_of(old)
            filesystem.mv(inner, filesystem_of(new)[1], recursive=True)
            return
        # Between the check and this line only an empty folder could still be replaced: rename
        # fails on a file and on a folder that holds anything.
        try:
            os.rename(old, new)
        except OSError as error:
            if error.errno == errno.EXDEV:
                raise _different_filesystems(old, new) from error
            raise
    sync_name(new)
    if parent_of(old) != parent_of(new):
        sync_name(old)


def require_writable_folder(path: StrPath) -> None:
    """Make the folder and prove that files can be written in it, or raise `StorageError`.

    Leaves the folder, and nothing in it. Meant for the start of a run, so that a wrong output path
    fails in the first second.
    """
    text = normalise(path)
    make_folder(text)
    probe = join(text, "probe")
    data = bytes(_PROBE_BYTES)
    with storage_errors(probe, "write"):
        if is_local(text):
            with temporary_with(data, beside=probe):
                return
        filesystem, inner = filesystem_of(temporary_beside(probe))
        filesystem.pipe_file(inner, data)
        filesystem.rm(inner, recursive=False)


def require_inside(path: StrPath, folder: StrPath) -> None:
    """Raise `StorageError` where a symbolic link below `folder` leads `path` out of it.

    The folder itself and what is above it may be links.
    """
    text, root = normalise(path), os.path.realpath(normalise(folder))
    if not is_local(text):
        return
    real = os.path.realpath(text)
    if os.path.commonpath([real, root]) != root:
        raise StorageError(
            message(
                given=f"{text} leads out of {root} by a symbolic link, to {real}",
                allowed="files and folders of a run that lie in its folder",
                fix="remove the link; to have a run on another disk, give its folder there "
                "(--run-dir, --prefix), or make the whole run folder a link",
            )
        )


def require_links_inside(folder: StrPath, names: Iterable[str]) -> None:
    """`require_inside` for these names in `folder`, and for all folders down to two levels below.

    No deeper, where a checkpoint has its arrays: those are many files, and none is written twice.
    """
    if not is_local(folder):
        return
    for top in (join(folder, name) for name in names):
        require_inside(top, folder)
        for parent, inner, _ in os.walk(top):
            for path in (os.path.join(parent, name) for name in inner):
                if os.path.islink(path):
                    require_inside(path, folder)
            if parent != top:
                inner.clear()


def _mode_of(path: str) -> int | None:
    # os.path.exists answers "no" where the truth is "not permitted to know".
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _require_folder(path: str) -> None:
    if is_folder(path):
        return
    code = errno.ENOTDIR if exists(path) else errno.ENOENT
    raise OSError(code, os.strerror(code), path)


def _require_same_filesystem(old: str, new: str) -> None:
    is_same = is_local(old) == is_local(new)
    if is_same and not is_local(old):
        is_same = filesystem_of(old)[0] is filesystem_of(new)[0]
    if not is_same:
        raise _different_filesystems(old, new)


def _different_filesystems(old: str, new: str) -> StorageError:
    return StorageError(
        message(
            given=f"cannot rename {old} to {new}: they are on different filesystems",
            allowed="two paths on one filesystem",
            fix="copy the folder there, check the copy, and remove the original",
        )
    )


def _local_size(folder: str) -> int:
    def refuse_unreadable(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    total = 0
    for parent, _, names in os.walk(folder, onerror=refuse_unreadable):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _glob_addresses(pattern: str) -> list[str]:
    # fsspec answers in its own spelling, which may have lost the scheme or the host. The part
    # before the first wildcard is known in both spellings and is swapped back.
    plain = pattern
    while glob.has_magic(plain):
        if parent_of(plain) == plain:
            raise StorageError(
                message(
                    given=f"pattern {pattern} with a wildcard in the bucket's name",
                    allowed="wildcards after the bucket's name",
                    fix="write the bucket's name in full",
                )
            )
        plain = parent_of(plain)
    filesystem, inner = filesystem_of(pattern)
    inner_plain = filesystem_of(plain)[1]
    found = filesystem.glob(inner, detail=True)
    return [
        join(plain, path.removeprefix(inner_plain).lstrip("/"))
        for path, facts in found.items()
        if facts["type"] == "file"
    ]
