"""`chomp variant ...`: make a template from another, compare, list and retire."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from chomp.cli.config_arguments import Action, Prefix
from chomp.cli.ledger_command import EXAMPLES as LEDGER_EXAMPLES
from chomp.cli.ledger_command import ledger
from chomp.cli.terminal import print_table, say

if TYPE_CHECKING:  # for annotations alone
    from pathlib import Path

    from chomp.variants.archive import Archive
    from chomp.variants.copied_variant import CopiedVariant
    from chomp.variants.file_changes import FolderChanges

# The mark is typer's: it leaves the lines of the paragraph after it as they are.
EXAMPLES = """\b
Examples:
  chomp variant new wide_mlp --from base --purpose "A wider MLP at equal parameters"
  chomp variant diff wide_mlp
  chomp variant list --all
  chomp variant ledger
  chomp variant retire wide_mlp --status superseded --superseded-by base
"""

variant_app = typer.Typer(
    no_args_is_help=True,
    help="The templates under experiments/grug: copy, compare, list, retire; the ledger.",
    epilog=EXAMPLES,
)

variant_app.command(
    help="Write docs/reports/ledger: all variants, and whether each is better.",
    epilog=LEDGER_EXAMPLES,
)(ledger)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A folder under experiments/grug.")]


class Retirement(StrEnum):
    """What becomes of a variant."""

    superseded = "superseded"
    deleted = "deleted"


@variant_app.command(help="Copy a variant under a new name, list it, and check it.")
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the new one is called.")],
    origin: Annotated[str, typer.Option("--from", metavar="NAME", help="What to copy.")] = "base",
    purpose: Annotated[str, typer.Option(help="What it is for, in one sentence.")] = "",
    check: Annotated[bool, typer.Option(help="Run its contracts.")] = True,
) -> Action:
    """What `chomp variant new` does."""
    return partial(_new, name, origin, purpose, check)


@variant_app.command(help="Show what a variant changes, and write a page with the lines.")
def diff(
    name: Name,
    against: Annotated[
        str | None, typer.Option(metavar="NAME", help="What it differs from; default: its origin.")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="Where the report goes; default: grug-diff/NAME among the outputs."
        ),
    ] = None,
) -> Action:
    """What `chomp variant diff` does."""
    return partial(_diff, name, against, out)


@variant_app.command("list", help="Show the variants, what each changes and what came of it.")
def list_(
    is_all: Annotated[bool, typer.Option("--all", help="Also those whose folder is gone.")] = False,
    prefix: Prefix = None,
) -> Action:
    """What `chomp variant list` does."""
    return partial(_list, is_all, prefix)


@variant_app.command(help="Delete a variant's folder; its entry in the archive stays.")
def retire(
    name: Name,
    status: Annotated[Retirement, typer.Option(help="What became of it.", show_default=False)],
    superseded_by: Annotated[
        str, typer.Option(metavar="NAME", help="The variant that took its place.")
    ] = "",
    reason: Annotated[str, typer.Option(help="What was tried, and what came of it.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Lose what no commit holds.")] = False,
) -> Action:
    """What `chomp variant retire` does."""
    return partial(_retire, name, str(status), superseded_by, reason, force)


def _new(name: str, origin: str, purpose: str, is_checked: bool) -> int:
    from chomp.ledger.kept_pages import write_ledger
    from chomp.variants.archive import ARCHIVE
    from chomp.variants.contract_run import contract_command, run_contracts
    from chomp.variants.copied_variant import copy_variant

    root = _root()
    pages = _ledger_pages(root)
    made = copy_variant(root, origin=origin, name=name, purpose=purpose)
    if pages:
        write_ledger(root)
    say(f"{made.path} is made from {origin}: {', '.join(made.files)}; {ARCHIVE} has it.")
    try:
        if is_checked:
            run_contracts(root, name)
        else:
            say(f"Its contracts were not run: {contract_command(name)}")
    finally:  # also where they do not hold: the variant is there
        _tell_next(made, purpose, _commit_command(made.path, ARCHIVE, *pages))
    return 0


def _tell_next(made: "CopiedVariant", purpose: str, commit_command: str) -> None:
    asked = "" if purpose else " and its Purpose in the archive"
    say("Next:")
    say(f"  edit {made.path}/model.py; say what differs in {made.path}/README.md{asked}")
    say(f"  uv run {made.path}/launch.py")
    say(f"  uv run chomp variant diff {made.name}")
    say("  uv run --group test infra/pre-commit.py --fix")
    say(f"  {commit_command}")


def _ledger_pages(root: "Path") -> tuple[str, ...]:
    """The pages of the ledger, which show every entry of the archive; none without a ledger.

    Raises `ConfigError` for a result that cannot be read: before anything is written or lost.
    """
    from chomp.ledger.kept_pages import has_ledger, ledger_pages

    return tuple(ledger_pages(root)) if has_ledger(root) else ()


def _commit_command(*paths: str) -> str:
    return f"git add --all {' '.join(paths)} && git commit"


def _diff(name: str, against: str | None, out: str | None) -> int:
    from pathlib import Path

    from chomp.launch.launching import outputs_folder
    from chomp.storage import join
    from chomp.variants.archive import read_archive
    from chomp.variants.compared_variants import (
        lines_beyond_renaming,
        origin_of,
        variant_changes,
    )
    from chomp.variants.diff_report import write_report
    from chomp.variants.renamed_source import Renaming

    root = _root()
    archive = read_archive(root)
    other = against or origin_of(archive, name)
    changes = variant_changes(root, archive, name, against=other)
    # Among the outputs, which git ignores.
    folder = Path(out or join(outputs_folder(None), "grug-diff", name))
    page = write_report(changes, folder)
    _print_changes(changes)
    # As the ledger and the pages of runs count, which have no README.
    added, deleted = lines_beyond_renaming(changes, Renaming(other, name))
    say(f"Lines of Python, but for its own name: +{added:,} -{deleted:,}")
    say(f"Report: {page}")
    return 0


def _print_changes(changes: "FolderChanges") -> None:
    from rich.table import Table

    say(f"{changes.left_label} → {changes.right_label}")
    table = Table("file", "what")
    table.add_column("added", justify="right", style="green")
    table.add_column("deleted", justify="right", style="red")
    for file in changes.files:
        if file.status != "unchanged":
            table.add_row(file.path, file.status, f"+{file.added_lines}", f"-{file.deleted_lines}")
    table.add_row("all", "", f"+{changes.added_lines}", f"-{changes.deleted_lines}")
    print_table(table)


def _list(is_all: bool, prefix: str | None) -> int:
    from rich.table import Table

    from chomp.launch.launching import outputs_folder
    from chomp.variants.archive import read_archive
    from chomp.variants.checkout import BASE
    from chomp.variants.folders import variant_folders
    from chomp.variants.last_run import last_runs

    root = _root()
    archive = read_archive(root)
    found = sorted(variant_folders(root), key=lambda variant: variant.name != BASE)  # base first
    here = {variant.name: variant for variant in found}
    gone = [entry.name for entry in archive.entries if entry.name not in here]
    # Retired ones come last: what can be run is what is looked for.
    names = [*here, *(gone if is_all else [])]
    runs = last_runs(outputs_folder(prefix), names)
    table = Table("variant", "origin", "lines changed", "status", "result", "last run here")
    for name in names:
        entry = archive.entry(name)
        status = entry.get("Status") if entry else "not in the archive"
        mark = here[name].not_verified if name in here else None
        if mark is not None:
            status += f", not verified until {mark.until or 'some day'}"
        result = (entry.get("Result") or entry.get("Reason")) if entry else ""
        origin = entry.get("Origin") if entry else ""
        changed = _lines_changed(root, archive, name) if origin else "-"
        run = str(runs[name]) if name in runs else "-"
        table.add_row(name, origin or "-", changed, status, result or "-", run)
    print_table(table)
    if gone and not is_all:
        say(f"The archive also has {', '.join(gone)}; --all shows what it says of them.")
    return 0


def _lines_changed(root: "Path", archive: "Archive", name: str) -> str:
    """Lines of Python added and deleted against the origin; of deleted variants, by git."""
    from chomp.errors import ConfigError
    from chomp.variants.compared_variants import lines_beyond_name

    try:
        added, deleted = lines_beyond_name(root, archive, name)
    except ConfigError:
        return "?"  # of a clone that lacks the commit; `diff` says what is missing
    return f"+{added} -{deleted}"


def _retire(name: str, status: str, superseded_by: str, reason: str, is_forced: bool) -> int:
    from chomp.ledger.kept_pages import write_ledger
    from chomp.variants.archive import ARCHIVE
    from chomp.variants.checkout import variant_path
    from chomp.variants.retired_variant import retire_variant

    root = _root()
    pages = _ledger_pages(root)
    retired = retire_variant(
        root,
        name,
        status=status,
        superseded_by=superseded_by,
        reason=reason,
        is_forced=is_forced,
    )
    if pages:
        write_ledger(root)
    path = variant_path(name)
    say(f"{path} is deleted; {ARCHIVE} has it as {status}, last in {retired.last_good}.")
    say(f"Commit all of it: {_commit_command(path, ARCHIVE, *pages)}")
    say(f"To have it back: git checkout {retired.last_good} -- {path}")
    return 0


def _root() -> "Path":
    from pathlib import Path

    from chomp.variants.checkout import checkout_root

    return checkout_root(Path.cwd())
