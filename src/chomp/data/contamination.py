"""Documents of validation sets in training data: found by a hash of their content, left out.

The hash is of the whole content, as read: another space makes another document. What was found is
in the store's `contamination.json`, which changes no number.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from chomp.config import Config, fingerprint
from chomp.data.config import LmDataConfig
from chomp.data.documents import content_key
from chomp.data.formats import Format, TextFormat
from chomp.data.sources import Source, refuse_changed_source, source_documents
from chomp.errors import DataError, StorageError
from chomp.storage import exists, join, read_json, write_json_atomic

CONTAMINATION = "contamination.json"
_IDS_SHOWN = 5

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ValidationSet(Config):
    """A validation set as it was when a build was planned."""

    name: str
    source: Source
    source_fingerprint: str
    format: Format = field(default_factory=TextFormat)


def validation_sets(
    data: LmDataConfig, fingerprint_of: Callable[[str, Source], str]
) -> tuple[ValidationSet, ...]:
    """The sets of `data.validation` whose documents can be compared with training documents."""
    return tuple(
        ValidationSet(
            name=name,
            source=part.source,
            source_fingerprint=fingerprint_of(name, part.source),
            format=part.format,
        )
        for name, part in sorted(data.validation.items())
        if part.source is not None
    )


def sets_fingerprint(sets: Sequence[ValidationSet], *, allow_contamination: bool) -> str | None:
    """SHA-256 of what is kept out of training, and whether it is; None without sets."""
    content = [(each.name, each.source_fingerprint, each.format) for each in sets]
    return fingerprint([content, allow_contamination]) if sets else None


def keys_of_sets(sets: Sequence[ValidationSet]) -> dict[bytes, str]:
    """The content key of every document of the sets, with the name of its set.

    Held in memory: about 150 bytes for each document.
    """
    keys: dict[bytes, str] = {}
    for each in sets:
        try:
            for document in source_documents(each.source, each.format):
                keys.setdefault(content_key(document), each.name)
            refuse_changed_source(each.source, each.source_fingerprint)
        except (DataError, StorageError) as error:
            error.within(f"data.validation.{each.name}")
            raise
    return keys


def write_contamination(
    store: str, component: str, found: Mapping[str, Sequence[str]], *, is_left_out: bool
) -> None:
    """Write the ids that a train split shares with each set beside its tokens, and warn."""
    place = join(store, CONTAMINATION)
    documents = {name: list(ids) for name, ids in found.items()}
    write_json_atomic(place, {"left_out": is_left_out, "documents": documents})
    outcome = "left out of training" if is_left_out else "TRAINED ON (data.allow_contamination)"
    for name, ids in found.items():
        shown = ", ".join(ids[:_IDS_SHOWN]) + (", ..." if len(ids) > _IDS_SHOWN else "")
        count = f"{len(ids)} document{'' if len(ids) == 1 else 's'}"
        log.warning(
            "component %r shares %s with the validation set %r, %s: %s. All ids: %s",
            *(component, count, name, outcome, shown, place),
        )


def contamination_summary(store: str) -> str:
    """What a train split shares with validation sets, in words; empty if nothing was found."""
    if not exists(join(store, CONTAMINATION)):
        return ""
    content = read_json(join(store, CONTAMINATION))
    counts = ", ".join(f"{len(ids):,} of {name}" for name, ids in content["documents"].items())
    return f"{counts}, {'left out' if content['left_out'] else 'trained on'}"
