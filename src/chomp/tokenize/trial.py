"""Tries a tokenizer.json in a child process before this process loads it.

The tokenizers library is compiled code: some files make it abort, never return or take all memory,
which nothing in this process could catch. The child has a time limit and a memory limit.
"""

import functools
import os
import subprocess
import sys

from chomp.errors import DataError
from chomp.storage import StrPath, read_text
from chomp.storage.files import MAX_JSON_BYTES

TRIAL_SECONDS = 60
TRIAL_BYTES = 4 << 30  # the largest vocabularies in use, with 33 MB of rules, need half a GiB
# Bytes become at most 4 ids each by byte fallback, and one character up to 18 by NFKC.
MAX_IDS_PER_BYTE = 16


def read_rules(path: StrPath) -> str:
    """The text of a `tokenizer.json`, after a child process could load and use it.

    Raises `DataError` for a file that the library cannot survive.
    """
    text = read_text(path, max_bytes=MAX_JSON_BYTES)
    _try(text, str(path))
    return text


@functools.lru_cache(maxsize=8)
def _try(text: str, source: str) -> None:
    try:
        child = subprocess.run(
            # By its path and with -P, so that the child imports little.
            [sys.executable, "-P", __file__, str(TRIAL_BYTES), str(MAX_IDS_PER_BYTE)],
            input=text.encode("utf-8", "surrogatepass"),
            capture_output=True,
            timeout=TRIAL_SECONDS,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "RUST_BACKTRACE": "0"},
        )
    except subprocess.TimeoutExpired:
        reason = f"took more than {TRIAL_SECONDS} s for a few thousand characters"
    else:
        if child.returncode == 0:
            return
        said = child.stderr.decode("utf-8", "replace").strip()
        reason = f"failed in a test process (exit {child.returncode}): {said[-300:]}"
    raise DataError(
        f"tokenizer {source} {reason}",
        allowed=f"a file that the tokenizers library can load and use in {TRIAL_SECONDS} s and "
        f"{TRIAL_BYTES >> 30} GiB, with at most {MAX_IDS_PER_BYTE} ids per byte of text",
        fix="restore the file, or take the tokenizer from a source that you trust",
    )


def _use(text: str, max_ids_per_byte: int) -> None:
    """Load the rules, encode text that touches every character they name, and decode it."""
    from tokenizers import Tokenizer  # noqa: PLC0415  for the child alone

    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception:
        return  # refused by the library itself: whoever loads it says so better
    tokenizer.encode_special_tokens = True
    tokenizer.no_padding()
    tokenizer.no_truncation()
    ordinary = "def f(x):\n    return x + 1  # The quick brown fox, 1234567890 times.\n" * 20
    runs = "".join(character * 500 for character in " a0\n.é漢")
    named = sorted(set(tokenizer.to_str()))
    for probe in (ordinary, runs, "".join(named), *(character * 8 for character in named)):
        try:
            ids = tokenizer.encode(probe, add_special_tokens=False).ids
        except Exception:  # a text without ids, which is said when a document has such a text
            continue
        if len(ids) > max_ids_per_byte * len(probe.encode()):
            sys.exit(f"it makes {len(ids)} ids of {probe[:20]!r}")
        tokenizer.decode(ids)


if __name__ == "__main__":
    import contextlib

    with contextlib.suppress(ImportError, OSError, ValueError):  # not every system has this limit
        import resource

        limits = (int(sys.argv[1]), int(sys.argv[1]))
        resource.setrlimit(resource.RLIMIT_AS, limits)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        _use(sys.stdin.buffer.read().decode("utf-8", "surrogatepass"), int(sys.argv[2]))
    except BaseException as error:  # a panic of the library is no Exception
        sys.exit(str(error))
