"""The README of a new variant: what is known when it is made, and what its author has to say."""

from chomp.variants.archive_entry import TO_BE_FILLED_IN
from chomp.variants.checkout import variant_path

README = "README.md"


def readme_stub(name: str, origin: str, commit: str, purpose: str) -> str:
    """A page of twenty lines, with the places that its author fills in.

    `commit` is where the origin was when it was copied, in words.
    """
    return f"""\
# {name}

{purpose or f"Purpose: {TO_BE_FILLED_IN}."}

- Origin: {origin} at {commit}
- Status: active ([archive](../../../docs/reports/grug-archive.md))

## What differs, and why

{TO_BE_FILLED_IN}: a line for each change. `uv run chomp variant diff {name}` shows them.

## Result against {origin}

{TO_BE_FILLED_IN}: same tokens, same seed, the command and the commit.

## How to run

    uv run {variant_path(name)}/launch.py
"""
