"""The table that sums a run up in the terminal, from the files of its folder alone."""

from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from chomp.report.page import page_of_run
from chomp.storage import exists, is_folder, join, list_folder, read_text
from chomp.storage.files import MAX_TEXT_BYTES
from chomp.storage.printable import PlainConsole, printable
from chomp.tracking import Row, latest_rows, metrics, read_metrics, summary_of
from chomp.tracking.run_files import (
    AVERAGED,
    CHECKPOINTS,
    EMA,
    SAMPLE_MARK,
    eval_prefix_in,
    held_out_prefix,
    is_of_averaged,
    record_of,
    resolved_config,
    samples_in,
)


def print_run_table(path: str, console: Console | None = None) -> None:
    """Print the losses, the speed, the paths and a sample of the run in `path`."""
    console = console or PlainConsole()
    rows = read_metrics(record_of(path))
    steps = latest_rows(rows)
    prefix = held_out_prefix(eval_prefix_in(resolved_config(path)), set().union(*steps))
    evaluated = next((row for row in reversed(steps) if f"{prefix}/loss" in row), None)
    if evaluated is not None:
        console.print(_loss_table(evaluated, prefix))
    console.print(_fact_table(path, steps, summary_of(rows)))
    if samples := samples_in(path):
        sample = read_text(samples[max(samples)], max_bytes=MAX_TEXT_BYTES)
        title = f"sample: a piece of a text, {SAMPLE_MARK} the model goes on"
        text = Text(printable(sample, console.encoding))
        console.print(Panel(text, title=title, title_align="left"))


def _loss_table(evaluated: Row, root: str) -> Table:
    title = f"result of the {AVERAGED}" if is_of_averaged(root) else "result"
    table = Table("held-out", "loss", "bits per byte", "tokens", title=title)
    tags = sorted(
        key.removeprefix(f"{root}/").removesuffix("/tokens")
        for key in evaluated
        if key.startswith(f"{root}/") and key.endswith("/tokens") and key != f"{root}/tokens"
        if not key.startswith(f"{root}/{EMA}/")
    )
    for label, prefix in [*((tag, f"{root}/{tag}/") for tag in tags), ("all", f"{root}/")]:
        cells = (evaluated.get(f"{prefix}{name}") for name in ("loss", "bpb"))
        count = evaluated.get(f"{prefix}tokens") or 0
        table.add_row(label, *(_number(cell) for cell in cells), f"{int(count):,}")
    return table


def _fact_table(path: str, steps: list[Row], summary: Row) -> Table:
    trained = [row for row in steps if "train/loss" in row]
    table = Table(show_header=False, box=None)
    if trained:
        last = trained[-1]
        table.add_row("train loss", _number(last["train/loss"]))
        table.add_row("steps", f"{int(last['step']) + 1:,}")
        table.add_row("tokens trained on", f"{int(last['tokens_seen']):,}")
    speed = summary.get(metrics.RUN_TOKENS_PER_SEC)
    if speed is not None:
        table.add_row(
            "tokens/s",
            f"{float(speed):,.0f} (trained on, wall clock, evaluation and saving included)",
        )
    table.add_row("run folder", path)
    if exists(page_of_run(path)):
        table.add_row("run page", page_of_run(path))
    checkpoints = join(path, CHECKPOINTS)
    if is_folder(checkpoints) and list_folder(checkpoints):
        table.add_row("checkpoints", checkpoints)
    return table


def _number(value: Any) -> str:
    return "-" if value is None else f"{float(value):.4f}"
