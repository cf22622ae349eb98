"""A process that tokenizes: batches of texts on its input, ids on its output, until the input ends.

Started by `TokenizerProcesses`, one per core. It imports little, so it is ready in a fraction of a
second, and it ends by itself when the process that feeds it is killed.
"""

import contextlib
import json
import sys
from typing import BinaryIO

import numpy as np

from chomp.tokenize.files import load_tokenizer
from chomp.tokenize.processes import FAILURE, IDS, SIZE_BYTES
from chomp.tokenize.protocol import Tokenizer
from chomp.tokenize.unencodable import UnencodableText


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
