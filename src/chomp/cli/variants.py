"""`chomp variant new`, `diff`, `list`, `retire` and `ledger`: the templates of a checkout."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from chomp.cli.output import print_json, print_rows, say
from chomp.config import fingerprint
from chomp.errors import ConfigError
from chomp.executor.step import source_hashes
from chomp.launch.run import outputs_folder
from chomp.ledger.curves import BUDGETS
from chomp.ledger.pages import (
    HTML,
    MARKDOWN,
    has_ledger,
    ledger_pages,
    stale_pages,
    write_ledger,
)
from chomp.ledger.runs import last_runs
from chomp.ledger.table import (
    LedgerRow,
    difference_text,
    ledger_rows,
    lines_text,
    parameters_text,
)
from chomp.storage import join
from chomp.variants import lifecycle
from chomp.variants.archive import ARCHIVE, ARCHIVE_PAGE, Archive, read_archive
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


def new_variant(name: str, origin: str, purpose: str, *, is_checked: bool) -> int:
    """Copy a variant, run its contracts, and say what comes next."""
    root = checkout_root(Path.cwd())
    pages = _ledger_pages(root)
    files = lifecycle.copy_variant(root, origin=origin, name=name, purpose=purpose)
    path = variant_path(name)
    if pages:
        write_ledger(root)
    say(f"{path} is a copy of {origin}: {', '.join(files)}; {ARCHIVE} lists it.")
    try:
        if is_checked:
            run_contracts(root, name)
        else:
            say(f"Its contracts were not run: {contract_command(name)}")
    finally:  # also where they do not hold: the variant is there
        asked = "" if purpose else " and its Purpose in the archive"
        say("Next:")
        say(f"  edit {path}/model.py; say what differs in {path}/README.md{asked}")
        say(f"  uv run {path}/launch.py")
        say(f"  uv run chomp variant diff {name}")
        say("  uv run --group test infra/pre-commit.py --fix")
        say(f"  {_commit_command(path, ARCHIVE, ARCHIVE_PAGE, *pages)}")
    return 0


def diff_variant(name: str, against: str | None, out: str | None, *, is_json: bool) -> int:
    """Print the files that a variant changes, and write a page with the lines."""
    root = checkout_root(Path.cwd())
    archive = read_archive(root)
    other = against or origin_of(archive, name)
    changes = variant_changes(root, archive, name, against=other)
    # Among the outputs, which git ignores.
    page = write_report(changes, Path(out or join(outputs_folder(None), "grug-diff", name)))
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
    if is_json:
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


def list_variants(prefix: str | None, *, is_all: bool, is_json: bool) -> int:
    """Print the variants, base first; with `is_all` those whose folder is gone come last."""
    root = checkout_root(Path.cwd())
    archive = read_archive(root)
    found = sorted(variant_folders(root), key=lambda variant: variant.name != BASE)
    here = {variant.name: variant for variant in found}
    gone = [name for name in archive if name not in here]
    names = [*here, *(gone if is_all else [])]
    runs = last_runs(outputs_folder(prefix), names)
    rows: list[dict[str, Any]] = []
    for name in names:
        entry = archive.get(name)
        status: str = entry.status if entry else "not in the archive"
        mark = here[name].not_verified if name in here else None
        if mark is not None:
            status += f", not verified until {mark.until or 'some day'}"
        origin = entry.origin if entry else None
        result = (entry.result or entry.reason) if entry else None
        rows.append(
            {
                "variant": name,
                "origin": origin,
                "lines changed": _lines_changed(root, archive, name) if origin else None,
                "status": status,
                "result": result,
                "last run here": str(runs[name]) if name in runs else None,
            }
        )
    if is_json:
        print_json(rows)
        return 0
    print_rows(rows)
    if gone and not is_all:
        say(f"The archive also has {', '.join(gone)}; --all shows what it says of them.")
    return 0


def retire_variant(
    name: str,
    status: Literal["superseded", "deleted"],
    *,
    superseded_by: str,
    reason: str,
    is_forced: bool,
) -> int:
    """Delete a variant's folder, keep its entry in the archive, and say how to undo it."""
    root = checkout_root(Path.cwd())
    pages = _ledger_pages(root)
    last_good = lifecycle.retire_variant(
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
    say(f"{path} is deleted; {ARCHIVE} lists it as {status}, last in {last_good}.")
    say(f"Commit all of it: {_commit_command(path, ARCHIVE, ARCHIVE_PAGE, *pages)}")
    say(f"To have it back: git checkout {last_good} -- {path}")
    return 0


def write_ledger_pages(*, is_check: bool, is_json: bool) -> int:
    """Write the pages of the ledger, or with `is_check` raise if one is out of date."""
    root = checkout_root(Path.cwd())
    if is_check:
        stale = stale_pages(root)
        if stale:
            raise ConfigError(
                f"{' and '.join(stale)} not as docs/reports/results makes it",
                allowed="pages made from the results and the archive",
                fix="run chomp variant ledger, and commit what it writes",
            )
        say(f"{MARKDOWN} and {HTML} are up to date.")
        return 0
    rows = ledger_rows(root)
    changed = _changed_since(root, rows)
    written = write_ledger(root)
    if is_json:
        kept = [asdict(row) for row in rows]
        print_json({"rows": kept, "changed_since": changed, "written": written})
        return 0
    print_rows([_ledger_row(row) for row in rows])
    for name in changed:
        say(f"{name} has changed since it was measured.", "yellow")
    say(f"Written: {', '.join(written)}" if written else f"{MARKDOWN} and {HTML} are up to date.")
    return 0


def _ledger_row(row: LedgerRow) -> dict[str, str]:
    result = row.result
    return {
        "variant": row.title,
        "against": row.against,
        "lines": lines_text(row),
        "parameters": parameters_text(row),
        "seeds": str(len(result.seeds)) if result else "-",
        **{f"at equal {budget}": difference_text(row, budget) for budget in BUDGETS},
        "verdict": f"{row.word} ({row.caveat})" if row.caveat else row.word,
        "made": result.day if result else "-",
    }


def _changed_since(root: Path, rows: list[LedgerRow]) -> list[str]:
    """Variants whose newest result is of another source than the folder has now."""
    newest: dict[str, str | None] = {}
    for row in rows:
        for side in (row.result.base, row.result.variant) if row.result else ():
            newest.setdefault(side.variant, side.template_hash)
    return [
        variant_path(name)
        for name, measured in newest.items()
        if (root / variant_path(name)).is_dir()
        and fingerprint(source_hashes(root / variant_path(name))) != measured
    ]


def _ledger_pages(root: Path) -> tuple[str, ...]:
    """The pages of the ledger, which show every entry of the archive; none without a ledger.

    Raises `ConfigError` for a result that cannot be read: before anything is written or lost.
    """
    return tuple(ledger_pages(root)) if has_ledger(root) else ()


def _commit_command(*paths: str) -> str:
    return f"git add --all {' '.join(paths)} && git commit"


def _lines_changed(root: Path, archive: Archive, name: str) -> str:
    """Lines of Python added and deleted against the origin; of deleted variants, by git."""
    try:
        added, deleted = lines_beyond_name(root, archive, name)
    except ConfigError:
        return "?"  # of a clone that lacks the commit; `diff` says what is missing
    return f"+{added} -{deleted}"
