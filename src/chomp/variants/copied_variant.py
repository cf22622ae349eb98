"""A new variant: the folder of another under a new name, with an entry in the archive.

The copy is made under a hidden name and gets its own when it is complete, so a folder that others
see is a whole one. Nothing that git would not keep is copied. Source is renamed by tokens: a name
where it is a whole token (`train_base`), the path of a module where it is one
(`experiments.grug.base`), and a string only where it says what the variant is called
(`VARIANT = "base"`, the default of `run_id`). In comments and docstrings, paths and class names
change; the word by itself is prose, or a mark (`# verbatim: base`), and stays.
"""

import io
import keyword
import os
import re
import shutil
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from chomp.errors import ConfigError, require
from chomp.storage import make_folder, read_text, remove_tree, rename_folder, write_text_atomic
from chomp.storage.errors import storage_errors
from chomp.variants import checkout
from chomp.variants.archive import (
    NONE,
    NOT_COMMITTED,
    TO_BE_FILLED_IN,
    Archive,
    read_archive,
    with_entry,
    write_archive,
)
from chomp.variants.archive_lint import says_nothing
from chomp.variants.checkout import variant_path
from chomp.variants.folders import variant_folders

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
README = "README.md"


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


def readme_stub(name: str, origin: str, commit: str, purpose: str) -> str:
    """A page of twenty lines, with the places that its author fills in.

    `commit` is where the origin was when it was copied, in words.
    """
    return f"""\
# {name}

{purpose or f"Purpose: {TO_BE_FILLED_IN}."}

- Origin: {origin} at {commit}
- Status: active ([archive](../../../docs/reports/grug-archive.md))

## What differs, and why

{TO_BE_FILLED_IN}: a line for each change. `uv run chomp variant diff {name}` shows them.

## Result against {origin}

{TO_BE_FILLED_IN}: same tokens, same seed, the command and the commit.

## How to run

    uv run {variant_path(name)}/launch.py
"""


@dataclass(frozen=True)
class CopiedVariant:
    """A variant that was just made: its folder from the root, and the files in it."""

    name: str
    path: str
    files: tuple[str, ...]


def copy_variant(root: Path, *, origin: str, name: str, purpose: str = "") -> CopiedVariant:
    """The variant `name` is there, a copy of `origin`, and the archive has an entry for it.

    Raises `ConfigError` for a name that cannot be one, that is taken, that the archive knows or
    that git ignores, that makes a line too long, and for a purpose that says nothing;
    whatever is raised, neither folder nor entry is left behind.
    """
    archive = read_archive(root)
    _require_new(root, archive, name)
    _require_there(root, origin)
    # Before anything is written: a page that cannot take the entry ends the command here.
    listed = with_entry(archive, name, _entry(name, origin, purpose))
    _require_purpose(listed, name, purpose)
    folder = root / variant_path(name)
    # With this process's number: two commands at once would otherwise write into one folder.
    unfinished = folder.with_name(f".{name}-unfinished-{os.getpid()}")
    try:
        files = _write_copy(root, Renaming(origin, name), unfinished)
        stub = readme_stub(name, origin, _commit_in_words(root, origin), purpose)
        write_text_atomic(unfinished / README, stub)
        rename_folder(unfinished, folder)
    except BaseException:
        remove_tree(unfinished)
        raise
    try:
        write_archive(root, listed)
    except BaseException:
        remove_tree(folder)  # made a moment ago, and nothing in it that its origin has not
        raise
    return CopiedVariant(name, variant_path(name), (*files, README))


def _require_new(root: Path, archive: Archive, name: str) -> None:
    require(
        # Without its underscores, which a class's name leaves out, it would be another's.
        is_variant_name(name) and "__" not in name and not name.endswith("_"),
        f"the name {name!r}",
        allowed="a lower-case Python identifier that is not a keyword, with single underscores "
        "between words, such as wide_mlp",
        fix="choose such a name: it becomes a folder, a module and a run id",
    )
    require(
        not checkout.is_ignored(root, variant_path(name)),
        f"git ignores {variant_path(name)}",
        allowed="a name that no pattern in .gitignore matches: a variant is committed",
        fix=f"choose another name, such as {name}_2",
    )
    folder = root / variant_path(name)
    require(
        not os.path.lexists(folder),
        f"{variant_path(name)} already exists",
        allowed="an unused name",
        fix="choose another name, or edit that variant",
    )
    entry = archive.entry(name)
    if entry is None:
        return
    status = entry.get("Status") or "known"
    commit = entry.get("Last known-good")
    again = f" (git checkout {commit} -- {variant_path(name)} brings it back)" if commit else ""
    raise ConfigError(
        f"the archive lists {name} as {status}{again}",
        allowed="a name that no variant ever had, so that each entry is about one variant",
        fix=f"choose another name, such as {name}_2",
    )


def _require_purpose(listed: Archive, name: str, purpose: str) -> None:
    entry = listed.entry(name)
    said = entry.values["Purpose"] if entry is not None else ""  # as the check will read it
    require(
        not purpose or not says_nothing("Purpose", said),
        f"--purpose {purpose!r}",
        allowed="a sentence that says what the variant is for",
        fix="write one, or omit --purpose and fill it in later",
    )


def _require_there(root: Path, origin: str) -> None:
    names = [variant.name for variant in variant_folders(root)]
    require(
        origin in names,
        f"there is no variant {origin!r} to copy",
        allowed=", ".join(names),
        fix="copy one of them",
    )


def _write_copy(root: Path, renaming: Renaming, target: Path) -> list[str]:
    """The files of the origin, renamed, in `target`; their names."""
    source = root / variant_path(renaming.origin)
    names = _kept_files(root, source)
    make_folder(target)
    for name in names:
        copy = target / name
        make_folder(copy.parent)
        with storage_errors(copy, "write"):
            shutil.copy2(source / name, copy, follow_symlinks=False)
        if copy.suffix == ".py" and not copy.is_symlink():
            before = read_text(copy)
            text = renamed_source(before, renaming, where=str(source / name))
            _require_short_lines(before, text, name, renaming)
            write_text_atomic(copy, text)  # keeps the permissions
    return names


def _require_short_lines(before: str, text: str, file: str, renaming: Renaming) -> None:
    """No line is too long because of the name; one that the origin has as it is may be."""
    pairs = zip(before.split("\n"), text.split("\n"), strict=True)
    longest = max((len(new) for old, new in pairs if new != old), default=0)
    too_many = longest - LINE_LENGTH
    require(
        too_many <= 0,
        f"the name {renaming.name!r} makes a line of {file} {longest} characters long",
        allowed=f"a name that keeps lines within {LINE_LENGTH} characters",
        fix=f"choose a name at least {too_many} characters shorter",
    )


def _kept_files(root: Path, folder: Path) -> list[str]:
    """The files that a copy gets, from the folder: no caches, no outputs, not the README."""
    known = checkout.files_of(root, folder.relative_to(root).as_posix())
    if known is None:  # no repository: all but what is hidden or a cache
        found = [path for path in folder.rglob("*") if path.is_file()]
    else:
        found = [root / name for name in known]
    # Its README is about the origin; the copy gets one of its own.
    names = sorted(path.relative_to(folder).as_posix() for path in found)
    return [name for name in names if name != README and not _is_left(name)]


def _is_left(name: str) -> bool:
    parts = Path(name).parts
    return any(part.startswith(".") or part in checkout.CACHE_NAMES for part in parts)


def _commit_in_words(root: Path, origin: str) -> str:
    commit = checkout.last_commit_of(root, variant_path(origin))
    if commit is None:
        return "no commit yet"
    # What was copied is what is there, which the commit alone may not be.
    is_changed = bool(checkout.uncommitted(root, variant_path(origin)))
    told = f"`{checkout.short(root, commit)}`"
    return f"{told} and changes that were not committed" if is_changed else told


def _entry(name: str, origin: str, purpose: str) -> dict[str, str]:
    return {
        "Path": variant_path(name),
        "Origin": origin,
        "Introduced": NOT_COMMITTED,
        "Status": "active",
        "Purpose": purpose or TO_BE_FILLED_IN,
        "Superseded by": NONE,
        "Diff": f"uv run chomp variant diff {name}",
        "Issue": NONE,
    }
