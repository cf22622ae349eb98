"""`chomp data where`: from a batch to its documents, and from a document to its batches."""

import difflib
from collections.abc import Callable, Iterator
from contextlib import closing
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
    run = run_data(GivenConfig.of(asked.config, asked))
    if asked.step is None:
        _where_document(run, asked)
    else:
        _where_step(run, asked.step, asked)
    return 0


def _where_step(run: RunData, step: int, asked: DataWhere) -> None:
    """Print the documents behind a step's batch, or behind one row of it."""
    require(
        0 <= step < run.total_steps,
        f"--step {step} of a run of {run.total_steps:,} steps",
        allowed=f"0 to {run.total_steps - 1}",
        fix="correct --step, or raise train.steps",
    )
    numbers = range(run.batches.examples(step)) if asked.row is None else [asked.row]
    require_built(run, ["train"])
    text_of = _reader_of_texts(run) if asked.text else None
    with closing(run.dataset()) as dataset:
        rows = [each for number in numbers for each in _origin_rows(dataset, step, number, text_of)]
    if asked.as_json:
        print_json({"step": step, "rows": rows})
        return
    tense = ""
    if run.completed_steps is not None:
        tense = ", trained on" if step < run.completed_steps else ", to come"
    texts, before = [], None
    for each in rows:
        shown = {key: "" if value is None else str(value) for key, value in each.items()}
        if each["row"] == before:  # what all documents of a row share is written once
            shown |= dict.fromkeys(("row", "component", "epoch"), "")
        before = each["row"]
        if each["document"] is None:
            shown["document"] = "a stream: what it has read is not kept"
        else:
            (first, end, length), (column, last) = each["tokens"], each["columns"]
            shown["tokens"] = f"{first:,} to {end - 1:,} of {length:,}"
            shown["columns"] = f"{column:,} to {last - 1:,}"
        texts.append(shown)
    print_rows(texts, title=f"step {step:,}{tense}", right=("row", "epoch", "tokens", "columns"))


def _where_document(run: RunData, asked: DataWhere) -> None:
    """Print when a document is trained on, or that it never is."""
    document_id = str(asked.doc)
    require_built(run)
    with closing(run.dataset()) as dataset:
        found = occurrences(dataset, document_id, run.total_steps)
    holds = None
    if found is None:
        for place in store_places(run.data, ["validation"]):
            if TokenStore.open(place.path).locations.find(document_id) is not None:
                holds = place.component
                break
        else:
            raise _unknown_document(run, document_id)
    rows: list[Row] = []
    for item in found or ():
        row = {name: getattr(item, name) for name in ("step", "row", "epoch", "component")}
        if run.completed_steps is not None:
            row["when"] = "seen" if item.step < run.completed_steps else "to come"
        rows.append(row)
    if asked.as_json:
        print_json({"document": document_id, "held_out": found is None, "rows": rows})
    elif found is None:
        say(f"{document_id} ({holds}) is held out: never trained on.")
    elif not found:
        say(
            f"{document_id} is in a train store, but none of its tokens are in the rows of "
            f"{run.total_steps:,} steps."
        )
    else:
        names = ", ".join(dict.fromkeys(item.component for item in found))
        rows_text = f"{len(found):,} row{'s' * (len(found) != 1)}"
        text = f"{document_id} ({names}): in {rows_text} of {run.total_steps:,} steps"
        if run.completed_steps is not None:
            seen = sum(item.step < run.completed_steps for item in found)
            text += f", {seen:,} seen and {len(found) - seen:,} to come"
        say(f"{text}.")
        print_rows(rows)


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


# --- documents that no store has ----------------------------------------------------------------


def _unknown_document(run: RunData, document_id: str) -> DataError:
    """The error for an id that is in none of a run's stores: what ids look like, and near ones."""
    forms, near, is_named = [], [], False
    # Both splits of a component list the same parts.
    stores: dict[str, str] = {}
    for place in store_places(run.data):
        stores.setdefault(place.component, place.path)
    for component, path in stores.items():
        parts: dict[str, Any] = read_json(join(path, PARTS))
        names, is_whole = parts["names"], parts["has_whole_parts"]
        example = TokenStore.open(path).locations.document_id(0)
        forms.append(f"{component}: {'name' if is_whole else 'name:record'}, as {example}")
        is_named = is_named or (is_whole and document_id in names)
        name, _, record = document_id.rpartition(":")
        if is_whole or not record.isdecimal():
            # Without a record the whole is a name, and its first record is as good as any.
            name, record = document_id, "0"
        found = difflib.get_close_matches(name, names[:_COMPARED_PARTS], n=3)
        near += [each if is_whole else f"{each}:{record}" for each in found]
    near = [each for each in near if each != document_id]
    if is_named:
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
