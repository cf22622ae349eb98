"""Training documents as prompts, for a run that holds none out."""

from collections.abc import Iterator
from functools import cached_property
from itertools import islice

import numpy as np

from chomp.data.config import LmDataConfig
from chomp.data.documents import Document, documents_of_split
from chomp.data.open_components import opened_store
from chomp.data.store.encoding import encoded
from chomp.data.streams.retries import RetriedDocuments
from chomp.errors import DataError, message
from chomp.tokenize import Tokenizer

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

    def beginning(self, num_tokens: int, number: int = 0) -> list[int]:
        """The first tokens of document `number`, counted around, or of the next long enough.

        Where none is, of `number` itself: as many as it has, without its end.
        """
        count = len(self._texts)
        from_there = [self._texts[(number + place) % count] for place in range(count)]
        found = next((ids for ids in from_there if len(ids) >= num_tokens), from_there[0])
        return found[:num_tokens]

    @cached_property
    def _texts(self) -> list[list[int]]:
        """The ids of each document without its end; of those that have any."""
        is_stream = self._config.components[self.name].stream is not None
        whole = self._of_stream() if is_stream else self._of_store()
        texts = [ids[:-1].tolist() for ids in whole if len(ids) > 1]
        if not texts:
            raise DataError(
                message(
                    given=f"component {self.name!r}, whose first {_MOST} training documents have "
                    "no token",
                    allowed="a training document that begins a sample",
                    fix="set samples.max_tokens=0, or add documents",
                )
            )
        return texts

    def _of_store(self) -> Iterator[np.ndarray]:
        store = opened_store(self.name, self._config, "train", self._tokenizer)
        for number in range(min(len(store.documents), _MOST)):
            start, end = store.documents.span(number)
            yield store.read(np.asarray([start]), np.asarray([end - start]))

    def _of_stream(self) -> list[np.ndarray]:
        fraction = self._config.validation_fraction
        trained = documents_of_split(self._source_documents(), "train", fraction)
        batch = encoded(list(islice(trained, _MOST)), self._tokenizer)
        return np.split(batch.ids, np.cumsum(batch.lengths)[:-1])

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
