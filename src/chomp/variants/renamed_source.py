"""The source of a variant's copy: what carried the origin's name carries the copy's.

Read by tokens. A name is changed where it is a whole token (`train_base`), a module's path where it
is one (`experiments.grug.base`), and a string only where it says what the variant is called
(`VARIANT = "base"`, the default of `run_id`). In comments and docstrings, paths and class names
change; the word by itself is prose, or a mark (`# verbatim: base`), and stays.
"""

import io
import keyword
import re
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from chomp.errors import ConfigError

# Python 3.12 cuts f-strings into pieces, of which these hold the text.
_TEXTS = {
    tokenize.STRING,
    tokenize.COMMENT,
    *(getattr(tokenize, name) for name in ("FSTRING_MIDDLE",) if hasattr(tokenize, name)),
}
_LAYOUT = {tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT}
# Statements that begin so say the variant's name in a string.
_SAYS_NAME = ("VARIANT", "run_id")

LINE_LENGTH = 100
# What a docstring calls the thing itself.
_CALLED = "run|model|training loop|template|variant"


_Change = tuple[tokenize.TokenInfo, Callable[[str], str]]


@dataclass(frozen=True)
class Renaming:
    """What is called `origin` becomes `name`."""

    origin: str
    name: str

    @property
    def identifiers(self) -> dict[str, str]:
        """The names in the source that carry the variant's."""
        return {
            f"Grug{class_part(self.origin)}LaunchConfig": launch_config_name(self.name),
            f"train_{self.origin}": f"train_{self.name}",
        }

    def text(self, text: str) -> str:
        """A comment or a string, with paths and class names changed."""
        origin = re.escape(self.origin)
        text = re.sub(rf"\b(experiments([./])grug\2){origin}\b", rf"\g<1>{self.name}", text)
        for old, new in self.identifiers.items():
            text = re.sub(rf"\b{old}\b", new, text)
        return text

    def prose(self, text: str) -> str:
        """The same, where it also says what the thing is called: "The base model", "a base run"."""
        article = "an" if self.name[0] in "aeiou" else "a"
        named = {
            "the": f"the {self.name}",
            "The": f"The {self.name}",
            "a": f"{article} {self.name}",
            "an": f"{article} {self.name}",
        }
        called = rf"\b({'|'.join(named)}) {re.escape(self.origin)} (?={_CALLED})"
        return re.sub(called, lambda found: f"{named[found[1]]} ", self.text(text))


def class_part(name: str) -> str:
    """A variant's name as part of a class's: `array_stacked` is `ArrayStacked`."""
    return "".join(word.capitalize() for word in name.split("_"))


def launch_config_name(name: str) -> str:
    """What the launch config of a variant is called."""
    return f"Grug{class_part(name)}LaunchConfig"


def is_variant_name(name: str) -> bool:
    """Whether a folder can have this name: importable, and without capitals, which some file
    systems do not tell apart."""
    return re.fullmatch(r"[a-z][a-z0-9_]*", name) is not None and not keyword.iskeyword(name)


def renamed_source(source: str, renaming: Renaming, *, where: str) -> str:
    """A file of the origin as it is in the copy. Every token but those renamed stays as it is."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, SyntaxError) as error:
        raise ConfigError(
            f"{where} is not Python: {error}",
            allowed="a variant whose files are valid Python",
            fix="correct the file and run the command again",
        ) from error
    plain = _replaced(source, _changes(tokens, renaming, renaming.text))
    prose = _replaced(source, _changes(tokens, renaming, renaming.prose))
    # A longer name must not break the limit on lines for the sake of a sentence.
    pairs = zip(io.StringIO(plain), io.StringIO(prose), strict=True)
    return "".join(line if len(said) > LINE_LENGTH + 1 else said for line, said in pairs)


def _replaced(source: str, changes: Iterator[_Change]) -> str:
    starts = [0]  # of each line, as the tokenizer counts lines
    for line in io.StringIO(source):
        starts.append(starts[-1] + len(line))
    # From the end, so that the places of those before stay right.
    for token, changed in reversed(list(changes)):
        begin = starts[token.start[0] - 1] + token.start[1]
        end = starts[token.end[0] - 1] + token.end[1]
        source = source[:begin] + changed(source[begin:end]) + source[end:]
    return source


def _changes(
    tokens: list[tokenize.TokenInfo], renaming: Renaming, in_text: Callable[[str], str]
) -> Iterator[_Change]:
    """The tokens that may change, and how each does; strings and comments do by `in_text`."""
    seen: list[str] = []  # of the statement so far
    for token in tokens:
        is_said = bool(seen) and (seen[0] in _SAYS_NAME or seen[-2:] == ["run_id", "="])
        if token.type == tokenize.NAME and token.string in renaming.identifiers:
            yield token, renaming.identifiers.__getitem__
        elif token.type == tokenize.NAME and token.string == renaming.origin:
            if seen[-4:] == ["experiments", ".", "grug", "."]:
                yield token, lambda _: renaming.name
        elif token.type in _TEXTS and is_said and token.string.strip("\"'") == renaming.origin:
            yield token, lambda text: text.replace(renaming.origin, renaming.name)
        elif token.type in _TEXTS:
            yield token, in_text
        if token.type == tokenize.NEWLINE:
            seen = []
        elif token.type not in _LAYOUT:
            seen.append(token.string)
