"""One run as a page's JSON holds it: curves, times, evaluations, texts, config.

Its form is described with the page that reads it, in page_source/README.md. All texts are without
secrets: a page is made to be sent to somebody. Large records are read by several processes: parsing
text is Python's work, which threads cannot share.
"""

import contextlib
import os
import shlex
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import chomp
from chomp.errors import ConfigError, StorageError
from chomp.executor.status import read_info
from chomp.report import run_facts
from chomp.report.columns import LARGEST, packed_steps, packed_values
from chomp.report.curves import Curve, bucket_means, downsampled, spikes, straight_pieces
from chomp.report.evaluations import eval_tags, mixture
from chomp.report.record import RunRecord, Series, read_record
from chomp.report.run_facts import run_state
from chomp.report.timeline import axes, counted, resumes, waterfall
from chomp.storage import exists, file_info, is_folder, is_local, join, name_of, read_text
from chomp.storage.files import MAX_TEXT_BYTES
from chomp.tokenize.worker import available_cores
from chomp.tracking import metrics, redacted, without_secrets
from chomp.tracking.run_files import (
    SAMPLE_MARK,
    TEMPLATE,
    eval_prefix_in,
    is_relative,
    path_above,
    record_of,
    samples_in,
    section_in,
)
from chomp.variants.checkout import BASE, checkout_root, variant_path
from chomp.variants.diff import FileChange, FolderChanges, folder_changes
from chomp.variants.diff_page import CONTEXT_LINES, escaped, rows_html
from chomp.variants.lifecycle import Renaming, lines_beyond_renaming

# A page of under 5 MB holds about this many points: one takes 11 characters, its bucket's mean half
# as much again. They are shared evenly by the runs of a page, and within a run by weight.
PAGE_POINTS = 220_000
# More than this no chart can show: it is three to a pixel of a wide window.
MAX_POINTS = 4000
MIN_POINTS = 100
_WEIGHTS = {metrics.TRAIN_LOSS: 4.0, metrics.GRAD_NORM: 2.0, metrics.LEARNING_RATE: 2.0}
# What a schedule or a counter made is of straight pieces: the corners and a few rows in between are
# all there is to see of it, as of what never changes. What was measured may look so for a while,
# but each of its rows is news.
_DRAWN_BY_CORNERS = (metrics.LEARNING_RATE, metrics.TOTAL_TOKENS, metrics.TOTAL_GFLOPS, "mixture/")
_MAX_CORNERS = 40
_MAX_NAMED = 5  # metrics, in one sentence
# Below that, one process is done before a second has started: half a second, or 80 MB of lines.
_WORTH_A_PROCESS_BYTES = 80_000_000

_GROUPS = (
    ("loss", ("train/loss",)),
    ("optim", ("optim/", "grad/", "params/", "updates/", "opt_state/", "train/skipped_steps")),
    ("data", ("mixture/", "data/", "packing_", "tokens_seen")),
    ("speed", ("throughput/", "tokens_per_sec", "first_step_compile", "checkpoint/")),
    ("memory", ("memory/", "peak_memory")),
)
# A page is for looking: more texts, or longer ones, are in the folder. Of each prompt and of each
# continuation so many characters.
MAX_SAMPLES = 40
MAX_SAMPLE_CHARACTERS = 4000
# Of the lines of one template on a page; a variant that changes everything has 300 kB.
MAX_DIFF_CHARACTERS = 600_000


def run_payload(record: RunRecord, *, points: int = PAGE_POINTS) -> dict[str, Any]:
    """The run's part of a page; `points` are what all of its curves may take together.

    Without `id` and `profile`, which the page as a whole gives it.
    """
    all_series = {name: record.series(name) for name in record.names}
    losses = all_series.get(metrics.TRAIN_LOSS, record.series(metrics.TRAIN_LOSS))
    template = template_part(record.folder)
    cells = run_facts.numbers(record)
    where = _where_command(record)
    written, unread = samples(record.folder)
    first = record.attempts[0].first_step if record.attempts else None
    begun_before = (
        [f"the record begins at step {first:,}: nothing is known of those before"] if first else []
    )
    prefix = eval_prefix_in(record.config)
    series: dict[str, Any] = {}
    for name, curve in _curves(all_series, points).items():
        groups = (group for group, starts in _GROUPS if name.startswith(starts))
        is_eval = name.startswith((f"{prefix}/", "lm_eval/"))
        series[name] = {"group": "eval" if is_eval else next(groups, "other"), **curve}
    texts = {
        "name": record.name,
        "folder": record.folder,
        "state": run_state(record),
        "outcome": record.attempts[-1].outcome if record.attempts else None,
        "problems": [
            *record.problems,
            *begun_before,
            *_nonfinite(losses),
            *_beyond(all_series),
            *unread,
        ],
        "facts": run_facts.facts(record, cells, template.name),
        "eval_tags": eval_tags(record),
        "mixture": mixture(record),
        "where_command": where,
        "samples": written,
        "config": list(run_facts.config_leaves(record.config).items()),
        "environment": run_facts.environment(record),
        "resumes": resumes(record),
        "spikes": _spikes(losses, where),
    }
    others = {
        "template": template.content,  # HTML in part, made of texts without secrets
        "numbers": cells,
        "axes": axes(record),
        "series": {name: series[name] for name in all_series},
        "waterfall": waterfall(record),
        "ceiling": run_facts.ceiling(record),
        "profile": None,
    }
    return {**without_secrets(texts), **others}


def run_payloads(
    folders: Sequence[str],
    *,
    points: int = PAGE_POINTS,
    on_read: Callable[[str], None] | None = None,
    processes: int | None = None,
) -> list[dict[str, Any]]:
    """The part of each run for a page they share, in the order given.

    `on_read` is called with each folder when it is read. `processes`: by default as many as pay, 0
    for none beside this one. A folder that is no run is a `ConfigError`.
    """
    share = points // max(1, len(folders))
    on_read = on_read or (lambda _: None)
    if processes is None:
        processes = num_processes(total_bytes(folders), len(folders), available_cores())
    if not processes:
        found = []
        for folder in folders:
            found.append(_read_payload(folder, share))
            on_read(folder)
        return found
    # Spawned: a fork would copy this process, which may hold JAX's threads. Ctrl-C is for the
    # process that writes the page.
    pool = ProcessPoolExecutor(
        processes, get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN)
    )
    try:
        reads = {pool.submit(_read_payload, folder, share): folder for folder in folders}
        for read in as_completed(reads):
            read.result()  # raises what went wrong
            on_read(reads[read])
        return [read.result() for read in reads]
    except BrokenProcessPool as error:
        raise StorageError(
            "a process that reads runs ended without an answer",
            allowed="enough memory for the records: twice the size of each",
            fix="see its output above, or give fewer runs at a time",
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def total_bytes(folders: Sequence[str]) -> int:
    """The size of all records together; a folder that has none yet counts nothing."""
    sizes = 0
    for folder in folders:
        with contextlib.suppress(StorageError):
            path = record_of(folder)
            sizes += file_info(path).size_bytes if exists(path) else 0
    return sizes


def num_processes(num_bytes: int, num_runs: int, cores: int) -> int:
    """How many processes pay for so many bytes of lines in so many runs; 0: this one alone."""
    count = min(cores, num_runs, num_bytes // _WORTH_A_PROCESS_BYTES)
    return count if count > 1 else 0


def _read_payload(folder: str, points: int) -> dict[str, Any]:
    return run_payload(read_record(folder), points=points)


def _curves(all_series: Mapping[str, Series], points: int) -> dict[str, dict[str, Any]]:
    sizes = [series.values.size for series in all_series.values()]
    if sum(sizes) <= points and max(sizes, default=0) <= MAX_POINTS:
        return {name: _whole(series) for name, series in all_series.items()}
    packed, long = {}, {}
    for name, series in all_series.items():
        if series.values.size <= MIN_POINTS:
            packed[name] = _whole(series)
        elif (corners := _corners(name, series)) is not None:
            packed[name] = _thinned(series, corners, MIN_POINTS)
        else:
            long[name] = series
    weight = sum(_WEIGHTS.get(name, 1.0) for name in long)
    for name, series in long.items():
        share = int(points * _WEIGHTS.get(name, 1.0) / weight)
        limit = min(max(share, MIN_POINTS), MAX_POINTS)
        curve = downsampled(series.steps, series.values, limit)
        packed[name] = _thinned(series, curve, limit // 2)
    return packed


def _corners(name: str, series: Series) -> Curve | None:
    """The corners of a curve of straight pieces, with rows in between for whoever points at it.

    None where that would not be all of it.
    """
    is_level = bool(np.all(series.values == series.values[0]))
    if not is_level and not name.startswith(_DRAWN_BY_CORNERS):
        return None
    corners = straight_pieces(series.steps, series.values, _MAX_CORNERS)
    if corners is None:
        return None
    spread = np.linspace(0, series.steps.size - 1, MIN_POINTS).round().astype(np.int64)
    kept = np.union1d(spread, np.searchsorted(series.steps, corners.steps))
    return Curve(series.steps[kept], series.values[kept])


def _whole(series: Series) -> dict[str, Any]:
    return _packed(series, Curve(series.steps, series.values))


def _thinned(series: Series, curve: Curve, buckets: int) -> dict[str, Any]:
    """Some points of a series, with the means of all its rows for a smoothed curve."""
    packed = _packed(series, curve)
    if curve.steps.size == series.steps.size:
        return packed
    means = bucket_means(series.steps, series.values, buckets)
    return {**packed, "mean_step": packed_steps(means.steps), "mean": packed_values(means.values)}


def _packed(series: Series, curve: Curve) -> dict[str, Any]:
    return {
        "step": packed_steps(curve.steps),
        "value": packed_values(curve.values),
        "count": int(series.steps.size),
    }


def _nonfinite(losses: Series) -> list[str]:
    bad = losses.steps[~np.isfinite(losses.values)]
    if not bad.size:
        return []
    steps = counted(bad.size, "logged step", "logged steps")
    first = f": {bad[0]:,}" if bad.size == 1 else f", the first of them {bad[0]:,}"
    return [f"the loss was not finite at {steps}{first}"]


def _beyond(all_series: Mapping[str, Series]) -> list[str]:
    """Which metrics have values that are larger than a page can draw, and the first of each."""
    found = []
    for name, series in all_series.items():
        is_beyond = np.abs(series.values) > LARGEST
        if is_beyond.any():
            at = int(np.argmax(is_beyond))
            steps = counted(int(is_beyond.sum()), "logged step", "logged steps")
            found.append(f"{name} at {steps} ({series.values[at]:g} at step {series.steps[at]:,})")
    if not found:
        return []
    more = f" and {len(found) - _MAX_NAMED:,} more metrics" if len(found) > _MAX_NAMED else ""
    told = f"{', '.join(found[:_MAX_NAMED])}{more}"
    return [f"larger than the {LARGEST:.1e} that it is drawn as: {told}"]


def _where_command(record: RunRecord) -> str | None:
    """How to ask which documents a step was trained on; null for a run that has no config."""
    if record.config is None:
        return None
    # A page is read elsewhere than where it was asked for.
    folder = os.path.abspath(record.folder) if is_local(record.folder) else record.folder
    command = f"chomp data where {shlex.quote(folder)} --step {{step}}"
    return f"cd {shlex.quote(os.getcwd())} && {command}" if _is_only_found_here(record) else command


def _is_only_found_here(record: RunRecord) -> bool:
    """Whether a store of the run is found from here, and would not be found from elsewhere."""
    components = section_in(section_in(record.config, "data"), "components")
    stores = [section_in(components, name).get("train_store") for name in components]
    relative = [store for store in stores if isinstance(store, str) and is_relative(store)]
    return any(exists(path) and path_above(path, record.folder) is None for path in relative)


def _spikes(losses: Series, where: str | None) -> list[dict[str, Any]]:
    values = np.clip(losses.values, -LARGEST, LARGEST)  # as high as the curve is drawn
    return [
        {
            "step": spike.step,
            "value": spike.value,
            "usual": spike.usual,
            # Not `format`: a folder's name may have braces of its own.
            "command": None if where is None else where.replace("{step}", str(spike.step)),
        }
        for spike in spikes(losses.steps, values)
    ]


# --- Texts of the run folder ----------------------------------------------------------------------


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
