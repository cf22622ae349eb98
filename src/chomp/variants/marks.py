"""Marks in the source of a variant: `# GRUG NOVERIFY` and `# verbatim: base`.

    # GRUG NOVERIFY: the router does not resume bit for bit, until 2027-01-31

excludes a variant from the contracts. The reason is for whoever reads the list of skipped variants;
the date ends the exception. Without either, after that day, or with a day more than 180 days ahead,
the mark counts for nothing and is itself an error.

`# verbatim: base` stands on the line above a function, a class or a method, decorators included,
and names the variant that the copy is of. A fix in the original turns the copies that did not get
it red, by name; a variant that should differ deletes the mark. Text is compared, not meaning:
comments count.

Marks are comments and nothing else: the same words in a string, in a docstring or in the middle of
a sentence say something about a mark and are none.
"""

import ast
import difflib
import io
import re
import textwrap
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from pathlib import Path

from chomp.errors import ConfigError
from chomp.variants.checkout import variant_path

MARKED_FILE = "train.py"
_FORM = "# GRUG NOVERIFY: <reason>, until <YYYY-MM-DD>"
# Whatever begins like a mark is meant as one; a sentence that mentions it does not begin so.
_BEGINNING = re.compile(r"#+\s*GRUG[ _-]?NOVERIFY\b", re.IGNORECASE)
# An exception without an end in sight is none: whoever needs longer decides so again.
LONGEST = timedelta(days=180)
_HEAD, _BEFORE_DATE = "# GRUG NOVERIFY:", ", until "
_MARK = re.compile(r"#\s*verbatim:(?P<origin>.*)", re.IGNORECASE)
_MAX_DIFF_LINES = 12  # in a message; the rest is told by number
_CONTEXT_LINES = 1


@dataclass(frozen=True)
class Comment:
    """One comment: its 1-based line, its text from the `#` on, whether code stands before it."""

    line: int
    text: str
    is_own_line: bool


def comments_in(source: str) -> Iterator[Comment]:
    """The comments from the top; of a text that is no Python, those above where that shows.

    An unfinished file is read as far as it goes, so that a mark at its top is still found.
    """
    lines = source.split("\n")  # as the tokenizer counts them: form feeds end no line
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                line, column = token.start
                yield Comment(line, token.string, not lines[line - 1][:column].strip())
    except (tokenize.TokenError, SyntaxError):
        return


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


@dataclass(frozen=True)
class Definition:
    """A function, method or class of a file: `Transformer.logits`, where it begins, its text."""

    name: str
    line: int  # of its first decorator, if it has one
    text: str
    nth: int  # of those with that name in the file: a property's setter comes second


def verbatim_violations(folder: Path) -> list[str]:
    """What is wrong with the copies of a variant, each in three parts with file and line."""
    return [str(fault) for file in sorted(folder.glob("*.py")) for fault in _in_file(folder, file)]


def _in_file(folder: Path, file: Path) -> Iterator[ConfigError]:
    source = file.read_text(encoding="utf-8", errors="replace")
    comments = {comment.line: comment for comment in comments_in(source)}
    marks = [comment for comment in comments.values() if _MARK.fullmatch(comment.text)]
    try:
        definitions = {found.line: found for found in _definitions(source)} if marks else {}
    except SyntaxError as error:
        yield _unreadable(file, error)
        return
    for mark in marks:
        below = mark.line + 1
        # Another comment may stand between a mark and what it is about; a blank line may not.
        while below in comments and comments[below].is_own_line:
            below += 1
        copy = definitions.get(below) if mark.is_own_line else None
        yield from _of_mark(folder, file, mark, copy)


def _of_mark(
    folder: Path, file: Path, mark: Comment, copy: Definition | None
) -> Iterator[ConfigError]:
    where, origin = f"{_told(file)}:{mark.line}", _MARK.sub(r"\g<origin>", mark.text).strip()
    models = folder.parent.glob("*/model.py")
    others = sorted({path.parent.name for path in models} - {folder.name})
    if copy is None:
        yield ConfigError(
            f"{where}: `{mark.text}` is not above a function, class or method",
            allowed="the line above a definition or above its decorators",
            fix="move the mark there, or delete it",
        )
    elif origin not in others:
        yield ConfigError(
            f"{where}: `{mark.text}` above {copy.name}",
            allowed=f"the name of another variant: {', '.join(others) or 'there is none'}",
            fix="name the variant that was copied, or delete the mark",
        )
    else:
        yield from _compared(where, copy, file, folder.parent / origin)


def _compared(where: str, copy: Definition, file: Path, origin: Path) -> Iterator[ConfigError]:
    # What was moved to another file is still a copy; the file of the same name goes first.
    files = sorted(origin.glob("*.py"), key=lambda path: (path.name != file.name, path.name))
    for source in files:
        try:
            found = _definitions(source.read_text(encoding="utf-8", errors="replace"))
        except SyntaxError as error:
            yield _unreadable(source, error)
            return
        for original in found:
            if (original.name, original.nth) == (copy.name, copy.nth):
                if original.text != copy.text:
                    yield _stale(where, copy, f"{_told(source)}:{original.line}", original)
                return
    yield ConfigError(
        f"{where}: {copy.name} is marked as a copy, but {variant_path(origin.name)} has no "
        "such function, class or method",
        allowed="names that the original has",
        fix="rename the copy like the original, or delete the mark",
    )


@cache
def _definitions(source: str) -> list[Definition]:
    """Every definition of a file, from the top, those inside others included."""
    lines, found, counts = source.split("\n"), [], dict[str, int]()

    def visit(node: ast.AST, above: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = above
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{above}.{child.name}" if above else child.name
                first = min([child.lineno, *(each.lineno for each in child.decorator_list)])
                counts[name] = counts.get(name, 0) + 1
                text = _text(lines[first - 1 : child.end_lineno])
                found.append(Definition(name, first, text, counts[name]))
            visit(child, name)

    visit(ast.parse(source), "")
    return found


def _text(lines: list[str]) -> str:
    # A mark on a method inside a class that is itself compared is no difference.
    kept = [line.rstrip() for line in lines if not _MARK.fullmatch(line.strip())]
    return textwrap.dedent("\n".join(kept))


def _stale(where: str, copy: Definition, there: str, original: Definition) -> ConfigError:
    pair = (original.text.split("\n"), copy.text.split("\n"))
    diff = list(difflib.unified_diff(*pair, n=_CONTEXT_LINES, lineterm=""))[2:]
    shown = [f"    {line}" for line in diff[:_MAX_DIFF_LINES]]
    if len(diff) > _MAX_DIFF_LINES:
        shown.append(f"    … and {len(diff) - _MAX_DIFF_LINES} lines more")
    return ConfigError(
        f"{where}: {copy.name} is marked as a copy of {there}, but differs:\n"
        + "\n".join(shown)
        + "\n",
        allowed="the same text, including decorators and comments",
        fix="copy the original again, or delete the mark if the variant should differ",
    )


def _unreadable(file: Path, error: SyntaxError) -> ConfigError:
    return ConfigError(
        f"{_told(file)}:{error.lineno}: {error.msg}",
        allowed="valid Python, so that copies can be compared",
        fix="correct the file",
    )


def _told(file: Path) -> str:
    return f"{variant_path(file.parent.name)}/{file.name}"
