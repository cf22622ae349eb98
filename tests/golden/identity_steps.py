"""Steps with every kind of value in their configs, whose identities must never change by accident.

    python -m tests.golden.identity_steps       print them, as `executor_identities.json` has them

A hash that moves makes everybody's results anew, so a change here is a decision.
"""

import json
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from chomp.config import Config, setting
from chomp.executor import (
    ExecutorStep,
    InputName,
    Resources,
    output_path_of,
    plan_steps,
    pseudo_dependency_of,
    this_output_path,
    versioned,
)

IDENTITIES = Path(__file__).with_name("executor_identities.json")


class Colour(Enum):
    """An enum, which counts as its value."""

    RED = "red"


class Level(IntEnum):
    """A number that prints as a name."""

    HIGH = 3


class Pair(NamedTuple):
    """A tuple with names, which counts as a list."""

    first: int
    second: int


@dataclass(frozen=True, kw_only=True)
class Inner(Config):
    """A section with a field of each mark."""

    width: int = 8
    rate: float = setting(default=1e-3, mark="schedule")
    log_every: int = setting(default=10, mark="cosmetic")
    store: str | None = setting(default=None, mark="cosmetic", is_versioned=True)
    load: str | None = setting(default=None, is_versioned=False)
    derived: int = field(init=False, default=5)


def run(config: Any) -> None:
    """What the steps do: nothing."""


def steps(*, is_turned: bool = False) -> list[ExecutorStep]:
    """The steps. `is_turned`: with keys in the other order, and with other unversioned values."""

    def own(name: str, config: dict[str, Any], **settings: Any) -> ExecutorStep:
        loose = {"loose": [1, is_turned], "out": this_output_path("x" if is_turned else None)}
        items = list({**config, **loose}.items())
        return ExecutorStep(name, run, dict(items[::-1] if is_turned else items), **settings)

    asked = Resources(gpus=8) if is_turned else None
    scalars = own(
        "scalars",
        {
            "none": versioned(None),
            "truth": versioned([True, False]),
            "whole": versioned([0, -1, 2**70]),
            "real": versioned([0.1, 1e300, -0.0, 1.0]),
            "text": versioned(["", 'ü "quoted" \n', "\U0001f600"]),
        },
        description="other words" if is_turned else "words",
        resources=asked,
    )
    nested = {"b": {"a.b": [1, {"c": ()}], "": 2}, "a": {}, "7": {7: 1}}
    containers = own(
        "a/containers",
        {
            "mapping": versioned(dict(reversed(nested.items())) if is_turned else nested),
            "pair": versioned(Pair(1, 2)),
            "enums": versioned([Colour.RED, Level.HIGH]),
            "path": versioned(PurePosixPath("data/x")),
        },
    )
    section = own(
        "section",
        {
            "inner": versioned(Inner(log_every=20 if is_turned else 10, load="x" * is_turned)),
            "list": versioned([Inner(width=9), {"deep": Inner(store="here")}]),
        },
    )
    inputs = own(
        "inputs",
        {
            "whole": output_path_of(scalars),
            "part": containers / "sub/folder",
            "marked": versioned({"store": [section / "x"], "own": this_output_path("y")}),
            "cosmetic": versioned(Inner(log_every=output_path_of(scalars, "n"))),
            "not awaited": pseudo_dependency_of(section),
            "raw": InputName.hardcoded("raw/text"),
            "no path": versioned("<prefix>/raw/text"),
        },
    )
    return [scalars, containers, section, inputs, own("nothing versioned", {})]


def identities(*, prefix: str = "nowhere", is_turned: bool = False) -> dict[str, Any]:
    """Hash and values of each step."""
    plan = plan_steps(steps(is_turned=is_turned), prefix=prefix)
    return {
        item.step.name: {"hash": item.identity.hash, "values": item.identity.values}
        for item in plan
    }


def text(found: dict[str, Any]) -> str:
    """The identities as the file has them."""
    return json.dumps(found, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    print(text(identities()), end="")
