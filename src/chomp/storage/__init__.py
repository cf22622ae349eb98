"""Local and cloud paths, atomic writes and locks. Every failure is a `StorageError`.

No room above this one opens, renames or removes a file by itself.
"""

from chomp.storage.atomic import (
    append_line,
    create_exclusive,
    write_bytes_atomic,
    write_json_atomic,
    write_text_atomic,
)
from chomp.storage.facts import FileFacts, file_facts
from chomp.storage.lease import Lease
from chomp.storage.lease_holder import LeaseHolder, LeaseWatch
from chomp.storage.locations import (
    SET_ASIDE,
    StrPath,
    is_local,
    is_set_aside,
    join,
    name_of,
    normalise,
    parent_of,
)
from chomp.storage.paths import (
    exists,
    folder_size_bytes,
    glob_files,
    is_folder,
    list_folder,
    make_folder,
    remove_tree,
    rename_folder,
    require_writable_folder,
)
from chomp.storage.reading import open_stream, read_bytes, read_json, read_text
from chomp.storage.strict_json import json_text
from chomp.storage.temporary import sync_tree

__all__ = [
    "SET_ASIDE",
    "FileFacts",
    "Lease",
    "LeaseHolder",
    "LeaseWatch",
    "StrPath",
    "append_line",
    "create_exclusive",
    "exists",
    "file_facts",
    "folder_size_bytes",
    "glob_files",
    "is_folder",
    "is_local",
    "is_set_aside",
    "join",
    "json_text",
    "list_folder",
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
