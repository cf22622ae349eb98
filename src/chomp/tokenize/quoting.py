"""Keeping a document that quotes a token from being given that token.

The tokenizers library leaves special tokens in texts alone when told to, but hands their letters to
the model, and a Unigram or WordPiece model that has "</s>" among its pieces then finds it there:
struck-through HTML would end documents. "<0x0A>" would become a line end in the same way.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tokenizers import Regex, pre_tokenizers
from tokenizers import Tokenizer as HuggingFaceTokenizer


def quotable(names: Iterable[str], model: Mapping[str, Any]) -> set[str]:
    """Those of `names` that `model` (parsed JSON) can give to a text in which they are written."""
    if model["type"] == "Unigram":
        return {piece for piece, _ in model["vocab"]} & set(names)
    if model["type"] != "BPE" or model["ignore_merges"]:
        return model["vocab"].keys() & set(names)
    # A BPE gives only what it merges, and its alphabet; being in the vocabulary is not enough.
    prefix = model["continuing_subword_prefix"] or ""
    merged = {left + right.removeprefix(prefix) for left, right in model["merges"]}
    alphabet = {piece for piece in model["vocab"] if len(piece) == 1}
    return (merged | alphabet) & set(names)


def split_quotes(tokenizer: HuggingFaceTokenizer, names: Iterable[str]) -> None:
    """Make `tokenizer` cut every one of `names` in a text behind its first character.

    No piece of text can then be such a name as a whole; other texts keep their ids. It comes last,
    behind the normaliser, which may make "</s>" out of something else. Names of one character
    cannot be cut. Takes a third of a Unigram's speed (5 MB of Python, one core, 2026-11).
    """
    rests: dict[str, list[str]] = {}
    for name in sorted(names):
        if len(name) > 1:
            rests.setdefault(name[0], []).append(re.escape(name[1:]))
    if not rests:
        return
    pattern = "|".join(f"{re.escape(first)}(?={'|'.join(rest)})" for first, rest in rests.items())
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    before = tokenizer.pre_tokenizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split] if before is None else [before, split]
    )
