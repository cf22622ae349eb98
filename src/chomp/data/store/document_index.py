"""Which document a token belongs to, without holding the ends of all documents in memory.

`document_ends` says where each document ends in the store's line of tokens. Every 256th of them is
a mark that is kept in memory; the ends between two marks are read when they are needed.
"""

import numpy as np
from jaxtyping import Int

from chomp.data.store.flat_array import FlatArray

# Axes: N windows of tokens, M beginnings of documents inside them.

# Between two marks lie 2 KiB: one read. At 500 tokens a document, a corpus of 10**12 tokens has
# 62 MB of marks.
DOCUMENTS_PER_MARK = 256


class DocumentIndex:
    """The ends of a store's documents, open for questions."""

    def __init__(self, ends: FlatArray, marks: Int[np.ndarray, " K"]) -> None:
        self._ends = ends
        self._marks = marks

    def __len__(self) -> int:
        return len(self._ends)

    def span(self, document: int) -> tuple[int, int]:
        """Where a document begins and ends in the line of tokens."""
        first = max(document - 1, 0)
        ends = self.ends(first, document + 1)
        return (int(ends[0]) if document else 0), int(ends[-1])

    def ends(self, first: int, last: int) -> Int[np.ndarray, " D"]:
        """The ends of documents first..last-1."""
        return self._ends.read(np.asarray([first]), np.asarray([last - first]))

    def beginnings(
        self, starts: Int[np.ndarray, " N"], lengths: Int[np.ndarray, " N"]
    ) -> tuple[Int[np.ndarray, " N"], Int[np.ndarray, " M"], Int[np.ndarray, " M"]]:
        """For windows of the line: the document of each first token, and where others begin.

        The last two go together: a window, and the place in it at which a further document begins.
        A document of which the window holds only the first token begins in it too.
        """
        stops = starts + lengths
        # A token belongs to the first document that ends after it.
        first = np.searchsorted(self._marks, starts, side="right") * DOCUMENTS_PER_MARK
        last = (np.searchsorted(self._marks, stops, side="left") + 1) * DOCUMENTS_PER_MARK
        counts = np.minimum(last, len(self)) - first
        ends = self._ends.read(first, counts)
        window = np.repeat(np.arange(len(starts)), counts)
        passed = np.bincount(window[ends <= starts[window]], minlength=len(starts))
        inside = (ends > starts[window]) & (ends < stops[window])
        window = window[inside]
        return first + passed, window, ends[inside] - starts[window]


def marks_of(ends: FlatArray) -> Int[np.ndarray, " K"]:
    """Every 256th end, in order: what an index keeps in memory."""
    places = np.arange(DOCUMENTS_PER_MARK - 1, len(ends), DOCUMENTS_PER_MARK)
    return ends.read(places, np.ones_like(places))
