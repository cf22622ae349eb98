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
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import chomp
from chomp.errors import ConfigError, StorageError
from chomp.executor.status import read_info
from chomp.report import run_facts
from chomp.report.curves import (
    LARGEST,
    Curve,
    bucket_means,
    downsample,
    pack_steps,
    pack_values,
    spikes,
    straight_pieces,
)
from chomp.report.record import Record, Series, read_record
from chomp.report.timeline import axes, count_text, resumes, waterfall
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
from chomp.variants.diff import folder_changes
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


def run_payload(record: Record, *, points: int = PAGE_POINTS) -> dict[str, Any]:
    """The run's part of a page; `points` are what all of its curves may take together.

    Without `id` and `profile`, which the page as a whole gives it.
    """
    all_series = {name: record.series(name) for name in record.names}
    losses = all_series.get(metrics.TRAIN_LOSS, record.series(metrics.TRAIN_LOSS))
    template_name, template = template_part(record.folder)
    cells = run_facts.numbers(record)
    where = _where_command(record)
    written, unread = samples(record.folder)
    first = record.attempts[0].first_step if record.attempts else None
    begins = f"the record begins at step {first or 0:,}: nothing is known of those before"
    prefix = eval_prefix_in(record.config)
    series: dict[str, Any] = {}
    for name, curve in _curves(all_series, points).items():
        groups = (group for group, starts in _GROUPS if name.startswith(starts))
        is_eval = name.startswith((f"{prefix}/", "lm_eval/"))
        series[name] = {"group": "eval" if is_eval else next(groups, "other"), **curve}
    texts = {
        "name": record.name,
        "folder": record.folder,
        "state": run_facts.run_state(record),
        "outcome": record.attempts[-1].outcome if record.attempts else None,
        "problems": [
            *record.problems,
            *([begins] if first else []),
            *_odd_values(losses, all_series),
            *unread,
        ],
        "facts": run_facts.facts(record, cells, template_name),
        "eval_tags": run_facts.eval_tags(record),
        "mixture": run_facts.mixture(record),
        "where_command": where,
        "samples": written,
        "config": list(run_facts.config_leaves(record.config).items()),
        "environment": run_facts.environment(record),
        "resumes": resumes(record),
        "spikes": [
            {
                "step": spike.step,
                "value": spike.value,
                "usual": spike.usual,
                # Not `format`: a folder's name may have braces of its own.
                "command": where and where.replace("{step}", str(spike.step)),
            }
            # As high as the curve is drawn.
            for spike in spikes(losses.steps, np.clip(losses.values, -LARGEST, LARGEST))
        ],
    }
    others = {
        "template": template,  # HTML in part, made of texts without secrets
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
    """Every series as a page holds it, thinned where all of them would be too much."""
    sizes = [series.values.size for series in all_series.values()]
    is_whole = sum(sizes) <= points and max(sizes, default=0) <= MAX_POINTS
    found, long = {}, {}
    for name, series in all_series.items():
        if is_whole or series.values.size <= MIN_POINTS:
            found[name] = _packed(series, Curve(series.steps, series.values))
        elif (corners := _corners(name, series)) is not None:
            found[name] = _packed(series, corners, MIN_POINTS)
        else:
            long[name] = series
    weight = sum(_WEIGHTS.get(name, 1.0) for name in long)
    for name, series in long.items():
        share = int(points * _WEIGHTS.get(name, 1.0) / weight)
        limit = min(max(share, MIN_POINTS), MAX_POINTS)
        found[name] = _packed(series, downsample(series.steps, series.values, limit), limit // 2)
    return found


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


def _packed(series: Series, curve: Curve, buckets: int = 0) -> dict[str, Any]:
    """The points of a curve; with the means of all rows for a smoothed one, if some are missing."""
    packed = {
        "step": pack_steps(curve.steps),
        "value": pack_values(curve.values),
        "count": int(series.steps.size),
    }
    if curve.steps.size < series.steps.size:
        means = bucket_means(series.steps, series.values, buckets)
        packed |= {"mean_step": pack_steps(means.steps), "mean": pack_values(means.values)}
    return packed


def _odd_values(losses: Series, all_series: Mapping[str, Series]) -> list[str]:
    """Losses that were not finite, and values that are larger than a page can draw, in words."""
    told = []
    bad = losses.steps[~np.isfinite(losses.values)]
    if bad.size:
        steps = count_text(bad.size, "logged step", "logged steps")
        first = f": {bad[0]:,}" if bad.size == 1 else f", the first of them {bad[0]:,}"
        told.append(f"the loss was not finite at {steps}{first}")
    found = []
    for name, series in all_series.items():
        is_beyond = np.abs(series.values) > LARGEST
        if is_beyond.any():
            at = int(np.argmax(is_beyond))
            steps = count_text(int(is_beyond.sum()), "logged step", "logged steps")
            found.append(f"{name} at {steps} ({series.values[at]:g} at step {series.steps[at]:,})")
    if found:
        more = f" and {len(found) - _MAX_NAMED:,} more metrics" if len(found) > _MAX_NAMED else ""
        named = f"{', '.join(found[:_MAX_NAMED])}{more}"
        told.append(f"larger than the {LARGEST:.1e} that it is drawn as: {named}")
    return told


def _where_command(record: Record) -> str | None:
    """How to ask which documents a step was trained on; null for a run that has no config."""
    if record.config is None:
        return None
    # A page is read elsewhere than where it was asked for.
    folder = os.path.abspath(record.folder) if is_local(record.folder) else record.folder
    command = f"chomp data where {shlex.quote(folder)} --step {{step}}"
    components = section_in(section_in(record.config, "data"), "components")
    stores = [section_in(components, name).get("train_store") for name in components]
    relative = [store for store in stores if isinstance(store, str) and is_relative(store)]
    # A store that is found from here, and would not be found from elsewhere.
    if any(exists(path) and path_above(path, record.folder) is None for path in relative):
        return f"cd {shlex.quote(os.getcwd())} && {command}"
    return command


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
            text = read_text(path, max_bytes=MAX_TEXT_BYTES)
        except StorageError:
            problems.append(f"the sample of step {step:,} is left out: {name_of(path)} is no text")
            continue
        prompt, mark, written = text.partition(SAMPLE_MARK)
        prompt, written = (prompt, written) if mark else ("", text)
        # Each is cut where it is furthest from the other.
        prompt, written = prompt[-MAX_SAMPLE_CHARACTERS:], written[:MAX_SAMPLE_CHARACTERS]
        found.append({"step": step, "prompt": prompt, "text": written})
    return found, problems


def template_part(folder: str) -> tuple[str | None, dict[str, Any] | None]:
    """A run's template, without secrets: its name as far as it is known, and its part of the page.

    That tells how the run's own copy differs from the base of a checkout; None without a copy.
    """
    try:
        info = read_info(folder)
    except StorageError:
        info = None
    # The variant by the module of its launch config, as the executor recorded it.
    module = info.config.get("<module>") if info and isinstance(info.config, dict) else None
    parts = module.split(".") if isinstance(module, str) else []
    name = parts[2] if parts[:2] == ["experiments", "grug"] and len(parts) > 2 else None
    copy = join(folder, TEMPLATE)
    if not is_folder(copy):
        return name, None
    against = variant_path(BASE)
    base = None  # of the nearest checkout: here, above the run, or where the library is
    for start in (Path.cwd(), Path(folder), Path(chomp.__file__).parent):
        with contextlib.suppress(ConfigError):
            base = base or checkout_root(start) / against
    content: dict[str, Any] = {
        "name": redacted(name or "unknown"),
        "files": [],
        "against": against,
        "html": None,
        "note": f"no checkout is near, so there is no {against} to compare with",
    }
    if base is None or not is_local(copy):
        return name, content
    changes = folder_changes(base, Path(copy), extensions=(".py",))
    content["files"] = [
        {"path": redacted(file.path), "lines": len(file.right.lines)}
        for file in changes.files
        if file.right
    ]
    if changes.is_empty:
        return name, content | {"note": f"equal to {against} of this checkout"}
    html = ""
    for file in changes.files:
        if file.status != "unchanged" and not file.is_binary:
            # Secrets go before there is HTML, which may write them otherwise or put marks in them.
            left = [redacted(line) for line in file.left.lines] if file.left else []
            right = [redacted(line) for line in file.right.lines] if file.right else []
            rows = rows_html(file.path, left, right, file.hunks, CONTEXT_LINES)
            html += f'<h3>{escaped(redacted(file.path))}</h3><div class="code">{rows}</div>'
    # Counted as the ledger does, where the variant's name is known.
    added, deleted, but = changes.added_lines, changes.deleted_lines, ""
    if name is not None:
        added, deleted = lines_beyond_renaming(changes, Renaming(BASE, name))
        but = ", but for its own name,"
    note = f"+{added:,} -{deleted:,} lines of Python{but} against {against}"
    if len(html) > MAX_DIFF_CHARACTERS:
        note += ": too much for this page; `chomp variant diff` shows all of it"
        return name, content | {"note": note}
    return name, content | {"html": html, "note": note}
