"""Documents to tokens on all cores, in the order they came.

What a store holds does not depend on how many processes made it: batches are cut by size alone and
come back in order.
"""

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from chomp.data.documents import LocatedDocument
from chomp.data.store.encoding import EncodedBatch, encoded
from chomp.tokenize import Tokenizer
from chomp.tokenize.worker import TokenizerProcesses

# A batch is some tenths of a second of work, so that handing it over costs nothing beside it.
_BATCH_DOCUMENTS = 1024
_BATCH_CHARACTERS = 1 << 20
# Starting processes takes about as long as tokenizing this much.
_CHARACTERS_ENCODED_HERE = 4 << 20
# Batches in flight per process: one being worked on, one waiting.
_BATCHES_PER_PROCESS = 2

Batch = list[LocatedDocument]


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
