"""Whether results are a run's own: only those go into its record, under the loop's names.

Numbers of another template, another kernel or a part of the questions would look there like a
change of the model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from chomp.cli.opened_run import OpenedRun

if TYPE_CHECKING:  # for annotations alone
    from chomp.checkpoint import StepFolder
    from chomp.training import HarnessConfig

_INDEX = re.compile(r"(\.\d+)+$")  # of an item in a list
_STORE = "data.components.*.validation_store"
# Fields of a harness config that say when and how fast, and nothing about the numbers.
_NOT_NUMBERS = frozenset({"every", "batch_size", "allow_code"})


def differences(
    run: OpenedRun,
    found: StepFolder,
    sections: Sequence[str],
    known_stores: Mapping[str, bool] | None = None,
) -> list[str]:
    """What makes the numbers others than the run's, in a few words each; none: they are its own.

    `sections` are those of the config on which these numbers depend. A store that is somewhere
    else by now and is known to hold what it held is the run's own.
    """
    known = known_stores or {}
    told = [] if run.has_template_of(found) else ["another template"]
    for path in run.changed:
        is_moved = fnmatchcase(path, _STORE) and known.get(_component(path), False)
        if path.split(".")[0] in sections and not is_moved:
            told.append(f"{_INDEX.sub('', path)} is changed")
    for item in run.changes_since(found):
        # Any store of data that is known is told of below.
        is_known = fnmatchcase(item.path, _STORE) and _component(item.path) in known
        is_other = item.mark == "identity" or item.path.split(".")[0] in sections
        if is_other and item.path not in run.changed and not is_known:
            told.append(f"{_INDEX.sub('', item.path)} is not as the checkpoint was saved with")
    told = list(dict.fromkeys(told))  # two items of a list are one field
    return [*told, *(f"other data in {name}" for name, is_same in known.items() if not is_same)]


def harness_differences(run: OpenedRun, at: StepFolder, config: HarnessConfig) -> list[str]:
    """Likewise for lm-eval tasks: what is asked otherwise than in the loop.

    A run that asks nothing in its loop has no numbers of its own to be confused with, except by
    those of a part of a task's questions.
    """
    found = differences(run, at, ("model",))
    own = None if run.config.eval is None else run.config.eval.harness
    if own is None or {"eval", "eval.harness"} & run.changed.keys():
        return [*found, *([] if config.limit is None else [f"limit={config.limit}"])]
    changed = {path.split(".")[2] for path in run.changed if "harness." in path}
    asked, of_run = vars(config), vars(own)
    other = {name for name in asked if asked[name] != of_run[name]}
    return [*found, *(f"another {name}" for name in sorted((changed | other) - _NOT_NUMBERS))]


def what_is_asked(harness: Mapping[str, object]) -> dict[str, object]:
    """The fields of a harness config, as plain values, on which the numbers depend."""
    return {name: value for name, value in harness.items() if name not in _NOT_NUMBERS}


def _component(path: str) -> str:
    """The NAME of data.components.NAME.validation_store; one with a dot in it is quoted there."""
    return path.removeprefix("data.components.").removesuffix(".validation_store").strip("'\"")
