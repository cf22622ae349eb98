#!/usr/bin/env python3
"""Write a diff report for every variant that is new or edited between two commits.

    python scripts/ci/grug_variant_diff_ci.py --base-sha origin/main --head-sha HEAD \
        --output-dir /tmp/reports --manifest-path /tmp/reports/manifest.json

Needs git and Python alone: `PYTHONPATH=src` replaces an install, and without pygments source has no
colours.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from chomp.storage import json_text, make_folder, write_text_atomic
from chomp.variants.checkout import checkout_root
from chomp.variants.ci_report import change_reports, comment_markdown
from chomp.variants.diff_page import DiffParser, exit_code


def run(arguments: Sequence[str]) -> None:
    """Write the reports, their manifest and, if asked for, the comment; say what was found."""
    options = _parser().parse_args(arguments)
    manifest = change_reports(
        checkout_root(Path.cwd()),
        base=options.base_sha,
        head=options.head_sha,
        out=options.output_dir,
        extensions=options.extensions,
        context_lines=options.context_lines,
    )
    _write(options.manifest_path, json_text(manifest, name="the manifest", indent=2) + "\n")
    if options.comment_path is not None:
        _write(options.comment_path, comment_markdown(manifest, report_url=options.report_url))
    for report in manifest["reports"]:
        print(
            f"{report['variant']}: {report['change']}, {report['distance_score']:,} lines from "
            f"{report['closest_variant']}, {options.output_dir / report['report_relpath']}"
        )
    print(f"reports: {manifest['report_count']}, listed in {options.manifest_path}")


def _write(path: Path, text: str) -> None:
    make_folder(path.parent)
    write_text_atomic(path, text)


def _parser() -> DiffParser:
    parser = DiffParser(
        prog="grug_variant_diff_ci.py",
        description="Write a diff report for every variant that is new or edited.",
    )
    needed = {"required": True}
    parser.add_argument("--base-sha", **needed, metavar="SHA", help="where the change goes to")
    parser.add_argument("--head-sha", **needed, metavar="SHA", help="the change")
    parser.add_argument(
        "--output-dir", **needed, type=Path, metavar="DIR", help="a folder for each variant in it"
    )
    parser.add_argument(
        "--manifest-path", **needed, type=Path, metavar="FILE", help="JSON list of the reports"
    )
    parser.add_argument(
        "--comment-path", type=Path, metavar="FILE", help="Markdown for the pull request"
    )
    parser.add_argument(
        "--report-url", metavar="URL", help="where the comment says that the reports are"
    )
    return parser


if __name__ == "__main__":
    sys.exit(exit_code(run, sys.argv[1:]))
