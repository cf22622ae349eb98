"""`chomp checkpoint list`, `verify`, `diff` and `export`: saved states, looked at from outside."""

import time
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import jax
from rich.filesize import decimal

from chomp.checkpoint import (
    DamagedCheckpoint,
    StepFolder,
    place_of,
    read_step_folder,
    require_checkpoints_at,
)
from chomp.checkpoint.arrays import array_bytes
from chomp.checkpoint.export import export_weights, weight_bytes
from chomp.checkpoint.format import (
    Unreadable,
    checkpoints_at,
    is_gone,
    leftovers,
    moved_aside,
    open_checkpoint,
    problem_with_files,
)
from chomp.checkpoint.inspect import (
    ArrayDifference,
    array_differences,
    bytes_to_compare,
    problems_of,
)
from chomp.cli.commands import (
    CheckpointDiff,
    CheckpointExport,
    CheckpointList,
    CheckpointVerify,
)
from chomp.cli.output import byte_bar, cell_text, print_json, print_rows, say, shorten
from chomp.cli.templates import require_same_template
from chomp.config import config_difference
from chomp.errors import CheckpointError, StorageError
from chomp.storage import folder_size_bytes, is_folder, join, name_of
from chomp.tracking.run_files import TEMPLATE, sources_hash, template_sources

Row = dict[str, Any]

_LOOKS = 3  # a run deletes one checkpoint at a time, and minutes pass until the next
_PROBLEMS_SHOWN = 20
_HASH_CHARACTERS = 12
_WITHOUT_YEAR_S = 180 * 86_400
_AGES = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
# Where in training a checkpoint is, and of what.
_FACTS = (
    *("run_id", "step", "tokens_seen", "attempt", "skipped_steps"),
    *("data_fingerprint", "tokenizer_hash", "mesh"),
)
_KINDS = {"only before": "only in A", "only after": "only in B", "equal": "equal"}


# --- list ---------------------------------------------------------------------------------------


def list_checkpoints(asked: CheckpointList) -> int:
    """Print a line for each checkpoint, oldest first, then for what is no checkpoint any more."""
    place = place_of(asked.place)
    rows: list[Row] = []
    others: list[tuple[str, str]] = []
    for item in reversed(checkpoints_at(place)):
        if isinstance(item, StepFolder):
            metadata, problem = item.metadata, problem_with_files(item)
            rows.append(
                {
                    "step": str(metadata.step),
                    "kind": "temporary" if metadata.is_temporary else "permanent",
                    "saved": metadata.time,
                    "size": metadata.state_bytes,
                    "attempt": metadata.attempt,
                    "tokens": metadata.tokens_seen,
                    "from": _origin(item),
                    "state": "complete" if problem is None else f"damaged: {problem}",
                }
            )
        else:
            rows.append(_incomplete(item.path, f"unreadable: {item.reason}"))
    if place.step is None:
        others += [(each, "moved aside") for each in moved_aside(place.folder)]
        others += [(each, "unfinished") for each in leftovers(place.folder)]
    rows += [_incomplete(path, state) for path, state in others]
    if asked.as_json:
        print_json(rows)
        return 0
    say(place.folder)
    if rows:
        print_rows([_shown(row) for row in rows], right=("size", "attempt", "tokens"))
    else:
        say("no checkpoints yet")
    return 0


def _origin(found: StepFolder) -> str:
    """What the run went on from: nothing, a step of its own, or another run's."""
    before = found.metadata.continues
    if before is None:
        return ""
    weights_from = before.get("initialize_from")  # later attempts hand it on
    if weights_from is not None and weights_from == before.get("path", weights_from):
        return f"weights of {weights_from}"
    is_own = before.get("run_id") == found.metadata.run_id
    return f"step {before.get('step')}" if is_own else str(before.get("path"))


def _incomplete(path: str, state: str) -> Row:
    try:
        size = folder_size_bytes(path)
    except StorageError:  # no folder, or the run has just removed it
        size = None
    empty = dict.fromkeys(("kind", "saved", "size", "attempt", "tokens", "from"))
    return {"step": name_of(path).removeprefix("step-"), **empty, "size": size, "state": state}


def _shown(row: Row) -> Row:
    """A row as texts that fit into a terminal."""
    shown = {name: "" if value is None else str(value) for name, value in row.items()}
    if row["size"] is not None:
        shown["size"] = decimal(row["size"])
    if row["saved"] is not None:
        age = time.time() - row["saved"]
        # The year instead of the time, as `ls` does.
        form = "%b %d %H:%M" if age < _WITHOUT_YEAR_S else "%b %d  %Y"
        units = (f"{age // length:.0f} {unit}" for length, unit in _AGES if age >= length)
        shown["saved"] = f"{datetime.fromtimestamp(row['saved']):{form}} ({next(units, 'now')})"
    tokens = row["tokens"]
    if tokens is not None:
        shown["tokens"] = f"{tokens:,}"
        if tokens >= 1e7:
            shown["tokens"] = f"{tokens / 1e6:,.1f}M" if tokens < 1e10 else f"{tokens / 1e9:,.1f}B"
    return shown


# --- verify -------------------------------------------------------------------------------------


def verify_checkpoints(asked: CheckpointVerify) -> int:
    """Print a verdict for each checkpoint; `CheckpointError` at the end if any is damaged."""
    _use_the_cpu()
    for _ in range(_LOOKS):
        newest_first = require_checkpoints_at(place_of(asked.place))
        found = newest_first[::-1] if asked.every else newest_first[:1]
        verdicts = {item.path: _verify(item) for item in found}
        if set(verdicts.values()) != {"gone"}:
            break
    else:
        raise CheckpointError(
            f"all of {', '.join(verdicts)} were deleted while they were read",
            allowed="a place whose checkpoints stay",
            fix="name a step-N that its run keeps, or wait until that run has ended",
        )
    damaged = [path for path, verdict in verdicts.items() if verdict == "damaged"]
    if damaged:
        raise CheckpointError(
            f"{len(damaged)} of {len(found)} checkpoints damaged: {', '.join(damaged)}",
            allowed="checkpoints that are as they were saved",
            fix="bring back a copy; a run that is continued passes damaged ones over and goes on "
            "from the newest whole one",
        )
    return 0


def _verify(item: StepFolder | Unreadable) -> Literal["whole", "damaged", "gone"]:
    """Print the verdict on one checkpoint."""
    began, contents = time.monotonic(), ""
    if isinstance(item, Unreadable):
        problems = [item.reason]
    else:
        names = item.metadata.arrays
        try:
            total = sum(array_bytes(item, name) for name in names)
            contents = f"{len(names)} arrays, {decimal(total)}"
            with byte_bar(f"step {item.metadata.step}", total) as on_bytes:
                problems = problems_of(item, on_bytes=on_bytes)
        except DamagedCheckpoint as error:  # so much that nothing could be read
            problems = [error.reason]
    if not problems:
        say(f"whole: {item.path}, {contents}, {time.monotonic() - began:.1f} s")
        return "whole"
    if is_gone(item.path):
        say(f"gone: {item.path}, deleted since it was listed, as a run does that saves")
        return "gone"
    say(f"damaged: {item.path}", style="red")
    for problem in problems[:_PROBLEMS_SHOWN]:
        say(f"  {problem}")
    if len(problems) > _PROBLEMS_SHOWN:
        say(f"  and {len(problems) - _PROBLEMS_SHOWN} more")
    return "damaged"


# --- diff ---------------------------------------------------------------------------------------


def diff_checkpoints(asked: CheckpointDiff) -> int:
    """Print a summary, then metadata, config and arrays that differ; 0 whether any do or not."""
    _use_the_cpu()
    sides = _chosen(asked.before), _chosen(asked.after)
    with byte_bar("comparing", bytes_to_compare(*sides)) as on_bytes:
        arrays = array_differences(*sides, on_bytes=on_bytes)
    one, other = (found.metadata for found in sides)
    facts: list[Row] = [
        {"metadata": name, "A": getattr(one, name), "B": getattr(other, name)}
        for name in _FACTS
        if getattr(one, name) != getattr(other, name)
    ]
    settings = config_difference(one.config, other.config)
    shown = [item for item in arrays if asked.every or item.kind != "equal"]
    if asked.as_json:
        print_json(
            {
                "A": sides[0].path,
                "B": sides[1].path,
                "metadata": facts,
                "config": [asdict(item) for item in settings],
                "arrays": [asdict(item) for item in shown],
            }
        )
        return 0
    for side, found in zip("AB", sides, strict=True):
        say(f"{side}: {found.path}")
    num_equal = sum(item.kind == "equal" for item in arrays)
    texts = [f"{num_equal} of {len(arrays)} arrays are equal"]
    floats = [item for item in arrays if item.kind == "other values" and item.is_float]
    if floats:  # they come sorted
        texts.append(f"the largest change is {floats[0].relative:.2g} in {floats[0].name}")
    texts.append(f"config fields that differ: {len(settings) or 'none'}")
    say("; ".join(texts))
    for row in facts:
        is_hash = row["metadata"].endswith(("_hash", "_fingerprint"))
        row |= {k: str(row[k])[:_HASH_CHARACTERS] if is_hash else cell_text(row[k]) for k in "AB"}
    changes: list[Row] = [
        {"config": item.path, "A": shorten(repr(item.before)), "B": shorten(repr(item.after))}
        for item in settings
    ]
    for rows in filter(None, (facts, changes, [_array_row(item) for item in shown])):
        print_rows(rows, right=("differing", "max abs", "relative"))
    return 0


def _array_row(item: ArrayDifference) -> Row:
    texts = dict.fromkeys([item.before or item.after, item.after or item.before])
    row = {"array": item.name, "dtype and shape": " -> ".join(map(str, texts))}
    if item.kind != "other values":
        return {**row, "differing": _KINDS.get(item.kind, ""), "max abs": "", "relative": ""}
    return {
        **row,
        "differing": f"{item.num_different:,} of {item.num_elements:,}",
        "max abs": f"{item.max_abs:.3g}",
        # How far a counter or a random key moved, relative to what it was, says nothing.
        "relative": f"{item.relative:.3g}" if item.is_float else "",
    }


# --- export -------------------------------------------------------------------------------------


def export_checkpoint(asked: CheckpointExport) -> int:
    """Write the folder and say what is in it, and what is not."""
    path, weights = asked.place, asked.weights
    _use_the_cpu()
    found, run = _chosen(path), place_of(path).run
    # The config is the checkpoint's own; the template is copied from the run folder.
    if run is not None and is_folder(join(run, TEMPLATE)):
        digest = sources_hash(template_sources(join(run, TEMPLATE)))
        require_same_template(
            digest,
            Path(run, TEMPLATE),
            saved=found.metadata.template_hash,
            checkpoint=found.path,
            allows_changed=asked.allow_changed,
        )
    with byte_bar("exporting", weight_bytes(found, weights)) as on_bytes:
        made = export_weights(
            found, asked.out, run=run, weights=weights, dtype=asked.dtype, on_bytes=on_bytes
        )
    say(
        f"{made.path}: {made.num_arrays} arrays, {decimal(made.num_bytes)}, "
        f"{weights} of step {found.metadata.step}"
    )
    for name in made.missing:
        where = f"{run} has none" if run else f"{found.path} is in no run folder"
        say(f"without {name}/: {where}")
    return 0


def _chosen(path: str) -> StepFolder:
    """The checkpoint that a path names, or the newest of its folder; it must be readable."""
    for _ in range(_LOOKS):
        # The newest is never passed over, even if it cannot be read.
        newest = open_checkpoint(require_checkpoints_at(place_of(path))[0].path)
        if not is_gone(newest.path):
            break
    return read_step_folder(newest.path)


def _use_the_cpu() -> None:
    """Let this process leave accelerators alone: a run may be training on them meanwhile."""
    jax.config.update("jax_platforms", "cpu")
