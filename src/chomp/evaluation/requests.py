"""Texts of a harness request as token ids: where the continuation begins, what is cut off.

The boundary is lm-eval's own: spaces that end the context go to the continuation, both are encoded
together, and the continuation is what lies beyond as many tokens as the context alone has.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from chomp.tokenize import Tokenizer


class Request(NamedTuple):
    """Tokens of which those from `start` on are scored, given all before them; `start` is 1 up."""

    tokens: tuple[int, ...]
    start: int


@dataclass(frozen=True, kw_only=True)
class Cuts:
    """What of the requests did not fit, or had nothing to score."""

    truncated: int = 0  # requests that lost tokens of their context
    shortened: int = 0  # of those, requests that lost tokens of the continuation too
    empty: int = 0  # requests without a token to score

    def __add__(self, other: "Cuts") -> "Cuts":
        return Cuts(
            truncated=self.truncated + other.truncated,
            shortened=self.shortened + other.shortened,
            empty=self.empty + other.empty,
        )


def encoded_pairs(
    tokenizer: Tokenizer,
    pairs: Sequence[tuple[str, str]],
    *,
    prefix_id: int,
    starts_with_prefix: bool,
) -> list[Request]:
    """One request for each (context, continuation), of any length.

    A context without a token of its own becomes `prefix_id`; `starts_with_prefix`: every context
    begins with it, as the documents of a model with a beginning-of-document token do.
    """
    moved = [_spaces_moved(*pair) for pair in pairs]
    texts = list(dict.fromkeys(text for pair in moved for text in (pair[0], "".join(pair))))
    ids = dict(zip(texts, tokenizer.encode_batch(texts), strict=True))
    requests = []
    for context, continuation in moved:
        before = ids[context]
        # Where a token spans the boundary, this is not the encoding of the whole: lm-eval gives the
        # model the context's own tokens too.
        after = ids[context + continuation][len(before) :]
        if starts_with_prefix or not before:
            before = [prefix_id, *before]
        requests.append(Request((*before, *after), len(before)))
    return requests


def fitting(requests: Sequence[Request], max_tokens: int) -> tuple[list[Request], Cuts]:
    """The requests cut from the left to at most `max_tokens`, and how many lost something.

    One token is left to condition on, so of a continuation at most `max_tokens - 1` are scored.
    """
    fitted, cuts = [], Cuts()
    for tokens, start in requests:
        surplus = max(len(tokens) - max_tokens, 0)
        if surplus or start == len(tokens):
            cuts += Cuts(
                truncated=surplus > 0,
                shortened=surplus >= start,
                empty=start == len(tokens),
            )
        fitted.append(Request(tokens[surplus:], max(start - surplus, 1)))
    return fitted, cuts


def _spaces_moved(context: str, continuation: str) -> tuple[str, str]:
    stripped = context.rstrip()
    return stripped, context[len(stripped) :] + continuation
