"""Where a batch comes from, and when a document is seen: both answered without replaying anything.

Example number, component, position, epoch, row of the store and document follow from each other by
the same functions that serve the run, read forwards or backwards.
"""

from dataclasses import dataclass

import numpy as np

from chomp.data.dataset import StoreComponent, TrainDataset
from chomp.errors import DataError, require


@dataclass(frozen=True, kw_only=True)
class DocumentPart:
    """Some tokens of a document in a row: `length` of them, from `offset` on, at `column`."""

    document_id: str
    offset: int
    length: int
    document_length: int
    column: int


@dataclass(frozen=True, kw_only=True)
class RowOrigin:
    """What one row of a step's batch is made of."""

    step: int
    row: int  # over all micro-batches of the step
    component: str
    epoch: int
    store_row: int
    parts: tuple[DocumentPart, ...]


@dataclass(frozen=True, kw_only=True)
class Occurrence:
    """One time at which tokens of a document are trained on."""

    component: str
    epoch: int
    step: int
    row: int


def row_origin(dataset: TrainDataset, step: int, row: int) -> RowOrigin:
    """The documents behind one row of a step."""
    size = dataset.batches.examples(step)
    require(
        0 <= row < size and step >= 0,
        f"row {row} of step {step}",
        allowed=f"steps from 0 and rows 0 to {size - 1}",
        fix="correct --step or --row",
    )
    example = dataset.batches.examples_before(step) + row
    components, positions = dataset.mixture.assign(example, example + 1)
    name = dataset.mixture.names[int(components[0])]
    component = _store_component(dataset, name)
    store_row = int(component.order.rows(positions)[0])
    store = component.rows.store
    parts: list[DocumentPart] = []
    for piece in component.rows.pieces(store_row):
        stop = piece.start + piece.length
        first, _, begins = store.documents.beginnings(
            np.asarray([piece.start]), np.asarray([piece.length])
        )
        for document in range(int(first[0]), int(first[0]) + len(begins) + 1):
            begin, end = store.documents.span(document)
            here = max(begin, piece.start)
            parts.append(
                DocumentPart(
                    document_id=store.locations.document_id(document),
                    offset=here - begin,
                    length=min(end, stop) - here,
                    document_length=end - begin,
                    column=piece.column + here - piece.start,
                )
            )
    return RowOrigin(
        step=step,
        row=row,
        component=name,
        epoch=int(positions[0]) // component.num_rows,
        store_row=store_row,
        parts=tuple(parts),
    )


def occurrences(
    dataset: TrainDataset, document_id: str, total_steps: int
) -> list[Occurrence] | None:
    """When a document is trained on in a run of so many steps; None: no train store has it."""
    found, is_known = list[Occurrence](), False
    mixture, batches = dataset.mixture, dataset.batches
    served_of = mixture.counts_before(batches.examples_before(total_steps))
    for name in dataset.num_rows:
        component = _store_component(dataset, name)
        document = component.rows.store.locations.find(document_id)
        if document is None:
            continue
        is_known = True
        served = served_of[mixture.names.index(name)]
        for store_row in component.rows.rows_with(*component.rows.store.documents.span(document)):
            for epoch in range(-(-served // component.num_rows)):
                position = int(component.order.positions(np.asarray([store_row]), epoch)[0])
                if position >= served:
                    continue  # the last epoch does not come to this row
                example = mixture.index_of(name, position)
                assert example is not None
                step = batches.step_of(example)
                row = example - batches.examples_before(step)
                found.append(Occurrence(component=name, epoch=epoch, step=step, row=row))
    return sorted(found, key=lambda item: (item.step, item.row)) if is_known else None


def _store_component(dataset: TrainDataset, name: str) -> StoreComponent:
    component = dataset.components[name]
    if not isinstance(component, StoreComponent):
        raise DataError(
            f"component {name!r} is a stream",
            allowed="components with a token store: what a stream has read is not recorded",
            fix=f"remove data.components.{name}.stream to train from a token store",
        )
    return component
