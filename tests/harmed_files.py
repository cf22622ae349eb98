"""Files harmed as disks, copies and strangers harm them."""

import os
import random
import shutil
from pathlib import Path

ONCE = (
    "empty", "delete", "put a folder there", "put a pipe there", "link to itself",
    "link to another's", "take another's",
)  # fmt: skip
BY_CHANCE = ("flip a bit", "cut it short", "swap with another file")
HARMS = (*BY_CHANCE, *ONCE)


def harm(file: Path, how: str, *, root: Path, other: Path, chance: random.Random) -> list[Path]:
    """Harm a file below `root`; `other` is the same file of another store or run.

    Returns the files that were harmed: two where they were swapped.
    """
    content = bytearray(file.read_bytes())
    harmed = [file]
    if how == "flip a bit" and content:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    elif how == "cut it short" and content:
        del content[chance.randrange(len(content)) :]
    elif how == "empty":
        content.clear()
    elif how == "take another's":
        content[:] = other.read_bytes()
    elif how == "swap with another file":
        places = sorted(each for each in root.rglob("*") if each.is_file() and each != file)
        swapped = chance.choice(places)
        harmed.append(swapped)
        content[:] = swapped.read_bytes()
        shutil.copy(file, swapped)
    file.unlink()
    if how == "put a folder there":
        file.mkdir()
    elif how == "put a pipe there":
        os.mkfifo(file)
    elif how.startswith("link"):
        file.symlink_to(file if how == "link to itself" else other)
    elif how != "delete":
        file.write_bytes(content)
    return harmed
