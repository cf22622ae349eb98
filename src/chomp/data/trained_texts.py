"""Training documents as prompts, for a run that holds none out."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import TypeVar

import numpy as np

from chomp.data.config import LmDataConfig
from chomp.data.documents import Document, documents_of_split
from chomp.data.open_components import opened_store
from chomp.data.store.encoding import encoded
from chomp.data.store.token_store import TokenStore
from chomp.data.streams.windows import RetriedDocuments
from chomp.errors import DataError
from chomp.tokenize import Tokenizer

T = TypeVar("T")
_MOST = 50  # documents that are read; the next sample after the last takes the first again


class TrainedTexts:
    """The first training documents of the component that a run has most of.

    They are read when one is asked for, apart from the rows of the run, and are the same in every
    process and at every start.
    """

    def __init__(self, config: LmDataConfig, tokenizer: Tokenizer) -> None:
        self._config, self._tokenizer = config, tokenizer
        weights = config.weights
        self.name = max(sorted(weights), key=weights.__getitem__)
        # Of a stream: how long each head and tail is, and those of each document.
        self._read: tuple[int, list[tuple[list[int], list[int]]]] = (0, [])

    def prompt(self, num_tokens: int, number: int = 0, *, is_tail: bool = False) -> list[int]:
        """The first tokens of document `number`, counted around, or of the next long enough.

        Where none is, of `number` itself: as many as it has. `is_tail`: the last ones. The token
        that ends a document is never among them.
        """
        if self._config.components[self.name].stream is None:
            start, length = _long_enough(self._spans, num_tokens, number, lambda span: span[1])
            taken = min(length, num_tokens)
            start += length - taken if is_tail else 0
            return self._store.read(np.asarray([start]), np.asarray([taken])).tolist()
        found = self._of_stream(num_tokens)
        head, tail = _long_enough(found, num_tokens, number, lambda ends: len(ends[0]))
        return tail[-num_tokens:] if is_tail else head[:num_tokens]

    @cached_property
    def _store(self) -> TokenStore:
        return opened_store(self.name, self._config, "train", self._tokenizer)

    @cached_property
    def _spans(self) -> list[tuple[int, int]]:
        """Where each document begins and how long it is without its end; of those with a token.

        Documents may be books: only what a sample begins with is read.
        """
        documents = self._store.documents
        ends = [documents.span(number) for number in range(min(len(documents), _MOST))]
        spans = [(start, end - start - 1) for start, end in ends if end - start > 1]
        return self._some(spans)

    def _of_stream(self, num_tokens: int) -> list[tuple[list[int], list[int]]]:
        """The first and last tokens of each document; read again where more are asked."""
        if num_tokens > self._read[0] or not self._read[1]:
            fraction = self._config.validation_fraction
            trained = documents_of_split(self._source_documents(), "train", fraction)
            # One by one, so that no more than one document is held whole.
            whole = (encoded([each], self._tokenizer).ids[:-1] for each in islice(trained, _MOST))
            ends = [
                (ids[:num_tokens].tolist(), ids[-num_tokens:].tolist()) for ids in whole if len(ids)
            ]
            self._read = (num_tokens, self._some(ends))
        return self._read[1]

    def _some(self, found: list[T]) -> list[T]:
        if not found:
            raise DataError(
                f"component {self.name!r} has no token in its first {_MOST} training documents",
                allowed="a training document that a sample can start from",
                fix="set samples.max_tokens=0, or add documents",
            )
        return found

    def _source_documents(self) -> Iterator[Document]:
        """From the beginning of the source: where the run's own reader stands does not matter."""
        component = self._config.components[self.name]
        assert component.stream is not None
        documents = RetriedDocuments(
            component.required_source(self.name),
            component.format,
            name=self.name,
            max_retries=component.stream.max_retries,
            retry_delay_s=component.stream.retry_delay_s,
        )
        try:
            for located in documents:
                yield located.document
        finally:
            documents.close()


def _long_enough(found: Sequence[T], num_tokens: int, number: int, length: Callable[[T], int]) -> T:
    """The one with that number, counted around, or the next of so many tokens; else itself."""
    from_there = [found[(number + place) % len(found)] for place in range(len(found))]
    return next((each for each in from_there if length(each) >= num_tokens), from_there[0])
