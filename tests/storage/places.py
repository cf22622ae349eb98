"""Files put where only reading is the subject: on disk, or in fsspec's memory filesystem."""

import fsspec

from chomp import storage


def put(path: str, data: bytes) -> None:
    """Let the file hold `data`; its folder must exist on disk."""
    if storage.is_local(path):
        storage.write_bytes_atomic(path, data)
    else:
        fsspec.filesystem("memory").pipe_file(path, data)


def put_folder(path: str) -> None:
    """Make an empty folder."""
    if storage.is_local(path):
        storage.make_folder(path)
    else:
        fsspec.filesystem("memory").makedirs(path, exist_ok=True)
