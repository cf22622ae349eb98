"""What a path means: a local path, or an address such as "s3://bucket/key" that fsspec reads.

Only the text of paths lives here; nothing is read or written. `normalise` gives every place one
spelling, and all functions of this room start with it. Local paths never touch fsspec, whose import
takes a tenth of a second. Addresses can be read; what is written is always local.
"""

import os
import re
import resource
import secrets
from typing import Any, TypeAlias

from chomp.errors import StorageError, require

StrPath: TypeAlias = str | os.PathLike[str]

# "s3://", and chains such as "simplecache::s3://".
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*(::[A-Za-z][A-Za-z0-9+.\-]*)*://")
_LOST_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):/")
_LOCAL_SCHEME = re.compile(r"(file|local)://(localhost)?")
# In the name of a folder that was moved aside for a newer result.
SET_ASIDE = ".replaced-"
_PATTERN_CHARACTERS = "[]*?\\"
_TEMPORARY = re.compile(r"\..*\.[0-9a-f]{16}\.tmp")
# A file name may have 255 bytes; 50 characters of UTF-8 leave room for what is added.
_KEPT_CHARACTERS = 50


def normalise(path: StrPath) -> str:
    """The one spelling of a path: no "file://", no slash at the end, never empty.

    A relative path stays relative, and ".." stays as it is.
    """
    text = os.fspath(path)
    if scheme := _LOCAL_SCHEME.match(text):
        if text[scheme.end() : scheme.end() + 1] != "/":
            # "file://runs/x" names a machine called "runs" by the URL standard, a folder to many.
            raise StorageError(
                f"path {text}",
                allowed=f"{scheme[1]}:// followed by an absolute path, as in {scheme[1]}:///data",
                fix="add the slash, or write a relative path without the scheme",
            )
        text = "/" + text[scheme.end() :].lstrip("/")
    try:
        is_fine = bool(text) and b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        is_fine = False
    if not is_fine:
        raise StorageError(
            f"path {text!r}",
            allowed="a path with at least one character, without NUL or lone surrogates",
            fix="look where this path was put together; one of its parts is probably unset",
        )
    if address := _ADDRESS.match(text):
        return address.group() + text[address.end() :].rstrip("/")
    # pathlib turns "s3://bucket" into "s3:/bucket", which would be a local folder "s3:".
    if lost := _LOST_SLASH.match(text):
        raise StorageError(
            f"path {text}",
            allowed=f"{lost[1]}:// with two slashes, or a plain path",
            fix="pass addresses as str, since pathlib.Path drops one of the slashes",
        )
    return text.rstrip("/") or "/"


def is_local(path: StrPath) -> bool:
    """Whether the path is on a mounted filesystem; a network mount such as NFS counts as local."""
    return _ADDRESS.match(normalise(path)) is None


def require_local(path: StrPath, doing: str) -> str:
    """The path, normalised; `StorageError` for an address, which can only be read."""
    text = normalise(path)
    if not is_local(text):
        raise StorageError(
            f"cannot {doing} {text}: it is not on a mounted filesystem",
            allowed="a local path, or one on a network mount",
            fix="choose a local folder (--run-dir, --prefix) and copy the result",
        )
    return text


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

    It globs the whole path to find a checkpoint's files, and would find none or those of others.
    """
    text = normalise(path)
    full = os.path.abspath(text) if is_local(text) else text
    wrong = sorted(set(full) & set(_PATTERN_CHARACTERS))
    require(
        not wrong,
        f"output path {full}, which has {' '.join(wrong)}: checkpoints there cannot be read",
        allowed=f"a path without {' '.join(_PATTERN_CHARACTERS)}",
        fix="choose another --run-dir or --prefix (CHOMP_PREFIX), or rename the folder",
    )


def require_current_folder() -> None:
    """Raise `StorageError` if the current folder is gone: no relative path means anything then."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise StorageError(
            "the current folder, which was deleted",
            allowed="a current folder that exists",
            fix="change to another folder (cd) and run the command again",
        ) from error


def require_process_limits() -> None:
    """Raise `StorageError` where JAX and Orbax would abort for a limit of this process."""
    for kind, flag, unit, least in (
        (resource.RLIMIT_AS, "-v", "bytes of addresses", 2_000_000_000),
        (resource.RLIMIT_NOFILE, "-n", "open files", 64),
    ):
        limit, _ = resource.getrlimit(kind)
        if limit != resource.RLIM_INFINITY and limit < least:
            raise StorageError(
                f"a limit of {limit:,} {unit} for this process",
                allowed=f"at least {least:,}",
                fix=f"raise it (ulimit {flag}) and run the command again",
            )


def join(base: StrPath, *parts: str) -> str:
    """`base` with `parts` below it, in the spelling of `base`; empty parts are left out.

    The result is never outside `base`: absolute parts, addresses and ".." are refused, so a name
    read from a file cannot lead elsewhere. Use `parent_of` to go up.
    """
    result = normalise(base)
    for part in parts:
        if part.startswith("/") or _ADDRESS.match(part) or ".." in part.split("/"):
            raise StorageError(
                f"part {part!r} to join to {result}",
                allowed="relative parts without '..'",
                fix="pass a path that stays below the base, or use parent_of to go up",
            )
        if part.strip("/"):
            result = normalise(f"{result}{'' if result.endswith('/') else '/'}{part}")
    return result


def parent_of(path: StrPath) -> str:
    """The folder a path is in; the root of a filesystem or of a bucket is its own parent."""
    # Everywhere but in memory the first part of an address is a bucket or a host, not a folder.
    text = normalise(path)
    address = _ADDRESS.match(text)
    if address is None:
        return os.path.dirname(text) or "."
    place, slash, _ = text[address.end() :].rpartition("/")
    is_memory = text.startswith("memory://")
    return normalise(address.group() + place) if slash or is_memory else text


def name_of(path: StrPath) -> str:
    """The last part of a path; empty for the root of a filesystem."""
    text = normalise(path)
    address = _ADDRESS.match(text)
    return text[address.end() if address else 0 :].rpartition("/")[2]


def is_set_aside(path: StrPath) -> bool:
    """Whether a folder's name says that a newer result has replaced it."""
    return SET_ASIDE in name_of(path)


def temporary_beside(path: str) -> str:
    """A new hidden name in the folder of `path`, where a rename onto `path` is atomic."""
    name = f".{name_of(path)[:_KEPT_CHARACTERS]}.{secrets.token_hex(8)}.tmp"
    return join(parent_of(path), name)


def is_temporary(name: str) -> bool:
    """Whether `temporary_beside` made this file name: an unfinished file that nothing reads."""
    return _TEMPORARY.fullmatch(name) is not None


def filesystem_of(path: StrPath) -> tuple[Any, str]:
    """The fsspec filesystem of an address, and the path as that filesystem spells it.

    Listings cached by earlier calls are dropped: other machines write to the same places.
    """
    import fsspec.core  # noqa: PLC0415  (heavy, and no local path needs it)

    text = normalise(path)
    scheme = text.partition("://")[0]
    try:
        filesystem, inner = fsspec.core.url_to_fs(text)
    except (ImportError, ValueError) as error:
        raise StorageError(
            f"path {text}, which cannot be opened: {error}",
            allowed="a plain path, or an address whose fsspec package is installed",
            fix=f"install the package that provides {scheme}:// (s3fs, gcsfs, adlfs, …), "
            "or correct the address",
        ) from error
    filesystem.invalidate_cache()
    return filesystem, str(inner)
