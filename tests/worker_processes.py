"""The tokenizer processes that a test has started, as the operating system lists them."""

from pathlib import Path

import pytest

needs_proc = pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux's /proc")


def workers_of(folder: str) -> list[int]:
    """The processes that tokenize with the tokenizer in that folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it ended meanwhile
            continue
        if {b"chomp.tokenize.worker", folder.encode()} <= set(words):
            found.append(int(process.name))
    return found
