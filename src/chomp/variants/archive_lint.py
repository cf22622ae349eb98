"""What is wrong with the archive: each fault with its line, what it is, and what to do.

The archive is right when every variant folder has an active entry, every active entry a folder,
and every entry all its fields. Commits are looked up where the whole history is there; in a shallow
clone only their form is checked. An active entry may lack the commit that brought it, or name one
that a merge rewrote: its folder is there, and `fill_in_commits` puts the commit right.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from chomp.variants import checkout
from chomp.variants.archive import (
    ARCHIVE,
    FIELDS,
    NONE,
    NOT_COMMITTED,
    OPTIONAL_FIELDS,
    RETIRED_FIELDS,
    STATUSES,
    TO_BE_FILLED_IN,
    Archive,
    ArchiveEntry,
    archive_of,
    read_archive,
    with_value,
    write_archive,
)
from chomp.variants.checkout import variant_path
from chomp.variants.folders import variant_folders

_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_MAY_BE_NONE = ("Origin", "Superseded by", "Diff", "Issue")


@dataclass(frozen=True)
class ArchiveProblem:
    """One fault: where it is (`file:line:`), what is wrong, how to put it right."""

    where: str
    what: str
    fix: str


@dataclass(frozen=True)
class LintedPage:
    """What the checks of one entry look at besides it."""

    root: Path
    archive: Archive
    folders: frozenset[str]
    can_look_up: bool  # whether a commit that git does not have is a wrong one


_Check = Callable[[ArchiveEntry, LintedPage], Iterator[ArchiveProblem]]


def problem_at(line: int, what: str, fix: str) -> ArchiveProblem:
    """A fault of the archive on one of its lines."""
    return ArchiveProblem(f"{ARCHIVE}:{line}:", what, fix)


def entry_problems(entry: ArchiveEntry, page: LintedPage) -> Iterator[ArchiveProblem]:
    """Every fault of one entry; of a second one for the same id, only that it is one."""
    first = page.archive.entry(entry.name)
    if first is not None and first is not entry:
        yield problem_at(
            entry.line,
            f"a second entry {entry.name}; the first is on line {first.line}",
            "make them one: an id is never used again",
        )
        return  # its other faults would only be echoes of this one
    for check in _CHECKS:
        yield from check(entry, page)


def says_nothing(key: str, value: str) -> bool:
    """Whether a field is there without being filled in: empty, a promise, or a none too many."""
    may_be_none = key in (*_MAY_BE_NONE, *OPTIONAL_FIELDS)
    return value in ("", TO_BE_FILLED_IN) or (value.lower() == NONE and not may_be_none)


def is_lost(root: Path, commit: str) -> bool:
    """Whether this is written as a commit is, and the repository has none of that name."""
    return _COMMIT.fullmatch(commit) is not None and not checkout.has_commit(root, commit)


def _keys(entry: ArchiveEntry, page: LintedPage) -> Iterator[ArchiveProblem]:
    """Unknown fields, doubled ones, missing ones, empty ones."""
    # One fault a field: a key that is unknown is not also empty.
    seen: set[str] = set()
    for field in entry.fields:
        if field.key not in FIELDS:
            near = get_close_matches(field.key, FIELDS, 1)
            yield problem_at(
                field.line,
                f"{entry.name}: unknown field {field.key!r}",
                f"write {near[0]!r}" if near else f"use one of {', '.join(FIELDS)}",
            )
        elif field.key in seen:
            yield problem_at(field.line, f"{entry.name}: a second {field.key}", "keep one of them")
        elif says_nothing(field.key, field.value):
            what = f"{entry.name}: {field.key} is {field.value or 'empty'}"
            yield problem_at(field.line, what, f"write its {field.key.lower()}")
        seen.add(field.key)
    for key in FIELDS:
        # The fields of a retired entry are asked for by `_last_known_good`.
        if key not in seen and key not in (*OPTIONAL_FIELDS, *RETIRED_FIELDS):
            may_be = " (or none)" if key in _MAY_BE_NONE else ""
            yield problem_at(
                entry.line, f"{entry.name}: no {key}", f"add a bullet '- {key}: ...'{may_be}"
            )


def _status(entry: ArchiveEntry, page: LintedPage) -> Iterator[ArchiveProblem]:
    """A status that is none, and an entry below another heading than its status says."""
    status = entry.get("Status")
    line = entry.line_of("Status")
    if status and status not in STATUSES:
        yield problem_at(
            line,
            f"{entry.name}: unknown status {status!r}",
            f"write one of {', '.join(STATUSES)}",
        )
    elif status and status != entry.section:
        yield problem_at(
            line,
            f"{entry.name}: status {status} in the section {entry.section or 'before any'}",
            f"move the entry below '## {status.capitalize()}', or correct its status",
        )


def _folder(entry: ArchiveEntry, page: LintedPage) -> Iterator[ArchiveProblem]:
    """A path that is not the id's own, an active entry without a folder, a retired one with."""
    # Told from the folders themselves: what a path says may be the fault.
    path, status = entry.get("Path").rstrip("/"), entry.get("Status")
    if path and path != variant_path(entry.name):
        yield problem_at(
            entry.line_of("Path"),
            f"{entry.name}: path {path}",
            f"write {variant_path(entry.name)}, or give the entry the folder's name",
        )
    if status == "active" and entry.name not in page.folders:
        yield problem_at(
            entry.line,
            f"{entry.name}: active, but there is no variant {variant_path(entry.name)}",
            "bring the folder back, or move the entry to deleted with its last good commit",
        )
    if status in STATUSES[1:] and entry.name in page.folders:
        yield problem_at(
            entry.line,
            f"{entry.name}: {status}, but {variant_path(entry.name)} is there",
            "delete the folder (chomp variant retire does both), or make the entry active",
        )


def _names(entry: ArchiveEntry, page: LintedPage) -> Iterator[ArchiveProblem]:
    """Variants named by an entry that the archive does not know."""
    # Retired variants count: where something came from does not change when that is deleted.
    known = {other.name for other in page.archive.entries} - {entry.name}
    for key in ("Origin", "Superseded by"):
        # What follows the name is prose: `base, by the commit 1234567`.
        named = re.split(r"[\s,;(]", entry.get(key), maxsplit=1)[0].strip("`")
        if named and named not in known:
            yield problem_at(
                entry.line_of(key),
                f"{entry.name}: {key} is {named!r}, which is no other entry here",
                f"write one of {', '.join(sorted(known)) or NONE}, or none",
            )
    if entry.get("Status") == "superseded" and not entry.get("Superseded by"):
        yield problem_at(
            entry.line_of("Superseded by"),
            f"{entry.name}: superseded, but not by what",
            "name the variant after 'Superseded by:', or call it deleted",
        )


def _introduced(entry: ArchiveEntry, page: LintedPage) -> Iterator[ArchiveProblem]:
    """A commit that is none, and of a retired variant one that is missing."""
    value, is_active = entry.get("Introduced"), entry.get("Status") == "active"
    if value == NOT_COMMITTED:
        # A commit cannot name itself, and a branch may be merged as any number of others.
        if not is_active:
            what = f"{entry.name}: retired, and {value}"
            yield problem_at(entry.line_of("Introduced"), what, "write the commit it came by")
        return
    # A squash or a rebase loses the commit that was named; `fill_in_commits` finds the new one.
    if not (is_active and page.can_look_up and is_lost(page.root, value)):
        yield from _commit_problems(entry, "Introduced", page)


def _last_known_good(entry: ArchiveEntry, page: LintedPage) -> Iterator[ArchiveProblem]:
    """A retired entry that does not say where its code was last, or what was learned."""
    status, value = entry.get("Status"), entry.get("Last known-good")
    if status == "active" and value:
        yield problem_at(
            entry.line_of("Last known-good"),
            f"{entry.name}: active, with a last known-good commit",
            "leave it out: the folder itself is there",
        )
    if status not in STATUSES[1:]:
        return
    if value:
        yield from _commit_problems(entry, "Last known-good", page)
    else:
        yield problem_at(
            entry.line,
            f"{entry.name}: {status}, without a last known-good commit",
            "add '- Last known-good: `<commit>`', the last one that holds the folder",
        )
    # Being superseded is a reason in itself.
    if status == "deleted" and not (entry.get("Result") or entry.get("Reason")):
        yield problem_at(
            entry.line,
            f"{entry.name}: deleted, without a word on why",
            "add '- Reason: ...' or '- Result: ...': what did not work is worth as much",
        )


def _commit_problems(entry: ArchiveEntry, key: str, page: LintedPage) -> Iterator[ArchiveProblem]:
    value, line = entry.get(key), entry.line_of(key)
    what = ""
    if not value:
        return  # said by `_keys` or `_last_known_good`
    if not _COMMIT.fullmatch(value):
        what = f"{value!r}, which is no commit"
    elif page.can_look_up and is_lost(page.root, value):
        what = f"{value}, a commit that this repository does not have"
    # A commit that exists but never had the folder is a slip of the pen, and as useless.
    elif page.can_look_up and not checkout.holds(page.root, value, variant_path(entry.name)):
        what = f"{value}, a commit without {variant_path(entry.name)}"
    if what:
        wanted = "first" if key == "Introduced" else "last"
        yield problem_at(
            line,
            f"{entry.name}: {key} is {what}",
            f"write 7 to 40 hexadecimal digits of the {wanted} commit of the folder "
            f"(git log --format=%h -- {variant_path(entry.name)})",
        )


_CHECKS: tuple[_Check, ...] = (_keys, _status, _folder, _names, _introduced, _last_known_good)


def archive_problems(root: Path) -> list[ArchiveProblem]:
    """Every fault of a checkout's archive, in the order of its lines."""
    folders = frozenset(folder.name for folder in variant_folders(root))
    path = root / ARCHIVE
    if not path.is_file() and not folders:
        return []  # neither variants nor an archive: nothing that could disagree
    archive = archive_of(path.read_text(encoding="utf-8") if path.is_file() else "")
    page = LintedPage(root, archive, folders, checkout.is_whole_history(root))
    if not path.is_file():
        named = ", ".join(sorted(folders))
        return [problem_at(1, f"no such file, but variants ({named})", "write one entry for each")]
    found = [*_section_problems(page), *_folder_problems(page)]
    found += [problem for entry in archive.entries for problem in entry_problems(entry, page)]
    return sorted(found, key=lambda problem: int(problem.where.split(":")[1]))


def fill_in_commits(root: Path) -> None:
    """Active entries that name no commit, or one that is not here, name the folder's first."""
    if not (root / ARCHIVE).is_file() or not checkout.is_whole_history(root):
        return  # in a shallow clone every folder seems to come from its oldest commit
    before = archive = read_archive(root)
    for entry in before.entries:
        said = entry.get("Introduced")
        if entry.get("Status") != "active" or not (said == NOT_COMMITTED or is_lost(root, said)):
            continue
        commit = checkout.first_commit_of(root, variant_path(entry.name))
        if commit:
            # Each edit may move the lines of the entries below it.
            now = next(e for e in archive.entries if e.name == entry.name)
            archive = with_value(archive, now, "Introduced", checkout.short(root, commit))
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
