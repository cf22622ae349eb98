"""One entry of the archive: a heading with the variant's id, and a bullet for each field.

    ### moe

    - Path: `experiments/grug/moe`
    - Origin: base
    ...

A field may go on over lines that are indented. What else stands in an entry is prose: kept, not
read. Entries are made of lines, so that an edit moves whole lines and changes no other.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap

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
