"""What to say about a document id that no train store has."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from chomp.cli.run_data import RunData
from chomp.cli.stores import StorePlace, store_places
from chomp.errors import DataError, message

# Names that a misspelt id is compared with; more would take longer than anybody waits.
_COMPARED_PARTS = 10_000


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """The parts of a component's source, as a store of it lists them."""

    component: str
    names: list[str]
    has_whole_parts: bool
    example: str  # the id of a document in the store


def held_out_component(run: RunData, document_id: str) -> str | None:
    """The component that holds a document out; None if none does."""
    from chomp.data import TokenStore

    for place in store_places(run.data, ["validation"]):
        if TokenStore.open(place.path).locations.find(document_id) is not None:
            return place.component
    return None


def unknown_document(run: RunData, document_id: str) -> DataError:
    """The error for an id that is in none of a run's stores: what ids look like, and near ones."""
    parts = list(_parts_of(run))
    forms = "; ".join(f"{item.component}: {_form(item)}" for item in parts)
    near = [name for name in _nearest(document_id, parts) if name != document_id]
    is_listed = any(document_id in item.names for item in parts if item.has_whole_parts)
    if is_listed:
        fix = "look at the source: the document is empty, or its component is a stream"
    elif near:
        fix = f"choose one of the nearest: {', '.join(near)}"
    else:
        fix = f"list ids with `{run.given.command('inspect')} --documents 20`"
    return DataError(
        message(
            given=f"no store of {run.given.path} has the document {document_id!r}",
            allowed=f"ids of documents in its stores ({forms})",
            fix=fix,
        )
    )


def _parts_of(run: RunData) -> Iterator[_Parts]:
    """The parts of each component once: both splits list the same."""
    from chomp.data import TokenStore
    from chomp.data.store.token_store import PARTS
    from chomp.storage import join, read_json

    places: dict[str, StorePlace] = {}
    for place in store_places(run.data):
        places.setdefault(place.component, place)
    for name, place in places.items():
        content: dict[str, Any] = read_json(join(place.path, PARTS))
        yield _Parts(
            component=name,
            names=content["names"],
            has_whole_parts=content["has_whole_parts"],
            example=TokenStore.open(place.path).locations.document_id(0),
        )


def _form(parts: _Parts) -> str:
    form = "name" if parts.has_whole_parts else "name:record"
    return f"{form}, as {parts.example}"


def _nearest(document_id: str, parts: list[_Parts]) -> list[str]:
    """The ids that a misspelt one may have meant."""
    found: list[str] = []
    for item in parts:
        name, _, record = document_id.rpartition(":")
        if item.has_whole_parts or not record.isdecimal():
            # Without a record the whole is a name, and its first record is as good as any.
            name, record = document_id, "0"
        for near in difflib.get_close_matches(name, item.names[:_COMPARED_PARTS], n=3):
            found.append(near if item.has_whole_parts else f"{near}:{record}")
    return found
