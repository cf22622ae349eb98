"""How a benchmark tells what it found: figures, a table, a committed file, the overview page.

A result is one JSON file per device and benchmark under `benchmarks/results/`; the overview,
`benchmarks/README.md`, is made from those files by `python -m benchmarks.record`.
"""

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import jax
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
README = Path(__file__).parent / "README.md"
_LIBRARIES = (
    "chomp",
    "jax",
    "jaxlib",
    "numpy",
    "optax",
    "equinox",
    "orbax-checkpoint",
    "tensorstore",
    "tokenizers",
    "grain",
    "torch",
)

_INTRODUCTION = """# Benchmarks

Made from the files in `results/` by `python -m benchmarks.record`; do not edit by hand.

Each script measures one claim: `uv run python -m benchmarks.<name> [--quick]`. A ratio is ours over
the peer's, measured in the same run on the same machine. Figures of different days and machines
are not to be compared with each other.
"""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One number, what it should be, and what the peer reached in the same run."""

    name: str
    value: float
    unit: str
    better: Literal["higher", "lower"]
    peer: str | None = None
    peer_value: float | None = None
    goal: float | None = None
    # What the goal is about: our own value, or the ratio to the peer's.
    goal_on: Literal["value", "ratio"] = "value"

    @property
    def ratio(self) -> float | None:
        """Ours over the peer's."""
        return None if self.peer_value is None else self.value / self.peer_value

    @property
    def is_met(self) -> bool | None:
        """Whether the goal is reached; None without a goal."""
        judged = self.value if self.goal_on == "value" else self.ratio
        if self.goal is None or judged is None:
            return None
        return judged >= self.goal if self.better == "higher" else judged <= self.goal

    def to_json(self) -> dict[str, Any]:
        """The figure as a results file holds it."""
        return {**asdict(self), "ratio": self.ratio, "met": self.is_met}


def device_name() -> str:
    """The folder of this machine's results: the accelerator, or the CPU and its core count."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        return f"cpu-{len(os.sched_getaffinity(0))}-cores"
    return device.device_kind.lower().replace(" ", "-")


def record(benchmark: str, figures: list[Figure], *, is_quick: bool) -> None:
    """Print the figures; unless it was a quick run, write them and the overview too."""
    _print(benchmark, figures)
    if is_quick:
        return
    result = {
        "benchmark": benchmark,
        "device": device_name(),
        "versions": _versions(),
        "commit": _commit(),
        "figures": [figure.to_json() for figure in figures],
    }
    path = RESULTS / device_name() / f"{benchmark}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n")
    README.write_text(overview())


def overview() -> str:
    """The text of `benchmarks/README.md`."""
    results = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*/*.json"))]
    judged = [
        (figure, f"{result['benchmark']} on {result['device']}: {figure['name']}")
        for result in results
        for figure in result["figures"]
        if figure["met"] is not None
    ]
    met = sum(figure["met"] for figure, _ in judged)
    parts = [_INTRODUCTION, f"## Goals: {met} of {len(judged)} met\n"]
    # Those that are not met come first.
    for figure, name in sorted(judged, key=lambda each: each[0]["met"]):
        cells = [cell.strip() for cell in _row(figure).strip("| ").split(" | ")]
        value = cells[4] if figure["goal_on"] == "ratio" else cells[1]
        is_met = "met" if figure["met"] else "**not met**"
        parts.append(f"- {is_met}: {name}: {value}, goal {cells[5]}")
    parts.append("")
    for result in results:
        versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
        parts.append(f"## {result['benchmark']} on {result['device']}\n")
        parts.append(f"Commit `{result['commit']}`; {versions}.\n")
        parts.append("| figure | ours | peer | peer's | ratio | goal | met |")
        parts.append("|---|---|---|---|---|---|---|")
        parts += [_row(figure) for figure in result["figures"]]
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def _row(figure: dict[str, Any]) -> str:
    unit = figure["unit"]
    sign = "≥" if figure["better"] == "higher" else "≤"
    goal_unit = "" if figure["goal_on"] == "ratio" else f" {unit}"
    goal = "" if figure["goal"] is None else f"{sign} {figure['goal']:g}{goal_unit}"
    if goal and figure["goal_on"] == "ratio":
        goal += " of the peer's"
    met = {True: "yes", False: "**no**", None: ""}[figure["met"]]
    peer_value = "" if figure["peer_value"] is None else f"{figure['peer_value']:,.4g} {unit}"
    ratio = "" if figure["ratio"] is None else f"{figure['ratio']:.3f}"
    ours = f"{figure['value']:,.4g} {unit}"
    cells = (figure["name"], ours, figure["peer"] or "", peer_value, ratio, goal, met)
    return "| " + " | ".join(cells) + " |"


def _print(benchmark: str, figures: list[Figure]) -> None:
    table = Table("figure", "ours", "peer's", "ratio", "goal", "met", title=benchmark)
    for figure in figures:
        cells = _row(figure.to_json()).strip("| ").split(" | ")
        name, ours, _, peers, ratio, goal, met = (cells + [""] * 7)[:7]
        table.add_row(name, ours, peers, ratio, goal, met.strip("*"))
    Console().print(table)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    git = ["git", "-C", str(Path(__file__).parent)]
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True)
    if head.returncode:
        return "unknown"
    return head.stdout.strip() + (" and uncommitted changes" if changed.stdout.strip() else "")


if __name__ == "__main__":
    README.write_text(overview())
    print(f"wrote {README}")
