"""`chomp checkpoint diff`: what differs between two checkpoints, for a person to look at."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

from typing import TYPE_CHECKING

from chomp.cli.checkpoint_printing import chosen, late_bar, narrow_table, use_the_cpu
from chomp.cli.terminal import one_line, print_table, say

if TYPE_CHECKING:  # for annotations alone
    from collections.abc import Sequence

    from rich.table import Table

    from chomp.checkpoint.difference import ArrayDifference
    from chomp.checkpoint.layout import StepFolder

# Where in training a checkpoint is, and of what.
_FACTS = (
    "run_id",
    "step",
    "tokens_seen",
    "attempt",
    "skipped_steps",
    "data_fingerprint",
    "tokenizer_hash",
    "mesh",
)
_HASH_CHARACTERS = 12
_KINDS = {"only before": "only in A", "only after": "only in B", "equal": "equal"}


def diff_places(before: str, after: str, *, every: bool) -> int:
    """Print a summary, then metadata, config and arrays that differ; 0 whether any do or not."""
    from chomp.checkpoint.difference import array_differences, bytes_to_compare

    use_the_cpu()
    sides = chosen(before), chosen(after)
    with late_bar("comparing", bytes_to_compare(*sides)) as on_bytes:
        arrays = array_differences(*sides, on_bytes=on_bytes)
    config = _config_table(*sides)
    for side, found in zip("AB", sides, strict=True):
        say(f"{side}: {found.path}")
    say(_summary(arrays, config.row_count))
    shown = [item for item in arrays if every or item.kind != "equal"]
    for table in (_facts_table(*sides), config, _array_table(shown)):
        if table.row_count:
            print_table(table)
    return 0


def _summary(arrays: Sequence[ArrayDifference], num_settings: int) -> str:
    num_equal = sum(item.kind == "equal" for item in arrays)
    texts = [f"{num_equal} of {len(arrays)} arrays are equal"]
    floats = [item for item in arrays if item.kind == "other values" and item.is_float]
    if floats:  # they come sorted
        texts.append(f"the largest change is {floats[0].relative:.2g} in {floats[0].name}")
    texts.append(f"config fields that differ: {num_settings or 'none'}")
    return "; ".join(texts)


def _facts_table(before: StepFolder, after: StepFolder) -> Table:
    table = narrow_table("metadata", "A", "B")
    for name in _FACTS:
        values = [getattr(found.metadata, name) for found in (before, after)]
        if values[0] != values[1]:
            table.add_row(name, *(_plain(name, value) for value in values))
    return table


def _config_table(before: StepFolder, after: StepFolder) -> Table:
    from chomp.config import config_difference

    table = narrow_table("config", "A", "B")
    for item in config_difference(before.metadata.config, after.metadata.config):
        table.add_row(item.path, one_line(repr(item.before)), one_line(repr(item.after)))
    return table


def _array_table(arrays: Sequence[ArrayDifference]) -> Table:
    table = narrow_table("array", "dtype and shape")
    for heading in ("differing", "max abs", "relative"):
        table.add_column(heading, justify="right")
    for item in arrays:
        texts = dict.fromkeys([item.before or item.after, item.after or item.before])
        table.add_row(item.name, " -> ".join(texts), *_numbers(item))
    return table


def _numbers(item: ArrayDifference) -> tuple[str, str, str]:
    if item.kind == "other values":
        share = f"{item.num_different:,} of {item.num_elements:,}"
        # How far a counter or a random key moved, relative to what it was, says nothing.
        return share, f"{item.max_abs:.3g}", f"{item.relative:.3g}" if item.is_float else ""
    return _KINDS.get(item.kind, ""), "", ""


def _plain(name: str, value: object) -> str:
    if name.endswith(("_hash", "_fingerprint")):
        return str(value)[:_HASH_CHARACTERS]
    return f"{value:,}" if isinstance(value, int) else str(value)
