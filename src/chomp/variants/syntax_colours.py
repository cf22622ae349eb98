"""Where the words of Python source stand that a reader sees in colour: keywords, strings, comments.

By Python's own tokenizer. Source may be half of an edit, or of a later Python: what the tokenizer
has not seen when it gives up is coloured line by line, which is wrong only inside of long strings.
"""

import builtins
import keyword
import re
import tokenize
import warnings
from collections.abc import Iterator, Sequence

# Start and end in a line, and a class: keyword, string, comment, number, function or class being
# defined, decorator, built-in name.
Colour = tuple[int, int, str]

# Lines beyond this are data, and some tokenizers take quadratic time in the length of a line.
_MAX_CHARACTERS = 5000
_BUILTINS = frozenset(name for name in dir(builtins) if name.islower() and name[0] != "_")
_KINDS = {tokenize.COMMENT: "comment", tokenize.NUMBER: "number"}
_ANY = re.compile(
    r"""(?P<comment>\#.*)
    |(?P<string>(?:\b[rbfuRBFU]{1,2})?(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))
    |(?P<number>\b\d[\w.]*)
    |(?P<word>\b[A-Za-z_]\w*)""",
    re.VERBOSE,
)


def colours_of(path: str, lines: Sequence[str]) -> list[list[Colour]]:
    """For each line, its coloured ranges in order; none for files that are not Python."""
    if not path.endswith((".py", ".pyi")) or any(len(line) > _MAX_CHARACTERS for line in lines):
        return [[] for _ in lines]
    found: list[list[Colour]] = [[] for _ in lines]
    seen = 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the source that is shown, not of ours
            for token, colour in _coloured(lines):
                seen = token.end[0]
                _put(found, lines, token, colour)
    except (tokenize.TokenError, SyntaxError, ValueError):
        for index in range(seen, len(lines)):
            found[index] = list(_by_line(lines[index]))
    return found


def _coloured(lines: Sequence[str]) -> Iterator[tuple[tokenize.TokenInfo, str | None]]:
    """Each token and its colour, if it has one."""
    before = ""
    for token in tokenize.generate_tokens(iter(lines).__next__):
        colour = _KINDS.get(token.type)
        if token.type == tokenize.NAME:
            colour = _colour_of_name(token.string, before)
        # From Python 3.12 on, the parts of an f-string are tokens of their own.
        elif "STRING" in tokenize.tok_name[token.type]:
            colour = "string"
        elif token.string == "@" and not token.line[: token.start[1]].strip():
            colour = "decorator"
        yield token, colour
        before = token.string


def _colour_of_name(name: str, before: str) -> str | None:
    if before in ("def", "class"):
        return "definition"
    if before == "@":
        return "decorator"
    if keyword.iskeyword(name):
        return "keyword"
    return "builtin" if name in _BUILTINS and before != "." else None


def _put(
    found: list[list[Colour]], lines: Sequence[str], token: tokenize.TokenInfo, colour: str | None
) -> None:
    """Note the colour on each line the token covers, behind what is noted already."""
    (first, start), (last, end) = token.start, token.end
    for number in range(first, min(last, len(lines)) + 1) if colour else ():
        line = lines[number - 1].rstrip("\n")
        spans = found[number - 1]
        begin = max(start if number == first else 0, spans[-1][1] if spans else 0)
        stop = min(end, len(line)) if number == last else len(line)
        if begin < stop and colour:
            spans.append((begin, stop, colour))


def _by_line(line: str) -> Iterator[Colour]:
    before = ""
    for match in _ANY.finditer(line):
        colour = match.lastgroup
        if colour == "word":
            colour = _colour_of_name(match.group(), before)
        if colour:
            yield match.start(), match.end(), colour
        before = match.group()
