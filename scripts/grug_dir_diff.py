#!/usr/bin/env python3
"""Show what differs between two folders, as one HTML page with summaries beside it.

    python scripts/grug_dir_diff.py experiments/grug/base experiments/grug/moe --out /tmp/grug-diff

`scripts/ci/grug_dir_diff.py` is this same program. The page needs no network; a browser opens it
only if there is a terminal to have asked for it.
"""

import argparse
import os
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from chomp.errors import require
from chomp.variants.diff import folder_changes
from chomp.variants.diff_page import DiffParser, exit_code, totals_text, write_report


def run(arguments: Sequence[str]) -> None:
    """Compare, write the report, say what was found."""
    options = _parser().parse_args(arguments)
    for folder in (options.left, options.right):
        require(
            folder.resolve() not in [options.out.resolve(), *options.out.resolve().parents],
            f"--out {options.out} is inside {folder}, one of the folders to compare",
            allowed="a folder outside both",
            fix="give --out a folder elsewhere, such as --out /tmp/grug-diff",
        )
    changes = folder_changes(options.left, options.right, extensions=options.extensions)
    page = write_report(
        changes,
        options.out,
        context_lines=options.context_lines,
        show_unchanged=options.show_unchanged,
    )
    print(totals_text(changes))
    print(page)
    # A job has no one to look at a browser; some set CI and give their steps a terminal.
    if options.open and sys.stdout.isatty() and not os.environ.get("CI"):
        webbrowser.open(page.resolve().as_uri())


def _parser() -> DiffParser:
    parser = DiffParser(
        prog="grug_dir_diff.py", description="Show what differs between two folders."
    )
    parser.add_argument("left", type=Path, metavar="LEFT", help="the folder before")
    parser.add_argument("right", type=Path, metavar="RIGHT", help="the folder after")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(".grug-diff-report"),
        metavar="DIR",
        help="where index.html, summary.md and summary.json go (default: %(default)s)",
    )
    parser.add_argument("--show-unchanged", action="store_true", help="list equal files too")
    parser.add_argument(
        "--open",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="open the page in a browser, if there is a terminal (default: yes)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(exit_code(run, sys.argv[1:]))
