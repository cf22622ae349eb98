"""A variant that is not held to the contracts yet, and says so in its `train.py`:

    # GRUG NOVERIFY: the router does not resume bit for bit, until 2027-01-31

The reason is for whoever reads the list of skipped variants; the date is what ends the exception.
Without either, after that day, or with a day more than 180 days ahead, the mark counts for nothing
and is itself an error.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

from chomp.errors import ConfigError
from chomp.variants.checkout import variant_path
from chomp.variants.comments import Comment, comments_in

MARKED_FILE = "train.py"
_FORM = "# GRUG NOVERIFY: <reason>, until <YYYY-MM-DD>"
# Whatever begins like a mark is meant as one; a sentence that mentions it does not begin so.
_BEGINNING = re.compile(r"#+\s*GRUG[ _-]?NOVERIFY\b", re.IGNORECASE)
# An exception without an end in sight is none: whoever needs longer decides so again.
LONGEST = timedelta(days=180)
_HEAD, _BEFORE_DATE = "# GRUG NOVERIFY:", ", until "


@dataclass(frozen=True)
class NotVerified:
    """A mark as it stands in a file. Only one without a fault excludes its variant."""

    where: str  # file:line
    text: str
    reason: str
    until: date | None  # the last day it counts
    wrong: str | None = None  # with how it is written

    def fault(self, today: date) -> str | None:
        """Why the mark does not count on that day, in three parts; None where it does."""
        wrong = self.wrong
        if wrong is None and self.until is not None and self.until < today:
            wrong = f"has expired, today is {today}"
        elif wrong is None and self.until is not None and self.until - today > LONGEST:
            wrong = f"ends more than {LONGEST.days} days ahead, today is {today}"
        if wrong is None:
            return None
        return str(
            ConfigError(
                f"{self.where}: `{self.text}` {wrong}",
                allowed=f"`{_FORM}` on its own line, with a date at most {LONGEST.days} days ahead",
                fix="make the variant pass its contracts and delete the line, or give a reason "
                "and a later date",
            )
        )


def no_verify_mark(folder: Path) -> NotVerified | None:
    """The mark in a variant's `train.py`; of several, the one that excludes it least."""
    return min(_marks(folder), key=_last_day, default=None)


def _marks(folder: Path) -> Iterator[NotVerified]:
    file = folder / MARKED_FILE
    if file.is_file():
        # A byte that is no UTF-8 is the business of whoever runs the file.
        for comment in comments_in(file.read_text(encoding="utf-8", errors="replace")):
            if _BEGINNING.match(comment.text):
                yield _mark(f"{variant_path(folder.name)}/{MARKED_FILE}:{comment.line}", comment)


def _last_day(mark: NotVerified) -> date:
    return mark.until if mark.until and not mark.wrong else date.min


def _mark(where: str, comment: Comment) -> NotVerified:
    said = comment.text.removeprefix(_HEAD)
    reason, has_date, day = said.rpartition(_BEFORE_DATE)
    if not has_date:
        reason, day = said, ""
    wrong = None
    if not comment.is_own_line:
        wrong = "is behind code"
    elif said == comment.text:
        wrong = "is not in the form of a mark"
    elif not re.search(r"\w", reason):
        wrong = "gives no reason"
    elif _day(day) is None:
        wrong = "gives no date"
    return NotVerified(where, comment.text, reason.strip(), _day(day), wrong)


def _day(text: str) -> date | None:
    # The full form only: `fromisoformat` takes weeks, and days without dashes, as well.
    found = re.fullmatch(r"\d{4}-\d\d-\d\d", text.strip(" ."))
    try:
        return date.fromisoformat(found[0]) if found else None
    except ValueError:  # such as the 31st of February
        return None
