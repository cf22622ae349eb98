"""Evaluation metrics as a table: a line for each tag below its parent, then everything."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for annotations alone
    from rich.table import Table

_TOKENS = "/tokens"
_NAMES = ("loss", "bpb")


def eval_table(
    metrics: Mapping[str, float], *, prefix: str, title: str, carried: Collection[str]
) -> Table:
    """The table of one model, whose metrics begin with `prefix`.

    `carried` are the tags that datasets have themselves. Such a tag counts those datasets alone, so
    nothing is shown below it: `words/x` beside `words` is a line with its whole name.
    An error of a mean over tags is not told: the tags' errors do not say how they go together.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table("tag", title=title, title_justify="left")
    for heading in ("loss", "bits per byte", "tokens", "documents"):
        table.add_column(heading, justify="right")
    own = {key.removeprefix(f"{prefix}/"): value for key, value in metrics.items()}
    # Every tag has a count of tokens, those without a loss too.
    tags = sorted(key.removesuffix(_TOKENS) for key in own if key.endswith(_TOKENS))
    parents = {tag for tag in tags if tag not in carried}
    for tag in tags:
        table.add_row(Text(_label(tag, parents)), *_cells(own, f"{tag}/"))
    table.add_section()
    table.add_row("all", *_cells(own, ""))
    if "macro_loss" in own:  # with a single tag it would say `all` again
        means = (_number(own.get(f"macro_{name}")) for name in _NAMES)
        table.add_row("mean over tags", *means, "", "")
    return table


def _label(tag: str, parents: Collection[str]) -> str:
    """The tag below those that count it too, without their names."""
    above = [tag[:end] for end in range(len(tag)) if tag[end] == "/" and tag[:end] in parents]
    return "  " * len(above) + tag.removeprefix(f"{above[-1]}/" if above else "")


def _cells(own: Mapping[str, float], prefix: str) -> list[str]:
    quotients = [
        _number(own.get(f"{prefix}{name}"), own.get(f"{prefix}{name}_stderr")) for name in _NAMES
    ]
    counts = [own.get(f"{prefix}{name}") for name in ("tokens", "documents")]
    return [*quotients, *("" if count is None else f"{count:,.0f}" for count in counts)]


def _number(value: float | None, stderr: float | None = None) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if stderr is None else f"{value:.4f} ± {stderr:.4f}"
