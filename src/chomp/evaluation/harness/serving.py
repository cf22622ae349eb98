"""How process 0, which alone runs lm-eval, has the others compute with it.

It tells them what it is about to compute, and all of them do: a word is a kind and what the kind
needs. The last word is the results, or the failure. A run of one process says nothing to nobody.
"""

import json
from typing import Any

import jax

from chomp.mesh import broadcast, wait_for_all

# Kinds of words.
SCORE, GENERATE, END, FAILED = "score", "generate", "end", "failed"

# A task's data may have to be fetched before there is anything to compute.
TIMEOUT_S = 3600.0
# The store of words is for small values: longer ones go in pieces, and after some of them all meet,
# because process 0 may only be so far ahead.
PIECE_CHARACTERS = 1 << 20
PIECES_AHEAD = 16


def told(word: Any) -> Any:
    """Process 0's `word` (plain, as JSON has it) in every process; the others' is not looked at."""
    if jax.process_count() == 1:
        return word
    text = json.dumps(word)
    count = broadcast("harness/count", -(-len(text) // PIECE_CHARACTERS), timeout_s=TIMEOUT_S)
    pieces = []
    for index in range(count):
        if index % PIECES_AHEAD == PIECES_AHEAD - 1:
            wait_for_all("harness/pieces")
        first = index * PIECE_CHARACTERS
        piece = text[first : first + PIECE_CHARACTERS]
        pieces.append(broadcast("harness/piece", piece))
    return json.loads("".join(pieces))
