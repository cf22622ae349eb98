"""Marks in the source of a variant: `# GRUG NOVERIFY` and `# verbatim: base`.

    # GRUG NOVERIFY: the router does not resume bit for bit, until 2027-01-31

in `train.py` excludes a variant from the contracts. A mark without a reason or a date, after that
date, or with a date more than 180 days ahead has no effect and is itself an error.

`# verbatim: base` stands on the line above a function, a class or a method (above its decorators)
and names the variant that the copy comes from. A fix in the original turns outdated copies red, by
name; a variant that should differ deletes the mark. The text is compared, comments included.

Marks are comments: the same words in a string, a docstring or inside a sentence are not a mark.
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

MARKED_FILE = "train.py"
LONGEST = timedelta(days=180)
_FORM = "# GRUG NOVERIFY: <reason>, until <YYYY-MM-DD>"
_HEAD = "# GRUG NOVERIFY:"
# A comment that begins like a mark is meant as one.
_BEGINS_NO_VERIFY = re.compile(r"#+\s*GRUG[ _-]?NOVERIFY\b", re.IGNORECASE)
_VERBATIM = re.compile(r"#\s*verbatim:\s*(?P<origin>.*?)\s*", re.IGNORECASE)
_MAX_DIFF_LINES = 12  # in a message


@dataclass(frozen=True)
class Comment:
    """One comment: its 1-based line, its text from the `#` on, whether it has the line alone."""

    line: int
    text: str
    is_own_line: bool


def comments_in(source: str) -> Iterator[Comment]:
    """The comments from the top; in a file that is not valid Python, those above the error."""
    lines = source.split("\n")  # as the tokenizer counts them: a form feed does not end a line
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                line, column = token.start
                yield Comment(line, token.string, not lines[line - 1][:column].strip())
    except (tokenize.TokenError, SyntaxError):
        return


@dataclass(frozen=True)
class NotVerified:
    """A NOVERIFY mark in a file. It excludes its variant only if it has no fault."""

    where: str  # file:line
    text: str
    reason: str
    until: date | None  # the last day it counts
    wrong: str | None = None  # how it is written wrongly

    def fault(self, today: date) -> str | None:
        """Why the mark has no effect on that day, as an error message; None if it has."""
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
    """The mark in a variant's `train.py`; of several, the one that ends first."""
    file = folder / MARKED_FILE
    if not file.is_file():
        return None
    comments = comments_in(file.read_text(encoding="utf-8", errors="replace"))
    marks = [_mark(file, comment) for comment in comments if _BEGINS_NO_VERIFY.match(comment.text)]
    return min(
        marks,
        key=lambda mark: mark.until if mark.until and not mark.wrong else date.min,
        default=None,
    )


def _mark(file: Path, comment: Comment) -> NotVerified:
    body = comment.text.removeprefix(_HEAD)
    reason, has_date, day = body.rpartition(", until ")
    if not has_date:
        reason, day = body, ""
    try:
        # The full form only: `fromisoformat` also takes weeks, and days without dashes.
        found = re.fullmatch(r"\d{4}-\d\d-\d\d", day.strip(" ."))
        until = date.fromisoformat(found[0]) if found else None
    except ValueError:  # such as the 31st of February
        until = None
    wrong = None
    if not comment.is_own_line:
        wrong = "is behind code"
    elif body == comment.text:
        wrong = "is not in the form of a mark"
    elif not re.search(r"\w", reason):
        wrong = "gives no reason"
    elif until is None:
        wrong = "gives no date"
    return NotVerified(f"{_path(file)}:{comment.line}", comment.text, reason.strip(), until, wrong)


@dataclass(frozen=True)
class Definition:
    """A function, method or class of a file: `Transformer.logits`, its first line, its text."""

    name: str
    line: int  # of its first decorator, if it has one
    text: str
    nth: int  # of those with that name in the file: a property's setter is the second


def verbatim_violations(folder: Path) -> list[str]:
    """What is wrong with the marked copies of a variant, each an error with file and line."""
    return [str(fault) for file in sorted(folder.glob("*.py")) for fault in _faults(folder, file)]


def _faults(folder: Path, file: Path) -> Iterator[ConfigError]:
    source = file.read_text(encoding="utf-8", errors="replace")
    comments = {comment.line: comment for comment in comments_in(source)}
    marks = [comment for comment in comments.values() if _VERBATIM.fullmatch(comment.text)]
    try:
        definitions = {found.line: found for found in _definitions(source)} if marks else {}
    except SyntaxError as error:
        yield _unreadable(file, error)
        return
    others = sorted({path.parent.name for path in folder.parent.glob("*/model.py")} - {folder.name})
    for mark in marks:
        where, origin = f"{_path(file)}:{mark.line}", _VERBATIM.sub(r"\g<origin>", mark.text)
        below = mark.line + 1
        # Another comment may stand between a mark and its definition; a blank line may not.
        while below in comments and comments[below].is_own_line:
            below += 1
        copy = definitions.get(below) if mark.is_own_line else None
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
        elif fault := _copy_fault(where, copy, file, folder.parent / origin):
            yield fault


def _copy_fault(where: str, copy: Definition, file: Path, origin: Path) -> ConfigError | None:
    # A definition may have moved to another file; the file of the same name goes first.
    files = sorted(origin.glob("*.py"), key=lambda path: (path.name != file.name, path.name))
    for source in files:
        try:
            found = _definitions(source.read_text(encoding="utf-8", errors="replace"))
        except SyntaxError as error:
            return _unreadable(source, error)
        for original in found:
            if (original.name, original.nth) == (copy.name, copy.nth):
                there = f"{_path(source)}:{original.line}"
                return _outdated(where, copy, there, original.text)
    return ConfigError(
        f"{where}: {copy.name} is marked as a copy, but {_path(origin)} has no such function, "
        "class or method",
        allowed="names that the original has",
        fix="rename the copy like the original, or delete the mark",
    )


def _outdated(where: str, copy: Definition, there: str, original: str) -> ConfigError | None:
    if original == copy.text:
        return None
    pair = (original.split("\n"), copy.text.split("\n"))
    diff = list(difflib.unified_diff(*pair, n=1, lineterm=""))[2:]
    shown = [f"    {line}" for line in diff[:_MAX_DIFF_LINES]]
    if len(diff) > _MAX_DIFF_LINES:
        shown.append(f"    … and {len(diff) - _MAX_DIFF_LINES} more lines")
    return ConfigError(
        f"{where}: {copy.name} is marked as a copy of {there}, but differs:\n"
        + "\n".join(shown)
        + "\n",
        allowed="the same text, including decorators and comments",
        fix="copy the original again, or delete the mark if the variant should differ",
    )


@cache
def _definitions(source: str) -> list[Definition]:
    """Every definition of a file, from the top, nested ones included."""
    lines, found, counts = source.split("\n"), [], dict[str, int]()

    def visit(node: ast.AST, above: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = above
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{above}.{child.name}" if above else child.name
                first = min([child.lineno, *(each.lineno for each in child.decorator_list)])
                counts[name] = counts.get(name, 0) + 1
                # A mark on a method inside of a class that is compared is not a difference.
                kept = [
                    line.rstrip()
                    for line in lines[first - 1 : child.end_lineno]
                    if not _VERBATIM.fullmatch(line.strip())
                ]
                text = textwrap.dedent("\n".join(kept))
                found.append(Definition(name, first, text, counts[name]))
            visit(child, name)

    visit(ast.parse(source), "")
    return found


def _unreadable(file: Path, error: SyntaxError) -> ConfigError:
    return ConfigError(
        f"{_path(file)}:{error.lineno}: {error.msg}",
        allowed="valid Python, so that copies can be compared",
        fix="correct the file",
    )


def _path(path: Path) -> str:
    """A variant, or a file of one, by its path from the root of the checkout."""
    return path.as_posix()[path.as_posix().rindex("experiments/grug/") :]
