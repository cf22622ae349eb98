"""The page of one or several runs: its JSON (the runs, the metrics they share), drawn as one file.

The file needs nothing else, not even a network: the charts' library, the style and the scripts are
put into it, and the numbers as JSON. Its security policy lets those scripts run and nothing be
loaded: whatever a run's name, its samples or its settings hold, they are shown and cannot act. What
the JSON holds: page_source/README.md. Another program's page is never overwritten.
"""

import html
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import chomp
from chomp.errors import require
from chomp.report.record import read_record
from chomp.report.run_facts import COLUMNS
from chomp.report.run_payload import run_payload
from chomp.storage import join, make_folder, read_bytes, write_text_atomic
from chomp.storage.files import require_inside
from chomp.tracking import metric_of, metrics
from chomp.tracking.run_files import AVERAGED, REPORT
from chomp.variants.diff_page import diff_style, security_policy

# Tells a page of ours from somebody's, which must not be written over.
GENERATOR = "chomp report"
PAYLOAD_VERSION = 1
UPLOT_VERSION = "1.6.32"

# One scope, in this order: a script uses at once only what stands above it.
SCRIPTS = (
    *("data", "words", "elements", "view", "marks", "hover", "chart", "head"),
    *("run_sections", "loss", "eval", "text_sections", "controls"),
)
_OF_EVAL, _OF_EMA = "eval/", "eval/ema/"
# What a difference between curves should not be blamed on, and where a config says it.
_MUST_AGREE = {
    "data": ("data.",),
    "seeds": ("trainer.seed", "trainer.data_seed"),
    "batches": ("trainer.batch_size", "trainer.grad_accum", "trainer.seq_len"),
    "evaluations": ("eval.",),
}
# Beneath those: when and under which name is evaluated changes no number, and tokenizers are told
# of in words of their own.
_MAY_DIFFER = ("data.tokenizer.", "eval.steps_per_eval", "eval.prefix", "eval.harness")
PAGE = "index.html"
# The mark of a page stands in its head.
_HEAD_BYTES = 4000


def page_payload(
    runs: Sequence[Mapping[str, Any]],
    *,
    against: tuple[str, Mapping[str, str]] | None = None,
    made_at: datetime | None = None,
) -> dict[str, Any]:
    """The page of `runs`, each from `run_payload`, and of their configs against one more.

    `against` is the name and the config's leaves of a run that is compared with and not drawn.
    """
    # An id for each run, and the end of its folder's path in a name that several have.
    names = Counter(run["name"] for run in runs)
    named = []
    for index, run in enumerate(runs):
        name = run["name"]
        if names[name] > 1:
            same = [f"/{other['folder']}" for other in runs if other["name"] == name]
            parts = run["folder"].split("/")
            ends = ("/".join(parts[-count:]) for count in range(1, len(parts)))
            only = (end for end in ends if sum(path.endswith(f"/{end}") for path in same) == 1)
            name = f"{name} ({next(only, run['folder'])})"
        named.append({**run, "id": f"run-{index}", "name": name})
    shown = _once_each_template(named)
    described = {}
    for name in dict.fromkeys(name for run in shown for name in run["series"]):
        # Metrics of the averaged weights have the units of the others.
        plain = name.replace(_OF_EMA, _OF_EVAL, 1)
        metric = metric_of(plain)
        meaning = "" if metric is None else metric.description
        described[name] = {
            "unit": (metric and metric.unit) or None,
            "meaning": meaning if plain == name else f"{meaning}, of the averaged weights",
        }
    return {
        "version": PAYLOAD_VERSION,
        "made_at": f"{(made_at or datetime.now(UTC)).astimezone(UTC):%Y-%m-%d %H:%M} UTC",
        "chomp_version": chomp.__version__,
        "notes": notes(shown),
        "metrics": described,
        "columns": [
            {"key": key, "label": label, "better": better}
            for key, label, better in COLUMNS
            if any(run["numbers"].get(key) is not None for run in shown)
        ],
        "runs": shown,
        "config_difference": _config_difference(shown, against),
    }


def notes(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is easily overlooked when runs are put side by side, in sentences."""
    if len(runs) < 2:
        return []
    found = []
    steps = {run["name"]: run["numbers"]["steps"] or 0 for run in runs}
    if len(set(steps.values())) > 1:
        told = ", ".join(f"{name} {count:,.0f}" for name, count in steps.items())
        found.append(f"The runs are of different lengths: {told} steps.")
    configs = [dict(run["config"]) for run in runs]
    for what, prefixes in _MUST_AGREE.items():
        fields = [key for key in _differing(configs, prefixes) if not key.startswith(_MAY_DIFFER)]
        if fields:
            found.append(f"The runs have different {what} ({', '.join(fields[:4])}).")
    if _differing(configs, ("data.tokenizer.",)):
        found.append(
            "The runs have different tokenizers, so a token is not the same in all of them: "
            "compare bits per byte, not losses."
        )
    without = [run for run in runs if run["numbers"].get(metrics.EVAL_LOSS) is None]
    if len(without) < len(runs):
        never = ", ".join(run["name"] for run in without if not run["eval_tags"])
        odd = ", ".join(run["name"] for run in without if run["eval_tags"])
        found += [f"Not evaluated: {never}."] if never else []
        found += [f"Evaluated, with a loss that is not finite: {odd}."] if odd else []
    averaged = [run["name"] for run in runs if dict(run["facts"]).get("evaluated") == AVERAGED]
    if 0 < len(averaged) < len(runs):
        listed = ", ".join(averaged)
        found.append(f"The evaluations of {listed} are of the averaged weights, the others' not.")
    unknown = [run["name"] for run in runs if not run["config"]]
    if unknown:
        found.append(f"Of {', '.join(unknown)} the config is unknown: it may be anything.")
    devices = {dict(run["environment"]).get("device_kind") for run in runs} - {None}
    if len(devices) > 1:
        found.append(
            f"The runs are of different devices ({', '.join(sorted(map(str, devices)))}): "
            "compare them by steps or tokens, not by time."
        )
    return found


def _differing(configs: Sequence[Mapping[str, str]], prefixes: tuple[str, ...]) -> list[str]:
    """Fields that are not equal in all runs whose config is known."""
    known = [config for config in configs if config]
    keys = dict.fromkeys(key for config in known for key in config if key.startswith(prefixes))

    def content(key: str, value: str | None) -> str | None:
        # A token store is named after its content, wherever it is.
        is_place = value is not None and key.endswith(("_store", "tokenizer.path"))
        return value.rpartition("/")[2] if value is not None and is_place else value

    return [key for key in keys if len({content(key, config.get(key)) for config in known}) > 1]


def _config_difference(
    runs: Sequence[Mapping[str, Any]], against: tuple[str, Mapping[str, str]] | None
) -> dict[str, Any] | None:
    columns = [(str(run["name"]), dict(run["config"])) for run in runs]
    columns += [] if against is None else [(against[0], dict(against[1]))]
    if len(columns) < 2:
        return None
    configs = [config for _, config in columns]
    # Where each run lies is known, and differs always.
    keys = sorted(key for key in set().union(*configs) if key != "output_path")
    rows = [{"key": key, "values": [config.get(key) for config in configs]} for key in keys]
    differing = [row for row in rows if len(set(row["values"])) > 1]
    return {"names": [name for name, _ in columns], "rows": differing}


def _once_each_template(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs, of which the lines of one template are only in the first that has them."""
    first: dict[str, str] = {}
    shown = []
    for run in runs:
        template = run["template"]
        html = template and template["html"]
        if html and html in first:
            note = f"{template['note']}; the lines are with {first[html]}"
            run = {**run, "template": {**template, "html": None, "note": note}}
        elif html:
            first[html] = run["name"]
        shown.append(run)
    return shown


def page_of_run(folder: str) -> str:
    """Where the page of one run is, unless somebody asked for another place."""
    return join(folder, REPORT, PAGE)


def write_run_page(folder: str) -> str:
    """The path of the run's own page, once it is drawn from the folder as it is now."""
    require_inside(join(folder, REPORT), folder)
    runs = [run_payload(read_record(folder))]
    return write_page(page_payload(runs), Path(folder, REPORT))


def remove_run_page(folder: str) -> None:
    """Remove the run's own page, if it has one, before the run goes on; never somebody else's."""
    page = Path(page_of_run(folder))
    if _is_ours(page):
        page.unlink(missing_ok=True)


def write_page(payload: dict[str, Any], out: Path) -> str:
    """The page's path, once it is in `out`, which is made. An earlier page there is replaced."""
    require_free(out)
    make_folder(out)
    write_text_atomic(out / PAGE, render(payload))
    return str(out / PAGE)


def require_free(out: Path) -> None:
    """Raise `ConfigError` if `out` holds a page that is not one of these."""
    page = out / PAGE
    require(
        not page.exists() or _is_ours(page),
        f"{page} exists and was not written by this program",
        allowed="a new folder, or one with an earlier page of runs",
        fix="choose another folder with --out, or remove that page",
    )


def _is_ours(page: Path) -> bool:
    """Whether there is a page, and it is one of this program."""
    mark = f'content="{GENERATOR}"'.encode()
    return page.is_file() and mark in read_bytes(page)[:_HEAD_BYTES]


# --- Drawing --------------------------------------------------------------------------------------


def render(payload: Mapping[str, Any]) -> str:
    """The whole page of a payload, as `page_payload` makes it.

    A number that is not finite is a `ValueError`: JSON has none, and a browser would refuse all.
    """
    assert payload["version"] == PAYLOAD_VERSION, payload["version"]
    library = _source("vendor/uPlot.iife.min.js")
    # All scripts in a scope of their own.
    bodies = "\n".join(_source(f"page_source/{name}.js") for name in SCRIPTS)
    script = f'"use strict";\n(() => {{\n{bodies}}})();\n'
    names = [run["name"] for run in payload["runs"]]
    title = names[0] if len(names) == 1 else f"{len(names)} runs: {', '.join(names[:4])}"
    # The style of a diff is for a shadow tree, whose root is its host.
    diff = re.sub(
        r":root(\[[^\]]*\])?",
        lambda found: f":host({found[1]})" if found[1] else ":host",
        diff_style(),
    )
    data = json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    parts = {
        "policy": security_policy(library, script),
        "generator": GENERATOR,
        "title": html.escape(title),
        "library_style": _source("vendor/uPlot.min.css"),
        "style": _source("page_source/style.css"),
        "diff_style": diff,
        # JSON that no text in it can end: without `<` there is neither `</script>` nor `<!--`.
        "payload": data.replace("<", "\\u003c"),
        "library": library,
        "script": script,
    }
    # Not `str.format`, which would read the braces of the parts' own text.
    page = re.sub(r"@(\w+)@", lambda place: parts[place[1]], _source("page_source/shell.html"))
    # A record's texts may have half of a surrogate pair, which no file can hold.
    return page.encode(errors="replace").decode()


def _source(name: str) -> str:
    return files("chomp.report").joinpath(name).read_text(encoding="utf-8")
