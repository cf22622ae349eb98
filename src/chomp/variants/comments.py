"""The comments of a Python text, as its own tokenizer sees them.

Marks such as `# verbatim: base` are comments and nothing else: the same words in a string, in a
docstring or in the middle of a sentence say something about a mark and are none.
"""

import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass


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
