"""Whether a config that asks for an evaluation holds anything out, as far as it can be known.

Only of documents that stand in the config itself: any others are first read when data is built.
"""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

from typing import Any

from chomp.errors import require


def require_evaluated(config: Any) -> None:
    """Raise `ConfigError` for an evaluation where none of the config's documents is held out."""
    if getattr(config, "eval", None) is not None:
        require_held_out(config, asked="eval")


def require_held_out(config: Any, *, asked: str) -> None:
    """Raise `ConfigError` if no document is held out, naming what was asked for."""
    count = _documents_without_held_out(getattr(config, "data", None))
    require(
        count is None,
        given=f"{asked} with {count} document{'s' * (count != 1)} in the config, of which none is "
        "held out",
        allowed="an evaluation where documents are held out",
        fix="leave it out (eval=null), or add documents and set data.validation_fraction, the part "
        "of them that is held out",
    )


def _documents_without_held_out(data: Any) -> int | None:
    """How many documents a config has, all of them to train on; None: it is not so, or unknown."""
    from chomp.data import LmDataConfig, MemorySource, is_held_out, source_documents

    if not isinstance(data, LmDataConfig) or not data.components:
        return None
    count = 0
    for name, component in data.components.items():
        source, store = component.source, component.validation_store
        if not isinstance(source, MemorySource) or store is not None:
            return None
        documents = list(source_documents(source, component.format))
        if any(is_held_out(each, data.held_out_fraction(name)) for each in documents):
            return None
        count += len(documents)
    return count
