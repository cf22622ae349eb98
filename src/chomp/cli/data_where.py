"""`chomp data where`: from a batch to its documents, and from a document to its batches."""

import difflib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from chomp.cli.commands import DataWhere
from chomp.cli.data import SHOWN_TOKENS, RunData, require_built, run_data, store_places
from chomp.cli.load_config import GivenConfig
from chomp.cli.output import print_json, print_rows, say, shorten
from chomp.data import (
    PARTS,
    DocumentPart,
    Occurrence,
    RowOrigin,
    TokenStore,
    TrainDataset,
    occurrences,
    row_origin,
)
from chomp.errors import DataError, require
from chomp.storage import join, read_json

Row = dict[str, Any]
# Given what a row is made of and one document in it: how its tokens there begin.
TextOf = Callable[[RowOrigin, DocumentPart], str]

# Names that a misspelt id is compared with; more would take seconds.
_COMPARED_PARTS = 10_000


def where(asked: DataWhere) -> int:
    """Trace a batch or a document."""
    given = GivenConfig.of(asked.config, asked)
    if asked.doc is not None:
        return where_document(given, asked.doc, is_json=asked.as_json)
    assert asked.step is not None, "one of the two was given"
    return where_step(given, asked.step, asked.row, with_text=asked.text, is_json=asked.as_json)


def where_step(
    given: GivenConfig, step: int, row: int | None, *, with_text: bool, is_json: bool
) -> int:
    """Print the documents behind a step's batch, or behind one row of it."""
    run = run_data(given)
    require(
        0 <= step < run.total_steps,
        given=f"--step {step} of a run of {run.total_steps:,} steps",
        allowed=f"0 to {run.total_steps - 1}",
        fix="correct --step, or raise train.steps",
    )
    numbers = range(run.batches.examples(step)) if row is None else [row]
    require_built(run, ["train"])
    text_of = _reader_of_texts(run) if with_text else None
    with closing(run.dataset()) as dataset:
        rows = [each for number in numbers for each in _origin_rows(dataset, step, number, text_of)]
    if is_json:
        print_json({"step": step, "rows": rows})
        return 0
    tense = ""
    if run.completed_steps is not None:
        tense = ", trained on" if step < run.completed_steps else ", to come"
    shown, before = [], None
    for each in rows:
        is_first, before = each["row"] != before, each["row"]
        shown.append(_shown_origin(each, is_first=is_first))
    print_rows(shown, title=f"step {step:,}{tense}", right=("row", "epoch", "tokens", "columns"))
    return 0


def where_document(given: GivenConfig, document_id: str, *, is_json: bool) -> int:
    """Print when a document is trained on, or that it never is."""
    run = run_data(given)
    require_built(run)
    with closing(run.dataset()) as dataset:
        found = occurrences(dataset, document_id, run.total_steps)
    held_out = _held_out_component(run, document_id) if found is None else None
    if found is None and held_out is None:
        raise _unknown_document(run, document_id)
    rows: list[Row] = []
    for item in found or ():
        rows.append(
            {
                "step": item.step,
                "row": item.row,
                "epoch": item.epoch,
                "component": item.component,
            }
        )
        if run.completed_steps is not None:
            rows[-1]["when"] = "seen" if item.step < run.completed_steps else "to come"
    if is_json:
        print_json({"document": document_id, "held_out": found is None, "rows": rows})
    elif found is None:
        say(f"{document_id} ({held_out}) is held out: never trained on.")
    else:
        say(_summary(run, document_id, found))
        if rows:
            print_rows(rows)
    return 0


def _origin_rows(
    dataset: TrainDataset, step: int, row: int, text_of: TextOf | None
) -> Iterator[Row]:
    """A line for each document in a row of the batch."""
    if 0 <= row < dataset.batches.examples(step):  # any other is refused where origins are found
        example = dataset.batches.examples_before(step) + row
        components, _ = dataset.mixture.assign(example, example + 1)
        name = dataset.mixture.names[int(components[0])]
        if name in dataset.streams:
            more = () if text_of is None else ("begins with",)
            unknown = dict.fromkeys(("epoch", "document", "tokens", "columns", *more))
            yield {"row": row, "component": name, **unknown}
            return
    origin = row_origin(dataset, step, row)
    for part in origin.parts:
        yield {
            "row": row,
            "component": origin.component,
            "epoch": origin.epoch,
            "document": part.document_id,
            "tokens": [part.offset, part.offset + part.length, part.document_length],
            "columns": [part.column, part.column + part.length],
            **({} if text_of is None else {"begins with": text_of(origin, part)}),
        }


def _shown_origin(row: Row, *, is_first: bool) -> Row:
    """A line as texts; what all documents of a row share is written once."""
    shown = {key: "" if value is None else str(value) for key, value in row.items()}
    if not is_first:
        shown |= dict.fromkeys(("row", "component", "epoch"), "")
    if row["document"] is None:
        return {**shown, "document": "a stream: what it has read is not kept"}
    (first, end, length), (column, last) = row["tokens"], row["columns"]
    shown["tokens"] = f"{first:,} to {end - 1:,} of {length:,}"
    shown["columns"] = f"{column:,} to {last - 1:,}"
    return shown


def _reader_of_texts(run: RunData) -> TextOf:
    """A function that decodes the first tokens of a document in a row."""
    tokenizer = run.data.tokenizer.load()

    @cache
    def open_store(component: str) -> TokenStore:
        return TokenStore.open(str(run.data.components[component].train_store))

    def text_of(origin: RowOrigin, part: DocumentPart) -> str:
        store = open_store(origin.component)
        document = store.locations.find(part.document_id)
        assert document is not None, "the store named the document itself"
        begin = store.documents.span(document)[0] + part.offset
        length = min(part.length, SHOWN_TOKENS)
        ids = store.read(np.asarray([begin]), np.asarray([length])).tolist()
        return shorten(tokenizer.decode(ids))

    return text_of


def _summary(run: RunData, document_id: str, found: list[Occurrence]) -> str:
    if not found:
        return (
            f"{document_id} is in a train store, but none of its tokens are in the rows of "
            f"{run.total_steps:,} steps."
        )
    names = ", ".join(dict.fromkeys(item.component for item in found))
    rows = f"{len(found):,} row{'s' * (len(found) != 1)}"
    text = f"{document_id} ({names}): in {rows} of {run.total_steps:,} steps"
    if run.completed_steps is not None:
        seen = sum(item.step < run.completed_steps for item in found)
        text += f", {seen:,} seen and {len(found) - seen:,} to come"
    return f"{text}."


# --- documents that no train store has ----------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """The parts of a component's source, as a store of it lists them."""

    component: str
    names: list[str]
    has_whole_parts: bool
    example: str  # the id of a document in the store


def _held_out_component(run: RunData, document_id: str) -> str | None:
    """The component that holds a document out; None if none does."""
    for place in store_places(run.data, ["validation"]):
        if TokenStore.open(place.path).locations.find(document_id) is not None:
            return place.component
    return None


def _unknown_document(run: RunData, document_id: str) -> DataError:
    """The error for an id that is in none of a run's stores: what ids look like, and near ones."""
    parts = list(_parts_of(run))
    forms = [
        f"{item.component}: {'name' if item.has_whole_parts else 'name:record'}, as {item.example}"
        for item in parts
    ]
    near = [name for name in _nearest(document_id, parts) if name != document_id]
    if any(document_id in item.names for item in parts if item.has_whole_parts):
        fix = "look at the source: the document is empty, or its component is a stream"
    elif near:
        fix = f"choose one of the nearest: {', '.join(near)}"
    else:
        fix = f"list ids with `{run.given.command('inspect')} --documents 20`"
    return DataError(
        f"no store of {run.given.path} has the document {document_id!r}",
        allowed=f"ids of documents in its stores ({'; '.join(forms)})",
        fix=fix,
    )


def _parts_of(run: RunData) -> Iterator[_Parts]:
    """The parts of each component once: both splits list the same."""
    places = {place.component: place for place in reversed(store_places(run.data))}
    for name in dict.fromkeys(place.component for place in store_places(run.data)):
        path = places[name].path
        content: dict[str, Any] = read_json(join(path, PARTS))
        yield _Parts(
            component=name,
            names=content["names"],
            has_whole_parts=content["has_whole_parts"],
            example=TokenStore.open(path).locations.document_id(0),
        )


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
