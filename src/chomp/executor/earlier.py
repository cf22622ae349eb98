"""Earlier runs of a step's name, and the nearest of them, found quickly among thousands.

A sweep of a thousand steps over a thousand earlier runs is a million comparisons. So each record is
read once for a plan, and compared as one whole number, with a bit for each value that occurs.
"""

import logging
import re
from collections.abc import Hashable, Mapping
from typing import Any

from chomp.config import canonical_json
from chomp.errors import StorageError
from chomp.executor.identity import HASH_DIGITS, Identity
from chomp.executor.status import StepInfo, read_info
from chomp.executor.step import LEAVES
from chomp.storage import is_folder, join, list_folder, name_of, parent_of

_log = logging.getLogger(__name__)


def earlier_runs(name: str, folder: str, stem: str) -> list[tuple[str, StepInfo]]:
    """The runs of a step of that name in `<folder>/<stem>-<hash>`, each with its folder."""
    if not is_folder(folder):
        return []
    # The whole name: results that were moved aside have a longer one.
    pattern = re.compile(re.escape(stem) + rf"-[0-9a-f]{{{HASH_DIGITS}}}")
    siblings = [join(folder, each) for each in list_folder(folder) if pattern.fullmatch(each)]
    found = []
    for sibling in siblings:
        try:
            info = read_info(sibling)
        except StorageError as error:  # of another run: no reason not to begin this one
            _log.warning("passed over among the earlier runs of %s: %s", name, error)
            continue
        if info is not None and info.name == name:
            found.append((sibling, info))
    return found


class EarlierRuns:
    """The nearest earlier runs of many steps. What it has read is not read again."""

    def __init__(self) -> None:
        self._bits: dict[Hashable, int] = {}
        self._found: dict[tuple[str, str], list[tuple[StepInfo, int]]] = {}

    def nearest(self, name: str, identity: Identity, path: str) -> StepInfo | None:
        """The run of that name beside `path` with the fewest changes, of several the latest."""
        place = (name, parent_of(path))
        if place not in self._found:
            runs = earlier_runs(name, place[1], name_of(name))
            self._found[place] = [(info, self._mask(info.values)) for _, info in runs]
        if not self._found[place]:
            return None
        own = self._mask(identity.values)
        # A field that changed has two values of which each side lacks one; a field that one side
        # does not have is missing itself and with its value. Two bits for each, either way.
        ranked = ((own ^ mask).bit_count() for _, mask in self._found[place])
        started = (-info.started for info, _ in self._found[place])
        best = min(zip(ranked, started, range(len(self._found[place])), strict=True))
        return self._found[place][best[2]][0]

    def _mask(self, values: Mapping[str, Any]) -> int:
        """Identity values as bits: one for each field that there is, one for each value it has."""
        mask = 0
        for field, value in values.items():
            # With its type: in Python true equals 1, and 1 equals 1.0.
            known = value if isinstance(value, LEAVES) else canonical_json(value)
            for thing in (field, (field, type(value), known)):
                mask |= 1 << self._bits.setdefault(thing, len(self._bits))
        return mask
