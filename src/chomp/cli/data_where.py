"""`chomp data where`: from a batch to its documents, and from a document to its batches."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import cache
from typing import TYPE_CHECKING

from chomp.cli.given_config import GivenConfig
from chomp.cli.run_data import RunData, run_data
from chomp.cli.stores import require_built
from chomp.cli.terminal import one_line, print_table, say
from chomp.cli.unknown_documents import held_out_component, unknown_document
from chomp.errors import require

if TYPE_CHECKING:  # for annotations alone
    from rich.table import Table

    from chomp.data import RowOrigin, Sighting, TrainDataset
    from chomp.data.passport import DocumentPart

    # Given what a row is made of and one document in it: how its tokens there begin.
    TextOf = Callable[[RowOrigin, DocumentPart], str]

# Enough tokens for the characters that are shown of a document.
_SHOWN_TOKENS = 64


def where_step(given: GivenConfig, step: int, row: int | None, *, with_text: bool) -> int:
    """Print the documents behind a step's batch, or behind one row of it."""
    run = run_data(given)
    require(
        0 <= step < run.total_steps,
        given=f"--step {step} of a run of {run.total_steps:,} steps",
        allowed=f"0 to {run.total_steps - 1}",
        fix="correct --step, or raise train.steps",
    )
    rows = range(run.batches.examples(step)) if row is None else [row]
    require_built(run, ["train"])
    text_of = _reader_of_texts(run) if with_text else None
    with closing(run.dataset()) as dataset:
        table = _origin_table(f"step {step:,}{_tense(run, step)}", with_text=with_text)
        for number in rows:
            _add_row(table, dataset, step, number, text_of)
    print_table(table)
    return 0


def where_document(given: GivenConfig, document_id: str) -> int:
    """Print when a document is trained on, or that it never is."""
    from chomp.data import sightings

    run = run_data(given)
    require_built(run)
    with closing(run.dataset()) as dataset:
        found = sightings(dataset, document_id, run.total_steps)
    if found is None:
        name = held_out_component(run, document_id)
        if name is None:
            raise unknown_document(run, document_id)
        say(f"{document_id} ({name}) is held out: never trained on.")
        return 0
    say(_summary(run, document_id, found))
    if found:
        print_table(_sighting_table(run, found))
    return 0


def _origin_table(title: str, *, with_text: bool) -> Table:
    from rich.table import Table

    table = Table(title=title)
    table.add_column("row", justify="right")
    table.add_column("component")
    table.add_column("epoch", justify="right")
    table.add_column("document")
    table.add_column("tokens", justify="right")
    table.add_column("columns", justify="right")
    if with_text:
        table.add_column("begins with")
    return table


def _add_row(
    table: Table, dataset: TrainDataset, step: int, row: int, text_of: TextOf | None
) -> None:
    """A line for each document in a row of the batch."""
    from rich.text import Text

    from chomp.data import row_origin

    stream = _stream_of_row(dataset, step, row)
    if stream is not None:
        table.add_row(str(row), Text(stream), "", "a stream: what it has read is not kept")
        return
    origin = row_origin(dataset, step, row)
    for i, part in enumerate(origin.parts):
        head = (str(row), Text(origin.component), str(origin.epoch)) if i == 0 else ("", "", "")
        text = [] if text_of is None else [Text(text_of(origin, part))]
        table.add_row(*head, Text(part.document_id), _tokens(part), _columns(part), *text)


def _stream_of_row(dataset: TrainDataset, step: int, row: int) -> str | None:
    """The component of a row if it is a stream; None if it is not, or if there is no such row."""
    if not 0 <= row < dataset.batches.examples(step):
        return None  # which is refused where origins are found
    example = dataset.batches.examples_before(step) + row
    components, _ = dataset.mixture.assign(example, example + 1)
    name = dataset.mixture.names[int(components[0])]
    return name if name in dataset.streams else None


def _tokens(part: DocumentPart) -> str:
    last = part.offset + part.length - 1
    return f"{part.offset:,} to {last:,} of {part.document_length:,}"


def _columns(part: DocumentPart) -> str:
    return f"{part.column:,} to {part.column + part.length - 1:,}"


def _reader_of_texts(run: RunData) -> TextOf:
    """A function that tells how the tokens of a document in a row begin, as text."""
    import numpy as np

    from chomp.data import TokenStore

    tokenizer = run.data.tokenizer.load()

    @cache
    def opened(component: str) -> TokenStore:
        return TokenStore.open(str(run.data.components[component].train_store))

    def text_of(origin: RowOrigin, part: DocumentPart) -> str:
        store = opened(origin.component)
        document = store.locations.find(part.document_id)
        assert document is not None, "the store named the document itself"
        begin = store.documents.span(document)[0] + part.offset
        length = min(part.length, _SHOWN_TOKENS)
        return one_line(
            tokenizer.decode(store.read(np.asarray([begin]), np.asarray([length])).tolist())
        )

    return text_of


def _sighting_table(run: RunData, found: list[Sighting]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for heading in ("step", "row", "epoch"):
        table.add_column(heading, justify="right")
    table.add_column("component")
    if run.completed_steps is not None:
        table.add_column("when")
    for item in found:
        when = []
        if run.completed_steps is not None:
            when = ["seen" if item.step < run.completed_steps else "to come"]
        place = (f"{item.step:,}", str(item.row), str(item.epoch))
        table.add_row(*place, Text(item.component), *when)
    return table


def _summary(run: RunData, document_id: str, found: list[Sighting]) -> str:
    names = ", ".join(dict.fromkeys(item.component for item in found))
    if not found:
        return (
            f"{document_id} is in a train store, but none of its tokens are in the rows of "
            f"{run.total_steps:,} steps."
        )
    told = f"{document_id} ({names}): in {_counted(len(found), 'row')} of {run.total_steps:,} steps"
    if run.completed_steps is not None:
        seen = sum(item.step < run.completed_steps for item in found)
        told += f", {seen:,} seen and {len(found) - seen:,} to come"
    return f"{told}."


def _tense(run: RunData, step: int) -> str:
    if run.completed_steps is None:
        return ""
    return ", trained on" if step < run.completed_steps else ", to come"


def _counted(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
