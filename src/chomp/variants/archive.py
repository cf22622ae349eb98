"""The archive: what became of every variant. Code may be deleted, its entry never is.

`docs/reports/archive.yaml` is the record; `docs/reports/grug-archive.md` is generated from it:

    wide_mlp:
      origin: base
      introduced: 1a2b3c4
      status: active
      purpose: An MLP of twice the width.

An edit replaces the lines of its own entry and keeps all others, comments included.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal

from chomp.config import Config, config_from_mapping, config_to_mapping
from chomp.config.files import parse_yaml, to_yaml
from chomp.errors import ConfigError, require
from chomp.storage import read_text, write_text_atomic
from chomp.variants import checkout
from chomp.variants.checkout import variant_folders, variant_path

ARCHIVE = "docs/reports/archive.yaml"
ARCHIVE_PAGE = "docs/reports/grug-archive.md"
Status = Literal["active", "superseded", "deleted"]
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_SECTIONS = {
    "active": "",
    "superseded": "Replaced by something better.",
    "deleted": "Tried and given up. What was learned is the reason to keep them here.",
}
_INTRODUCTION = """\
# The archive of variants

What became of every variant under `experiments/grug`. Code is deleted when it is superseded or did
not work; its entry stays, and a name is used once.

This page is generated from [archive.yaml](archive.yaml); edit that file, then run
`infra/pre-commit.py --only records --fix`. `chomp variant new` adds an entry and
`chomp variant retire` changes it. The check fails if a folder has no active entry, an active entry
no folder, or an entry lacks a field.

A retired variant can be read and compared for as long as git has it: `chomp variant diff NAME`
takes it from its last known-good commit, and `git checkout COMMIT -- PATH` restores it.
"""


@dataclass(frozen=True, kw_only=True)
class ArchiveEntry(Config):
    """What the archive says of one variant; texts are Markdown."""

    origin: str | None = None  # the variant it was copied from
    introduced: str | None = None  # commit; null while active: pre-commit --fix fills it in
    last_known_good: str | None = None  # commit; of a retired variant
    status: Status
    purpose: str | None = None  # one sentence
    result: str | None = None  # against its origin, with the command and the commit
    reason: str | None = None  # why it was retired
    superseded_by: str | None = None  # a variant; base if the change was merged into base
    diff: str | None = None  # the link that CI posts on a pull request, or a command
    issue: str | None = None  # a link

    def __post_init__(self) -> None:
        """Check the rules between fields."""
        for key in ("introduced", "last_known_good"):
            commit = getattr(self, key)
            require(
                commit is None or _COMMIT.fullmatch(commit) is not None,
                f"{key}: {commit}",
                allowed="a commit: 7 to 40 hexadecimal digits",
                fix="find it with git log --format=%h -- PATH",
            )
        is_active = self.status == "active"
        require(
            is_active or self.introduced is not None,
            f"status: {self.status} without introduced",
            allowed="the commit that added the folder",
            fix="find it with git log --format=%h --reverse -- PATH",
        )
        require(
            is_active == (self.last_known_good is None),
            f"status: {self.status} with last_known_good: {self.last_known_good or 'null'}",
            allowed="the last commit that holds the folder, for retired variants only",
            fix="delete the line" if is_active else "find it with git log --format=%h -- PATH",
        )
        require(
            (self.status == "superseded") == (self.superseded_by is not None),
            f"status: {self.status} with superseded_by: {self.superseded_by or 'null'}",
            allowed="superseded_by together with status: superseded, and only then",
            fix="name the variant that replaced it, or use status: deleted",
        )
        require(
            self.status != "deleted" or bool(self.reason or self.result),
            "status: deleted without a reason",
            allowed="a reason or a result: negative results are worth keeping",
            fix="add reason: what was tried and what came of it",
        )


Archive = Mapping[str, ArchiveEntry]


def read_archive(root: Path) -> dict[str, ArchiveEntry]:
    """The entries of a checkout's archive by name, in the order of the file."""
    if not (root / ARCHIVE).is_file():
        raise ConfigError(
            f"{root} has no {ARCHIVE}",
            allowed="a checkout with the variant archive",
            fix=f"run git checkout -- {ARCHIVE}",
        )
    return _entries_in(read_text(root / ARCHIVE))


def write_entry(root: Path, name: str, entry: ArchiveEntry) -> None:
    """Add an entry at the end of the archive, or replace the one of that name; write the page.

    Raises `ConfigError` before anything is written if the file cannot be edited.
    """
    before, archive = read_text(root / ARCHIVE), read_archive(root) | {name: entry}
    values = {key: value for key, value in config_to_mapping(entry).items() if value is not None}
    block = to_yaml({name: values})
    own_lines = re.compile(rf"^['\"]?{name}['\"]?:.*\n(?:[ \t].*\n|\n(?=[ \t\n]))*", re.MULTILINE)
    if own_lines.search(before):
        after = own_lines.sub(lambda _: block, before, count=1)
    else:
        after = f"{before.rstrip()}\n\n{block}".lstrip("\n")
    require(
        [*_entries_in(after).items()] == [*archive.items()],
        f"{ARCHIVE} cannot be edited",
        allowed="entries that begin at the start of a line, their fields indented below",
        fix="write it in that form",
    )
    write_text_atomic(root / ARCHIVE, after)
    _write_page(root, archive)


def fill_in_commits(root: Path) -> None:
    """Write the first commit of its folder into active entries without one, then the page.

    A commit that the repository does not have, as after a squash, is replaced too.
    """
    if not (root / ARCHIVE).is_file():
        return
    archive = read_archive(root)
    # In a shallow clone every folder seems to come from its oldest commit.
    for name, entry in archive.items() if checkout.is_whole_history(root) else ():
        if entry.status == "active" and needs_first_commit(root, entry):
            commit = checkout.first_commit_of(root, variant_path(name))
            if commit:
                write_entry(root, name, replace(entry, introduced=checkout.short(root, commit)))
    _write_page(root, read_archive(root))


def needs_first_commit(root: Path, entry: ArchiveEntry) -> bool:
    """Whether an entry names no commit, or one that the repository does not have."""
    return entry.introduced is None or not checkout.has_commit(root, entry.introduced)


@dataclass(frozen=True)
class ArchiveProblem:
    """One fault: where it is (`file:line:`), what is wrong, how to fix it."""

    where: str
    what: str
    fix: str


def archive_problems(root: Path) -> list[ArchiveProblem]:
    """Every fault of a checkout's archive, in the order of its lines.

    Commits are looked up only where the whole history is present.
    """
    folders = {folder.name for folder in variant_folders(root)}
    path = root / ARCHIVE
    if not path.is_file():
        if not folders:
            return []
        what = f"no such file, but variants ({', '.join(sorted(folders))})"
        return [ArchiveProblem(f"{ARCHIVE}:1:", what, "write one entry for each")]
    text = path.read_text(encoding="utf-8")

    def problem(name: str, error: ConfigError) -> ArchiveProblem:
        place = re.search(rf"^['\"]?{re.escape(name)}['\"]?:", text, re.MULTILINE)
        line = text.count("\n", 0, place.start()) + 1 if place else 1
        allowed = f". Allowed: {error.allowed}" if error.allowed else ""
        return ArchiveProblem(f"{ARCHIVE}:{line}:", f"{error.given}{allowed}", error.fix)

    try:
        values = _values_in(text)
    except ConfigError as error:
        return [problem("", error)]
    archive, found = {}, []
    for name, fields in values.items():
        try:
            archive[name] = _entry(fields, source=name)
        except ConfigError as error:
            found += [problem(name, each) for each in error.problems or [error]]
    can_look_up = checkout.is_whole_history(root)
    for name, entry in archive.items():
        faults = _faults(root, name, entry, values.keys(), name in folders, can_look_up)
        found += [problem(name, fault.within(name)) for fault in faults]
    for name in sorted(folders - values.keys()):
        what = f"no entry for the variant {variant_path(name)}"
        fix = f"add {name}: with its fields; chomp variant new does so"
        found.append(ArchiveProblem(f"{ARCHIVE}:1:", what, fix))
    if not found and not _has_page_of(root, archive):
        what = f"not the page that {ARCHIVE} generates"
        found.append(ArchiveProblem(f"{ARCHIVE_PAGE}:1:", what, "run infra/pre-commit.py --fix"))
    return sorted(found, key=lambda problem: int(problem.where.split(":")[1]))


def _faults(
    root: Path,
    name: str,
    entry: ArchiveEntry,
    names: Iterable[str],
    has_folder: bool,
    can_look_up: bool,
) -> Iterator[ConfigError]:
    """What is wrong with an entry besides its own fields."""
    path, is_active = variant_path(name), entry.status == "active"
    if not entry.purpose:
        yield ConfigError("no purpose", allowed="one sentence", fix="write its purpose")
    if is_active and not has_folder:
        yield ConfigError(
            f"active, but there is no variant {path}",
            allowed="a folder for each active entry",
            fix="restore the folder, or mark the entry deleted with its last good commit",
        )
    if not is_active and has_folder:
        yield ConfigError(
            f"{entry.status}, but {path} exists",
            allowed="a folder for active entries only",
            fix="delete the folder (chomp variant retire does both), or make the entry active",
        )
    for key in ("origin", "superseded_by"):
        # Retired variants count: an origin stays what it was when it is deleted.
        other = getattr(entry, key)
        if other is not None and (other not in names or other == name):
            yield ConfigError(
                f"{key} is {other!r}, which is not another entry",
                allowed=", ".join(sorted(set(names) - {name})) or "null",
                fix="correct the name",
            )
    for key in ("introduced", "last_known_good") if can_look_up else ():
        commit = getattr(entry, key)
        if commit is None or checkout.holds(root, commit, path):
            continue
        is_known = checkout.has_commit(root, commit)
        # A squash or a rebase loses the commit of an active entry; `fill_in_commits` replaces it.
        if is_known or not is_active:
            what = f"a commit without {path}" if is_known else "which this repository does not have"
            yield ConfigError(
                f"{key} is {commit}, {what}",
                allowed="a commit that holds the folder",
                fix=f"find one with git log --format=%h -- {path}",
            )


def _values_in(text: str) -> dict[str, Any]:
    # Text is kept as it stands: a commit such as 12e4567 is not a number.
    content = parse_yaml(text, source=ARCHIVE, keeps_unquoted=True) or {}
    require(
        isinstance(content, dict),
        f"{ARCHIVE} holds {type(content).__name__}",
        allowed="a mapping of variants by name",
        fix="write NAME: with its fields indented below",
    )
    return {str(name): values for name, values in content.items()}


def _entries_in(text: str) -> dict[str, ArchiveEntry]:
    return {
        name: _entry(values, source=f"{ARCHIVE}: {name}")
        for name, values in _values_in(text).items()
    }


def _entry(values: Any, *, source: str) -> ArchiveEntry:
    return config_from_mapping(ArchiveEntry, values or {}, source=source)


def _has_page_of(root: Path, archive: Archive) -> bool:
    page = root / ARCHIVE_PAGE
    return page.is_file() and page.read_text(encoding="utf-8") == _page(archive)


def _write_page(root: Path, archive: Archive) -> None:
    if not _has_page_of(root, archive):
        write_text_atomic(root / ARCHIVE_PAGE, _page(archive))


def _page(archive: Archive) -> str:
    parts = [_INTRODUCTION]
    for status, words in _SECTIONS.items():
        parts.append(f"## {status.capitalize()}\n")
        parts += [f"{words}\n"] if words else []
        parts += [
            _page_entry(name, each) for name, each in archive.items() if each.status == status
        ]
    return "\n".join(parts)


def _page_entry(name: str, entry: ArchiveEntry) -> str:
    fields = {
        "Path": f"`{variant_path(name)}`",
        "Origin": entry.origin or "none",
        "Introduced": f"`{entry.introduced}`" if entry.introduced else "not committed yet",
        "Last known-good": entry.last_known_good and f"`{entry.last_known_good}`",
        "Status": entry.status,
        "Purpose": entry.purpose or "to be filled in",
        "Result": entry.result,
        "Reason": entry.reason,
        "Superseded by": entry.superseded_by or "none",
        "Diff": entry.diff or "none",
        "Issue": entry.issue or "none",
    }
    lines = [f"### {name}", ""]
    for key, value in fields.items():
        if value:
            # A link or a command that is broken over lines can be neither followed nor copied.
            text = " ".join(f"- {key}: {value}".split())
            lines += wrap(
                text, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
            )
    return "\n".join([*lines, ""])
