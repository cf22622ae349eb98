"""The page of one or several runs as one HTML file that needs nothing else, not even a network.

The charts' library, the style and the scripts are put into the page, and the numbers as JSON. Its
security policy lets those scripts run and nothing be loaded: whatever a run's name, its samples or
its settings hold, they are shown and cannot act. What a payload holds: page_source/README.md.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from chomp.variants.diff_page import diff_style

# Tells a page of ours from somebody's, which must not be written over.
GENERATOR = "chomp report"
PAYLOAD_VERSION = 1
UPLOT_VERSION = "1.6.32"

# One scope, in this order: a script uses at once only what stands above it.
SCRIPTS = (
    "data",
    "words",
    "elements",
    "view",
    "lines",
    "marks",
    "hover",
    "chart",
    "table",
    "head",
    "run_sections",
    "loss",
    "eval",
    "text_sections",
    "controls",
)


def render(payload: Mapping[str, Any]) -> str:
    """The whole page of a payload, as `chomp.report.payload.page_payload` makes it.

    A number that is not finite is a `ValueError`: JSON has none, and a browser would refuse all.
    """
    assert payload["version"] == PAYLOAD_VERSION, payload["version"]
    library, script = _source("vendor/uPlot.iife.min.js"), _script()
    policy = f"script-src {_digest(library)} {_digest(script)}"
    parts = {
        "policy": f"default-src 'none'; style-src 'unsafe-inline'; {policy}",
        "generator": GENERATOR,
        "title": html.escape(_title(payload)),
        "library_style": _source("vendor/uPlot.min.css"),
        "style": _source("page_source/style.css"),
        "diff_style": _diff_style(),
        "payload": _embedded(payload),
        "library": library,
        "script": script,
    }
    # Not `str.format`, which would read the braces of the parts' own text.
    page = re.sub(r"@(\w+)@", lambda place: parts[place[1]], _source("page_source/shell.html"))
    # A record's texts may have half of a surrogate pair, which no file can hold.
    return page.encode(errors="replace").decode()


def _source(name: str) -> str:
    return files("chomp.report").joinpath(name).read_text(encoding="utf-8")


def _script() -> str:
    """All scripts in a scope of their own."""
    bodies = "\n".join(_source(f"page_source/{name}.js") for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{bodies}}})();\n'


def _digest(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _title(payload: Mapping[str, Any]) -> str:
    names = [run["name"] for run in payload["runs"]]
    return names[0] if len(names) == 1 else f"{len(names)} runs: {', '.join(names[:4])}"


def _embedded(payload: Mapping[str, Any]) -> str:
    """JSON that no text in it can end: without `<` there is neither `</script>` nor `<!--`."""
    text = json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _diff_style() -> str:
    """The style of a page of differences, for a shadow tree, whose root is its host."""
    root = re.compile(r":root(\[[^\]]*\])?")
    return root.sub(lambda found: f":host({found[1]})" if found[1] else ":host", diff_style())
