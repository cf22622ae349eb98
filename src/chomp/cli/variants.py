"""`chomp variant new`, `diff`, `list`, `retire` and `ledger`: the templates of a checkout."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from chomp.cli.commands import (
    VariantDiff,
    VariantLedger,
    VariantList,
    VariantNew,
    VariantRetire,
)
from chomp.cli.output import print_json, print_rows, say
from chomp.config import fingerprint
from chomp.errors import ConfigError, require
from chomp.executor.step import source_hashes
from chomp.launch.run import outputs_folder
from chomp.ledger.curves import BUDGETS
from chomp.ledger.pages import (
    HTML,
    MARKDOWN,
    has_ledger,
    ledger_pages,
    ledger_rows,
    stale_pages,
    write_ledger,
)
from chomp.ledger.runs import last_runs
from chomp.storage import join
from chomp.variants import lifecycle
from chomp.variants.archive import ARCHIVE, ARCHIVE_PAGE, read_archive
from chomp.variants.checkout import (
    BASE,
    checkout_root,
    contract_command,
    run_contracts,
    variant_folders,
    variant_path,
)
from chomp.variants.diff_page import write_report
from chomp.variants.lifecycle import (
    Renaming,
    lines_beyond_name,
    lines_beyond_renaming,
    origin_of,
    variant_changes,
)


def new_variant(asked: VariantNew) -> int:
    """Copy a variant, run its contracts, and say what comes next."""
    name, origin, purpose = asked.name, asked.origin, asked.purpose
    root = checkout_root(Path.cwd())
    pages = _ledger_pages(root)
    files = lifecycle.copy_variant(root, origin=origin, name=name, purpose=purpose)
    path = variant_path(name)
    if pages:
        write_ledger(root)
    say(f"{path} is a copy of {origin}: {', '.join(files)}; {ARCHIVE} lists it.")
    try:
        if asked.check:
            run_contracts(root, name)
        else:
            say(f"Its contracts were not run: {contract_command(name)}")
    finally:  # also where they do not hold: the variant is there
        missing = "" if purpose else " and its Purpose in the archive"
        say("Next:")
        say(f"  edit {path}/model.py; say what differs in {path}/README.md{missing}")
        say(f"  uv run {path}/launch.py")
        say(f"  uv run chomp variant diff {name}")
        say("  uv run --group test infra/pre-commit.py --fix")
        say(f"  {_commit_command(path, ARCHIVE, ARCHIVE_PAGE, *pages)}")
    return 0


def diff_variant(asked: VariantDiff) -> int:
    """Print the files that a variant changes, and write a page with the lines."""
    name = asked.name
    root = checkout_root(Path.cwd())
    archive = read_archive(root)
    other = asked.against or origin_of(archive, name)
    changes = variant_changes(root, archive, name, against=other)
    # Among the outputs, which git ignores.
    page = write_report(changes, Path(asked.out or join(outputs_folder(None), "grug-diff", name)))
    rows = [
        {
            "file": file.path,
            "what": file.status,
            "added": file.added_lines,
            "deleted": file.deleted_lines,
        }
        for file in changes.files
        if file.status != "unchanged"
    ]
    # As the ledger and the pages of runs count, which have no README.
    added, deleted = lines_beyond_renaming(changes, Renaming(other, name))
    if asked.as_json:
        content = {"against": other, "files": rows, "python_added": added}
        print_json({**content, "python_deleted": deleted, "report": str(page)})
        return 0
    say(f"{changes.left_label} → {changes.right_label}")
    total = {"added": changes.added_lines, "deleted": changes.deleted_lines}
    shown = [*rows, {"file": "all", "what": "", **total}]
    print_rows(
        [{**row, "added": f"+{row['added']}", "deleted": f"-{row['deleted']}"} for row in shown],
        right=("added", "deleted"),
    )
    say(f"Lines of Python, but for its own name: +{added:,} -{deleted:,}")
    say(f"Report: {page}")
    return 0


def list_variants(asked: VariantList) -> int:
    """Print the variants, base first; with --all those whose folder is gone come last."""
    root = checkout_root(Path.cwd())
    archive = read_archive(root)
    found = sorted(variant_folders(root), key=lambda variant: variant.name != BASE)
    here = {variant.name: variant for variant in found}
    gone = [name for name in archive if name not in here]
    names = [*here, *(gone if asked.all else [])]
    runs = last_runs(outputs_folder(asked.prefix), names)
    rows: list[dict[str, Any]] = []
    for name in names:
        entry = archive.get(name)
        status: str = entry.status if entry else "not in the archive"
        mark = here[name].not_verified if name in here else None
        if mark is not None:
            status += f", not verified until {mark.until or 'some day'}"
        lines = None
        if entry and entry.origin:  # lines of Python against it; of deleted variants, by git
            try:
                lines = "+{} -{}".format(*lines_beyond_name(root, archive, name))
            except ConfigError:
                lines = "?"  # of a clone that lacks the commit; `diff` says what is missing
        rows.append(
            {
                "variant": name,
                "origin": entry.origin if entry else None,
                "lines changed": lines,
                "status": status,
                "result": (entry.result or entry.reason) if entry else None,
                "last run here": str(runs[name]) if name in runs else None,
            }
        )
    if asked.as_json:
        print_json(rows)
        return 0
    print_rows(rows)
    if gone and not asked.all:
        say(f"The archive also has {', '.join(gone)}; --all shows what it says of them.")
    return 0


def retire_variant(asked: VariantRetire) -> int:
    """Delete a variant's folder, keep its entry in the archive, and say how to undo it."""
    name, status = asked.name, asked.status
    root = checkout_root(Path.cwd())
    pages = _ledger_pages(root)
    last_good = lifecycle.retire_variant(
        root,
        name,
        status=status,
        superseded_by=asked.superseded_by,
        reason=asked.reason,
        is_forced=asked.force,
    )
    if pages:
        write_ledger(root)
    path = variant_path(name)
    say(f"{path} is deleted; {ARCHIVE} lists it as {status}, last in {last_good}.")
    say(f"Commit all of it: {_commit_command(path, ARCHIVE, ARCHIVE_PAGE, *pages)}")
    say(f"To have it back: git checkout {last_good} -- {path}")
    return 0


def write_ledger_pages(asked: VariantLedger) -> int:
    """Write the pages of the ledger, or with --check raise if one is out of date."""
    root, up_to_date = checkout_root(Path.cwd()), f"{MARKDOWN} and {HTML} are up to date."
    if asked.check:
        stale = stale_pages(root)
        require(
            not stale,
            f"{' and '.join(stale)} not as docs/reports/results makes it",
            allowed="pages made from the results and the archive",
            fix="run chomp variant ledger, and commit what it writes",
        )
        say(up_to_date)
        return 0
    rows = ledger_rows(root)
    # Variants whose newest result is of another source than the folder has now.
    newest: dict[str, str | None] = {}
    for row in rows:
        for side in (row.result.base, row.result.variant) if row.result else ():
            newest.setdefault(side.variant, side.template_hash)
    folders = {variant_path(name): measured for name, measured in newest.items()}
    changed = [
        path
        for path, measured in folders.items()
        if (root / path).is_dir() and fingerprint(source_hashes(root / path)) != measured
    ]
    written = write_ledger(root)
    if asked.as_json:
        kept = [asdict(row) for row in rows]
        print_json({"rows": kept, "changed_since": changed, "written": written})
        return 0
    print_rows(
        [
            {
                "variant": row.title,
                "against": row.against,
                "lines": row.lines,
                "parameters": row.parameters,
                "seeds": str(len(row.result.seeds)) if row.result else "-",
                **{f"at equal {budget}": row.difference(budget) for budget in BUDGETS},
                "verdict": f"{row.word} ({row.caveat})" if row.caveat else row.word,
                "made": row.result.day if row.result else "-",
            }
            for row in rows
        ]
    )
    for name in changed:
        say(f"{name} has changed since it was measured.", "yellow")
    say(f"Written: {', '.join(written)}" if written else up_to_date)
    return 0


def _ledger_pages(root: Path) -> tuple[str, ...]:
    """The pages of the ledger, which show every entry of the archive; none without a ledger.

    Raises `ConfigError` for a result that cannot be read: before anything is written or lost.
    """
    return tuple(ledger_pages(root)) if has_ledger(root) else ()


def _commit_command(*paths: str) -> str:
    return f"git add --all {' '.join(paths)} && git commit"
