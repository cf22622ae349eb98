"""Which parts of an edited line differ from what the line was, by words."""

import re

from chomp.variants.longest_common import common_pairs

# A run of letters or digits, a run of spaces, or one sign.
_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
# Longer lines are data. Beyond their common ends all of them is marked, which costs nothing.
_MAX_TOKENS = 2000

Span = tuple[int, int]


def word_changes(left: str, right: str) -> tuple[list[Span], list[Span]]:
    """The ranges of characters that only the left line has, and those only the right one has."""
    old, new = _TOKEN.findall(left), _TOKEN.findall(right)
    if max(len(old), len(new)) > _MAX_TOKENS:
        head = _equal_head(left, right)
        tail = _equal_head(left[head:][::-1], right[head:][::-1])
        return _unless_empty(head, len(left) - tail), _unless_empty(head, len(right) - tail)
    pairs = common_pairs(old, new)
    return _other_spans(old, {i for i, _ in pairs}), _other_spans(new, {j for _, j in pairs})


def _other_spans(tokens: list[str], kept: set[int]) -> list[Span]:
    """Where the tokens that are not kept stand, joined across single spaces between them."""
    spans: list[Span] = []
    at = 0
    for index, token in enumerate(tokens):
        end = at + len(token)
        if index not in kept:
            spans.append((at, end))
        at = end
    # Two words that were replaced are one mark, not two with a hole.
    text = "".join(tokens)
    joined: list[Span] = []
    for start, end in spans:
        if joined and text[joined[-1][1] : start].isspace() | (joined[-1][1] == start):
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _equal_head(left: str, right: str) -> int:
    """How many characters two texts begin with in common."""
    low, high = 0, min(len(left), len(right))
    while low < high:  # by halves: comparing slices is quick, comparing characters is not
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _unless_empty(start: int, end: int) -> list[Span]:
    return [(start, end)] if end > start else []
