"""What a config class says about its fields in comments: beside them, or in the lines above.

The comments are the documentation that people read in the source; the reference page shows the same
words. A field's `setting(doc=...)` comes first where it has one.
"""

import ast
import inspect
import io
import textwrap
import tokenize
from functools import cache

from chomp.config.fields import settings_of


@cache  # reading a source file again for each of its classes would be slow
def field_comments(cls: type) -> dict[str, str]:
    """The comment of each field that has one, on one line; of inherited fields too."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        found |= _own_comments(base) if base is not object else {}
    documented = {
        item.name: str(item.field.metadata["description"])
        for item in settings_of(cls)
        if "description" in item.field.metadata
    }
    names = [item.name for item in settings_of(cls)]
    found |= documented
    return {name: found[name] for name in names if name in found}


def _own_comments(cls: type) -> dict[str, str]:
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):  # a class without a file: made at run time, or built in
        return {}
    comments = _comments(source)
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef), "the source of a class is a class"
    found: dict[str, str] = {}
    for statement in body.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            first, last = statement.lineno, statement.end_lineno or statement.lineno
            # In between, comments are about parts of the default and not about the field.
            lines = dict.fromkeys((first, last))
            beside = [comments[line][1] for line in lines if line in comments]
            text = " ".join([*_above(comments, first), *beside])
            if text:
                found[statement.target.id] = text
    return found


def _above(comments: dict[int, tuple[bool, str]], line: int) -> list[str]:
    """The comments that fill the lines right above a line, in their order."""
    found: list[str] = []
    while (line - 1) in comments and comments[line - 1][0]:
        line -= 1
        found.insert(0, comments[line][1])
    return found


def _comments(source: str) -> dict[int, tuple[bool, str]]:
    """Every comment by its line: whether it is alone there, and its text."""
    found = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            is_alone = not token.line[: token.start[1]].strip()
            found[token.start[0]] = (is_alone, token.string.lstrip("# ").rstrip())
    return found
