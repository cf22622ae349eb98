"""`chomp watch RUN`: a run in the terminal while it trains."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from functools import partial
from typing import Annotated

import typer

from chomp.cli.config_arguments import Action
from chomp.errors import require

# The mark is typer's: it leaves the lines of the paragraph after it as they are.
EXAMPLES = """\b
Examples:
  chomp watch outputs/grug/base-<hash>
  chomp watch outputs/grug/base-<hash> --once --metric train/loss --metric grad/norm/total
"""


def watch(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder.")],
    every: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            max=3600,
            metavar="SECONDS",
            help="How often to look (default: 2). Without a terminal: print a line at each change.",
            show_default=False,
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one view and end.")] = False,
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Draw this metric in place of train/loss; repeatable."),
    ] = None,
    last: Annotated[
        int | None, typer.Option(min=1, metavar="STEPS", help="Draw only the last steps.")
    ] = None,
) -> Action:
    """What `chomp watch` does."""
    require(
        not (once and every is not None),
        given=f"--once with --every {every:g}" if every is not None else "--once",
        allowed="one view (--once), or a look every so often (--every)",
        fix="leave one of them out",
    )
    return partial(watch_run, run, every, once, metric or [], last)


def watch_run(
    run: str, every_s: float | None, is_once: bool, metrics: list[str], last_steps: int | None
) -> int:
    """Show the run until it ends or is no longer watched; the exit code."""
    from chomp.launch.main import INTERRUPTED_EXIT_CODE
    from chomp.launch.telling import tell_stop
    from chomp.report.watch.loops import watch
    from chomp.storage import is_folder, is_local
    from chomp.tracking.metrics import SHORT_KEYS, TRAIN_LOSS
    from chomp.tracking.run_files import is_run_folder, run_folders_in

    require(
        is_local(run) and is_folder(run),
        given=f"{run}, which is no folder of this machine",
        allowed="the folder of a run, which need not have logged anything yet",
        fix="correct the path; `chomp launch` and `chomp train` print it at the start",
    )
    others = [] if is_run_folder(run) else run_folders_in(run)
    require(
        not others,
        given=f"{run}, which is no run folder but holds {len(others)}",
        allowed="the folder of one run",
        fix=f"name one of them, such as {others[-1]}" if others else "",
    )
    long_names = {short: name for name, short in SHORT_KEYS.items()}
    drawn = [long_names.get(name, name) for name in metrics] or [TRAIN_LOSS]
    try:
        watch(run, metrics=drawn, every_s=every_s, is_once=is_once, last_steps=last_steps)
    except KeyboardInterrupt:
        # The usual way to leave, so it must not sound as if the run had been stopped.
        tell_stop("Only the watching: the run is as it was.")
        return INTERRUPTED_EXIT_CODE
    return 0
