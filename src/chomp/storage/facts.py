"""What a filesystem knows about a file without reading it: its size, and perhaps a checksum.

Object stores keep one; a mounted filesystem does not, and file times are no substitute for it.
"""

import errno
import os
import stat
from dataclasses import dataclass
from typing import Any

from chomp.storage.failures import NotAFile, storage_errors
from chomp.storage.locations import StrPath, filesystem_of, is_local, normalise

# As S3, Google, Azure, the Hugging Face hub and web servers name them. Hashes of the content come
# first: an entity tag may change when only the metadata does.
_CHECKSUM_KEYS = ("md5Hash", "crc32c", "blob_id", "ETag", "etag")


@dataclass(frozen=True, kw_only=True)
class FileFacts:
    """Size in bytes, and the store's own checksum with its kind; None where there is none."""

    size_bytes: int
    checksum: str | None


def file_facts(path: StrPath) -> FileFacts:
    """The facts about a file. A missing file is a `StorageError`."""
    text = normalise(path)
    with storage_errors(text, "look at"):
        if is_local(text):
            found = os.stat(text)
            if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
                raise NotAFile(errno.EINVAL, NotAFile.__doc__, text)
            return FileFacts(size_bytes=found.st_size, checksum=None)
        filesystem, inner = filesystem_of(text)
        info = filesystem.info(inner)
    return FileFacts(size_bytes=int(info.get("size") or 0), checksum=_checksum(info))


def _checksum(info: dict[str, Any]) -> str | None:
    for key in _CHECKSUM_KEYS:
        value = info.get(key)
        # A weak tag promises the same meaning, not the same bytes.
        if isinstance(value, str) and value and not value.startswith("W/"):
            return f"{key}={value}"
    return None
