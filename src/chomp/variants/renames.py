"""Which removed file an added one was before, by the lines they have in common."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from chomp.variants.file_content import Content

# Half of the lines, as git asks for.
_ALIKE = 0.5
# Beyond this many pairs only files that are equal are found; each pair costs a look at all lines.
_MAX_PAIRS = 10_000


@dataclass(frozen=True)
class Rename:
    """A file that is at another path now; `likeness` is the share of lines that stayed, 0 to 1."""

    left: str
    right: str
    likeness: float


def renames(removed: Mapping[str, Content], added: Mapping[str, Content]) -> list[Rename]:
    """Pairs of a removed and an added file that are at least half alike, each file at most once.

    The most alike are taken first, then by name. Empty files are alike to nothing.
    """
    is_many = len(removed) * len(added) > _MAX_PAIRS
    old = {name: _Fingerprint(content) for name, content in removed.items() if content.data}
    new = {name: _Fingerprint(content) for name, content in added.items() if content.data}
    found = []
    for left, before in old.items():
        for right, after in new.items():
            likeness = before.equality(after) if is_many else before.likeness(after)
            if likeness >= _ALIKE:
                found.append(Rename(left, right, likeness))
    taken: set[str] = set()  # no path is both removed and added
    chosen = []
    for pair in sorted(found, key=lambda pair: (-pair.likeness, pair.left, pair.right)):
        if not taken & {pair.left, pair.right}:
            taken |= {pair.left, pair.right}
            chosen.append(pair)
    return chosen


class _Fingerprint:
    """What files are compared by."""

    def __init__(self, content: Content) -> None:
        self._data = content.data
        # Without indentation and blank lines, which say little of where a file came from.
        self._lines = Counter(line.strip() for line in content.lines if line.strip())
        self._num_lines = self._lines.total()

    def equality(self, other: "_Fingerprint") -> float:
        """1 if both files are equal, else 0."""
        return float(self._data == other._data)

    def likeness(self, other: "_Fingerprint") -> float:
        """The share of the longer file's lines that both have; 0 for binary files that differ."""
        longest = max(self._num_lines, other._num_lines)
        if self._data == other._data or not longest:
            return self.equality(other)
        # Too short to be alike, whatever it holds: most pairs end here.
        if min(self._num_lines, other._num_lines) < _ALIKE * longest:
            return 0.0
        return (self._lines & other._lines).total() / longest
