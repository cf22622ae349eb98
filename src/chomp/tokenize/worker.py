"""Tokenizing on all cores: one process per core, each with the same tokenizer.

Threads inside the `tokenizers` library share one Python, which has to turn every id into an object
before it is a number again. In processes of their own, that work runs side by side too.
This module is also what each process runs: batches of texts on its input, ids on its output, until
the input ends. It imports little, so it is ready in a fraction of a second.
"""

import contextlib
import json
import os
import queue
import subprocess
import sys
from array import array
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np

from chomp.errors import DataError
from chomp.tokenize.load import load_tokenizer
from chomp.tokenize.tokenizer import Tokenizer, UnencodableText

# Every message begins with its size in bytes; an answer goes on with its kind.
SIZE_BYTES = 8
IDS, FAILURE = b"i", b"f"


class TokenizerProcesses:
    """A tokenizer, saved in `folder`, whose work is done by `count` processes.

    A context: the processes end with it. Call `encode_batch` from as many threads as there are
    processes; each call keeps one of them busy.
    """

    def __init__(self, tokenizer: Tokenizer, folder: str, count: int) -> None:
        self.vocab_size = tokenizer.vocab_size
        self.eos_id = tokenizer.eos_id
        self.bos_id = tokenizer.bos_id
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._all = [
            subprocess.Popen(
                [sys.executable, "-m", "chomp.tokenize.worker", folder],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # One thread each: the processes are what runs side by side.
                env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
                # Ctrl-C is for the process that builds; these end when it closes their input.
                start_new_session=True,
            )
            for _ in range(count)
        ]
        for process in self._all:
            self._idle.put(process)

    def encode_batch(self, texts: Sequence[str]) -> list["array[int]"]:
        """Ids of each text, without an end-of-document id."""
        request = json.dumps(list(texts)).encode()
        process = self._idle.get()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(len(request).to_bytes(SIZE_BYTES, "little") + request)
            process.stdin.flush()
            header = process.stdout.read(SIZE_BYTES)
            answer = process.stdout.read(int.from_bytes(header, "little"))
        except BrokenPipeError:
            header, answer = b"", b""
        finally:
            self._idle.put(process)
        if len(header) < SIZE_BYTES or len(answer) < int.from_bytes(header, "little"):
            raise DataError(
                f"a tokenizer process exited with code {process.wait()} before it answered",
                allowed="tokenizer processes that run until all text is done",
                fix="check whether memory ran out; the same command continues where this one "
                "stopped",
            )
        if answer[:1] == FAILURE:
            raise UnencodableText(**json.loads(answer[1:]))
        lengths = np.frombuffer(answer, "<i8", len(texts), offset=1)
        ends = 1 + lengths.nbytes + 4 * np.cumsum(lengths)
        whole = memoryview(answer)
        return [
            array("I", whole[end - 4 * count : end].tobytes())
            for end, count in zip(ends.tolist(), lengths.tolist(), strict=True)
        ]

    def __enter__(self) -> "TokenizerProcesses":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._all:
            assert process.stdin is not None
            # The end of its input ends it. One that is gone takes no more of what is left to send.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for process in self._all:
            assert process.stdout is not None
            process.wait()
            process.stdout.close()


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def serve(tokenizer: Tokenizer, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer every request: the number of texts, the length of each in ids, and all the ids."""
    while header := requests.read(SIZE_BYTES):
        size = int.from_bytes(header, "little")
        request = requests.read(size)
        if len(header) < SIZE_BYTES or len(request) < size:
            return  # whoever asked was killed in the middle of it
        texts = json.loads(request)
        try:
            ids = tokenizer.encode_batch(texts)
            lengths = np.asarray([len(document) for document in ids], "<i8")
            flat = np.concatenate([np.empty(0, "<u4"), *(np.asarray(i, "<u4") for i in ids)])
            answer = IDS + lengths.tobytes() + flat.tobytes()
        except UnencodableText as error:
            answer = FAILURE + json.dumps(vars(error)).encode()
        answers.write(len(answer).to_bytes(SIZE_BYTES, "little") + answer)
        answers.flush()


if __name__ == "__main__":
    # Whoever asked may be gone when there is an answer. `sys.stdout` would then complain at exit.
    with (
        contextlib.suppress(BrokenPipeError),
        open(sys.stdout.fileno(), "wb", closefd=False) as answers,
    ):
        serve(load_tokenizer(sys.argv[1], is_tried=True), sys.stdin.buffer, answers)
