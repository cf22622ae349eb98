"""The archive of variants, `docs/reports/grug-archive.md`: read, and edited by whole entries.

    ### moe

    - Path: `experiments/grug/moe`
    - Origin: base
    ...

What became of every variant there ever was: code may be deleted, its entry never is. A field may go
on over lines that are indented; what else stands in an entry is prose, kept and not read. The page
is written by people too, so an edit changes the lines of its own entry and leaves all others as
they are. `archive_lint` says what is wrong with a page.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap

from chomp.errors import ConfigError
from chomp.storage import read_text, write_text_atomic

# In the order in which they are written. All are needed but those of the two lists below.
FIELDS = (
    "Path",
    "Origin",
    "Introduced",
    "Last known-good",
    "Status",
    "Purpose",
    "Result",
    "Reason",
    "Superseded by",
    "Diff",
    "Issue",
)
OPTIONAL_FIELDS = ("Result", "Reason")
RETIRED_FIELDS = ("Last known-good",)  # needed once the folder is gone, and wrong before
STATUSES = ("active", "superseded", "deleted")
NOT_COMMITTED = "not committed yet"
TO_BE_FILLED_IN = "to be filled in"
NONE = "none"

# Some editors close headings with more signs, and set keys in bold; both are read.
_HEADING = re.compile(r"### +(?P<name>.*?) *#* *$")
_BULLET = re.compile(
    r"- +(?:\*\*)?(?P<key>[A-Za-z][A-Za-z -]*?)(?:\*\*)?:(?:\*\*)? *(?P<value>.*)$"
)
_WIDTH = 100
ARCHIVE = "docs/reports/grug-archive.md"
_SECTION = re.compile(r"## +(?P<title>.*?) *#* *$")
_HIGHER_HEADING = re.compile(r"##? ")
_FENCE = re.compile(r" {0,3}(```|~~~)")


@dataclass(frozen=True)
class EntryField:
    """What one bullet says, without the backticks around it, and the line it begins on."""

    key: str
    value: str
    line: int


@dataclass(frozen=True)
class ArchiveEntry:
    """What the archive says of one variant. Lines count from 1; `end` is the first one after it."""

    name: str
    section: str  # the heading above it, in lower case
    line: int
    end: int
    fields: tuple[EntryField, ...]
    prose: tuple[str, ...]  # its other lines, without blank ones at either end

    def get(self, key: str) -> str:
        """The value of a field; empty where the entry has no such field, or says none."""
        value = next((field.value for field in self.fields if field.key == key), "")
        return "" if value.lower() == NONE else value

    def line_of(self, key: str) -> int:
        """Where a field stands; the heading's line where it does not."""
        return next((field.line for field in self.fields if field.key == key), self.line)

    @property
    def values(self) -> dict[str, str]:
        """Every field as it is written, by key; of a doubled one, the first."""
        return {field.key: field.value for field in reversed(self.fields)}


def heading_name(line: str) -> str | None:
    """The id in an entry's heading; None for any other line."""
    found = _HEADING.match(line)
    return found["name"].strip("`") if found else None


def entry_of(lines: Sequence[str], section: str, start: int) -> ArchiveEntry:
    """The entry that these lines are, of which the first is its heading, on line `start`."""
    found: list[EntryField] = []
    prose: list[str] = []
    is_open = False  # whether an indented line would belong to the last field
    for number, line in enumerate(lines[1:], start=start + 1):
        bullet = _BULLET.match(line)
        if bullet:
            found.append(EntryField(bullet["key"], bullet["value"].strip(), number))
        # Wrapped text goes on where a list item would, two columns in.
        elif is_open and line.startswith("  ") and line.strip():
            last = found.pop()
            found.append(EntryField(last.key, f"{last.value} {line.strip()}", last.line))
        else:
            prose.append(line)
        is_open = bullet is not None or (is_open and line.startswith("  "))
    name = heading_name(lines[0]) or ""
    fields = tuple(EntryField(field.key, _plain(field.value), field.line) for field in found)
    kept = tuple("\n".join(prose).strip("\n").split("\n")) if any(prose) else ()
    return ArchiveEntry(name, section, start, start + len(lines), fields, kept)


def entry_text(name: str, values: Mapping[str, str]) -> str:
    """An entry as it is written: known fields in their order, then any others; a line end last."""
    keys = [key for key in FIELDS if key in values] + [key for key in values if key not in FIELDS]
    bullets = [_bullet(key, values[key]) for key in keys]
    return f"### {name}\n\n" + "".join(bullets)


def _bullet(key: str, value: str) -> str:
    # Paths, commits and commands are for copying; the rest is prose.
    is_code = key == "Path" or re.fullmatch(r"[0-9a-f]{7,40}|(git|uv run|chomp) .*", value)
    # Neither a line end nor a heading in the text may end the field, so it becomes one line first.
    text = " ".join(value.split())
    shown = f"`{text}`" if is_code else text
    # A link or a command that is broken over lines can be neither followed nor copied.
    lines = wrap(
        f"- {key}: {shown}",
        _WIDTH,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines) + "\n"


def _plain(value: str) -> str:
    """A value without backticks around the whole of it."""
    is_code = len(value) > 2 and value[0] == value[-1] == "`" and "`" not in value[1:-1]
    return value[1:-1] if is_code else value


@dataclass(frozen=True)
class Archive:
    """A page as text, its sections by lower-case title, and its entries in their order."""

    text: str
    sections: Mapping[str, int]  # the line of each heading, from 1
    entries: tuple[ArchiveEntry, ...]

    def entry(self, name: str) -> ArchiveEntry | None:
        """The entry of a variant, the first where there are two; None where there is none."""
        return next((entry for entry in self.entries if entry.name == name), None)


def archive_of(text: str) -> Archive:
    """A page read. Code blocks are skipped: the page may show what an entry looks like."""
    lines = _lines(text)
    is_read = _outside_code(lines)
    sections: dict[str, int] = {}
    # First where entries begin, then where each ends: at the next one, or at a higher heading.
    starts: list[tuple[int, str]] = []  # where an entry begins, and its section
    ends = []  # lines that end the entry above them
    section = ""
    for index, line in enumerate(lines):
        if not is_read[index]:
            continue
        title = _SECTION.match(line)
        if title:
            section = title["title"].lower()
            # Of a section that is there twice the first counts, as for entries.
            sections.setdefault(section, index + 1)
        if _HIGHER_HEADING.match(line):
            ends.append(index)
        elif heading_name(line) is not None:
            starts.append((index, section))
            ends.append(index)
    ends.append(len(lines))
    entries = []
    for start, section in starts:
        end = next(index for index in ends if index > start)
        entries.append(entry_of(lines[start:end], section, start + 1))
    return Archive(text, sections, tuple(entries))


def read_archive(root: Path) -> Archive:
    """The archive of a checkout; `ConfigError` where it has none."""
    path = root / ARCHIVE
    if not path.is_file():
        raise ConfigError(
            f"{root} has no {ARCHIVE}",
            allowed="a checkout with the variant archive",
            fix=f"run git checkout -- {ARCHIVE}",
        )
    return archive_of(read_text(path))


def write_archive(root: Path, archive: Archive) -> None:
    """The checkout's archive is this one, or what it was before if this raises."""
    write_text_atomic(root / ARCHIVE, archive.text)


def with_entry(
    archive: Archive, name: str, values: Mapping[str, str], prose: Sequence[str] = ()
) -> Archive:
    """The page with one more entry, the last of the section that its status names."""
    section = values["Status"]
    if section not in archive.sections:
        raise ConfigError(
            f"{ARCHIVE} has no section '## {section.capitalize()}'",
            allowed=f"a page with the sections {', '.join(STATUSES)}",
            fix=f"add the line '## {section.capitalize()}' to it",
        )
    lines = _lines(archive.text)
    after = archive.sections[section]
    # The end of a section is where the next one begins, whichever that is.
    later = [line for line in archive.sections.values() if line > after]
    place = min(later, default=len(lines) + 1) - 1
    before, rest = _stripped(lines[:place]), lines[place:]
    added = [*_lines(entry_text(name, values)), *([""] if prose else []), *prose]
    return archive_of("\n".join([*before, "", *added, *([""] if rest else []), *rest]) + "\n")


def without_entry(archive: Archive, entry: ArchiveEntry) -> Archive:
    """The page without the lines of one entry."""
    lines = _lines(archive.text)
    before, rest = _stripped(lines[: entry.line - 1]), lines[entry.end - 1 :]
    return archive_of("\n".join([*before, *([""] if rest else []), *rest]) + "\n")


def moved_entry(archive: Archive, entry: ArchiveEntry, values: Mapping[str, str]) -> Archive:
    """The page with an entry's fields changed to `values`, in the section of its new status."""
    return with_entry(without_entry(archive, entry), entry.name, values, entry.prose)


def with_value(archive: Archive, entry: ArchiveEntry, key: str, value: str) -> Archive:
    """The page with one field of an entry changed where it stands."""
    lines = _lines(archive.text)
    first = entry.line_of(key) - 1
    last = first + 1
    # A value may go on over indented lines, which go with it.
    while last < entry.end - 1 and lines[last].startswith("  ") and lines[last].strip():
        last += 1
    written = _lines(entry_text("", {key: value}))[2:]
    return archive_of("\n".join([*lines[:first], *written, *lines[last:]]) + "\n")


def _outside_code(lines: list[str]) -> list[bool]:
    """For each line, whether it is text and not part of a fenced block."""
    fence = ""
    told = []
    for line in lines:
        mark = _FENCE.match(line)
        told.append(not fence and not mark)
        if mark and not fence:
            fence = mark[1]
        # A fence of the other kind is text inside of the block.
        elif mark and mark[1] == fence:
            fence = ""
    return told


def _lines(text: str) -> list[str]:
    # Not splitlines(), which also cuts at characters that an editor shows inside a line.
    return text.removesuffix("\n").split("\n")


def _stripped(lines: list[str]) -> list[str]:
    """The lines without blank ones at their end."""
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    return lines
