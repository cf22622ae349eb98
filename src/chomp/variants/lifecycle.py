"""Variants copied, compared and retired.

A new variant is the folder of another one under a new name, with an entry in the archive. The copy
is made under a hidden name and renamed when it is complete. A retired variant loses its folder; its
entry stays and names the last commit that has the code, from which it can still be compared.
Retiring is refused where work would be lost (changes that no commit has) or something would break
(a file that imports the variant, a config that trains it).
"""

import ast
import keyword
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from chomp.config.files import VARIABLES, parse_yaml, replace_variables
from chomp.errors import ConfigError, require
from chomp.storage import make_folder, read_text, remove_tree, rename_folder, write_text_atomic
from chomp.storage.errors import storage_errors
from chomp.variants import checkout
from chomp.variants.archive import (
    Archive,
    ArchiveEntry,
    needs_first_commit,
    read_archive,
    write_entry,
)
from chomp.variants.checkout import BASE, variant_folders, variant_path
from chomp.variants.diff import EXTENSIONS, Content, FolderChanges, changed_files, folder_changes

README = "README.md"
LINE_LENGTH = 100
# Where a file may stand that needs a variant. The library imports none.
_USERS = ("experiments", "tests", "benchmarks", "scripts", "configs")
_MAX_SHOWN = 5

# --- Copy -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Renaming:
    """What is called `origin` becomes `name`."""

    origin: str
    name: str

    def source(self, text: str) -> str:
        """A source file with everything renamed that carries the variant's name.

        These are modules and paths (`experiments.grug.base`), identifiers (`train_base`,
        `GrugBaseLaunchConfig`), the strings that hold the name (`VARIANT = "base"`, the default of
        `run_id`) and sentences about it ("The base model"). A sentence stays as it is if the longer
        name would make its line too long.
        """
        old = re.escape(self.origin)
        text = re.sub(rf"\b(experiments([./])grug\2){old}\b", rf"\g<1>{self.name}", text)
        text = re.sub(rf"\bGrug{_class_part(self.origin)}LaunchConfig\b", self._launch_config, text)
        text = re.sub(rf"\btrain_{old}\b", f"train_{self.name}", text)
        quoted = re.compile(rf"([\"']){old}\1")
        text = re.sub(
            r"^ *(?:VARIANT|run_id)\b[^#\n]*|\brun_id *= *[\"'][^#\n]*?[\"']",
            lambda found: quoted.sub(rf"\g<1>{self.name}\g<1>", found[0]),
            text,
            flags=re.MULTILINE,
        )
        return "\n".join(map(self._sentence, text.split("\n")))

    @property
    def _launch_config(self) -> str:
        return f"Grug{_class_part(self.name)}LaunchConfig"

    def _sentence(self, line: str) -> str:
        def rename(found: re.Match[str]) -> str:
            article = found[1]
            if article in ("a", "an"):
                article = "an" if self.name[0] in "aeiou" else "a"
            return f"{article} {self.name} "

        called = r"(?=(?:run|model|training loop|template|variant))"
        said = re.sub(rf"\b([Tt]he|an?) {re.escape(self.origin)} {called}", rename, line)
        return said if len(said) <= LINE_LENGTH else line


def _class_part(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def is_variant_name(name: str) -> bool:
    """Whether a folder can have this name: importable, and without capital letters, which some
    file systems do not distinguish."""
    return re.fullmatch(r"[a-z][a-z0-9_]*", name) is not None and not keyword.iskeyword(name)


def copy_variant(root: Path, *, origin: str, name: str, purpose: str = "") -> list[str]:
    """Create the variant `name` as a copy of `origin`, with an entry in the archive.

    Returns the names of its files. Raises `ConfigError` for a name that is not valid, is taken, is
    known to the archive, is ignored by git or makes a line too long, and for an empty purpose;
    whatever is raised, neither folder nor entry is left behind.
    """
    _require_new(root, read_archive(root), name)
    names = [variant.name for variant in variant_folders(root)]
    require(
        origin in names,
        f"there is no variant {origin!r} to copy",
        allowed=", ".join(names),
        fix="copy one of them",
    )
    require(
        not purpose or purpose.strip().lower() not in ("", "none", "to be filled in"),
        f"--purpose {purpose!r}",
        allowed="a sentence that says what the variant is for",
        fix="write one, or omit --purpose and fill it in later",
    )
    entry = ArchiveEntry(
        origin=origin,
        status="active",
        purpose=purpose.strip() or None,
        diff=f"`uv run chomp variant diff {name}`",
    )
    folder = root / variant_path(name)
    # With this process's number: two commands at once must not write into one folder.
    unfinished = folder.with_name(f".{name}-unfinished-{os.getpid()}")
    try:
        files = _write_copy(root, Renaming(origin, name), unfinished)
        write_text_atomic(unfinished / README, _readme(root, name, origin, purpose))
        rename_folder(unfinished, folder)
    except BaseException:
        remove_tree(unfinished)
        raise
    try:
        write_entry(root, name, entry)
    except BaseException:
        remove_tree(folder)
        raise
    return [*files, README]


def _require_new(root: Path, archive: Archive, name: str) -> None:
    require(
        # A class name leaves out underscores, so another name could have the same one.
        is_variant_name(name) and "__" not in name and not name.endswith("_"),
        f"the name {name!r}",
        allowed="a lower-case Python identifier that is not a keyword, with single underscores "
        "between words, such as wide_mlp",
        fix="choose such a name: it becomes a folder, a module and a run id",
    )
    path = variant_path(name)
    require(
        not checkout.is_ignored(root, path),
        f"git ignores {path}",
        allowed="a name that no pattern in .gitignore matches: a variant is committed",
        fix=f"choose another name, such as {name}_2",
    )
    require(
        not os.path.lexists(root / path),
        f"{path} already exists",
        allowed="an unused name",
        fix="choose another name, or edit that variant",
    )
    if name in archive:
        commit = archive[name].last_known_good
        restore = f" (git checkout {commit} -- {path} restores it)" if commit else ""
        raise ConfigError(
            f"the archive lists {name} as {archive[name].status}{restore}",
            allowed="a name that no variant ever had, so that each entry is about one variant",
            fix=f"choose another name, such as {name}_2",
        )


def _write_copy(root: Path, renaming: Renaming, target: Path) -> list[str]:
    """Copy the files of the origin, without its README, caches and what git ignores."""
    source = root / variant_path(renaming.origin)
    tracked = checkout.files_of(root, variant_path(renaming.origin))
    if tracked is None:  # no repository
        paths = [path for path in source.rglob("*") if path.is_file()]
    else:
        paths = [root / name for name in tracked]
    names = []
    for path in sorted(paths):
        name = path.relative_to(source)
        is_hidden = any(part.startswith(".") or part in checkout.CACHE_NAMES for part in name.parts)
        if is_hidden or name.as_posix() == README:
            continue
        names.append(name.as_posix())
        copy = target / name
        make_folder(copy.parent)
        with storage_errors(copy, "write"):
            shutil.copy2(path, copy, follow_symlinks=False)
        if copy.suffix == ".py" and not copy.is_symlink():
            write_text_atomic(copy, _renamed_file(path, name.as_posix(), renaming))
    return names


def _renamed_file(path: Path, name: str, renaming: Renaming) -> str:
    before = read_text(path)
    try:
        ast.parse(before)
    except (SyntaxError, ValueError) as error:
        raise ConfigError(
            f"{path} is not Python: {error}",
            allowed="a variant whose files are valid Python",
            fix="correct the file and run the command again",
        ) from error
    after = renaming.source(before)
    pairs = zip(before.split("\n"), after.split("\n"), strict=True)
    longest = max((len(new) for old, new in pairs if new != old), default=0)
    require(
        longest <= LINE_LENGTH,
        f"the name {renaming.name!r} makes a line of {name} {longest} characters long",
        allowed=f"a name that keeps lines within {LINE_LENGTH} characters",
        fix=f"choose a name at least {longest - LINE_LENGTH} characters shorter",
    )
    return after


def _readme(root: Path, name: str, origin: str, purpose: str) -> str:
    commit = checkout.last_commit_of(root, variant_path(origin))
    at = "no commit yet"
    if commit is not None:
        is_changed = bool(checkout.uncommitted(root, variant_path(origin)))
        at = f"`{checkout.short(root, commit)}`{' and uncommitted changes' if is_changed else ''}"
    return f"""\
# {name}

{purpose or "Purpose: to be filled in."}

- Origin: {origin} at {at}
- Status: active ([archive](../../../docs/reports/grug-archive.md))

## What differs, and why

To be filled in: a line for each change. `uv run chomp variant diff {name}` shows them.

## Result against {origin}

To be filled in: same tokens, same seed, the command and the commit.

## How to run

    uv run {variant_path(name)}/launch.py
"""


# --- Compare --------------------------------------------------------------------------------------


def origin_of(archive: Archive, name: str) -> str:
    """What a variant was copied from, by the archive; base if it does not say."""
    return (archive[name].origin if name in archive else None) or BASE


def variant_changes(
    root: Path,
    archive: Archive,
    name: str,
    *,
    against: str,
    extensions: Sequence[str] | None = EXTENSIONS,
) -> FolderChanges:
    """What it takes to turn `against` into `name`; `ConfigError` for a variant that never was.

    A retired variant is taken from its last good commit, and compared with the other one as it was
    then: what has changed since is not part of what the variant was.
    """
    for given in (name, against):
        # A path would lead out of the templates, and out of the checkout.
        require(
            is_variant_name(given),
            f"the name {given!r}",
            allowed="the name of a variant: lower-case letters, digits and underscores",
            fix="name a folder under experiments/grug; scripts/grug_dir_diff.py compares any two",
        )
    commit = _commit_of(root, archive, name)
    other = commit
    # The origin of a retired variant may be retired too, or have been already then.
    if commit is None or not checkout.holds(root, commit, variant_path(against)):
        other = _commit_of(root, archive, against)
    with TemporaryDirectory(prefix="chomp-variants-") as scratch:
        left, right = (
            root / variant_path(each)
            if at is None
            else checkout.extract(root, at, variant_path(each), Path(scratch, side))
            for side, each, at in (("left", against, other), ("right", name, commit))
        )
        return folder_changes(
            left,
            right,
            extensions=extensions,
            left_label=_label(against, other),
            right_label=_label(name, commit),
        )


def _commit_of(root: Path, archive: Archive, name: str) -> str | None:
    """The commit to take a variant from; None if its folder exists."""
    if (root / variant_path(name)).is_dir():
        return None
    commit = archive[name].last_known_good if name in archive else None
    if commit is None:
        raise ConfigError(
            f"there is no variant {name!r}, and the archive has no last commit of one",
            allowed=", ".join(archive) or "nothing: the archive is empty",
            fix="correct the name",
        )
    return commit


def _label(name: str, commit: str | None) -> str:
    return variant_path(name) if commit is None else f"{variant_path(name)} at {commit}"


def lines_beyond_name(root: Path, archive: Archive, name: str) -> tuple[int, int]:
    """Lines of Python that a variant adds to its origin and deletes, except for its own name.

    A fresh copy has none, though about twenty of its lines contain its name.
    """
    origin = origin_of(archive, name)
    changes = variant_changes(root, archive, name, against=origin, extensions=(".py",))
    return lines_beyond_renaming(changes, Renaming(origin, name))


def lines_beyond_renaming(changes: FolderChanges, renaming: Renaming) -> tuple[int, int]:
    """Lines added and deleted in Python files, except for what a renaming does to them.

    The one measure of the distance between variants, for pages, the ledger and every table.
    """
    python = [file for file in changes.files if file.path.endswith(".py")]
    before = {
        file.path: Content(
            renaming.source("".join(file.left.lines)).encode(errors="surrogateescape")
        )
        for file in python
        if file.left is not None
    }
    after = {file.path: file.right for file in python if file.right is not None}
    files = changed_files(before, after)
    return sum(file.added_lines for file in files), sum(file.deleted_lines for file in files)


# --- Retire ---------------------------------------------------------------------------------------


def retire_variant(
    root: Path,
    name: str,
    *,
    status: Literal["superseded", "deleted"],
    superseded_by: str = "",
    reason: str = "",
    is_forced: bool = False,
) -> str:
    """Delete a variant's folder, note it in the archive, and return the last good commit.

    That is the last commit which touched the folder and holds it; `is_forced` gives up what came
    after it. Whatever is raised, folder and entry are as they were.
    """
    archive = read_archive(root)
    path = variant_path(name)
    entry = _active_entry(root, archive, name)
    require(
        (status == "superseded") == bool(superseded_by),
        f"--status {status} with "
        + (f"--superseded-by {superseded_by}" if superseded_by else "no --superseded-by"),
        allowed="--superseded-by together with --status superseded, and only then",
        fix="name the variant that replaced it, or use --status deleted",
    )
    others = [other for other in archive if other != name]
    require(
        not superseded_by or superseded_by in others,
        f"--superseded-by {superseded_by}: the archive has no such variant",
        allowed=", ".join(others),
        fix="name one of them; use base if the change was merged into base",
    )
    require(
        status == "superseded" or bool(reason or entry.result or entry.reason),
        f"{name} would be deleted without a reason",
        allowed="a reason, or a result in its entry: negative results are worth keeping",
        fix="add --reason 'what was tried and what came of it'",
    )
    users = _users_of(root, name)
    require(
        not users,
        f"{path} is used by {_listed(users)}",
        allowed="a variant that nothing imports and no config trains",
        fix="change or remove those files first",
    )
    last_good = _last_good_commit(root, path, is_forced)
    introduced = entry.introduced
    # In a shallow clone, most commits only seem to be lost.
    if introduced is None or (checkout.is_whole_history(root) and needs_first_commit(root, entry)):
        introduced = checkout.short(root, checkout.first_commit_of(root, path) or last_good)
    retired = replace(
        entry,
        status=status,
        introduced=introduced,
        last_known_good=last_good,
        superseded_by=superseded_by or None,
        reason=reason or entry.reason,
    )
    folder = root / path
    hidden = folder.with_name(f".{name}-retired-{os.getpid()}")
    rename_folder(folder, hidden)
    try:
        write_entry(root, name, retired)
    except BaseException:
        rename_folder(hidden, folder)
        raise
    remove_tree(hidden)
    return last_good


def _active_entry(root: Path, archive: Archive, name: str) -> ArchiveEntry:
    require(
        name != BASE,
        f"retiring {BASE}",
        allowed="any other variant",
        fix=f"edit {variant_path(BASE)}: variants are copied from it and merged back into it",
    )
    entry = archive.get(name)
    active = [other for other, each in archive.items() if each.status == "active"]
    if entry is None or entry.status != "active":
        what = "does not know it" if entry is None else f"calls it {entry.status}"
        raise ConfigError(
            f"retiring {name!r}, and the archive {what}",
            allowed=", ".join(other for other in active if other != BASE) or "nothing",
            fix="correct the name, or add its entry to the archive",
        )
    require(
        (root / variant_path(name)).is_dir(),
        f"{variant_path(name)} does not exist",
        allowed="a variant whose folder exists",
        fix="change its entry in the archive by hand",
    )
    return entry


def _last_good_commit(root: Path, path: str, is_forced: bool) -> str:
    commit = checkout.last_commit_of(root, path)
    if commit is None:
        raise ConfigError(
            f"{path} is in no commit",
            allowed="a committed variant, which git keeps when the folder is deleted",
            fix="commit it, so that its entry can name a commit; or delete its folder and entry by "
            "hand",
        )
    # Includes what git ignores: the outputs of a run that lie in the folder.
    changed = checkout.uncommitted(root, path)
    require(
        is_forced or not changed,
        f"no commit has {_listed(changed)}",
        allowed="a variant without uncommitted changes",
        fix="commit or move them, or add --force to lose them",
    )
    return checkout.short(root, commit)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MAX_SHOWN
    return ", ".join(names[:_MAX_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _users_of(root: Path, name: str) -> list[str]:
    """Places (`file:line`) outside of a variant that import it, or train it as their template."""
    own = root / variant_path(name)
    found = []
    for path in sorted(path for room in _USERS for path in (root / room).rglob("*.*")):
        if own in path.parents or not path.is_file():
            continue
        lines: Iterator[int] = iter(())
        if path.suffix == ".py":
            lines = _import_lines(path, f"experiments.grug.{name}")
        elif path.suffix in (".yaml", ".yml"):
            lines = _template_lines(path, root, name)
        found += [f"{path.relative_to(root).as_posix()}:{line}" for line in lines]
    return found


def _import_lines(path: Path, module: str) -> Iterator[int]:
    """Lines of a file that import a module, or one below it."""
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except (SyntaxError, ValueError):
        return  # it cannot be imported itself
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        if any(f"{name}.".startswith(f"{module}.") for name in names):
            yield node.lineno


def _template_lines(path: Path, root: Path, name: str) -> Iterator[int]:
    """The line of a YAML file that names a variant as its template, by name or by folder."""
    text = path.read_text(encoding="utf-8")
    try:
        content = parse_yaml(text, source=str(path))
        if not isinstance(content, dict) or "template" not in content:
            return
        values = {key: content.get(key) for key in (VARIABLES, "template")}
        template = replace_variables(values, source=str(path))["template"]
    except ConfigError:
        return  # it cannot be trained
    # A folder is relative to the root, from where the command runs, or to the file.
    folders = [Path(start, str(template)).resolve() for start in (root, path.parent)]
    if template == name or (root / variant_path(name)).resolve() in folders:
        key = re.search(r"""^[{ ]*["']?template\b|[{,]\s*["']?template\b""", text, re.MULTILINE)
        yield text.count("\n", 0, key.start()) + 1 if key else 1
