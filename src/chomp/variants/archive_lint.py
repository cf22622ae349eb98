"""What is wrong with the archive: each fault with its line, what it is, and what to do.

The archive is right when every variant folder has an active entry, every active entry a folder,
and every entry all its fields. Commits are looked up where the whole history is there; in a shallow
clone only their form is checked. An active entry may lack the commit that brought it, or name one
that a merge rewrote: its folder is there, and `fill_in_commits` puts the commit right.
"""

from collections.abc import Iterator
from pathlib import Path

from chomp.variants import git_history
from chomp.variants.archive import ARCHIVE, archive_of, read_archive, with_value, write_archive
from chomp.variants.archive_entry import NOT_COMMITTED, STATUSES
from chomp.variants.checkout import variant_path
from chomp.variants.entry_lint import (
    ArchiveProblem,
    LintedPage,
    entry_problems,
    is_lost,
    problem_at,
)
from chomp.variants.folders import variant_folders


def archive_problems(root: Path) -> list[ArchiveProblem]:
    """Every fault of a checkout's archive, in the order of its lines."""
    folders = frozenset(folder.name for folder in variant_folders(root))
    path = root / ARCHIVE
    if not path.is_file() and not folders:
        return []  # neither variants nor an archive: nothing that could disagree
    archive = archive_of(path.read_text(encoding="utf-8") if path.is_file() else "")
    page = LintedPage(root, archive, folders, git_history.is_whole_history(root))
    if not path.is_file():
        named = ", ".join(sorted(folders))
        return [problem_at(1, f"no such file, but variants ({named})", "write one entry for each")]
    found = [*_section_problems(page), *_folder_problems(page)]
    found += [problem for entry in archive.entries for problem in entry_problems(entry, page)]
    return sorted(found, key=lambda problem: int(problem.where.split(":")[1]))


def fill_in_commits(root: Path) -> None:
    """Active entries that name no commit, or one that is not here, name the folder's first."""
    if not (root / ARCHIVE).is_file() or not git_history.is_whole_history(root):
        return  # in a shallow clone every folder seems to come from its oldest commit
    before = archive = read_archive(root)
    for entry in before.entries:
        said = entry.get("Introduced")
        if entry.get("Status") != "active" or not (said == NOT_COMMITTED or is_lost(root, said)):
            continue
        commit = git_history.first_commit_of(root, variant_path(entry.name))
        if commit:
            # Each edit may move the lines of the entries below it.
            now = next(e for e in archive.entries if e.name == entry.name)
            archive = with_value(archive, now, "Introduced", git_history.short(root, commit))
    if archive.text != before.text:
        write_archive(root, archive)


# --- the page as a whole ------------------------------------------------------------------------


def _section_problems(page: LintedPage) -> Iterator[ArchiveProblem]:
    for status in STATUSES:
        if status not in page.archive.sections:
            title = f"## {status.capitalize()}"
            yield problem_at(1, f"no section '{title}'", f"add the line '{title}'")


def _folder_problems(page: LintedPage) -> Iterator[ArchiveProblem]:
    for name in sorted(page.folders):
        if page.archive.entry(name) is None:
            yield problem_at(
                page.archive.sections.get("active", 1),
                f"no entry for the variant {variant_path(name)}",
                f"add '### {name}' with its fields below '## Active'; chomp variant new does so",
            )
