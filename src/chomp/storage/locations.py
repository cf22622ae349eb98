"""What a path means: plain and local, or an address like "s3://bucket/key" that fsspec understands.

Only the text of paths lives here, and the way from an address to its filesystem; nothing is read or
written. One invariant: `normalise` gives every place one spelling, and all other functions of this
room start with it. Local paths never touch fsspec, whose import takes a tenth of a second.
"""

import os
import re
import threading
from typing import IO, Any, Protocol, TypeAlias

from chomp.errors import StorageError, message, require

StrPath: TypeAlias = str | os.PathLike[str]

# fsspec's memory filesystem checks and writes in two steps. Whoever must see both as one holds
# this, which makes `create_exclusive` and leases on memory:// exact among threads.
MEMORY_GUARD = threading.RLock()

# "s3://", and chains such as "simplecache::s3://".
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*(::[A-Za-z][A-Za-z0-9+.\-]*)*://")
_LOST_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):/")
_LOCAL_SCHEMES = ("file://", "local://")
# In the name of a folder whose place a newer result has taken: kept, but no result any more.
SET_ASIDE = ".replaced-"
_PATTERN_CHARACTERS = "[]*?\\"


class FileSystem(Protocol):
    """The part of fsspec's untyped filesystem that this room relies on."""

    def exists(self, path: str) -> bool:
        """Whether anything is there."""

    def isdir(self, path: str) -> bool:
        """Whether a folder is there."""

    def ls(self, path: str, detail: bool) -> list[str]:
        """Whole paths of what the folder holds, with `detail=False`."""

    def glob(self, path: str, detail: bool) -> dict[str, dict[str, Any]]:
        """Facts about each match by its whole path, with `detail=True`."""

    def info(self, path: str) -> dict[str, Any]:
        """Facts about one file: "size", and whatever else its store keeps."""

    def du(self, path: str) -> int:
        """Bytes below the path."""

    def makedirs(self, path: str, exist_ok: bool) -> None:
        """Make the folder and its parents."""

    def rm(self, path: str, recursive: bool) -> None:
        """Remove a file, or a folder with all it holds."""

    def mv(self, path1: str, path2: str, recursive: bool) -> None:
        """Copy, then remove: not atomic."""

    def cat_file(self, path: str) -> bytes:
        """The whole content."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite") -> None:
        """Put the whole content in one call."""

    def open(self, path: str, mode: str) -> IO[bytes]:
        """A file object."""

    def invalidate_cache(self) -> None:
        """Forget listings taken earlier."""


def normalise(path: StrPath) -> str:
    """The one spelling of a path: no "file://", no slash at the end, never empty.

    A relative path stays relative, and ".." stays as it is.
    """
    text = os.fspath(path)
    for scheme in _LOCAL_SCHEMES:
        if text.startswith(scheme):
            text = _path_of_file_address(text, scheme)
    if not text or not _is_encodable(text):
        raise StorageError(
            message(
                given=f"path {text!r}",
                allowed="a path with at least one character, without NUL or lone surrogates",
                fix="look where this path was put together; one of its parts is probably unset",
            )
        )
    address = _ADDRESS.match(text)
    if address is None:
        _refuse_lost_slash(text)
        return text.rstrip("/") or "/"
    return address.group() + text[address.end() :].rstrip("/")


def is_local(path: StrPath) -> bool:
    """Whether the path is on a mounted filesystem, so that rename, link and fsync mean something.

    A network mount such as NFS counts as local.
    """
    return _ADDRESS.match(normalise(path)) is None


def without_dots(path: StrPath) -> str:
    """The path without "..", as the system would follow it; other paths are only normalised.

    TensorStore refuses "..", and `a/../b` must be the same place as `b` for everyone who asks.
    """
    text = normalise(path)
    if not is_local(text) or ".." not in text.split("/"):
        return text
    short, real = os.path.normpath(text), os.path.realpath(text)
    # Where a link stands before "..", only the system knows where that leads.
    return short if os.path.realpath(short) == real and ".." not in short.split("/") else real


def require_plain_path(path: StrPath) -> None:
    """Raise `ConfigError` for an output path that Orbax would take for a pattern of many paths.

    It looks for a checkpoint's files by globbing the whole path, and finds none or those of others.
    """
    text = normalise(path)
    full = os.path.abspath(text) if is_local(text) else text
    wrong = sorted(set(full) & set(_PATTERN_CHARACTERS))
    require(
        not wrong,
        given=f"output path {full}, which has {' '.join(wrong)}: checkpoints there cannot be read",
        allowed=f"a path without {' '.join(_PATTERN_CHARACTERS)}",
        fix="choose another --run-dir or --prefix (CHOMP_PREFIX), or rename the folder",
    )


def is_memory(path: StrPath) -> bool:
    """Whether the path is in fsspec's memory filesystem, which one process shares among threads."""
    return normalise(path).startswith("memory://")


def join(base: StrPath, *parts: str) -> str:
    """`base` with `parts` below it, in the spelling of `base`; empty parts are left out.

    The result is never outside `base`: absolute parts, addresses and ".." are refused, so a name
    read from a file cannot lead elsewhere. Use `parent_of` to go up.
    """
    result = normalise(base)
    for part in parts:
        if part.startswith("/") or _ADDRESS.match(part) or ".." in part.split("/"):
            raise StorageError(
                message(
                    given=f"part {part!r} to join to {result}",
                    allowed="relative parts without '..'",
                    fix="pass a path that stays below the base, or use parent_of to go up",
                )
            )
        if part.strip("/"):
            separator = "" if result.endswith("/") else "/"
            result = normalise(f"{result}{separator}{part}")
    return result


def parent_of(path: StrPath) -> str:
    """The folder a path is in; the root of a filesystem or of a bucket is its own parent."""
    # Everywhere but in memory the first part of an address is a bucket or a host, not a folder.
    text = normalise(path)
    address = _ADDRESS.match(text)
    if address is None:
        return os.path.dirname(text) or "."
    place, slash, _ = text[address.end() :].rpartition("/")
    return normalise(address.group() + place) if slash or is_memory(text) else text


def is_set_aside(path: StrPath) -> bool:
    """Whether a folder's name says that a newer result has taken its place."""
    return SET_ASIDE in name_of(path)


def name_of(path: StrPath) -> str:
    """The last part of a path; empty for the root of a filesystem."""
    text = normalise(path)
    address = _ADDRESS.match(text)
    return text[address.end() if address else 0 :].rpartition("/")[2]


def filesystem_of(path: StrPath) -> tuple[FileSystem, str]:
    """The fsspec filesystem of an address, and the path as that filesystem spells it.

    Listings cached by earlier calls are dropped: other machines write to the same places.
    """
    import fsspec.core  # noqa: PLC0415  (heavy, and no local path needs it)

    text = normalise(path)
    scheme = text.partition("://")[0]
    filesystem: FileSystem
    try:
        filesystem, inner = fsspec.core.url_to_fs(text)
    except (ImportError, ValueError) as error:
        raise StorageError(
            message(
                given=f"path {text}, which cannot be opened: {error}",
                allowed="a plain path, or an address whose fsspec package is installed",
                fix=f"install the package that provides {scheme}:// (s3fs, gcsfs, adlfs, …), "
                "or correct the address",
            )
        ) from error
    filesystem.invalidate_cache()
    return filesystem, str(inner)


def _is_encodable(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _path_of_file_address(text: str, scheme: str) -> str:
    path = text.removeprefix(scheme).removeprefix("localhost")
    if not path.startswith("/"):
        # "file://runs/x" names a machine called "runs" by the URL standard, and a folder to many.
        raise StorageError(
            message(
                given=f"path {text}",
                allowed=f"{scheme} followed by an absolute path, as in {scheme}/data/run",
                fix="add the slash, or write a relative path without the scheme",
            )
        )
    # Two slashes at the front are one: "file:////data" is "/data".
    return "/" + path.lstrip("/")


def _refuse_lost_slash(text: str) -> None:
    # pathlib turns "s3://bucket" into "s3:/bucket", which would quietly be a local folder "s3:".
    lost = _LOST_SLASH.match(text)
    if lost:
        raise StorageError(
            message(
                given=f"path {text}",
                allowed=f"{lost[1]}:// with two slashes, or a plain path",
                fix="pass addresses as str, since pathlib.Path drops one of the slashes",
            )
        )
