"""A variant taken away: its folder goes, its entry stays and says where the code last was.

Refused where something would be lost (changes that no commit holds) or would break (a file that
imports the variant, a config that trains it).
"""

import ast
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from chomp.config.files import parse_yaml
from chomp.config.variables import SECTION, replace_variables
from chomp.errors import ConfigError, require
from chomp.storage import remove_tree, rename_folder
from chomp.variants import checkout
from chomp.variants.archive import (
    NOT_COMMITTED,
    Archive,
    ArchiveEntry,
    moved_entry,
    read_archive,
    write_archive,
)
from chomp.variants.archive_lint import is_lost
from chomp.variants.checkout import BASE, variant_path

# Where a file may stand that needs a variant. The library is not among them: it imports none.
_USERS = ("experiments", "tests", "benchmarks", "scripts", "configs")
_SHOWN = 5


@dataclass(frozen=True)
class RetiredVariant:
    """A variant that was just taken away, and the commit that still has it."""

    name: str
    status: str
    last_good: str


def retire_variant(
    root: Path,
    name: str,
    *,
    status: str,
    superseded_by: str = "",
    reason: str = "",
    is_forced: bool = False,
) -> RetiredVariant:
    """The folder is gone and the entry is in the section of `status`, with the last good commit.

    That is the last commit which touched the folder and holds it; `is_forced` gives up what came
    after it. Whatever is raised, folder and entry are as they were.
    """
    archive = read_archive(root)
    entry = _active_entry(root, archive, name)
    _require_told(archive, entry, status, superseded_by, reason)
    _require_unused(root, name)
    last_good = _last_good_commit(root, name, is_forced)
    told = {"Superseded by": superseded_by, "Reason": reason}
    values = entry.values | {key: text for key, text in told.items() if text}
    values |= {"Status": status, "Last known-good": last_good}
    # The last chance to say it: afterwards nobody would look.
    said = entry.get("Introduced")
    # In a shallow clone, most commits only seem to be lost.
    if said == NOT_COMMITTED or (checkout.is_whole_history(root) and is_lost(root, said)):
        first = checkout.first_commit_of(root, variant_path(name)) or last_good
        values["Introduced"] = checkout.short(root, first)
    moved = moved_entry(archive, entry, values)
    folder = root / variant_path(name)
    hidden = folder.with_name(f".{name}-retired-{os.getpid()}")
    # Out of sight in one step, and back in one should the page not be written.
    rename_folder(folder, hidden)
    try:
        write_archive(root, moved)
    except BaseException:
        rename_folder(hidden, folder)
        raise
    remove_tree(hidden)
    return RetiredVariant(name, status, last_good)


def users_of(root: Path, name: str) -> list[str]:
    """Places (`file:line`) outside of a variant that import it, or name it as their template."""
    own = root / variant_path(name)
    found = []
    for room in _USERS:
        for path in sorted((root / room).rglob("*")):
            if own in path.parents or not path.is_file():
                continue
            lines: Iterator[int] = iter(())
            if path.suffix == ".py":
                lines = _import_lines(path, f"experiments.grug.{name}")
            elif path.suffix in (".yaml", ".yml"):
                lines = _template_lines(path, root, name)
            found += [f"{path.relative_to(root).as_posix()}:{line}" for line in lines]
    return found


def _active_entry(root: Path, archive: Archive, name: str) -> ArchiveEntry:
    require(
        name != BASE,
        f"retiring {BASE}",
        allowed="any other variant",
        fix=f"edit {variant_path(BASE)}: variants are copied from it and merged back into it",
    )
    entry = archive.entry(name)
    active = [other.name for other in archive.entries if other.get("Status") == "active"]
    if entry is None or entry.get("Status") != "active":
        status = "does not know it" if entry is None else f"calls it {entry.get('Status')}"
        raise ConfigError(
            f"retiring {name!r}, and the archive {status}",
            allowed=", ".join(other for other in active if other != BASE) or "nothing",
            fix="correct the name, or add its entry to the archive",
        )
    require(
        (root / variant_path(name)).is_dir(),
        f"{variant_path(name)} does not exist",
        allowed="a variant whose folder exists",
        fix="move its entry in the archive by hand",
    )
    return entry


def _require_told(
    archive: Archive, entry: ArchiveEntry, status: str, superseded_by: str, reason: str
) -> None:
    require(
        (status == "superseded") == bool(superseded_by),
        f"--status {status} with "
        + (f"--superseded-by {superseded_by}" if superseded_by else "no --superseded-by"),
        allowed="--superseded-by together with --status superseded, and only then",
        fix="name the variant that replaced it, or use --status deleted",
    )
    known = [other.name for other in archive.entries if other.name != entry.name]
    require(
        not superseded_by or superseded_by in known,
        f"--superseded-by {superseded_by}: the archive has no such variant",
        allowed=", ".join(known),
        fix="name one of them; use base if the change was merged into base",
    )
    require(
        status == "superseded" or bool(reason or entry.get("Result") or entry.get("Reason")),
        f"{entry.name} would be deleted without a reason",
        allowed="a reason, or a result in its entry: negative results are worth keeping",
        fix="add --reason 'what was tried and what came of it'",
    )


def _require_unused(root: Path, name: str) -> None:
    # Tests of the variant count too: they would fail for everybody from the next commit on.
    users = users_of(root, name)
    more = f" and {len(users) - _SHOWN} more" if len(users) > _SHOWN else ""
    require(
        not users,
        f"{variant_path(name)} is used by {', '.join(users[:_SHOWN])}{more}",
        allowed="a variant that nothing imports and no config trains",
        fix="change or remove those files first",
    )


def _last_good_commit(root: Path, name: str, is_forced: bool) -> str:
    path = variant_path(name)
    commit = checkout.last_commit_of(root, path)
    if commit is None:
        raise ConfigError(
            f"{path} is in no commit",
            allowed="a committed variant, which git keeps when the folder is deleted",
            fix="commit it, so that its entry can name a commit; or delete its folder and entry by "
            "hand",
        )
    # Also what git ignores: a run that lies in the folder is hours of somebody's machine.
    changed = checkout.uncommitted(root, path)
    more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
    require(
        is_forced or not changed,
        f"no commit has {', '.join(changed[:_SHOWN])}{more}",
        allowed="a variant without uncommitted changes",
        fix="commit or move them, or add --force to lose them",
    )
    return checkout.short(root, commit)


def _import_lines(path: Path, module: str) -> Iterator[int]:
    """Lines of a file that import a module, or one below it."""
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except (SyntaxError, ValueError):
        return  # it imports nothing, whatever it says
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        names = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            # Relative ones stay inside of their own variant, or break another rule.
            above = node.module if node.module and node.level == 0 else ""
            names = [above, *(f"{above}.{name}" for name in names)]
        if any(name == module or name.startswith(f"{module}.") for name in names):
            yield node.lineno


def _template_lines(path: Path, root: Path, name: str) -> Iterator[int]:
    """The line of a YAML file that names a variant as its template, by name or by folder."""
    text = path.read_text(encoding="utf-8")
    try:
        content = parse_yaml(text, source=str(path))
        if not isinstance(content, dict) or "template" not in content:
            return
        said = {key: content.get(key) for key in (SECTION, "template")}
        template = replace_variables(said, source=str(path))["template"]
    except ConfigError:
        return  # it trains nothing, whatever it says
    folder = root / variant_path(name)
    # A folder is told from where the command is run: the root, or beside the file.
    places = [Path(start, str(template)).resolve() for start in (root, path.parent)]
    if template == name or folder.resolve() in places:
        keys = [key for key, _ in yaml.compose(text).value]
        yield from (key.start_mark.line + 1 for key in keys if key.value == "template")
