"""Paths, reading, atomic writes and locks. Every failure is a `StorageError`.

No room above this one opens, renames or removes a file by itself.
"""

from chomp.storage.atomic import (
    json_text,
    rename_folder,
    require_writable_folder,
    sync_tree,
    write_bytes_atomic,
    write_json_atomic,
    write_text_atomic,
)
from chomp.storage.files import (
    FileInfo,
    exists,
    file_info,
    folder_size_bytes,
    glob_files,
    is_folder,
    list_folder,
    make_folder,
    open_stream,
    read_bytes,
    read_json,
    read_text,
    remove_tree,
)
from chomp.storage.lock import FileLock, LockHolder, killed_holder, lock_holder, locked_error
from chomp.storage.paths import (
    SET_ASIDE,
    StrPath,
    is_local,
    is_set_aside,
    join,
    name_of,
    normalise,
    parent_of,
)

__all__ = [
    "SET_ASIDE",
    "FileInfo",
    "FileLock",
    "LockHolder",
    "StrPath",
    "exists",
    "file_info",
    "folder_size_bytes",
    "glob_files",
    "is_folder",
    "is_local",
    "is_set_aside",
    "join",
    "json_text",
    "killed_holder",
    "list_folder",
    "lock_holder",
    "locked_error",
    "make_folder",
    "name_of",
    "normalise",
    "open_stream",
    "parent_of",
    "read_bytes",
    "read_json",
    "read_text",
    "remove_tree",
    "rename_folder",
    "require_writable_folder",
    "sync_tree",
    "write_bytes_atomic",
    "write_json_atomic",
    "write_text_atomic",
]
