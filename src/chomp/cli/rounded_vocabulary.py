"""`data.tokenizer.vocab_size_multiple` of a file: a vocabulary of a round size, as GPUs like it."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

_KEY = "data.tokenizer.vocab_size_multiple"
_log = logging.getLogger(__name__)


def with_rounded_vocabulary(config: Any, multiple: int | None) -> Any:
    """A launch config whose `model.vocab_size` is a multiple, rounded up; it says so if it was not.

    It holds the tokenizer's ids too, as far as their number is known before it is built.
    """
    if multiple is None:
        return config
    asked: int = config.model.vocab_size
    ids = config.data.tokenizer.known_vocab_size or 0
    rounded = -(-max(asked, ids) // multiple) * multiple
    if rounded == asked:
        return config
    _log.warning(
        "model.vocab_size is %d, not %d: rounded up to a multiple of %d for the tokenizer's %s "
        "(set model.vocab_size=%d, or remove %s)",
        rounded,
        asked,
        multiple,
        f"{ids} ids" if ids else "ids",
        rounded,
        _KEY,
    )
    return replace(config, model=replace(config.model, vocab_size=rounded))
