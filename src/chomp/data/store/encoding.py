"""Documents as token ids with their loss weights: what goes into a token store.

It runs beside the tokenizer on every token of a corpus, in worker processes, so a batch is one flat
array and Python sees documents, never single tokens. What a store holds does not depend on how many
processes made it: batches are cut by size alone and come back in order.
"""

from array import array
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32, Int, Integer

from chomp.data.documents import Document, LocatedDocument
from chomp.errors import DataError
from chomp.tokenize import Tokenizer, UnencodableText
from chomp.tokenize.worker import TokenizerProcesses

# Axes: L tokens of a whole batch, N documents, M ids of one document, P its positions.

# Unsigned, four bytes. `array` takes in a list of ints three times as fast as numpy does.
_ID_CODE, _ID_DTYPE = "I", np.dtype(np.uintc)
# A batch is some tenths of a second of work, so that handing it over costs nothing beside it.
_BATCH_DOCUMENTS = 1024
_BATCH_CHARACTERS = 1 << 20
# Starting processes takes about as long as tokenizing this much.
_CHARACTERS_ENCODED_HERE = 4 << 20
# Batches in flight per process: one being worked on, one waiting.
_BATCHES_PER_PROCESS = 2
Batch = list[LocatedDocument]


@dataclass(frozen=True, kw_only=True, eq=False)
class EncodedBatch:
    """The tokens of some documents, one after the other, as the smallest type that fits.

    `lengths` counts the tokens of each document with its BOS and EOS. `loss_weights` is None when
    no document has any, which means 1 everywhere.
    """

    ids: Integer[np.ndarray, " L"]
    lengths: Int[np.ndarray, " N"]
    loss_weights: Float32[np.ndarray, " L"] | None


@runtime_checkable
class Encoder(Protocol):
    """The part of a tokenizer that is needed here; processes that do its work have it too."""

    @property
    def vocab_size(self) -> int:
        """Number of ids; every id is below it."""
        ...

    @property
    def eos_id(self) -> int:
        """The id that ends a document."""
        ...

    @property
    def bos_id(self) -> int | None:
        """The id that begins a document; None: there is none."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        """Ids of each text, as lists or arrays."""
        ...


def encoded(documents: Sequence[Document], tokenizer: Encoder) -> EncodedBatch:
    """The documents as ids, each ended by EOS, and begun by BOS if the tokenizer has one.

    Ids that came tokenized stay as they are; EOS is appended unless it is their last. The weight of
    a position scores the prediction of the next token: a span's tokens are trained from the
    position before each, an EOS as part of the last span, and an appended EOS predicts nothing.
    """
    line = _Line(tokenizer)
    pieces = _piece_ids(documents, tokenizer)
    lengths = np.empty(len(documents), np.int64)
    weights: list[np.ndarray] | None = [] if any(map(_is_weighted, documents)) else None
    for number, document in enumerate(documents):
        before = len(line.ids)
        piece_lengths: list[int] = []
        if document.ids is not None:
            line.append_ids(document.ids, document.id)
        else:
            piece_lengths = line.append_pieces(islice(pieces, len(document.spans) or 1))
        lengths[number] = len(line.ids) - before
        if weights is not None:
            weights.append(_weights_of(document, piece_lengths, len(line.ids) - before))
    return EncodedBatch(
        ids=line.as_array(),
        lengths=lengths,
        loss_weights=None if weights is None else np.concatenate(weights),
    )


class _Line:
    """Ids of documents put one after the other."""

    def __init__(self, tokenizer: Encoder) -> None:
        self._tokenizer = tokenizer
        self.ids = array(_ID_CODE)

    def append_pieces(self, pieces: Iterable[Sequence[int]]) -> list[int]:
        """Append a document between BOS and EOS; the number of tokens of each of its pieces."""
        if self._tokenizer.bos_id is not None:
            self.ids.append(self._tokenizer.bos_id)
        lengths = []
        for ids in pieces:
            self.ids.fromlist(ids) if isinstance(ids, list) else self.ids.extend(ids)
            lengths.append(len(ids))
        self.ids.append(self._tokenizer.eos_id)
        return lengths

    def append_ids(self, ids: Integer[np.ndarray, " M"], name: str) -> None:
        """Append a document that came tokenized."""
        outside = np.flatnonzero((ids < 0) | (ids >= self._tokenizer.vocab_size))
        if len(outside):
            raise DataError(
                f"document {name} has the id {ids[outside[0]]} at {outside[0]}",
                allowed=f"ids of the tokenizer, 0 to {self._tokenizer.vocab_size - 1}",
                fix="set the tokenizer that the ids were made with, or tokenize again",
            )
        self.ids.frombytes(ids.astype(_ID_DTYPE).tobytes())
        if not len(ids) or ids[-1] != self._tokenizer.eos_id:
            self.ids.append(self._tokenizer.eos_id)

    def as_array(self) -> Integer[np.ndarray, " L"]:
        """All ids in the smallest type that fits every id of the tokenizer."""
        ids = np.frombuffer(self.ids, _ID_DTYPE) if self.ids else np.empty(0, _ID_DTYPE)
        return ids.astype(np.min_scalar_type(self._tokenizer.vocab_size - 1))


def _piece_ids(documents: Sequence[Document], tokenizer: Encoder) -> Iterator[Sequence[int]]:
    """Ids of every piece of text in the batch, by one call: the tokenizer spreads it on cores."""
    texts = [text for document in documents for text in _texts_of(document)]
    try:
        return iter(tokenizer.encode_batch(texts) if texts else [])
    except UnencodableText as error:
        owners = [document.id for document in documents for _ in _texts_of(document)]
        error.within(f"document {owners[error.text_index]}")
        raise


def _texts_of(document: Document) -> Sequence[str]:
    if document.spans:
        return [span.text for span in document.spans]
    return (document.text,) if document.ids is None else ()


def _is_weighted(document: Document) -> bool:
    return bool(document.spans) or document.loss_weights is not None


def _weights_of(
    document: Document, piece_lengths: list[int], length: int
) -> Float32[np.ndarray, " P"]:
    """The weight of each of a document's `length` positions."""
    weights = np.zeros(length, np.float32)
    if document.loss_weights is not None:
        weights[: len(document.loss_weights)] = document.loss_weights
    elif document.spans:
        # One flag for every token after a BOS; the EOS counts as part of the last span.
        counts = [*piece_lengths[:-1], piece_lengths[-1] + 1]
        scored = np.repeat([span.is_trained for span in document.spans], counts)
        # Without a BOS nothing predicts the first token.
        weights[:-1] = scored[len(scored) - (length - 1) :]
    else:
        weights[:] = 1
    return weights


def encoded_in_order(
    documents: Iterable[LocatedDocument], tokenizer: Tokenizer, folder: str, *, processes: int
) -> Generator[tuple[Batch, EncodedBatch], None, None]:
    """Batches of documents with their tokens; `folder` is where `tokenizer` is saved.

    A small source is tokenized in this process, with the threads of the tokenizers library. Close
    the generator if it is left early: its processes end with it.
    """
    batches = _batches(documents)
    characters = 0
    for batch in batches:
        yield batch, _encoded(batch, tokenizer)
        characters += sum(item.document.size for item in batch)
        if processes > 1 and characters >= _CHARACTERS_ENCODED_HERE:
            break
    else:
        return
    with (
        TokenizerProcesses(tokenizer, folder, processes) as remote,
        ThreadPoolExecutor(processes) as threads,
    ):
        waiting: deque[tuple[Batch, Future[EncodedBatch]]] = deque()
        try:
            for batch in batches:
                waiting.append((batch, threads.submit(_encoded, batch, remote)))
                if len(waiting) >= _BATCHES_PER_PROCESS * processes:
                    first, future = waiting.popleft()
                    yield first, future.result()
            for batch, future in waiting:
                yield batch, future.result()
        finally:
            threads.shutdown(cancel_futures=True)


def _encoded(batch: Batch, tokenizer: Tokenizer | TokenizerProcesses) -> EncodedBatch:
    return encoded([item.document for item in batch], tokenizer)


def _batches(documents: Iterable[LocatedDocument]) -> Iterator[Batch]:
    batch: Batch = []
    characters = 0
    for item in documents:
        batch.append(item)
        characters += item.document.size
        if len(batch) >= _BATCH_DOCUMENTS or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
