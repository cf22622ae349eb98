"""The texts that lie in a run folder: what the model wrote, and the template that made it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import chomp
from chomp.errors import ConfigError, StorageError
from chomp.executor.status import read_info
from chomp.storage import is_folder, is_local, join, name_of, read_text
from chomp.storage.files import MAX_TEXT_BYTES
from chomp.tracking import redacted
from chomp.tracking.run_files import SAMPLE_MARK, TEMPLATE, samples_in
from chomp.variants.checkout import BASE, checkout_root, variant_path
from chomp.variants.diff import FileChange, FolderChanges, folder_changes
from chomp.variants.diff_page import CONTEXT_LINES, escaped, rows_html
from chomp.variants.lifecycle import Renaming, lines_beyond_renaming

# A page is for looking: more texts, or longer ones, are in the folder. Of each prompt and of each
# continuation so many characters.
MAX_SAMPLES = 40
MAX_SAMPLE_CHARACTERS = 4000
# Of the lines of one template on a page; a variant that changes everything has 300 kB.
MAX_DIFF_CHARACTERS = 600_000


def samples(folder: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Generated texts along the run, evenly thinned to `MAX_SAMPLES`, the first and last kept.

    With them, in words, the ones that cannot be read.
    """
    files = list(samples_in(folder).items())
    places = np.linspace(0, len(files) - 1, min(MAX_SAMPLES, len(files))).round().astype(int)
    found, problems = [], []
    for step, path in (files[place] for place in np.unique(places)):
        try:
            found.append({"step": step, **_parts(read_text(path, max_bytes=MAX_TEXT_BYTES))})
        except StorageError:
            problems.append(f"the sample of step {step:,} is left out: {name_of(path)} is no text")
    return found, problems


def _parts(text: str) -> dict[str, str]:
    """Prompt and continuation, each cut where it is furthest from the other."""
    prompt, mark, written = text.partition(SAMPLE_MARK)
    prompt, written = (prompt, written) if mark else ("", text)
    return {"prompt": prompt[-MAX_SAMPLE_CHARACTERS:], "text": written[:MAX_SAMPLE_CHARACTERS]}


@dataclass(frozen=True)
class TemplatePart:
    """A run's template: its name as far as it is known, and how it differs from base."""

    name: str | None
    content: dict[str, Any] | None  # for a page; None where the run has no copy of its template


def template_part(folder: str) -> TemplatePart:
    """The run's own copy of its template against the base of a checkout, without secrets."""
    name = _name(folder)
    copy = join(folder, TEMPLATE)
    if not is_folder(copy):
        return TemplatePart(name, None)
    against = variant_path(BASE)
    content: dict[str, Any] = {
        "name": redacted(name or "unknown"),
        "files": [],
        "against": against,
        "html": None,
        "note": None,
    }
    base = _base(folder)
    if base is None or not is_local(copy):
        content["note"] = f"no checkout is near, so there is no {against} to compare with"
        return TemplatePart(name, content)
    changes = folder_changes(base, Path(copy), extensions=(".py",))
    content["files"] = [
        {"path": redacted(file.path), "lines": len(file.right.lines)}
        for file in changes.files
        if file.right
    ]
    return TemplatePart(name, content | _difference(changes, name, against))


def _difference(changes: FolderChanges, name: str | None, against: str) -> dict[str, Any]:
    if changes.is_empty:
        return {"note": f"equal to {against} of this checkout"}
    changed = [file for file in changes.files if file.status != "unchanged" and not file.is_binary]
    html = "".join(map(_file_html, changed))
    told = f"{_lines_told(changes, name)} against {against}"
    if len(html) > MAX_DIFF_CHARACTERS:
        return {"note": f"{told}: too much for this page; `chomp variant diff` shows all of it"}
    return {"html": html, "note": told}


def _lines_told(changes: FolderChanges, name: str | None) -> str:
    """How many lines differ, counted as the ledger does where the variant's name is known."""
    if name is None:
        return f"+{changes.added_lines:,} -{changes.deleted_lines:,} lines of Python"
    added, deleted = lines_beyond_renaming(changes, Renaming(BASE, name))
    return f"+{added:,} -{deleted:,} lines of Python, but for its own name,"


def _file_html(file: FileChange) -> str:
    # Secrets go before there is HTML, which may write them otherwise or put marks into them.
    left = [redacted(line) for line in file.left.lines] if file.left else []
    right = [redacted(line) for line in file.right.lines] if file.right else []
    rows = rows_html(file.path, left, right, file.hunks, CONTEXT_LINES)
    return f'<h3>{escaped(redacted(file.path))}</h3><div class="code">{rows}</div>'


def _name(folder: str) -> str | None:
    """The variant by the module of its launch config, as the executor recorded it."""
    try:
        info = read_info(folder)
    except StorageError:
        return None
    module = info.config.get("<module>") if info and isinstance(info.config, dict) else None
    parts = module.split(".") if isinstance(module, str) else []
    return parts[2] if parts[:2] == ["experiments", "grug"] and len(parts) > 2 else None


def _base(folder: str) -> Path | None:
    """The base template of the nearest checkout: here, above the run, or where the library is."""
    for start in (Path.cwd(), Path(folder), Path(chomp.__file__).parent):
        try:
            return checkout_root(start) / variant_path(BASE)
        except ConfigError:
            continue
    return None
